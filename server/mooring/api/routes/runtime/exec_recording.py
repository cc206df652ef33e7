"""Endpoints of recorded exec sessions, for the tenant's admin."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.runtime.exec_recording import (
    ExecRecordingPartView,
    ExecRecordingView,
    ReadExecRecording,
    part_view,
    recording_view,
)
from mooring.commands.kernel.work import Answered
from mooring.commands.runtime import exec_recording as commands
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.exec_recording import READ_ACTION
from mooring.storage.runtime import exec_recording as recordings

NOUN = "exec_recording"
PLACES = (Scope.TENANT,)
LAST_ID = "~"  # sorts after every id


@route_in(PLACES, "GET", "/exec-recordings", RouteSpec(NOUN, "list", READ_ACTION, answer=Page[ExecRecordingView]))
async def list_exec_recordings(request: RequestContext, query: PageQuery) -> Page[ExecRecordingView]:
    """List the recorded exec sessions of the tenant, newest first."""
    rows = await recordings.page(request.services.database, request.acting, page_window(query, NOUN, LAST_ID))
    return page(rows, query, NOUN, recording_view)


@route_in(
    PLACES,
    "POST",
    "/exec-recordings/{recording_id}/read",
    RouteSpec(NOUN, "read", READ_ACTION, answer=ExecRecordingPartView, read_only=True),
)
async def read_exec_recording(request: RequestContext, recording_id: str, body: ReadExecRecording) -> Answered:
    """Read what a recorded session showed, in asciicast v2; the audit trail records each read."""
    return await commands.read(request.work(part_view), recording_id, body.after)
