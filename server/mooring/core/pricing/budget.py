"""Budgets: what a tenant or a project may spend in a month, and what happens at each threshold.

A threshold is a share of the amount with one action: `notify`, `block` new launches, or `stop` what runs (which blocks
too). It fires once in a month; the row of the crossing has a primary key, so no second one can be written. What was
spent has two parts: `measured` is booked in the ledger, `estimated` is what clocks show since the last booked hour.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final

from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.pricing.price import AMOUNT_MAX, require_currency
from mooring.core.pricing.rating import MICRO

THRESHOLDS_MAX: Final = 10
PERCENT_MAX: Final = 1_000


class ThresholdAction(StrEnum):
    NOTIFY = "notify"
    BLOCK = "block"  # new launches and allocations are refused
    STOP = "stop"  # also: what runs is stopped and released


BLOCKING: Final = frozenset({ThresholdAction.BLOCK, ThresholdAction.STOP})


class Basis(StrEnum):
    """What a figure rests on."""

    MEASURED = "measured"  # booked in the ledger
    ESTIMATED = "estimated"  # also by clocks that are not booked yet


@dataclass(frozen=True, slots=True)
class Threshold:
    percent: int
    action: ThresholdAction


@dataclass(frozen=True, slots=True)
class Budget:
    id: str
    tenant_id: str
    project_id: str | None  # None: of the whole tenant
    currency: str
    minor_per_month: int
    thresholds: list[dict[str, Any]]
    revision: int
    created_at: datetime
    updated_at: datetime

    @property
    def steps(self) -> tuple[Threshold, ...]:
        return tuple(Threshold(each["percent"], ThresholdAction(each["action"])) for each in self.thresholds)

    @property
    def blocks_at(self) -> int | None:
        """The amount from which on launches are refused, in minor units; None if none of its thresholds blocks."""
        found = [each.percent for each in self.steps if each.action in BLOCKING]
        return self.minor_per_month * min(found) // 100 if found else None


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    currency: str
    minor_per_month: int
    thresholds: Sequence[Threshold]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent in a month, in micro."""

    measured_micro: int = 0
    estimated_micro: int = 0

    @property
    def total_micro(self) -> int:
        return self.measured_micro + self.estimated_micro


def set_budget(
    context: DecisionContext,
    before: Budget | None,
    above: Budget | None,
    spec: BudgetSpec,
    *,
    tenant_id: str,
    project_id: str | None,
    revision_seen: int | None,
) -> Decision[Budget]:
    """Set the budget of a place; `above` is the tenant's, which a project's must not exceed."""
    _check(spec)
    require_revision(0 if before is None else before.revision, revision_seen)
    if above is not None and above.currency == spec.currency and spec.minor_per_month > above.minor_per_month:
        raise validation.invalid("minor_per_month", f"at most the tenant's budget of {above.minor_per_month}")
    values: dict[str, Any] = {
        "currency": spec.currency,
        "minor_per_month": spec.minor_per_month,
        "thresholds": [
            {"percent": each.percent, "action": each.action.value}
            for each in sorted(spec.thresholds, key=lambda each: each.percent)
        ],
    }
    if before is None:
        budget = Budget(
            id=context.mint(Prefix.BUDGET),
            tenant_id=tenant_id,
            project_id=project_id,
            **values,
            revision=0,
            created_at=context.now,
            updated_at=context.now,
        )
        write: Insert | Update = Insert("budget", asdict(budget))
    else:
        budget = replace(before, revision=before.revision + 1, updated_at=context.now, **values)
        write = Update("budget", before.id, before.revision, values | {"updated_at": context.now})
    place = (budget.tenant_id, budget.project_id)
    audit = AuditRecord(
        "billing.budget.update",
        "budget",
        budget.id,
        *place,
        before=None if before is None else {name: getattr(before, name) for name in values},
        after=values,
        reason=validation.reason(spec.reason),
    )
    event = EventRecord(EventType.BUDGET_CHANGED, "budget", budget.id, *place, data=values)
    return Decision(budget, (write,), (event,), (audit,))


def _check(spec: BudgetSpec) -> None:
    require_currency(spec.currency)
    if not 1 <= spec.minor_per_month <= AMOUNT_MAX:
        raise validation.invalid("minor_per_month", f"1 to {AMOUNT_MAX}")
    percents = [each.percent for each in spec.thresholds]
    if not 1 <= len(percents) <= THRESHOLDS_MAX or len(set(percents)) != len(percents):
        raise validation.invalid("thresholds", f"1 to {THRESHOLDS_MAX}, each with its own percentage")
    if any(not 1 <= each <= PERCENT_MAX for each in percents):
        raise validation.invalid("thresholds", f"percentages from 1 to {PERCENT_MAX}")


@dataclass(frozen=True, slots=True)
class Crossing:
    """A threshold that was reached in a month."""

    budget_id: str
    period: date
    percent: int
    tenant_id: str
    project_id: str | None
    action: str
    basis: str
    minor_per_month: int
    spent_minor: int
    created_at: datetime


def due_crossings(budget: Budget, spent: Spent, fired: Iterable[int]) -> list[Threshold]:
    """The thresholds that are reached and did not fire in this month."""
    known = set(fired)
    return [
        each for each in budget.steps if each.percent not in known and _reached(budget, each.percent, spent.total_micro)
    ]


def cross(context: DecisionContext, budget: Budget, threshold: Threshold, spent: Spent) -> Decision[Crossing]:
    """Record that the threshold is reached; the database accepts it once a month."""
    if not _reached(budget, threshold.percent, spent.total_micro):
        raise Refusal(Code.CONFLICT, "the threshold is not reached", {"percent": threshold.percent})
    measured = _reached(budget, threshold.percent, spent.measured_micro)
    crossing = Crossing(
        budget.id,
        context.now.date().replace(day=1),
        threshold.percent,
        budget.tenant_id,
        budget.project_id,
        threshold.action.value,
        (Basis.MEASURED if measured else Basis.ESTIMATED).value,
        budget.minor_per_month,
        spent.total_micro // MICRO,
        context.now,
    )
    shown = {
        "period": crossing.period.isoformat(),
        "percent": crossing.percent,
        "action": crossing.action,
        "basis": crossing.basis,
        "currency": budget.currency,
        "minor_per_month": crossing.minor_per_month,
        "measured_minor": spent.measured_micro // MICRO,
        "estimated_minor": spent.estimated_micro // MICRO,
    }
    place = (budget.tenant_id, budget.project_id)
    return Decision(
        crossing,
        (Insert("budget_crossing", asdict(crossing)),),
        (EventRecord(EventType.BUDGET_CROSSED, "budget", budget.id, *place, data=shown),),
        (AuditRecord("billing.budget.cross", "budget", budget.id, *place, after=shown),),
    )


def is_stopped(budget: Budget, spent: Spent) -> bool:
    """Whether a threshold that stops is reached now."""
    return any(
        each.action is ThresholdAction.STOP and _reached(budget, each.percent, spent.total_micro)
        for each in budget.steps
    )


def _reached(budget: Budget, percent: int, micro: int) -> bool:
    return micro // MICRO * 100 >= budget.minor_per_month * percent
