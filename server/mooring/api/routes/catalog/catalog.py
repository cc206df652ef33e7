"""Endpoints of the catalog: what is on offer, and what a project may launch."""

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call
from mooring.api.route import Declared, route
from mooring.api.schemas.catalog.catalog import CatalogApp, CatalogEntryView, CatalogQuery, line_view, shelf_view
from mooring.commands.catalog import catalog as commands
from mooring.core.catalog.catalog import search_words
from mooring.core.kernel.permissions import Authority, Scope
from mooring.storage.catalog.catalog import Sought


@route("GET", "/apps/catalog", Scope.SELF, Declared("catalog", "list", "self.read", answer=Page[CatalogApp]))
async def list_catalog(call: Call, query: CatalogQuery) -> Page[CatalogApp]:
    """Browse the apps that the caller's tenant sees: the platform's and its own, each with its newest version."""
    pages, sought = _asked(query)
    if not _reads(call.caller.authority):
        return Page(items=[])
    after = start(pages, "catalog")
    rows = await commands.browse(call.services, call.acting, sought, after, query.limit + 1)
    return page(rows, pages, "catalog", shelf_view)


@route(
    "GET",
    "/projects/{project_id}/catalog",
    Scope.PROJECT,
    Declared("catalog", "list", "catalog.read", answer=Page[CatalogEntryView]),
)
async def list_project_catalog(call: Call, query: CatalogQuery) -> Page[CatalogEntryView]:
    """Browse what a project may launch and, for what it may not, everything that hinders it."""
    pages, sought = _asked(query)
    after = start(pages, "project_catalog")
    project_id = str(call.place.project_id)
    rows = await commands.of_project(call.services, call.acting, project_id, sought, (after, query.limit + 1))
    return page(rows, pages, "project_catalog", line_view)


def _asked(query: CatalogQuery) -> tuple[PageQuery, Sought]:
    words = () if query.search is None else search_words(query.search)
    return PageQuery(cursor=query.cursor, limit=query.limit), Sought(words, query.category)


def _reads(authority: Authority) -> bool:
    """Whether the caller may read the catalog anywhere."""
    held = (authority.platform, authority.tenant, *authority.projects.values())
    return any("catalog.read" in keys for keys in held)
