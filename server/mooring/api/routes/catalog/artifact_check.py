"""Endpoints of artifact checks: how far they are, what came of them, and ending one early."""

import time
from typing import Final

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
from mooring.api.routes.catalog.artifact import ONE, PLACES
from mooring.api.schemas.catalog.artifact_check import ArtifactCheckView, check_view
from mooring.api.stream import require_still_allowed
from mooring.api.wait import WaitQuery
from mooring.commands.catalog import artifact_check as commands
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact_check import ArtifactCheck
from mooring.core.kernel.errors import Code
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_check as checks

PATH: Final = ONE + "/checks"
NEWEST: Final = "chk_z"
LOOK_SECONDS: Final = 0.5  # how often somebody who waits for progress looks; bytes that came are no event


async def _seen(call: Call, artifact_id: str, check_id: str) -> ArtifactCheckView:
    services, project_id = call.services, call.place.project_id
    artifact = found(await artifacts.find(services.database, call.acting, project_id, artifact_id), "artifact")
    check = found(await checks.find(services.database, call.acting, artifact.id, check_id), "artifact_check")
    return check_view(call.caller.authority, check)


@route_in(PLACES, "GET", PATH, Declared("artifact_check", "list", "artifact.read", answer=Page[ArtifactCheckView]))
async def list_artifact_checks(call: Call, artifact_id: str, query: PageQuery) -> Page[ArtifactCheckView]:
    """List the checks of an artifact, newest first: those that are under way and those that ended."""
    services, project_id = call.services, call.place.project_id
    artifact = found(await artifacts.find(services.database, call.acting, project_id, artifact_id), "artifact")
    before = start(query, "artifact_check", NEWEST)
    rows = await checks.page(services.database, call.acting, artifact.id, before, query.limit + 1)
    return page(rows, query, "artifact_check", lambda row: check_view(call.caller.authority, row))


@route_in(
    PLACES, "GET", PATH + "/{check_id}", Declared("artifact_check", "get", "artifact.read", answer=ArtifactCheckView)
)
async def get_artifact_check(call: Call, artifact_id: str, check_id: str, query: WaitQuery) -> ArtifactCheckView:
    """Read a check; `wait` with `changed_from` follows its progress, with `until` its end."""
    deadline = time.monotonic() + min(query.wait, call.services.settings.wait_seconds_max)
    wanted = set(query.until.split(",")) if query.until else set()
    view = await _seen(call, artifact_id, check_id)
    while view.status not in wanted and not call.services.hub.closed:
        left = deadline - time.monotonic()
        is_changed = query.changed_from is not None and view.etag != query.changed_from
        if left <= 0 or is_changed or (not wanted and query.changed_from is None) or view.finished_at is not None:
            break
        await call.services.checks.wait_or_sleep(check_id, min(left, LOOK_SECONDS))
        await require_still_allowed(call)
        view = await _seen(call, artifact_id, check_id)
    return view


@route_in(
    PLACES,
    "POST",
    PATH + "/{check_id}/cancel",
    Declared(
        "artifact_check", "cancel", "artifact.verify", answer=ArtifactCheckView, errors=(Code.ILLEGAL_TRANSITION,)
    ),
)
async def cancel_artifact_check(call: Call, artifact_id: str, check_id: str) -> Answered:
    """End a check early. Nothing is concluded from it; verifying begins a new one."""
    work: Work[ArtifactCheck] = call.work(lambda check: check_view(call.caller.authority, check))
    return await commands.cancel(work, call.place, artifact_id, check_id)
