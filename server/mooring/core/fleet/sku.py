"""SKU: a kind of capacity with its price.

A SKU says what is offered: a shape, a GPU model, the regions and the numbers of GPUs that may be requested, and what a
GPU costs per hour, in minor units of its currency. Shape and model never change. A new price adds a line to its
history, and no line is ever rewritten, so that the price of every allocation stays on record. A withdrawn SKU stays
readable and takes no new allocations.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

SKUS_MAX: Final = 10_000
REGIONS_MAX: Final = 100
COUNTS_MAX: Final = 64
GPU_COUNT_MAX: Final = 1_024
PRICE_MAX: Final = 10**12
GPU_MODEL_MAX: Final = 100
CURRENCY_PATTERN: Final = "^[A-Z]{3}$"
_CURRENCY: Final = re.compile(CURRENCY_PATTERN)


class SkuStatus(StrEnum):
    """Whether new allocations may request it."""

    OFFERED = "offered"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Sku:
    """A kind of capacity, and what it costs now."""

    id: str
    slug: str
    display_name: str
    shape: str
    gpu_model: str
    regions: list[str]
    allowed_gpu_counts: list[int]
    price_minor_per_gpu_hour: int
    currency: str
    price_revision: int
    status: str
    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SkuPrice:
    """One line of a SKU's price history: what it costs from then on."""

    id: str
    sku_id: str
    price_revision: int
    price_minor_per_gpu_hour: int
    currency: str
    reason: str
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SkuPriceSpec:
    minor_per_gpu_hour: int
    currency: str


@dataclass(frozen=True, slots=True)
class SkuSpec:
    slug: str
    display_name: str
    shape: CapacityShape
    gpu_model: str
    regions: tuple[str, ...]
    allowed_gpu_counts: tuple[int, ...]
    price: SkuPriceSpec


@dataclass(frozen=True, slots=True)
class SkuChange:
    """The fields to change; None leaves a field as it is."""

    display_name: str | None = None
    regions: tuple[str, ...] | None = None
    allowed_gpu_counts: tuple[int, ...] | None = None
    price_minor_per_gpu_hour: int | None = None
    currency: str | None = None
    status: SkuStatus | None = None
    reason: str = ""


def create_sku(context: DecisionContext, spec: SkuSpec, sku_count: int) -> Decision[Sku]:
    if sku_count >= SKUS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"there are at most {SKUS_MAX} SKUs", {"limit": SKUS_MAX})
    price = _price(spec.price)
    sku = Sku(
        id=context.mint(Prefix.SKU),
        slug=validation.slug(spec.slug),
        display_name=validation.display_name(spec.display_name),
        shape=spec.shape.value,
        gpu_model=validation.display_name(spec.gpu_model, "gpu_model", GPU_MODEL_MAX),
        regions=_regions(spec.regions),
        allowed_gpu_counts=_counts(spec.allowed_gpu_counts),
        price_minor_per_gpu_hour=price.minor_per_gpu_hour,
        currency=price.currency,
        price_revision=1,
        status=SkuStatus.OFFERED.value,
        revision=0,
        created_at=context.now,
    )
    summary = _summary(sku)
    return Decision(
        result=sku,
        writes=(Insert("sku", asdict(sku)), _line(context, sku, "the first price")),
        events=(_sku_event(sku, {"change": "created", **summary}),),
        audits=(AuditRecord("sku.update", "sku", sku.id, None, after=summary),),
    )


def update_sku(context: DecisionContext, sku: Sku, change: SkuChange, revision_expected: int | None) -> Decision[Sku]:
    """Change what is offered, or what it costs from now on; equal values change nothing."""
    if revision_expected is not None and revision_expected != sku.revision:
        raise Refusal(
            Code.REVISION_CONFLICT,
            f"the SKU has revision {sku.revision}",
            {"revision": sku.revision},
        )
    changed = _changed(sku, change)
    if changed == sku:
        return Decision(result=sku)
    before, after = _summary(sku), _summary(changed)
    columns = {name: value for name, value in asdict(changed).items() if value != getattr(sku, name)}
    repriced = changed.price_revision != sku.price_revision
    reason = validation.reason(change.reason) if repriced else change.reason.strip()
    line = (_line(context, changed, reason),) if repriced else ()
    what = "repriced" if repriced else "updated" if changed.status == sku.status else changed.status
    return Decision(
        result=replace(changed, revision=sku.revision + 1),
        writes=(*line, Update("sku", sku.id, sku.revision, columns)),
        events=(_sku_event(sku, {"change": what, **after}),),
        audits=(AuditRecord("sku.update", "sku", sku.id, None, before=before, after=after, reason=reason or None),),
    )


def _changed(sku: Sku, change: SkuChange) -> Sku:
    amount, currency = change.price_minor_per_gpu_hour, change.currency
    price = _price(
        SkuPriceSpec(
            sku.price_minor_per_gpu_hour if amount is None else amount,
            sku.currency if currency is None else currency,
        )
    )
    repriced = (price.minor_per_gpu_hour, price.currency) != (sku.price_minor_per_gpu_hour, sku.currency)
    name, regions, counts = change.display_name, change.regions, change.allowed_gpu_counts
    return replace(
        sku,
        display_name=sku.display_name if name is None else validation.display_name(name),
        regions=sku.regions if regions is None else _regions(regions),
        allowed_gpu_counts=sku.allowed_gpu_counts if counts is None else _counts(counts),
        price_minor_per_gpu_hour=price.minor_per_gpu_hour,
        currency=price.currency,
        price_revision=sku.price_revision + (1 if repriced else 0),
        status=sku.status if change.status is None else change.status.value,
    )


def _line(context: DecisionContext, sku: Sku, reason: str) -> Insert:
    line = SkuPrice(
        id=context.mint(Prefix.SKU_PRICE),
        sku_id=sku.id,
        price_revision=sku.price_revision,
        price_minor_per_gpu_hour=sku.price_minor_per_gpu_hour,
        currency=sku.currency,
        reason=reason,
        created_by=context.actor.id,
        created_at=context.now,
    )
    return Insert("sku_price", asdict(line))


def _price(price: SkuPriceSpec) -> SkuPriceSpec:
    if not 0 <= price.minor_per_gpu_hour <= PRICE_MAX:
        raise validation.invalid("price_minor_per_gpu_hour", f"0 to {PRICE_MAX} minor units")
    if not _CURRENCY.fullmatch(price.currency):
        raise validation.invalid("currency", "three upper-case letters such as EUR")
    return price


def _regions(regions: Iterable[str]) -> list[str]:
    named = sorted({validation.slug(region, "regions") for region in regions})
    if not 1 <= len(named) <= REGIONS_MAX:
        raise validation.invalid("regions", f"1 to {REGIONS_MAX} regions")
    return named


def _counts(counts: Iterable[int]) -> list[int]:
    named = sorted(set(counts))
    if not 1 <= len(named) <= COUNTS_MAX or named[0] < 1 or named[-1] > GPU_COUNT_MAX:
        raise validation.invalid("allowed_gpu_counts", f"1 to {COUNTS_MAX} numbers from 1 to {GPU_COUNT_MAX}")
    return named


def _summary(sku: Sku) -> dict[str, object]:
    omitted = ("id", "revision", "created_at")
    return {name: value for name, value in asdict(sku).items() if name not in omitted}


def _sku_event(sku: Sku, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(EventType.SKU_CHANGED, "sku", sku.id, None, data=data)
