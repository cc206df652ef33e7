"""What a tenant or a project pays: what is charged, what the open hours cost so far, and where the month leads.

Three numbers that are never mixed up. *Charged* is the sum of what was rated for closed hours. *Estimated* is what the
hours that are not closed yet cost up to now; the same function rates them that charges them later. The *forecast* says
what the month costs if what runs now goes on, and apps are used as in the last day. What the allocation already pays
for (`covered`) costs nothing, and stands beside with what it would have cost.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from mooring.core.kernel.validation import invalid
from mooring.core.money.charge import HOUR, RatedLine, hour_of, month_of
from mooring.core.money.interval import MeteredAllocation, pieces
from mooring.core.pricing.price import Price

PERIOD_MAX: Final = timedelta(days=366)
RECENT_HOURS: Final = 24
"""How many hours the use of apps is averaged over for a forecast."""
FORECAST_RULE: Final = "what runs now goes on, and apps are used as in the last 24 hours"


class CostGroup(StrEnum):
    """What cost is summed by."""

    TENANT = "tenant"
    PROJECT = "project"
    APP = "app"
    INSTANCE = "instance"
    MEMBER = "member"
    ALLOCATION = "allocation"
    SKU = "sku"
    UNIT = "unit"
    DAY = "day"
    HOUR = "hour"
    DAY_UNIT = "day_unit"  # by day, and in each day by unit
    HOUR_UNIT = "hour_unit"


@dataclass(frozen=True, slots=True)
class CostPeriod:
    """The hours that begin from `since` on and before `until`."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class CostLine:
    """What one project, app, day … costs in one currency; `key` is None for usage that has none."""

    id: str
    key: str | None
    name: str | None
    currency: str | None
    charged_micro: int
    covered_micro: int
    unit: str | None  # if all of it is of one unit
    quantity_micro: int | None


@dataclass(frozen=True, slots=True)
class CostSum:
    """What something costs in one currency."""

    currency: str
    charged_micro: int
    covered_micro: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the month costs in one currency at the present burn rate."""

    currency: str
    until: datetime
    micro_per_hour: int
    month_micro: int


def period_of(since: datetime | None, until: datetime | None, now: datetime) -> CostPeriod:
    """The period that a caller asks for: this month up to now, if nothing is said."""
    end = until or now
    begin = since or month_of(min(end, now))
    if not begin < end <= begin + PERIOD_MAX:
        raise invalid("until", f"a time after `since`, {PERIOD_MAX.days} days later at most")
    return CostPeriod(begin, end)


def next_month(at: datetime) -> datetime:
    return month_of(month_of(at) + timedelta(days=32))


def first_open_hour(last_closed: datetime | None, now: datetime) -> datetime:
    """The first hour that is not charged yet."""
    return hour_of(now) if last_closed is None else last_closed + HOUR


def closed_part(period: CostPeriod, first_open: datetime) -> CostPeriod | None:
    """The part of the period that is charged; None if nothing of it is."""
    found = CostPeriod(period.since, min(period.until, first_open))
    return found if found.since < found.until else None


def open_part(period: CostPeriod, first_open: datetime, now: datetime) -> CostPeriod | None:
    """The part of the period that is not charged yet; None if all of it is."""
    found = CostPeriod(max(first_open, period.since), min(period.until, now))
    return found if found.since < found.until else None


def sums_of(lines: Iterable[RatedLine]) -> list[CostSum]:
    """The sums of rated lines, by currency."""
    found: defaultdict[str, list[RatedLine]] = defaultdict(list)
    for line in lines:
        if line.currency is not None:
            found[line.currency].append(line)
    return [
        CostSum(
            currency, sum(each.micro for each in found[currency]), sum(each.shadow_micro for each in found[currency])
        )
        for currency in sorted(found)
    ]


def clock_micro_per_hour(
    allocations: Iterable[MeteredAllocation], prices: Mapping[str, Sequence[Price]], now: datetime
) -> dict[str, int]:
    """What the clocks that run now cost in the hour that begins now, by currency."""
    found: defaultdict[str, int] = defaultdict(int)
    for each in allocations:
        for piece in pieces(each, prices.get(each.price.item_key, ()), now, now + HOUR):
            found[piece.price.currency] += piece.micro
    return dict(found)


def forecast(
    now: datetime, month: Iterable[CostSum], clocks: Mapping[str, int], recent: Iterable[CostSum]
) -> list[Forecast]:
    """What the month costs: what it cost until now, and the burn rate until its end.

    `clocks` is what running allocations cost in an hour, `recent` what apps used in the last hours.
    """
    until = next_month(now)
    so_far = _charged(month)
    used = {currency: micro // RECENT_HOURS for currency, micro in _charged(recent).items()}
    left = until - now
    found = []
    for currency in sorted(so_far.keys() | clocks.keys() | used.keys()):
        rate = clocks.get(currency, 0) + used.get(currency, 0)
        rest = rate * (left // timedelta(seconds=1)) // 3600
        found.append(Forecast(currency, until, rate, so_far.get(currency, 0) + rest))
    return found


def _charged(sums: Iterable[CostSum]) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for each in sums:
        found[each.currency] += each.charged_micro
    return dict(found)
