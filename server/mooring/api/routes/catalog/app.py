"""Endpoints of apps and their versions, in the platform and in a tenant, and of the manifest's schema and lint."""

from typing import Any

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call, encode_json
from mooring.api.response import Reply
from mooring.api.route import PUBLIC_ACTION, Declared, route, route_in
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
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.app import App, AppCard
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact_promotion import PromotionWish
from mooring.core.catalog.manifest import manifest_digest, normal
from mooring.core.catalog.manifest_lint import RULES, About, examine
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


def _showing_app(call: Call) -> Work[App]:
    return call.work(lambda app: app_view(call.caller.authority, app))


def _showing(call: Call) -> Work[AppVersion]:
    return call.work(lambda version: version_view(call.caller.authority, version))


@route_in(PLACES, "GET", PATH, Declared("app", "list", "catalog.read", answer=Page[AppView]))
async def list_apps(call: Call, query: PageQuery) -> Page[AppView]:
    """List the apps of exactly this place; what a project may launch is in its catalog."""
    rows = await apps.page(call.services.database, call.acting, start(query, "app"), query.limit + 1)
    return page(rows, query, "app", lambda row: app_view(call.caller.authority, row))


@route_in(PLACES, "POST", PATH, Declared("app", "create", "app.create", 201, AppView, errors=(Code.NAME_TAKEN,)))
async def create_app(call: Call, body: CreateApp) -> Answered:
    """Register an app, for everybody or for one tenant; its slug and category stay for ever."""
    card = AppCard(body.display_name, body.description, body.icon)
    return await app_commands.create(_showing_app(call), body.slug, body.category, card)


@route_in(PLACES, "GET", ONE, Declared("app", "get", "catalog.read", answer=AppView))
async def get_app(call: Call, app_id: str, query: WaitQuery) -> AppView:
    """Read an app."""

    async def read() -> AppView:
        row = found(await apps.find(call.services.database, call.acting, app_id), "app")
        return app_view(call.caller.authority, row)

    return await waited(call, query, app_id, read)


@route_in(
    PLACES, "PATCH", ONE, Declared("app", "update", "app.update", answer=AppView, errors=(Code.REVISION_CONFLICT,))
)
async def update_app(call: Call, app_id: str, body: UpdateApp) -> Answered:
    """Change an app's card: name, description, icon."""
    wish = {"display_name": body.display_name, "description": body.description, "icon": body.icon}
    return await app_commands.update(_showing_app(call), app_id, wish, body.revision)


@route_in(PLACES, "PUT", ONE + "/adapter-key", Declared("app", "set-adapter-key", "app.update", answer=AppView))
async def set_app_adapter_key(call: Call, app_id: str, body: SetAdapterKey) -> Answered:
    """Set the public key of the adapter that serves an app.

    Operator accounts that are made from now on have it, and those that are there get it; the key before counts no more,
    unless it is kept while adapters change over.
    """
    key = None if body.public_key is None else read_key(body.public_key)
    return await app_commands.set_key(_showing_app(call), app_id, key, keep_previous=body.keep_previous)


@route_in(PLACES, "GET", VERSIONS, Declared("version", "list", "app_version.read", answer=Page[VersionView]))
async def list_versions(call: Call, app_id: str, query: PageQuery) -> Page[VersionView]:
    """List the versions of an app in the order in which they were published."""
    database = call.services.database
    found(await apps.find(database, call.acting, app_id), "app")
    rows = await versions.page(database, call.acting, app_id, start(query, "version"), query.limit + 1)
    return page(rows, query, "version", lambda row: version_view(call.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    VERSIONS,
    Declared(
        "version", "create", "app_version.create", 201, VersionView, errors=(Code.MANIFEST_INVALID, Code.NAME_TAKEN)
    ),
)
async def create_version(call: Call, app_id: str, body: CreateVersion) -> Answered:
    """Publish a version as a draft.

    The manifest must have the right shape and be of this app; what else lint finds only hinders staging.
    """
    return await commands.create(_showing(call), app_id, body.manifest)


@route_in(PLACES, "GET", VERSION, Declared("version", "get", "app_version.read", answer=VersionView))
async def get_version(call: Call, app_id: str, version_id: str, query: WaitQuery) -> VersionView:
    """Read a version with its manifest."""

    async def read() -> VersionView:
        row = await versions.find(call.services.database, call.acting, app_id, version_id)
        return version_view(call.caller.authority, found(row, "version"))

    return await waited(call, query, version_id, read)


@route_in(
    PLACES,
    "PUT",
    VERSION + "/manifest",
    Declared(
        "version", "replace_manifest", "app_version.create", answer=VersionView,
        errors=(Code.MANIFEST_INVALID, Code.REVISION_CONFLICT, Code.VERSION_IMMUTABLE),
    ),
)  # fmt: skip
async def replace_version_manifest(call: Call, app_id: str, version_id: str, body: ReplaceManifest) -> Answered:
    """Replace the manifest of a draft; from staging on it never changes."""
    return await commands.update(_showing(call), app_id, version_id, body.manifest, body.revision)


@route_in(
    PLACES,
    "POST",
    VERSION + "/promote",
    Declared("version", "promote", "app_version.promote", answer=VersionView, errors=MOVE_ERRORS),
)
async def promote_version(call: Call, app_id: str, version_id: str, body: PromoteVersion) -> Answered:
    """Move a version through its promotion, for a stated reason.

    `canary` takes the percentage, and sets another one for a version that is a canary already. `deprecate` takes the
    successor, or why there is none. A version is never further than its artifacts.
    """
    percentage = None if body.canary_percentage is None else str(body.canary_percentage)
    wish = PromotionWish(body.move, body.reason, percentage, body.superseded_by, body.no_successor_because)
    return await commands.promote(_showing(call), app_id, version_id, wish)


@route_in(
    PLACES, "GET", VERSION + "/history", Declared("version", "history", "app_version.read", answer=VersionHistory)
)
async def get_version_history(call: Call, app_id: str, version_id: str) -> VersionHistory:
    """Read every move of a version: who made it, when and why."""
    database = call.services.database
    found(await versions.find(database, call.acting, app_id, version_id), "version")
    return VersionHistory(items=[step_view(each) for each in await versions.history(database, call.acting, version_id)])


@route(
    "GET",
    "/schemas/manifest",
    Scope.PUBLIC,
    Declared("manifest", "schema", PUBLIC_ACTION, answer=dict[str, Any]),
)
async def get_manifest_schema(call: Call) -> Reply:
    """Read the JSON Schema of manifests."""
    return Reply(200, SCHEMA)


@route(
    "POST",
    "/manifests/lint",
    Scope.SELF,
    Declared("manifest", "lint", "self.read", answer=LintedView, asks=True),
)
async def lint_manifest(call: Call, body: LintManifest) -> LintedView:
    """Look for mistakes in a manifest without publishing it; each is told by a JSON pointer, with a fix."""
    reading = examine(body.manifest, About(body.app_slug, body.category))
    document: Any = body.manifest
    return LintedView(
        stageable=not errors_in(reading.findings),
        manifest_digest=None if reading.manifest is None else manifest_digest(normal(document)),
        findings=[finding_view(each, RULES.get(each.rule)) for each in reading.findings],
    )
