"""Request and response bodies for SKUs."""

from typing import Annotated

from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import DisplayName, Revision, Shown, Slug, Strict, Time, allowed
from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.sku import (
    COUNTS_MAX,
    CURRENCY_PATTERN,
    GPU_COUNT_MAX,
    GPU_MODEL_MAX,
    PRICE_MAX,
    REGIONS_MAX,
    Sku,
    SkuPrice,
    SkuStatus,
)
from mooring.core.kernel.permissions import Authority, Place, Scope

Regions = Annotated[list[Slug], Meta(min_length=1, max_length=REGIONS_MAX)]
Counts = Annotated[
    list[Annotated[int, Meta(ge=1, le=GPU_COUNT_MAX)]],
    Meta(min_length=1, max_length=COUNTS_MAX, description="How many GPUs one allocation may have."),
]
Amount = Annotated[int, Meta(ge=0, le=PRICE_MAX, description="The price of a GPU per hour, in minor units.")]
Currency = Annotated[str, Meta(pattern=CURRENCY_PATTERN, min_length=3, max_length=3)]
PriceReason = Annotated[str, Meta(max_length=1000, description="Why; required when the price changes.")]


class CreateSku(Strict):
    """A kind of capacity that is offered from now on."""

    slug: Slug
    display_name: DisplayName
    shape: CapacityShape
    gpu_model: Annotated[str, Meta(min_length=1, max_length=GPU_MODEL_MAX)]
    regions: Regions
    allowed_gpu_counts: Counts
    price_minor_per_gpu_hour: Amount
    currency: Currency


class UpdateSku(Strict):
    """The fields to change; the others stay. Shape and GPU model never change."""

    display_name: DisplayName | None = None
    regions: Regions | None = None
    allowed_gpu_counts: Counts | None = None
    price_minor_per_gpu_hour: Amount | None = None
    currency: Currency | None = None
    status: SkuStatus | None = None
    reason: PriceReason = ""
    revision: Revision | None = None


class SkuQuery(PageQuery):
    """Which SKUs are listed."""

    status: SkuStatus | None = None
    region: Slug | None = None
    shape: CapacityShape | None = None


class SkuView(Shown):
    """A kind of capacity, and what it costs now."""

    id: str
    slug: str
    display_name: str
    shape: CapacityShape
    gpu_model: str
    regions: list[str]
    allowed_gpu_counts: list[int]
    price_minor_per_gpu_hour: int
    currency: str
    price_revision: int
    status: SkuStatus
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class SkuPriceView(Shown):
    """A line of a SKU's price history; it is never changed."""

    id: str
    sku_id: str
    price_revision: int
    price_minor_per_gpu_hour: int
    currency: str
    reason: str
    created_at: Time


def sku_view(authority: Authority, sku: Sku) -> SkuView:
    return SkuView(
        id=sku.id,
        slug=sku.slug,
        display_name=sku.display_name,
        shape=CapacityShape(sku.shape),
        gpu_model=sku.gpu_model,
        regions=sku.regions,
        allowed_gpu_counts=sku.allowed_gpu_counts,
        price_minor_per_gpu_hour=sku.price_minor_per_gpu_hour,
        currency=sku.currency,
        price_revision=sku.price_revision,
        status=SkuStatus(sku.status),
        created_at=sku.created_at,
        revision=sku.revision,
        etag=str(sku.revision),
        allowed_actions=allowed(authority, Place(Scope.PLATFORM), ("sku.update",)),
    )


def price_view(price: SkuPrice) -> SkuPriceView:
    return SkuPriceView(
        id=price.id,
        sku_id=price.sku_id,
        price_revision=price.price_revision,
        price_minor_per_gpu_hour=price.price_minor_per_gpu_hour,
        currency=price.currency,
        reason=price.reason,
        created_at=price.created_at,
    )
