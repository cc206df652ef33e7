"""Endpoints of events and the audit trail, in each kind of place."""

from collections.abc import AsyncGenerator

from mooring.api import stream
from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call
from mooring.api.response import Stream
from mooring.api.route import Declared, route_in
from mooring.api.schemas.records.record import (
    AuditQuery,
    AuditView,
    EventPage,
    EventQuery,
    StreamQuery,
    audit_view,
    event_view,
)
from mooring.api.socket import Socket
from mooring.api.websocket import accept
from mooring.commands.kernel.lookup import found
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import project as projects
from mooring.storage.records import audit as audits

PLACES = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)
LAST_ID = "~"  # sorts after every id


@route_in(
    PLACES,
    "GET",
    "/events",
    Declared("event", "list", "event.read", answer=EventPage, errors=(Code.CURSOR_EXPIRED,)),
)
async def list_events(call: Call, query: EventQuery) -> EventPage:
    """Read events in order, from the oldest that is kept or from a cursor on; `wait` holds on for the first."""
    await _require_project(call)
    hub = call.services.hub
    wanted = stream.selection(call, query.correlation_id, query.app_instance_id)
    place = await stream.place_of(call, query.cursor) if query.cursor else await stream.first_place(call)
    rows, place = await hub.read(wanted, place, query.limit)
    if not rows and query.wait:
        rows, place = await stream.wait_for_first(call, wanted, place, query)
    if query.wait:
        await stream.require_still_allowed(call)
    withhold = call.place.scope is Scope.PLATFORM
    return EventPage(items=[event_view(row, withhold=withhold) for row in rows], next_cursor=place.cursor())


@route_in(
    PLACES,
    "GET",
    "/events/stream",
    Declared(
        "event",
        "follow",
        "event.read",
        media_type="text/event-stream",
        unlimited=True,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def stream_events(call: Call, query: StreamQuery) -> Stream:
    """Follow events as they happen (server-sent events).

    Without a cursor the stream begins now. `Last-Event-ID`, or `cursor`, goes on after that event and misses none.
    """
    pieces = await _followed(call, query)
    return Stream(stream.server_sent(pieces), "text/event-stream")


@route_in(
    PLACES,
    "GET",
    "/events/ws",
    Declared(
        "event",
        "connect",
        "event.read",
        name="connect_events",
        unlimited=True,
        hidden=True,
        websocket=True,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def connect_events(call: Call, query: StreamQuery) -> Socket:
    """Follow events as they happen (WebSocket); the same events, cursors and bounds as the stream."""
    headers = accept(call.headers)
    return Socket(headers, await _followed(call, query))


async def _followed(call: Call, query: StreamQuery) -> AsyncGenerator[stream.Piece, None]:
    await _require_project(call)
    stream.require_room(call)
    wanted = stream.selection(call, query.correlation_id, query.app_instance_id)
    cursor = call.headers.get("last-event-id") or query.cursor
    place = await stream.place_of(call, cursor) if cursor else call.services.hub.head
    return stream.pieces(call, stream.EventSource(call, wanted), place)


@route_in(PLACES, "GET", "/audit", Declared("audit", "list", "audit.read", answer=Page[AuditView]))
async def list_audit(call: Call, query: AuditQuery) -> Page[AuditView]:
    """Read the audit trail, newest first."""
    await _require_project(call)
    wanted = audits.AuditFilter(query.correlation_id, query.actor_id, query.action, query.outcome)
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    where = (start(pages, "audit", LAST_ID), query.limit + 1)
    rows = await audits.page(call.services.database, call.acting, call.place.project_id, wanted, where)
    return page(rows, pages, "audit", audit_view)


async def _require_project(call: Call) -> None:
    """A tenant's admin may name any id: what is no project of the tenant's is not found."""
    if call.place.project_id is not None:
        found(await projects.find(call.services.database, call.acting, call.place.project_id), "project")
