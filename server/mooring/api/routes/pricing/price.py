"""Endpoints for prices: the platform adds them, and tenants read the list and their own contract."""

from mooring.api.page import Page, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.pricing.price import CreatePrice, PriceQuery, PriceRecordView, price_spec, price_view
from mooring.commands.kernel.work import Answered
from mooring.commands.pricing import price as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.pricing import price as prices

HERE = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)
PATH = "/prices"


@route_in(HERE, "GET", PATH, RouteSpec("price", "list", "billing.price.read", answer=Page[PriceRecordView]))
async def list_prices(request: RequestContext, query: PriceQuery) -> Page[PriceRecordView]:
    """List prices: those of the list and of one's own contract; the platform sees all contracts.

    With `current`, only those that hold now: a contract wins over the list.
    """
    at = request.services.clock.now() if query.current else None
    wanted = prices.PriceFilter(query.item, query.item_key, request.acting.tenant_id, at)
    rows = await prices.page(request.services.database, request.acting, wanted, page_window(query, "price"))
    return page(rows, query, "price", price_view)


@route_in(
    (Scope.PLATFORM,),
    "POST",
    PATH,
    RouteSpec("price", "create", "billing.price.update", 201, PriceRecordView, errors=(Code.NAME_TAKEN,)),
)
async def create_price(request: RequestContext, body: CreatePrice) -> Answered:
    """Add a price to the list, or to the contract of a tenant.

    No price is ever changed: it ends where the next one of the same item begins. Running allocations keep theirs until
    `existing_from`.
    """
    return await commands.create(request.work(price_view), price_spec(body))
