"""Endpoints with which a project reads the versions of the apps that it sees, the platform's among them."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.catalog.catalog_version import (
    CatalogVersionDetail,
    CatalogVersionView,
    catalog_version_detail,
    catalog_version_view,
)
from mooring.commands.kernel.lookup import require
from mooring.core.catalog.app import App
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import app as apps
from mooring.storage.catalog import catalog_version as versions

PLACES = (Scope.PROJECT,)
VERSIONS = "/catalog/{app_id}/versions"


@route_in(
    PLACES,
    "GET",
    VERSIONS,
    RouteSpec("catalog_version", "list", "catalog.read", answer=Page[CatalogVersionView], family=True),
)
async def list_catalog_versions(request: RequestContext, app_id: str, query: PageQuery) -> Page[CatalogVersionView]:
    """List the versions of an app that are or were offered, and those that the project runs; no drafts."""
    app, project_id = await _app(request, app_id), str(request.place.project_id)
    window = page_window(query, "catalog_version")
    rows = await versions.page(request.services.database, request.acting, project_id, app.id, window)
    return page(
        rows,
        query,
        "catalog_version",
        lambda row: catalog_version_view(app, row.version, row.instances, project_id),
    )


@route_in(
    PLACES,
    "GET",
    VERSIONS + "/{catalog_version_id}",
    RouteSpec("catalog_version", "get", "catalog.read", answer=CatalogVersionDetail, family=True),
)
async def get_catalog_version(request: RequestContext, app_id: str, catalog_version_id: str) -> CatalogVersionDetail:
    """Read what a version tells those who launch it.

    Its actions with their schemas, what it meters, how it is configured, upgraded and ended, and its runbook.
    """
    app, project_id = await _app(request, app_id), str(request.place.project_id)
    row = await versions.find(request.services.database, request.acting, project_id, app.id, catalog_version_id)
    found = require(row, "version")
    return catalog_version_detail(app, found.version, found.instances, project_id)


async def _app(request: RequestContext, app_id: str) -> App:
    """An app that the tenant sees: its own, or the platform's."""
    return require(await apps.find_in_sight(request.services.database, request.acting, app_id), "app")
