"""Request and response bodies for prices."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Strict, TenantId, Time
from mooring.core.pricing.price import AMOUNT_MAX, SECONDS_MAX, TIERS_MAX, Item, Price, PriceSpec
from mooring.core.pricing.rating import HOUR_SECONDS, Tier

ItemKey = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=128,
        pattern="^[a-z0-9][a-z0-9_/-]*$",
        description="The id of a SKU, or an app and its unit, such as my-app/token_out.",
    ),
]
Minor = Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="What `per` units cost, in minor units of the currency.")]


class PriceTier(Strict):
    """Units beyond `above` in a month, after the included ones, cost `minor` for each `per` of them."""

    above: Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
    minor: Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]


class CreatePrice(Strict):
    """A price of the list, or of the contract of the named tenant."""

    item: Item
    item_key: ItemKey
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$", min_length=3, max_length=3)]
    minor: Minor
    reason: Annotated[str, Meta(min_length=10, max_length=1000, description="The reason, at least 10 characters.")]
    tenant_id: TenantId | None = None
    per: (
        Annotated[
            int, Meta(ge=1, le=AMOUNT_MAX, description="For how many units; a SKU has 3600 GPU-seconds, a unit 1.")
        ]
        | None
    ) = None
    granularity_seconds: Annotated[int, Meta(ge=1, le=SECONDS_MAX)] = 1
    minimum_seconds: Annotated[int, Meta(ge=0, le=SECONDS_MAX)] = 0
    included: Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="Units of a project's month that cost nothing.")] = 0
    tiers: Annotated[list[PriceTier], Meta(max_length=TIERS_MAX)] = msgspec.field(default_factory=list)
    valid_from: Time | None = None
    existing_from: (
        Annotated[
            Time, Meta(description="From then on it is charged for running allocations too; seven days ahead at least.")
        ]
        | None
    ) = None


class PriceQuery(PageQuery):
    """Which prices are listed."""

    item: Item | None = None
    item_key: ItemKey | None = None
    current: Annotated[bool, Meta(description="Only the prices that hold now.")] = False


class PriceRecordView(Shown):
    """A price of the list, or of a contract. It is never changed, and ends where the next one begins."""

    id: str
    book: str
    tenant_id: str | None
    item: Item
    item_key: str
    currency: str
    minor: int
    per: int
    granularity_seconds: int
    minimum_seconds: int
    included: int
    tiers: list[PriceTier]
    valid_from: Time
    existing_from: Time | None
    reason: str
    created_at: Time


def price_spec(body: CreatePrice) -> PriceSpec:
    return PriceSpec(
        tenant_id=body.tenant_id,
        item=body.item,
        item_key=body.item_key,
        currency=body.currency,
        minor=body.minor,
        per=body.per or (HOUR_SECONDS if body.item is Item.SKU else 1),
        granularity_seconds=body.granularity_seconds,
        minimum_seconds=body.minimum_seconds,
        included=body.included,
        tiers=tuple(Tier(each.above, each.minor) for each in body.tiers),
        valid_from=body.valid_from,
        existing_from=body.existing_from,
        reason=body.reason,
    )


def price_view(price: Price) -> PriceRecordView:
    return PriceRecordView(
        id=price.id,
        book="list" if price.tenant_id is None else "contract",
        tenant_id=price.tenant_id,
        item=Item(price.item),
        item_key=price.item_key,
        currency=price.currency,
        minor=price.minor,
        per=price.per,
        granularity_seconds=price.granularity_seconds,
        minimum_seconds=price.minimum_seconds,
        included=price.included,
        tiers=[PriceTier(above=each["above"], minor=each["minor"]) for each in price.tiers],
        valid_from=price.valid_from,
        existing_from=price.existing_from,
        reason=price.reason,
        created_at=price.created_at,
    )
