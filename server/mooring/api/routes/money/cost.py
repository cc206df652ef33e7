"""Endpoints for cost: what a tenant or a project pays, and the operator's breakdown over all tenants."""

from mooring.api.page import Page, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.money.cost import (
    BillingOverviewQuery,
    CostLineView,
    CostQuery,
    CostView,
    cost_view,
    line_view,
)
from mooring.commands.money import cost as commands
from mooring.core.kernel.permissions import Scope
from mooring.core.money.cost import CostGroup, CostLine, period_of
from mooring.storage.money import cost as costs

HERE = (Scope.TENANT, Scope.PROJECT)


@route_in(HERE, "GET", "/cost", RouteSpec("cost", "get", "billing.read", answer=CostView))
async def get_cost(request: RequestContext, query: CostQuery) -> CostView:
    """Read the cost of a period: what is charged, an estimate of the open hour, and a forecast of the month.

    Allocations are charged from `active` until their release was requested. What they already pay for is `covered`: it
    costs nothing, and stands apart with what it would have cost. A period has at most 366 days.
    """
    services, acting = request.services, request.acting
    period = period_of(query.since, query.until, services.clock.now())
    wanted = costs.CostFilter(acting.tenant_id, request.place.project_id, query.instance_id)
    cost = await commands.read(services, acting, wanted, period)
    name = f"cost_{query.group_by}"
    window = page_window(query, name)
    rows: list[CostLine] = []
    if cost.closed is not None:
        by = CostGroup(query.group_by.value)
        rows = await costs.page(services.database, acting, wanted, cost.closed, by=by, window=window)
    lines = page(rows, query, name, line_view)
    return cost_view(period, query.group_by, cost, lines=lines.items, next_cursor=lines.next_cursor)


@route_in(
    (Scope.PLATFORM,),
    "GET",
    "/billing/overview",
    RouteSpec("billing_overview", "list", "billing.overview.read", answer=Page[CostLineView]),
)
async def list_billing_overview(request: RequestContext, query: BillingOverviewQuery) -> Page[CostLineView]:
    """Sum what was charged in a period over all tenants: by tenant, app, SKU or unit; no instance is named."""
    period = period_of(query.since, query.until, request.services.clock.now())
    name = f"billing_overview_{query.group_by}"
    rows = await costs.page(
        request.services.database,
        request.acting,
        costs.CostFilter(None, None),
        period,
        by=CostGroup(query.group_by.value),
        window=page_window(query, name),
    )
    return page(rows, query, name, line_view)
