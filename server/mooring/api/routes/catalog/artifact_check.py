"""Endpoints for artifact checks: their progress, their results, and cancelling one."""

import time
from typing import Final

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.catalog.artifact import ONE, PLACES
from mooring.api.schemas.catalog.artifact_check import ArtifactCheckView, check_view
from mooring.api.stream import require_still_allowed
from mooring.api.wait import WaitQuery
from mooring.commands.catalog import artifact_check as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact_check import ArtifactCheck
from mooring.core.kernel.errors import Code
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_check as checks

PATH: Final = ONE + "/checks"
NEWEST: Final = "chk_z"
POLL_SECONDS: Final = 0.5  # how often a waiting request polls the progress, which causes no event


async def _visible(request: RequestContext, artifact_id: str, check_id: str) -> ArtifactCheckView:
    services, project_id = request.services, request.place.project_id
    artifact = require(await artifacts.find(services.database, request.acting, project_id, artifact_id), "artifact")
    check = require(await checks.find(services.database, request.acting, artifact.id, check_id), "artifact_check")
    return check_view(request.caller.authority, check)


@route_in(PLACES, "GET", PATH, RouteSpec("artifact_check", "list", "artifact.read", answer=Page[ArtifactCheckView]))
async def list_artifact_checks(request: RequestContext, artifact_id: str, query: PageQuery) -> Page[ArtifactCheckView]:
    """List the checks of an artifact, newest first, both unfinished and ended ones."""
    services, project_id = request.services, request.place.project_id
    artifact = require(await artifacts.find(services.database, request.acting, project_id, artifact_id), "artifact")
    window = page_window(query, "artifact_check", NEWEST)
    rows = await checks.page(services.database, request.acting, artifact.id, window)
    return page(rows, query, "artifact_check", lambda row: check_view(request.caller.authority, row))


@route_in(
    PLACES, "GET", PATH + "/{check_id}", RouteSpec("artifact_check", "get", "artifact.read", answer=ArtifactCheckView)
)
async def get_artifact_check(
    request: RequestContext, artifact_id: str, check_id: str, query: WaitQuery
) -> ArtifactCheckView:
    """Read a check; use `wait` with `changed_from` to follow its progress, or with `until` to wait for its end."""
    deadline = time.monotonic() + min(query.wait, request.services.settings.wait_seconds_max)
    wanted = set(query.until.split(",")) if query.until else set()
    view = await _visible(request, artifact_id, check_id)
    while view.status not in wanted and not request.services.hub.closed:
        left = deadline - time.monotonic()
        is_changed = query.changed_from is not None and view.etag != query.changed_from
        if left <= 0 or is_changed or (not wanted and query.changed_from is None) or view.finished_at is not None:
            break
        await request.services.checks.wait_or_sleep(check_id, min(left, POLL_SECONDS))
        await require_still_allowed(request)
        view = await _visible(request, artifact_id, check_id)
    return view


@route_in(
    PLACES,
    "POST",
    PATH + "/{check_id}/cancel",
    RouteSpec(
        "artifact_check", "cancel", "artifact.verify", answer=ArtifactCheckView, errors=(Code.ILLEGAL_TRANSITION,)
    ),
)
async def cancel_artifact_check(request: RequestContext, artifact_id: str, check_id: str) -> Answered:
    """Cancel a check. Nothing is concluded from it; verifying the artifact starts a new one."""
    work: Work[ArtifactCheck] = request.work(lambda check: check_view(request.caller.authority, check))
    return await commands.cancel(work, request.place, artifact_id, check_id)
