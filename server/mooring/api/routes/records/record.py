"""Endpoints for events and the audit trail of the platform, of tenants and of projects."""

from collections.abc import AsyncGenerator

from mooring.api import stream
from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.response import StreamingResponse
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.records.record import (
    AuditQuery,
    AuditView,
    EventPage,
    EventQuery,
    StreamQuery,
    audit_view,
    event_view,
)
from mooring.api.socket import WebSocketResponse, accept
from mooring.commands.kernel.lookup import require
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
    RouteSpec("event", "list", "event.read", answer=EventPage, errors=(Code.CURSOR_EXPIRED,)),
)
async def list_events(request: RequestContext, query: EventQuery) -> EventPage:
    """Read events in order, from the oldest stored one or from a cursor; `wait` waits for the first.

    With `newest` and without a cursor the page has the last events, still in order; its cursor leads to later ones.
    """
    await _require_project(request)
    hub = request.services.hub
    wanted = stream.selection(request, query.correlation_id, query.app_instance_id)
    if query.newest and not query.cursor:
        rows, position = await hub.newest(wanted, query.limit)
    else:
        first = (
            await stream.position_of(request, query.cursor) if query.cursor else await stream.first_position(request)
        )
        rows, position = await hub.read(wanted, first, query.limit)
    if not rows and query.wait:
        rows, position = await stream.wait_for_first(request, wanted, position, query)
    if query.wait:
        await stream.require_still_allowed(request)
    withhold = request.place.scope is Scope.PLATFORM
    return EventPage(items=[event_view(row, withhold=withhold) for row in rows], next_cursor=position.cursor())


@route_in(
    PLACES,
    "GET",
    "/events/stream",
    RouteSpec(
        "event",
        "follow",
        "event.read",
        media_type="text/event-stream",
        unlimited=True,
        errors=(Code.CURSOR_EXPIRED,),
    ),
)
async def stream_events(request: RequestContext, query: StreamQuery) -> StreamingResponse:
    """Follow events as they happen (server-sent events).

    Without a cursor the stream starts now. With `Last-Event-ID` or `cursor` it continues after that event without gaps.
    """
    pieces = await _followed(request, query)
    return StreamingResponse(stream.server_sent(pieces), "text/event-stream")


@route_in(
    PLACES,
    "GET",
    "/events/ws",
    RouteSpec(
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
async def connect_events(request: RequestContext, query: StreamQuery) -> WebSocketResponse:
    """Follow events as they happen (WebSocket); the same events, cursors and bounds as the stream."""
    headers = accept(request.headers)
    return WebSocketResponse(headers, await _followed(request, query))


async def _followed(request: RequestContext, query: StreamQuery) -> AsyncGenerator[stream.StreamChunk, None]:
    await _require_project(request)
    stream.require_room(request)
    wanted = stream.selection(request, query.correlation_id, query.app_instance_id)
    cursor = request.headers.get("last-event-id") or query.cursor
    position = await stream.position_of(request, cursor) if cursor else request.services.hub.head
    return stream.pieces(request, stream.EventSource(request, wanted), position)


@route_in(PLACES, "GET", "/audit", RouteSpec("audit", "list", "audit.read", answer=Page[AuditView]))
async def list_audit(request: RequestContext, query: AuditQuery) -> Page[AuditView]:
    """Read the audit trail, newest first."""
    await _require_project(request)
    wanted = audits.AuditFilter(
        correlation_id=query.correlation_id,
        actor_id=query.actor_id,
        action=query.action,
        outcome=query.outcome,
        actor_kind=query.actor_kind and query.actor_kind.value,
        subject_id=query.subject_id,
        since=query.since,
        until=query.until,
    )
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    window = page_window(pages, "audit", LAST_ID)
    rows = await audits.page(request.services.database, request.acting, request.place.project_id, wanted, window)
    return page(rows, pages, "audit", audit_view)


async def _require_project(request: RequestContext) -> None:
    """A tenant's admin may pass any id; one that is not a project of the tenant is not found."""
    if request.place.project_id is not None:
        require(await projects.find(request.services.database, request.acting, request.place.project_id), "project")
