"""Endpoints for meters: how the units of apps are billed."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.pricing.meter import MeterView, PutMeter, meter_view
from mooring.commands.kernel.work import Answered
from mooring.commands.pricing import meter as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.pricing.meter import MeterSpec
from mooring.storage.pricing import meter as meters

HERE = (Scope.PLATFORM,)
PATH = "/meters"


@route_in(HERE, "GET", PATH, RouteSpec("meter", "list", "billing.meter.read", answer=Page[MeterView]))
async def list_meters(request: RequestContext, query: PageQuery) -> Page[MeterView]:
    """List the units of apps that the platform decided about."""
    rows = await meters.page(request.services.database, request.acting, page_window(query, "meter"))
    return page(rows, query, "meter", partial(meter_view, request.caller.authority))


@route_in(
    HERE,
    "PUT",
    PATH + "/{app_slug}/{unit}",
    RouteSpec("meter", "set", "billing.meter.update", answer=MeterView, errors=(Code.REVISION_CONFLICT,)),
)
async def set_meter(request: RequestContext, app_slug: str, unit: str, body: PutMeter) -> Answered:
    """Decide how a unit of an app is billed: `charged`, `covered` by the allocation, or `informative`.

    `charged` needs a list price that holds now. Usage in a unit whose meter is disabled is refused.
    """
    spec = MeterSpec(app_slug, unit, body.billing, body.status)
    return await commands.put(request.work(partial(meter_view, request.caller.authority)), spec)
