"""Endpoints for the catalog: the apps on offer, and what a project may launch."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.catalog.catalog import CatalogApp, CatalogEntryView, CatalogQuery, line_view, shelf_view
from mooring.commands.catalog import catalog as commands
from mooring.core.catalog.catalog import search_words
from mooring.core.kernel.permissions import Authority, Scope
from mooring.storage.catalog.catalog import CatalogFilter


@route("GET", "/apps/catalog", Scope.SELF, RouteSpec("catalog", "list", "self.read", answer=Page[CatalogApp]))
async def list_catalog(request: RequestContext, query: CatalogQuery) -> Page[CatalogApp]:
    """Browse the apps that the caller's tenant sees, the platform's and its own, each with its newest version."""
    pages, wanted = _query_parts(query)
    if not _reads(request.caller.authority):
        return Page(items=[])
    window = page_window(pages, "catalog")
    rows = await commands.browse(request.services, request.acting, wanted, window)
    return page(rows, pages, "catalog", shelf_view)


@route(
    "GET",
    "/projects/{project_id}/catalog",
    Scope.PROJECT,
    RouteSpec("catalog", "list", "catalog.read", answer=Page[CatalogEntryView]),
)
async def list_project_catalog(request: RequestContext, query: CatalogQuery) -> Page[CatalogEntryView]:
    """Browse the apps as a project sees them: which it may launch and, for the others, every reason why not."""
    pages, wanted = _query_parts(query)
    window = page_window(pages, "project_catalog")
    project_id = str(request.place.project_id)
    rows = await commands.of_project(request.services, request.acting, project_id, wanted, window)
    return page(rows, pages, "project_catalog", line_view)


def _query_parts(query: CatalogQuery) -> tuple[PageQuery, CatalogFilter]:
    words = () if query.search is None else search_words(query.search)
    return PageQuery(cursor=query.cursor, limit=query.limit), CatalogFilter(words, query.category)


def _reads(authority: Authority) -> bool:
    """Whether the caller may read the catalog anywhere."""
    held = (authority.platform, authority.tenant, *authority.projects.values())
    return any("catalog.read" in keys for keys in held)
