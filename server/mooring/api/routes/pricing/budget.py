"""Endpoints for budgets of tenants and projects."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.pricing.budget import (
    BudgetStandingView,
    BudgetView,
    PutBudget,
    budget_spec,
    budget_view,
    standing_view,
)
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.pricing import budget as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.pricing.budget import Budget

PLACES = (Scope.TENANT, Scope.PROJECT)


@route_in(
    PLACES, "GET", "/budgets", RouteSpec("budget", "list", "billing.budget.read", answer=Page[BudgetStandingView])
)
async def list_budgets(request: RequestContext, query: PageQuery) -> Page[BudgetStandingView]:
    """List the budgets here, with what was spent in this month: booked, estimated and reserved."""
    window = page_window(query, "budget")
    tenant_id = str(request.acting.tenant_id)
    rows = await commands.standing(request.services, request.acting, tenant_id, request.place.project_id, window)
    return page(
        rows,
        query,
        "budget",
        lambda row: standing_view(request.caller.authority, request.place, row),
    )


@route_in(
    PLACES,
    "PUT",
    "/budgets",
    RouteSpec(
        "budget",
        "update",
        "billing.budget.update",
        answer=BudgetView,
        errors=(Code.REVISION_CONFLICT, Code.NOT_FOUND),
    ),
)
async def update_budget(request: RequestContext, body: PutBudget) -> Answered:
    """Set the budget of this tenant or project.

    Each threshold fires once a month: `notify` sends an event, `block` also refuses new launches, `stop` also stops
    the instances and releases the allocations. A project's budget is at most its tenant's.
    """
    work: Work[Budget] = request.work(lambda row: budget_view(request.caller.authority, request.place, row))
    tenant_id = str(request.acting.tenant_id)
    return await commands.put(work, tenant_id, request.place.project_id, budget_spec(body), body.revision)
