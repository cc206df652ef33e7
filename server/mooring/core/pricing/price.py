"""Prices: the list, and contracts of single tenants.

A price says what units of one item cost from a date on. Its book is the list (no tenant) or the contract of one tenant.
It ends where the next price of the same book and item begins, and is never changed: the database refuses that. A
contract wins over the list. Running allocations keep the price that their plan showed; a new price reaches them only
from `existing_from` on, a date that is announced at least `NOTICE_MIN` before.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.pricing.rating import HOUR_SECONDS, ClockTerms, Rate, Tier

NOTICE_MIN: Final = timedelta(days=7)
AMOUNT_MAX: Final = 10**12
SECONDS_MAX: Final = 86_400
TIERS_MAX: Final = 10
_CURRENCY: Final = re.compile("[A-Z]{3}")
_UNIT_KEY: Final = re.compile("[a-z][a-z0-9-]{1,38}[a-z0-9]/[a-z][a-z0-9_]{0,63}")


class Item(StrEnum):
    """What a price is for."""

    SKU = "sku"  # item_key: the id of the SKU; its unit is the GPU-second
    UNIT = "unit"  # item_key: app/unit


@dataclass(frozen=True, slots=True)
class Price:
    id: str
    tenant_id: str | None  # None: the list; otherwise a contract
    item: str
    item_key: str
    currency: str
    minor: int  # for `per` units, in minor units of the currency
    per: int
    granularity_seconds: int
    minimum_seconds: int
    included: int
    tiers: list[dict[str, Any]]
    valid_from: datetime
    existing_from: datetime | None  # from then on it is charged for running allocations too
    reason: str
    created_by: str
    created_at: datetime

    @property
    def rate(self) -> Rate:
        return Rate(
            self.minor, self.per, self.included, tuple(Tier(each["above"], each["minor"]) for each in self.tiers)
        )

    @property
    def terms(self) -> ClockTerms:
        return ClockTerms(self.granularity_seconds, self.minimum_seconds)


@dataclass(frozen=True, slots=True)
class PriceSpec:
    """A price as an admin sets it; `item_key` is the id of a SKU, or `app/unit`."""

    tenant_id: str | None
    item: Item
    item_key: str
    currency: str
    minor: int
    per: int = HOUR_SECONDS
    granularity_seconds: int = 1
    minimum_seconds: int = 0
    included: int = 0
    tiers: tuple[Tier, ...] = ()
    valid_from: datetime | None = None  # None: from now on
    existing_from: datetime | None = None
    reason: str = ""


def create_price(context: DecisionContext, spec: PriceSpec) -> Decision[Price]:
    """Add a price to the list, or to the contract of a tenant."""
    _check(context, spec)
    price = Price(
        id=context.mint(Prefix.PRICE),
        tenant_id=spec.tenant_id,
        item=spec.item.value,
        item_key=spec.item_key,
        currency=spec.currency,
        minor=spec.minor,
        per=spec.per,
        granularity_seconds=spec.granularity_seconds,
        minimum_seconds=spec.minimum_seconds,
        included=spec.included,
        tiers=[asdict(each) for each in spec.tiers],
        valid_from=spec.valid_from or context.now,
        existing_from=spec.existing_from,
        reason=validation.reason(spec.reason),
        created_by=context.actor.id,
        created_at=context.now,
    )
    row = asdict(price)
    shown = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
        if name not in ("id", "created_at", "created_by")
    }
    return Decision(
        price,
        (Insert("price", row),),
        (EventRecord(EventType.PRICE_SET, "price", price.id, price.tenant_id, data=shown),),
        (AuditRecord("billing.price.update", "price", price.id, price.tenant_id, after=shown, reason=price.reason),),
    )


def _check(context: DecisionContext, spec: PriceSpec) -> None:
    require_currency(spec.currency)
    if not (0 <= spec.minor <= AMOUNT_MAX and 1 <= spec.per <= AMOUNT_MAX and 0 <= spec.included <= AMOUNT_MAX):
        raise validation.invalid("minor", f"amounts and counts up to {AMOUNT_MAX}")
    if not (1 <= spec.granularity_seconds <= SECONDS_MAX and 0 <= spec.minimum_seconds <= SECONDS_MAX):
        raise validation.invalid("granularity_seconds", f"at most {SECONDS_MAX} seconds")
    above = [0, *(each.above for each in spec.tiers)]
    if len(spec.tiers) > TIERS_MAX or above != sorted(set(above)) or above[-1] > AMOUNT_MAX:
        raise validation.invalid("tiers", f"at most {TIERS_MAX}, each above the one before")
    if any(not 0 <= each.minor <= AMOUNT_MAX for each in spec.tiers):
        raise validation.invalid("tiers", f"amounts up to {AMOUNT_MAX}")
    if spec.item is Item.SKU and (spec.per != HOUR_SECONDS or spec.included or spec.tiers):
        raise validation.invalid("per", "the price of a SKU is for one GPU-hour, without included units or tiers")
    if spec.item is Item.SKU and spec.tenant_id is None and spec.existing_from is None:
        raise validation.invalid("existing_from", "a date: new allocations get the list price of the SKU itself")
    if spec.item is Item.UNIT and not _UNIT_KEY.fullmatch(spec.item_key):
        raise validation.invalid("item_key", "an app and its unit, such as my-app/token_out")
    if spec.valid_from is not None and spec.valid_from < context.now:
        raise validation.invalid("valid_from", "a time that is not in the past")
    if spec.existing_from is None:
        return
    if spec.existing_from < max(spec.valid_from or context.now, context.now + NOTICE_MIN):
        raise validation.invalid(
            "existing_from", f"not before `valid_from`, and {NOTICE_MIN.days} days from now at least"
        )


def require_currency(currency: str) -> None:
    if not _CURRENCY.fullmatch(currency):
        raise validation.invalid("currency", "three upper-case letters such as EUR")


def price_at(prices: Iterable[Price], tenant_id: str, at: datetime) -> Price | None:
    """The price of one item that holds for a tenant at a time: its contract's, otherwise the list's."""
    begun = [each for each in prices if each.valid_from <= at and each.tenant_id in (None, tenant_id)]
    return max(begun, key=lambda each: (each.tenant_id is not None, each.valid_from, each.id), default=None)


def announced(prices: Iterable[Price], first: Price, tenant_id: str, start: datetime) -> list[Price]:
    """The prices that a running allocation gets after its first one, in the order of their dates.

    An allocation with a contract's price leaves it only for another one of the contract, and no price changes the
    currency.
    """
    follows: list[Price] = []
    current = first
    dated = [(each.existing_from, each) for each in prices if each.existing_from is not None]
    for since, each in sorted(dated, key=lambda pair: (pair[0], pair[1].valid_from, pair[1].id)):
        of_book = each.tenant_id == tenant_id or (each.tenant_id is None and current.tenant_id is None)
        if since > start and of_book and each.currency == current.currency and each.id != current.id:
            follows.append(each)
            current = each
    return follows
