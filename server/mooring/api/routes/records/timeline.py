"""Endpoints for the timeline of an instance or of a correlation id."""

import time
from collections.abc import AsyncGenerator

from mooring.api import stream
from mooring.api import timeline as timelines
from mooring.api.request_context import RequestContext
from mooring.api.response import StreamingResponse
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.records.timeline import (
    InstanceTimelineQuery,
    TimelinePage,
    TimelineQuery,
    TimelineStreamQuery,
    entry_view,
)
from mooring.api.socket import WebSocketResponse, accept
from mooring.commands.kernel.lookup import require
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.storage.identity import project as projects
from mooring.storage.records.timeline import TimelineSelection
from mooring.storage.runtime import instance as instances

PLACE = (Scope.PROJECT,)


@route_in(
    PLACE,
    "GET",
    "/timeline",
    RouteSpec("timeline", "list", "event.read", answer=TimelinePage, errors=(Code.CURSOR_EXPIRED,)),
)
async def list_timeline(request: RequestContext, query: TimelineQuery) -> TimelinePage:
    """Read the timeline of a correlation id or an instance: events and audit rows in one order.

    Callers who may read the audit trail also get audit rows. `wait` waits for the first entry.
    """
    wanted = await _selection(request, query)
    return await _page(request, wanted, query)


@route_in(
    PLACE,
    "GET",
    "/timeline/stream",
    RouteSpec(
        "timeline",
        "follow",
        "event.read",
        media_type="text/event-stream",
        unlimited=True,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def stream_timeline(request: RequestContext, query: TimelineStreamQuery) -> StreamingResponse:
    """Follow a timeline as it is written (server-sent events).

    Without a cursor the stream starts now. With `Last-Event-ID` or `cursor` it continues after that entry without gaps.
    The same is available as a WebSocket at `/timeline/ws`.
    """
    return StreamingResponse(stream.server_sent(await _followed(request, query)), "text/event-stream")


@route_in(
    PLACE,
    "GET",
    "/timeline/ws",
    RouteSpec(
        "timeline",
        "connect",
        "event.read",
        unlimited=True,
        hidden=True,
        websocket=True,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def connect_timeline(request: RequestContext, query: TimelineStreamQuery) -> WebSocketResponse:
    """Follow a timeline as it is written (WebSocket); the same entries, cursors and bounds as the stream."""
    headers = accept(request.headers)
    return WebSocketResponse(headers, await _followed(request, query))


@route_in(
    PLACE,
    "GET",
    "/app-instances/{instance_id}/timeline",
    RouteSpec(
        "timeline",
        "list",
        "event.read",
        name="list_instance_timeline",
        answer=TimelinePage,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def list_instance_timeline(
    request: RequestContext, instance_id: str, query: InstanceTimelineQuery
) -> TimelinePage:
    """Read the timeline of an instance: its members, operations, tasks and the capacity that it requested."""
    project_id = request.place.project_id or ""
    require(await instances.find(request.services.database, request.acting, project_id, instance_id), "instance")
    wanted = timelines.timeline_selection(
        request, app_instance_id=instance_id, correlation_id=query.correlation_id, audit=query.audit
    )
    return await _page(request, wanted, query)


async def _followed(request: RequestContext, query: TimelineStreamQuery) -> AsyncGenerator[stream.StreamChunk, None]:
    wanted = await _selection(request, query)
    stream.require_room(request)
    cursor = request.headers.get("last-event-id") or query.cursor
    position = await stream.position_of(request, cursor) if cursor else request.services.hub.head
    return stream.pieces(request, timelines.TimelineSource(request, wanted), position)


async def _selection(request: RequestContext, query: TimelineQuery | TimelineStreamQuery) -> TimelineSelection:
    project_id = request.place.project_id or ""
    require(await projects.find(request.services.database, request.acting, project_id), "project")
    if query.correlation_id is None and query.app_instance_id is None:
        raise invalid("correlation_id", "a correlation id or an instance; for the whole project read its events")
    if query.app_instance_id is not None:
        instance = await instances.find(request.services.database, request.acting, project_id, query.app_instance_id)
        require(instance, "instance")
    return timelines.timeline_selection(
        request, app_instance_id=query.app_instance_id, correlation_id=query.correlation_id, audit=query.audit
    )


async def _page(
    request: RequestContext, wanted: TimelineSelection, query: TimelineQuery | InstanceTimelineQuery
) -> TimelinePage:
    """Read a page; with `wait`, wait until it has an entry."""
    position = await stream.position_of(request, query.cursor) if query.cursor else await stream.first_position(request)
    deadline = time.monotonic() + min(query.wait, request.services.settings.wait_seconds_max)
    rows, position = await timelines.read(request, wanted, position, query.limit)
    while not rows and not request.services.hub.closed:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        await request.services.hub.wait(position, min(left, timelines.POLL_SECONDS))
        rows, position = await timelines.read(request, wanted, position, query.limit)
    if query.wait:
        await stream.require_still_allowed(request)
    return TimelinePage(items=[entry_view(row) for row in rows], next_cursor=position.cursor())
