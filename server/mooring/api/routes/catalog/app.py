"""Endpoints for apps and their versions, on the platform and in tenants, and for the manifest's schema and lint."""

from typing import Any

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route, route_in
from mooring.api.routes.identity.service_account import read_key
from mooring.api.schemas.catalog.app import (
    AppView,
    CreateApp,
    CreateVersion,
    LintedView,
    LintManifest,
    PromoteVersion,
    ReplaceManifest,
    SetAdapterKey,
    UpdateApp,
    VersionHistory,
    VersionView,
    app_view,
    finding_view,
    step_view,
    version_view,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.catalog import app as app_commands
from mooring.commands.catalog import app_version as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.app import App, AppCard
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact_promotion import PromotionRequest
from mooring.core.catalog.manifest import manifest_digest, normal
from mooring.core.catalog.manifest_lint import RULES, AppContext
from mooring.core.catalog.manifest_schema import MANIFEST_SCHEMA
from mooring.core.kernel.errors import Code
from mooring.core.kernel.finding import errors_in
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import app as apps
from mooring.storage.catalog import app_version as versions

PLACES = (Scope.PLATFORM, Scope.TENANT)
PATH = "/apps"
ONE = PATH + "/{app_id}"
VERSIONS = ONE + "/versions"
VERSION = VERSIONS + "/{version_id}"
SCHEMA = encode_json({**MANIFEST_SCHEMA, "x-mooring-rules": dict(RULES)})
MOVE_ERRORS = (
    Code.GRACE_PERIOD,
    Code.HOLD_PRESENT,
    Code.ILLEGAL_TRANSITION,
    Code.MANIFEST_INVALID,
    Code.PROMOTION_REFUSED,
    Code.VERSION_AHEAD_OF_ARTIFACT,
)


def _showing_app(request: RequestContext) -> Work[App]:
    return request.work(lambda app: app_view(request.caller.authority, app))


def _showing(request: RequestContext) -> Work[AppVersion]:
    return request.work(lambda version: version_view(request.caller.authority, version))


@route_in(PLACES, "GET", PATH, RouteSpec("app", "list", "catalog.read", answer=Page[AppView]))
async def list_apps(request: RequestContext, query: PageQuery) -> Page[AppView]:
    """List the apps of exactly this place; a project's catalog lists what the project may launch."""
    rows = await apps.page(request.services.database, request.acting, page_window(query, "app"))
    return page(rows, query, "app", lambda row: app_view(request.caller.authority, row))


@route_in(PLACES, "POST", PATH, RouteSpec("app", "create", "app.create", 201, AppView, errors=(Code.NAME_TAKEN,)))
async def create_app(request: RequestContext, body: CreateApp) -> Answered:
    """Register an app, for all tenants or for one; its slug and category never change."""
    card = AppCard(body.display_name, body.description, body.icon)
    return await app_commands.create(_showing_app(request), body.slug, body.category, card)


@route_in(PLACES, "GET", ONE, RouteSpec("app", "get", "catalog.read", answer=AppView))
async def get_app(request: RequestContext, app_id: str, query: WaitQuery) -> AppView:
    """Read an app."""

    async def read() -> AppView:
        row = require(await apps.find(request.services.database, request.acting, app_id), "app")
        return app_view(request.caller.authority, row)

    return await waited(request, query, app_id, read)


@route_in(
    PLACES, "PATCH", ONE, RouteSpec("app", "update", "app.update", answer=AppView, errors=(Code.REVISION_CONFLICT,))
)
async def update_app(request: RequestContext, app_id: str, body: UpdateApp) -> Answered:
    """Change an app's card: name, description, icon."""
    changes = {"display_name": body.display_name, "description": body.description, "icon": body.icon}
    return await app_commands.update(_showing_app(request), app_id, changes, body.revision)


@route_in(PLACES, "PUT", ONE + "/adapter-key", RouteSpec("app", "set-adapter-key", "app.update", answer=AppView))
async def set_app_adapter_key(request: RequestContext, app_id: str, body: SetAdapterKey) -> Answered:
    """Set the public key of the adapter that serves an app.

    Operator accounts that are made from now on have it, and those that are there get it; the key before counts no more,
    unless it is kept while adapters switch over.
    """
    key = None if body.public_key is None else read_key(body.public_key)
    return await app_commands.set_key(_showing_app(request), app_id, key, keep_previous=body.keep_previous)


@route_in(PLACES, "GET", VERSIONS, RouteSpec("version", "list", "app_version.read", answer=Page[VersionView]))
async def list_versions(request: RequestContext, app_id: str, query: PageQuery) -> Page[VersionView]:
    """List the versions of an app in the order in which they were published."""
    database = request.services.database
    require(await apps.find(database, request.acting, app_id), "app")
    rows = await versions.page(database, request.acting, app_id, page_window(query, "version"))
    return page(rows, query, "version", lambda row: version_view(request.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    VERSIONS,
    RouteSpec(
        "version", "create", "app_version.create", 201, VersionView, errors=(Code.MANIFEST_INVALID, Code.NAME_TAKEN)
    ),
)
async def create_version(request: RequestContext, app_id: str, body: CreateVersion) -> Answered:
    """Publish a version as a draft.

    The manifest must have the right shape and be of this app; what else lint finds only hinders staging.
    """
    return await commands.create(_showing(request), app_id, body.manifest)


@route_in(PLACES, "GET", VERSION, RouteSpec("version", "get", "app_version.read", answer=VersionView))
async def get_version(request: RequestContext, app_id: str, version_id: str, query: WaitQuery) -> VersionView:
    """Read a version with its manifest."""

    async def read() -> VersionView:
        row = await versions.find(request.services.database, request.acting, app_id, version_id)
        return version_view(request.caller.authority, require(row, "version"))

    return await waited(request, query, version_id, read)


@route_in(
    PLACES,
    "PUT",
    VERSION + "/manifest",
    RouteSpec(
        "version",
        "replace_manifest",
        "app_version.create",
        answer=VersionView,
        errors=(Code.HOLD_PRESENT, Code.MANIFEST_INVALID, Code.REVISION_CONFLICT, Code.VERSION_IMMUTABLE),
    ),
)
async def replace_version_manifest(
    request: RequestContext, app_id: str, version_id: str, body: ReplaceManifest
) -> Answered:
    """Replace the manifest of a draft.

    Of a staged version that nothing uses only `required_actions` can be corrected; lint is repeated. After that a
    manifest never changes.
    """
    return await commands.update(_showing(request), app_id, version_id, body.manifest, body.revision)


@route_in(
    PLACES,
    "POST",
    VERSION + "/promote",
    RouteSpec("version", "promote", "app_version.promote", answer=VersionView, errors=MOVE_ERRORS),
)
async def promote_version(request: RequestContext, app_id: str, version_id: str, body: PromoteVersion) -> Answered:
    """Promote a version one step, for a stated reason.

    `canary` needs the percentage; for a version that is a canary already, it changes the percentage. `deprecate` needs
    the successor, or the reason why there is none. A version is never promoted further than its artifacts.
    """
    percentage = None if body.canary_percentage is None else str(body.canary_percentage)
    promotion = PromotionRequest(body.move, body.reason, percentage, body.superseded_by, body.no_successor_because)
    return await commands.promote(_showing(request), app_id, version_id, promotion)


@route_in(
    PLACES, "GET", VERSION + "/history", RouteSpec("version", "history", "app_version.read", answer=VersionHistory)
)
async def get_version_history(request: RequestContext, app_id: str, version_id: str) -> VersionHistory:
    """Read every transition of a version: who made it, when and why."""
    database = request.services.database
    require(await versions.find(database, request.acting, app_id, version_id), "version")
    return VersionHistory(
        items=[step_view(each) for each in await versions.history(database, request.acting, version_id)]
    )


@route(
    "GET",
    "/schemas/manifest",
    Scope.PUBLIC,
    RouteSpec("manifest", "schema", PUBLIC_ACTION, answer=dict[str, Any]),
)
async def get_manifest_schema(request: RequestContext) -> Response:
    """Read the JSON Schema of manifests."""
    return Response(200, SCHEMA)


@route(
    "POST",
    "/manifests/lint",
    Scope.SELF,
    RouteSpec("manifest", "lint", "self.read", answer=LintedView, read_only=True),
)
async def lint_manifest(request: RequestContext, body: LintManifest) -> LintedView:
    """Look for mistakes in a manifest without publishing it; each finding has a JSON pointer and a fix."""
    tenant = request.caller.tenant_id or request.caller.actor.id
    about = AppContext(body.app_slug, body.category)
    reading = await commands.examine_apart(request.services, tenant, body.manifest, about)
    document: Any = body.manifest
    return LintedView(
        stageable=not errors_in(reading.findings),
        manifest_digest=None if reading.manifest is None else manifest_digest(normal(document)),
        findings=[finding_view(each, RULES.get(each.rule)) for each in reading.findings],
    )
