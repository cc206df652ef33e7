"""Queries and response bodies for cost. Amounts are integers of 10⁻⁶ minor unit of their currency."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.api.schemas.money.ledger import Micro
from mooring.commands.money.cost import Cost
from mooring.core.money.cost import FORECAST_RULE, CostGroup, CostLine, CostPeriod, CostSum
from mooring.core.pricing.rating import CLOCK_RULE

Since = Annotated[Time, Meta(description="The hours that begin from this time on; without it, of this month.")]
Until = Annotated[Time, Meta(description="The hours that begin before this time; without it, up to now.")]
Covered = Annotated[
    int, Meta(description="What usage would have cost that the allocation already pays for, in 10⁻⁶ minor unit.")
]


class CostBy(StrEnum):
    """What the cost of a tenant or a project is summed by."""

    PROJECT = CostGroup.PROJECT.value
    APP = CostGroup.APP.value
    INSTANCE = CostGroup.INSTANCE.value
    MEMBER = CostGroup.MEMBER.value
    ALLOCATION = CostGroup.ALLOCATION.value
    SKU = CostGroup.SKU.value
    UNIT = CostGroup.UNIT.value
    DAY = CostGroup.DAY.value
    HOUR = CostGroup.HOUR.value
    DAY_UNIT = CostGroup.DAY_UNIT.value
    HOUR_UNIT = CostGroup.HOUR_UNIT.value


class OverviewBy(StrEnum):
    """What the operator's breakdown is summed by."""

    TENANT = CostGroup.TENANT.value
    APP = CostGroup.APP.value
    SKU = CostGroup.SKU.value
    UNIT = CostGroup.UNIT.value


class CostQuery(PageQuery):
    """Which period, and summed by what."""

    since: Since | None = None
    until: Until | None = None
    group_by: CostBy = CostBy.PROJECT
    instance_id: Annotated[str, Meta(max_length=64, description="Only the cost of this instance.")] | None = None


class BillingOverviewQuery(PageQuery):
    """Which period, and summed by what."""

    since: Since | None = None
    until: Until | None = None
    group_by: OverviewBy = OverviewBy.TENANT


class CostLineView(Shown):
    """What one key costs in one currency; the key is null for usage that has none, such as tokens and a SKU."""

    key: str | None
    name: str | None
    currency: str | None
    charged_micro: Micro
    covered_micro: Covered
    unit: str | None
    quantity_micro: Annotated[int, Meta(description="In 10⁻⁶ unit; null if there are several units.")] | None


class CostSumView(Shown):
    """The cost of the period in one currency: `total_micro` is what is charged and what is estimated together."""

    currency: str
    total_micro: Micro
    charged_micro: Micro
    estimated_micro: Micro
    covered_micro: Covered


class CostEstimateView(Shown):
    """Which part of the period is not charged yet; what it costs up to now is an estimate."""

    label: str
    since: Time
    until: Time


class CostForecastView(Shown):
    """What this month costs in one currency at the present burn rate."""

    label: str
    currency: str
    until: Time
    micro_per_hour: Micro
    month_micro: Micro
    assumes: str


class CostView(Shown):
    """The cost of a tenant or a project; `items` are of the closed hours alone."""

    since: Time
    until: Time
    group_by: CostBy
    clock: str
    totals: list[CostSumView]
    estimated: CostEstimateView | None
    forecasts: list[CostForecastView]
    items: list[CostLineView]
    next_cursor: str | None


def line_view(line: CostLine) -> CostLineView:
    return CostLineView(
        key=line.key,
        name=line.name,
        currency=line.currency,
        charged_micro=line.charged_micro,
        covered_micro=line.covered_micro,
        unit=line.unit,
        quantity_micro=line.quantity_micro,
    )


def cost_view(
    period: CostPeriod, by: CostBy, cost: Cost, *, lines: list[CostLineView], next_cursor: str | None
) -> CostView:
    return CostView(
        since=period.since,
        until=period.until,
        group_by=by,
        clock=CLOCK_RULE,
        totals=_totals(cost),
        estimated=None
        if cost.open is None
        else CostEstimateView(label="estimated", since=cost.open.since, until=cost.open.until),
        forecasts=[
            CostForecastView(
                label="forecast",
                currency=each.currency,
                until=each.until,
                micro_per_hour=each.micro_per_hour,
                month_micro=each.month_micro,
                assumes=FORECAST_RULE,
            )
            for each in cost.forecasts
        ],
        items=lines,
        next_cursor=next_cursor,
    )


def _totals(cost: Cost) -> list[CostSumView]:
    none = CostSum("", 0, 0)
    charged = {each.currency: each for each in cost.charged}
    estimated = {each.currency: each for each in cost.estimated}
    return [
        CostSumView(
            currency=currency,
            total_micro=charged.get(currency, none).charged_micro + estimated.get(currency, none).charged_micro,
            charged_micro=charged.get(currency, none).charged_micro,
            estimated_micro=estimated.get(currency, none).charged_micro,
            covered_micro=charged.get(currency, none).covered_micro + estimated.get(currency, none).covered_micro,
        )
        for currency in sorted(charged.keys() | estimated.keys())
    ]
