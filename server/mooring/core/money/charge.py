"""Charging an hour: what each project owes for it, by what is on record, and what must still be booked.

Charging is level-triggered. `target_lines` says what an hour costs by the lifecycle log and the stored usage;
`due_lines` compares that with what is booked; the difference is booked, as a charge the first time and as a correction
that names the charge later. Repeating it books nothing more, and what came late is never dropped.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from enum import StrEnum
from typing import Final

from mooring.core.money.interval import MeteredAllocation, pieces
from mooring.core.pricing.meter import Billing
from mooring.core.pricing.price import Price
from mooring.core.pricing.rating import MICRO, amount, part

HOUR: Final = timedelta(hours=1)
GPU_SECOND: Final = "gpu_second"


class Source(StrEnum):
    """Where a rated line comes from."""

    ALLOCATION = "allocation"
    USAGE = "usage"
    CORRECTION = "correction"  # a person booked it; the log does not explain it, the transaction's reason does


class Account(StrEnum):
    """The accounts of the ledger; each project has its own in each currency."""

    RECEIVABLE = "receivable"  # what the project owes
    REVENUE = "revenue"
    CASH = "cash"  # what was paid; of the tenant, as the two below
    CREDITS_GIVEN = "credits_given"
    PREPAID = "prepaid"  # what tenants paid and were credited


class TransactionKind(StrEnum):
    CHARGE = "charge"
    CORRECTION = "correction"
    PAYMENT = "payment"
    CREDIT = "credit"


@dataclass(frozen=True, slots=True)
class MeteredUsage:
    """What charging needs to know about a usage record."""

    id: str
    tenant_id: str
    project_id: str
    unit: str
    billing: str
    price: Price | None
    quantity: Decimal
    started_at: datetime
    ended_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Counter:
    """What counts its units together, in one month, for tiers and included units."""

    project_id: str
    price_id: str


@dataclass(frozen=True, slots=True)
class RatedLine:
    """What one allocation or one usage record costs in one hour at one price."""

    tenant_id: str
    project_id: str
    source: str
    source_id: str
    price_id: str | None
    currency: str | None
    unit: str
    billing: str
    started_at: datetime
    ended_at: datetime
    quantity_micro: int
    micro: int
    shadow_micro: int = 0  # what covered usage would have cost

    @property
    def key(self) -> tuple[str, str, str]:
        return self.source, self.source_id, self.price_id or ""


@dataclass(frozen=True, slots=True)
class PostingKey:
    """There is one charge for each of these."""

    tenant_id: str
    project_id: str
    price_id: str
    currency: str


@dataclass(frozen=True, slots=True)
class Posting:
    """One transaction of the ledger: the project owes `micro` more, and the platform earned it."""

    key: PostingKey
    lines: tuple[RatedLine, ...]

    @property
    def micro(self) -> int:
        return sum(line.micro for line in self.lines)

    @property
    def entries(self) -> tuple[tuple[Account, int], ...]:
        return (Account.RECEIVABLE, self.micro), (Account.REVENUE, -self.micro)


def month_of(at: datetime) -> datetime:
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def quantity_micro(quantity: Decimal) -> int:
    """A reported quantity as an integer of 10⁻⁶ unit, rounded down once for each record."""
    return int((quantity * MICRO).to_integral_value(ROUND_FLOOR))


def target_lines(
    hour: datetime,
    allocations: Iterable[MeteredAllocation],
    prices: Mapping[str, Sequence[Price]],
    usage: Iterable[MeteredUsage],
    before: Mapping[Counter, int],
    *,
    until: datetime | None = None,
) -> list[RatedLine]:
    """What the hour costs, or the time from it to `until`.

    `prices` are those of each SKU, `usage` is what was reported in that time.

    An allocation's clock is charged in the hour in which it ran, usage in the hour in which it was reported. Tiers and
    included units count from the beginning of the month; `before` is what was counted until the hour began.
    """
    return [*_of_allocations(hour, until or hour + HOUR, allocations, prices), *_of_usage(usage, before)]


def _of_allocations(
    since: datetime,
    until: datetime,
    allocations: Iterable[MeteredAllocation],
    prices: Mapping[str, Sequence[Price]],
) -> list[RatedLine]:
    return [
        RatedLine(
            each.tenant_id,
            each.project_id,
            Source.ALLOCATION.value,
            each.id,
            piece.price.id,
            piece.price.currency,
            GPU_SECOND,
            Billing.CHARGED.value,
            piece.started_at,
            piece.ended_at,
            piece.gpu_seconds * MICRO,
            piece.micro,
        )
        for each in allocations
        for piece in pieces(each, prices.get(each.price.item_key, ()), since, until)
    ]


def _of_usage(usage: Iterable[MeteredUsage], before: Mapping[Counter, int]) -> list[RatedLine]:
    counts = dict(before)
    found = []
    for each in sorted(usage, key=lambda record: (record.created_at, record.id)):
        if each.billing == Billing.INFORMATIVE:
            continue
        counted, price = quantity_micro(each.quantity), each.price
        line = RatedLine(
            each.tenant_id,
            each.project_id,
            Source.USAGE.value,
            each.id,
            None if price is None else price.id,
            None if price is None else price.currency,
            each.unit,
            each.billing,
            each.started_at,
            each.ended_at,
            counted,
            0,
        )
        if each.billing == Billing.CHARGED and price is not None:
            counter = Counter(each.project_id, price.id)
            begun = counts.get(counter, 0)
            counts[counter] = begun + counted
            line = replace(line, micro=part(price.rate, begun, begun + counted))
        elif price is not None:
            line = replace(line, shadow_micro=amount(price.rate, counted))
        found.append(line)
    return found


def due_lines(target: Iterable[RatedLine], booked: Iterable[RatedLine]) -> list[RatedLine]:
    """What must be booked so that the booked lines add up to the target; empty when they do."""
    before: defaultdict[tuple[str, str, str], list[RatedLine]] = defaultdict(list)
    for line in booked:
        before[line.key].append(line)
    due = []
    for line in target:
        known = before.pop(line.key, [])
        rest = _less(line, known)
        if not known or rest.quantity_micro or rest.micro or rest.shadow_micro:
            due.append(rest)
    for known in before.values():  # booked, but not due any more
        rest = _less(replace(known[0], quantity_micro=0, micro=0, shadow_micro=0), known)
        if rest.quantity_micro or rest.micro or rest.shadow_micro:
            due.append(rest)
    return due


def _less(line: RatedLine, booked: Sequence[RatedLine]) -> RatedLine:
    return replace(
        line,
        quantity_micro=line.quantity_micro - sum(each.quantity_micro for each in booked),
        micro=line.micro - sum(each.micro for each in booked),
        shadow_micro=line.shadow_micro - sum(each.shadow_micro for each in booked),
    )


def postings_of(lines: Iterable[RatedLine]) -> list[Posting]:
    """The transactions of charged lines: one for each project and price. Covered lines cost nothing and have none."""
    grouped: defaultdict[PostingKey, list[RatedLine]] = defaultdict(list)
    for line in lines:
        if line.billing == Billing.CHARGED and line.price_id is not None and line.currency is not None:
            grouped[PostingKey(line.tenant_id, line.project_id, line.price_id, line.currency)].append(line)
    return [
        Posting(key, tuple(grouped[key])) for key in sorted(grouped, key=lambda each: (each.project_id, each.price_id))
    ]
