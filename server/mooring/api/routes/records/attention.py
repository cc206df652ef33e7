"""Endpoints for what needs somebody, on the platform, in a tenant and in a project."""

from mooring.api.page import Page, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.records.attention import AttentionItemView, AttentionQuery, attention_item_view
from mooring.core.kernel.permissions import Scope
from mooring.core.records.attention import RULES, AttentionFacts, visible, worst_first
from mooring.storage.records import attention

PATH = "/attention"


@route_in(
    (Scope.PLATFORM,),
    "GET",
    PATH,
    RouteSpec("attention_item", "list", "overview.read", answer=Page[AttentionItemView]),
)
async def list_platform_attention_items(request: RequestContext, query: AttentionQuery) -> Page[AttentionItemView]:
    """List what needs an operator, worst first: silent nodes, failed teardowns, missing adapters, failing launches.

    Each item has its cause, since when, and the next step. Of what belongs to a tenant it shows that there is something
    and since when, without a name or a text of the tenant. At most 200 of each kind, those that have lasted longest.
    """
    return await _listed(request, query)


@route_in(
    (Scope.TENANT, Scope.PROJECT),
    "GET",
    PATH,
    RouteSpec("attention_item", "list", "instance.read", name="list_attention_items", answer=Page[AttentionItemView]),
)
async def list_attention_items(request: RequestContext, query: AttentionQuery) -> Page[AttentionItemView]:
    """List what needs somebody, worst first: failed and blocked things, budgets, late usage, keys that expire.

    Each item has its cause, since when, and the next step. Which kinds are listed follows from the caller's keys:
    webhooks need `outbox.read`, for example. At most 200 of each kind, those that have lasted longest.
    """
    return await _listed(request, query)


async def _listed(request: RequestContext, query: AttentionQuery) -> Page[AttentionItemView]:
    database, now = request.services.database, request.services.clock.now()
    found: list[AttentionFacts] = []
    for kind in visible(request.caller.authority.at(request.place), request.place.scope):
        if query.severity in (None, RULES[kind].severity):
            found += await attention.read(database, request.acting, request.place, kind, now)
    window = page_window(query, "attention")
    items = [each for each in worst_first(found) if each.id > window.after][: window.limit]
    return page(items, query, "attention", attention_item_view)
