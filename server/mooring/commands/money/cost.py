"""Reads the cost of a tenant or a project: what is charged, and what the open hours cost so far."""

from dataclasses import dataclass, replace

from mooring.commands.services import Services
from mooring.core.money.charge import HOUR, month_of, target_lines
from mooring.core.money.cost import (
    RECENT_HOURS,
    CostPeriod,
    CostSum,
    Forecast,
    clock_micro_per_hour,
    closed_part,
    first_open_hour,
    forecast,
    open_part,
    sums_of,
)
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.money import charge as charges
from mooring.storage.money import cost as costs
from mooring.storage.money.charge import HourFacts
from mooring.storage.money.cost import CostFilter, InstanceFacts


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a period, apart from its lines."""

    closed: CostPeriod | None  # the part of the period that is charged
    charged: list[CostSum]
    open: CostPeriod | None  # the part that is estimated
    estimated: list[CostSum]
    forecasts: list[Forecast]


async def read(services: Services, acting: Acting, wanted: CostFilter, period: CostPeriod) -> Cost:
    """Sum what is charged up to the last closed hour, and rate what follows it.

    An hour counts on one side only: what a worker books for an open hour meanwhile is left to the estimate.
    """
    now = services.clock.now()
    first_open = first_open_hour(await charges.last_closed(services.database), now)
    closed, not_closed = closed_part(period, first_open), open_part(period, first_open, now)
    month = CostPeriod(month_of(now), max(first_open, month_of(now)))

    async def load(reader: RowReader) -> Cost:
        facts = _of_project(await charges.facts(reader, first_open, now, acting=acting), wanted.project_id)
        if wanted.instance_id is not None:
            facts = _of_instance(facts, await costs.facts_of_instance(reader, acting, wanted.instance_id, first_open))
        recent = CostPeriod(first_open - RECENT_HOURS * HOUR, first_open)
        return Cost(
            closed,
            [] if closed is None else await costs.sums(reader, acting, wanted, closed),
            not_closed,
            [] if not_closed is None else _estimated(facts, not_closed),
            forecast(
                now,
                [*await costs.sums(reader, acting, wanted, month), *_estimated(facts, CostPeriod(month.until, now))],
                clock_micro_per_hour(facts.allocations, facts.prices, now),
                await costs.sums(reader, acting, wanted, recent, only_usage=True),
            ),
        )

    return await services.database.in_snapshot(acting, load)


def _estimated(facts: HourFacts, period: CostPeriod) -> list[CostSum]:
    """What a part of the open hours costs, by the function that charges them later."""
    usage = [each for each in facts.usage if period.since <= each.created_at < period.until]
    return sums_of(target_lines(period.since, facts.allocations, facts.prices, usage, facts.before, until=period.until))


def _of_project(facts: HourFacts, project_id: str | None) -> HourFacts:
    """The facts of one project alone, or of all."""
    if project_id is None:
        return facts
    return replace(
        facts,
        allocations=[each for each in facts.allocations if each.project_id == project_id],
        usage=[each for each in facts.usage if each.project_id == project_id],
    )


def _of_instance(facts: HourFacts, own: InstanceFacts) -> HourFacts:
    """The facts of one instance alone."""
    return replace(
        facts,
        allocations=[each for each in facts.allocations if each.id in own.allocations],
        usage=[each for each in facts.usage if each.id in own.usage],
    )
