"""The endpoint that finds things by the beginning of their name or id."""

from mooring.api.page import Page
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.records.search import SearchHitView, SearchQuery, search_hit_view
from mooring.core.kernel.permissions import Scope
from mooring.core.records.search import SearchHit, SearchKind, chosen, reach, search_range
from mooring.storage.records import search


@route("GET", "/search", Scope.SELF, RouteSpec("search_hit", "list", "self.read", answer=Page[SearchHitView]))
async def list_search_hits(request: RequestContext, query: SearchQuery) -> Page[SearchHitView]:
    """Find what begins like a text: names and ids of what the caller may read, and artifacts by their digest.

    At most 20 hits: exact ones first, then one of each kind in turn, and what has ended last. Everybody finds what
    the lists would show them: in a tenant its instances, allocations, projects, apps, users and artifacts; on the
    platform its nodes, tenants, users, and the apps and artifacts that belong to no tenant.
    """
    hits: list[SearchHit] = []
    for kind in SearchKind:
        wanted, within = search_range(kind, query.q), reach(request.caller.authority, kind)
        if wanted is not None and not within.is_empty:
            hits += await search.find(request.services.database, request.acting, kind, wanted, within)
    return Page(items=[search_hit_view(each) for each in chosen(hits, query.q, query.limit)])
