"""Endpoints of the timeline: what happened around an instance, or under a correlation id, in one order."""

import time
from collections.abc import AsyncGenerator

from mooring.api import stream
from mooring.api import timeline as timelines
from mooring.api.request_context import Call
from mooring.api.response import Stream
from mooring.api.route import Declared, route_in
from mooring.api.schemas.records.timeline import (
    InstanceTimelineQuery,
    TimelinePage,
    TimelineQuery,
    TimelineStreamQuery,
    entry_view,
)
from mooring.api.socket import Socket
from mooring.api.websocket import accept
from mooring.commands.kernel.lookup import found
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.storage.identity import project as projects
from mooring.storage.records.timeline import Story
from mooring.storage.runtime import instance as instances

PLACE = (Scope.PROJECT,)


@route_in(
    PLACE,
    "GET",
    "/timeline",
    Declared("timeline", "list", "event.read", answer=TimelinePage, errors=(Code.CURSOR_EXPIRED,)),
)
async def list_timeline(call: Call, query: TimelineQuery) -> TimelinePage:
    """Read what happened under a correlation id, or around an instance: events and audit rows in one order.

    Audit rows are shown to whoever may read the audit trail. `wait` holds on for the first entry.
    """
    wanted = await _story(call, query)
    return await _page(call, wanted, query)


@route_in(
    PLACE,
    "GET",
    "/timeline/stream",
    Declared(
        "timeline",
        "follow",
        "event.read",
        media_type="text/event-stream",
        unlimited=True,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def stream_timeline(call: Call, query: TimelineStreamQuery) -> Stream:
    """Follow a timeline as it is written (server-sent events).

    Without a cursor the stream begins now. `Last-Event-ID`, or `cursor`, goes on after that entry and misses none. The
    same is there as a WebSocket, at `/timeline/ws`.
    """
    return Stream(stream.server_sent(await _followed(call, query)), "text/event-stream")


@route_in(
    PLACE,
    "GET",
    "/timeline/ws",
    Declared(
        "timeline",
        "connect",
        "event.read",
        unlimited=True,
        hidden=True,
        websocket=True,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def connect_timeline(call: Call, query: TimelineStreamQuery) -> Socket:
    """Follow a timeline as it is written (WebSocket); the same entries, cursors and bounds as the stream."""
    headers = accept(call.headers)
    return Socket(headers, await _followed(call, query))


@route_in(
    PLACE,
    "GET",
    "/app-instances/{instance_id}/timeline",
    Declared(
        "timeline",
        "list",
        "event.read",
        name="list_instance_timeline",
        answer=TimelinePage,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def list_instance_timeline(call: Call, instance_id: str, query: InstanceTimelineQuery) -> TimelinePage:
    """Read what happened around an instance: its members, operations, tasks and the capacity it asked for."""
    project_id = call.place.project_id or ""
    found(await instances.find(call.services.database, call.acting, project_id, instance_id), "instance")
    wanted = timelines.story(call, (instance_id, query.correlation_id), audit=query.audit)
    return await _page(call, wanted, query)


async def _followed(call: Call, query: TimelineStreamQuery) -> AsyncGenerator[stream.Piece, None]:
    wanted = await _story(call, query)
    stream.require_room(call)
    cursor = call.headers.get("last-event-id") or query.cursor
    place = await stream.place_of(call, cursor) if cursor else call.services.hub.head
    return stream.pieces(call, timelines.TimelineSource(call, wanted), place)


async def _story(call: Call, query: TimelineQuery | TimelineStreamQuery) -> Story:
    project_id = call.place.project_id or ""
    found(await projects.find(call.services.database, call.acting, project_id), "project")
    if query.correlation_id is None and query.app_instance_id is None:
        raise invalid("correlation_id", "a correlation id or an instance: a project's own story is its events")
    if query.app_instance_id is not None:
        instance = await instances.find(call.services.database, call.acting, project_id, query.app_instance_id)
        found(instance, "instance")
    return timelines.story(call, (query.app_instance_id, query.correlation_id), audit=query.audit)


async def _page(call: Call, wanted: Story, query: TimelineQuery | InstanceTimelineQuery) -> TimelinePage:
    """A page; while there is nothing on it, the caller may wait."""
    place = await stream.place_of(call, query.cursor) if query.cursor else await stream.first_place(call)
    deadline = time.monotonic() + min(query.wait, call.services.settings.wait_seconds_max)
    rows, place = await timelines.read(call, wanted, place, query.limit)
    while not rows and not call.services.hub.closed:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        await call.services.hub.wait(place, min(left, timelines.LOOK_SECONDS))
        rows, place = await timelines.read(call, wanted, place, query.limit)
    if query.wait:
        await stream.require_still_allowed(call)
    return TimelinePage(items=[entry_view(row) for row in rows], next_cursor=place.cursor())
