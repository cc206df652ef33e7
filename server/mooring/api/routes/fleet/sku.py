"""Endpoints for SKUs: a price list that every caller reads and the platform's admins maintain."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.fleet.sku import CreateSku, SkuPriceView, SkuQuery, SkuView, UpdateSku, price_view, sku_view
from mooring.commands.fleet import sku as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.fleet.sku import SkuChange, SkuPriceSpec, SkuSpec
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.fleet import sku as skus

PATH = "/skus"
ONE = PATH + "/{sku_id}"
ADMIN_PATH = "/platform/skus"


@route("GET", PATH, Scope.SELF, RouteSpec("sku", "list", "self.read", answer=Page[SkuView]))
async def list_skus(request: RequestContext, query: SkuQuery) -> Page[SkuView]:
    """List the SKUs with their present prices."""
    wanted = skus.SkuFilter(query.status, query.region, query.shape)
    rows = await skus.page(request.services.database, request.acting, wanted, page_window(query, "sku"))
    return page(rows, query, "sku", partial(sku_view, request.caller.authority))


@route("GET", ONE, Scope.SELF, RouteSpec("sku", "get", "self.read", answer=SkuView))
async def get_sku(request: RequestContext, sku_id: str) -> SkuView:
    """Read a SKU, offered or withdrawn."""
    row = await skus.find(request.services.database, request.acting, sku_id)
    return sku_view(request.caller.authority, require(row, "SKU"))


@route("GET", ONE + "/prices", Scope.SELF, RouteSpec("sku_price", "list", "self.read", answer=Page[SkuPriceView]))
async def list_sku_prices(request: RequestContext, sku_id: str, query: PageQuery) -> Page[SkuPriceView]:
    """List the price history of a SKU, the newest price last."""
    database = request.services.database
    require(await skus.find(database, request.acting, sku_id), "SKU")
    rows = await skus.prices(database, request.acting, sku_id, page_window(query, "sku_price"))
    return page(rows, query, "sku_price", price_view)


@route(
    "POST",
    ADMIN_PATH,
    Scope.PLATFORM,
    RouteSpec("sku", "create", "sku.update", 201, SkuView, errors=(Code.NAME_TAKEN, Code.LIMIT_REACHED)),
)
async def create_sku(request: RequestContext, body: CreateSku) -> Answered:
    """Offer a kind of capacity at a price."""
    spec = SkuSpec(
        body.slug,
        body.display_name,
        body.shape,
        body.gpu_model,
        tuple(body.regions),
        tuple(body.allowed_gpu_counts),
        SkuPriceSpec(body.price_minor_per_gpu_hour, body.currency),
    )
    return await commands.create(request.work(partial(sku_view, request.caller.authority)), spec)


@route(
    "PATCH",
    ADMIN_PATH + "/{sku_id}",
    Scope.PLATFORM,
    RouteSpec("sku", "update", "sku.update", answer=SkuView, errors=(Code.REVISION_CONFLICT,)),
)
async def update_sku(request: RequestContext, sku_id: str, body: UpdateSku) -> Answered:
    """Change a SKU, withdraw it, or offer it again; a new price adds a line to its history.

    Existing allocations keep their price.
    """
    change = SkuChange(
        body.display_name,
        None if body.regions is None else tuple(body.regions),
        None if body.allowed_gpu_counts is None else tuple(body.allowed_gpu_counts),
        body.price_minor_per_gpu_hour,
        body.currency,
        body.status,
        body.reason,
    )
    work = request.work(partial(sku_view, request.caller.authority))
    return await commands.update(work, sku_id, change, body.revision)
