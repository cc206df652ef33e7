"""Request and response bodies for budgets."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.schemas.catalog.app import Reason
from mooring.api.schemas.kernel.fields import Revision, Shown, Strict, Time, allowed
from mooring.api.schemas.pricing.quota import Currency
from mooring.commands.pricing.budget import BudgetStanding
from mooring.core.kernel.permissions import Authority, Place
from mooring.core.pricing.budget import (
    PERCENT_MAX,
    THRESHOLDS_MAX,
    Budget,
    BudgetSpec,
    Threshold,
    ThresholdAction,
)
from mooring.core.pricing.price import AMOUNT_MAX
from mooring.core.pricing.spending import up

Minor = Annotated[int, Meta(ge=1, le=AMOUNT_MAX, description="In minor units of the currency, such as cents.")]


class ThresholdBody(Strict):
    """A share of the amount, and what happens when it is spent."""

    percent: Annotated[int, Meta(ge=1, le=PERCENT_MAX)]
    action: ThresholdAction


class PutBudget(Strict):
    """A monthly budget with its thresholds."""

    currency: Currency
    minor_per_month: Minor
    thresholds: Annotated[list[ThresholdBody], Meta(min_length=1, max_length=THRESHOLDS_MAX)]
    reason: Reason
    revision: Revision | None = None


class ThresholdView(Shown):
    percent: int
    action: ThresholdAction


class BudgetView(Shown):
    """A monthly budget."""

    id: str
    tenant_id: str
    project_id: str | None
    currency: str
    minor_per_month: int
    thresholds: list[ThresholdView]
    updated_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class BudgetStandingView(BudgetView):
    """A monthly budget, and what was spent in the current month; amounts in minor units, rounded up."""

    measured_minor: Annotated[int, Meta(description="What is booked in the ledger.")]
    estimated_minor: Annotated[int, Meta(description="What running clocks show since the last booked hour.")]
    held_minor: Annotated[int, Meta(description="What launches reserved and clocks have not used yet.")]
    left_minor: int
    crossed: Annotated[list[int], Meta(description="The percentages that fired in this month.")]


def budget_spec(body: PutBudget) -> BudgetSpec:
    thresholds = [Threshold(each.percent, each.action) for each in body.thresholds]
    return BudgetSpec(body.currency, body.minor_per_month, thresholds, body.reason)


def budget_view(authority: Authority, place: Place, budget: Budget) -> BudgetView:
    return BudgetView(
        id=budget.id,
        tenant_id=budget.tenant_id,
        project_id=budget.project_id,
        currency=budget.currency,
        minor_per_month=budget.minor_per_month,
        thresholds=[ThresholdView(percent=each.percent, action=each.action) for each in budget.steps],
        updated_at=budget.updated_at,
        revision=budget.revision,
        etag=str(budget.revision),
        allowed_actions=allowed(authority, place, ("billing.budget.update",)),
    )


def standing_view(authority: Authority, place: Place, standing: BudgetStanding) -> BudgetStandingView:
    budget, spent, held = standing.budget, standing.spent, standing.held_micro
    return BudgetStandingView(
        **msgspec.structs.asdict(budget_view(authority, place, budget)),
        measured_minor=up(spent.measured_micro),
        estimated_minor=up(spent.estimated_micro),
        held_minor=up(held),
        left_minor=max(0, budget.minor_per_month - up(spent.total_micro + held)),
        crossed=list(standing.fired),
    )
