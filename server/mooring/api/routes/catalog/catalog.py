"""Endpoints for the catalog: the apps on offer, and what a project may launch."""

from collections.abc import Sequence
from typing import TypeVar

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.catalog.catalog import CatalogApp, CatalogEntryView, CatalogQuery, line_view, shelf_view
from mooring.commands.catalog import catalog as commands
from mooring.core.catalog.catalog import search_words
from mooring.core.kernel.permissions import Authority, Place, Scope, categories_of
from mooring.storage.catalog.catalog import CatalogFilter
from mooring.storage.kernel.page_window import PageWindow

AnyRow = TypeVar("AnyRow", commands.CatalogRow, commands.ProjectCatalogRow)


@route("GET", "/apps/catalog", Scope.SELF, RouteSpec("catalog", "list", "self.read", answer=Page[CatalogApp]))
async def list_catalog(request: RequestContext, query: CatalogQuery) -> Page[CatalogApp]:
    """Browse the apps that the caller's tenant sees, the platform's and its own, each with its newest version."""
    pages, filters = _query_parts(query, _readable(request.caller.authority))
    window = page_window(pages, "catalog")
    rows = [await commands.browse(request.services, request.acting, each, window) for each in filters]
    return page(_merged(rows, window), pages, "catalog", shelf_view)


@route(
    "GET",
    "/projects/{project_id}/catalog",
    Scope.PROJECT,
    RouteSpec("catalog", "list", "catalog.read", answer=Page[CatalogEntryView], family=True),
)
async def list_project_catalog(request: RequestContext, query: CatalogQuery) -> Page[CatalogEntryView]:
    """Browse the apps as a project sees them: which it may launch and, for the others, every reason why not."""
    pages, filters = _query_parts(query, categories_of(request.caller.authority, request.place, "catalog.read"))
    window = page_window(pages, "project_catalog")
    project_id = str(request.place.project_id)
    rows = [await commands.of_project(request.services, request.acting, project_id, each, window) for each in filters]
    return page(_merged(rows, window), pages, "project_catalog", line_view)


def _query_parts(query: CatalogQuery, categories: tuple[str, ...] | None) -> tuple[PageQuery, list[CatalogFilter]]:
    """The page that is asked for, and a filter for each category that the caller may read; None: one for all."""
    words = () if query.search is None else search_words(query.search)
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    if categories is None:
        return pages, [CatalogFilter(words, query.category)]
    return pages, [CatalogFilter(words, each) for each in categories if query.category in (None, each)]


def _merged(rows: Sequence[Sequence[AnyRow]], window: PageWindow) -> list[AnyRow]:
    """The first rows of several lists of apps; each list is in the order of pages, and no app is in two of them."""
    return sorted((row for each in rows for row in each), key=lambda row: row.id)[: window.limit]


def _readable(authority: Authority) -> tuple[str, ...] | None:
    """The categories of apps that the caller may read in any place; None means every category."""
    places = [Place(Scope.PLATFORM), Place(Scope.TENANT, authority.tenant_id)]
    places += [Place(Scope.PROJECT, authority.tenant_id, project_id) for project_id in authority.projects]
    found = [categories_of(authority, place, "catalog.read") for place in places]
    if None in found:
        return None
    return tuple(sorted({category for each in found if each is not None for category in each}))
