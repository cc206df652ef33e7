"""Streams of events: resumable, and closed when their caller may no longer read them.

A follower has one position in the stream and reads from its source what comes after it. Each item is sent with its
cursor; a client that sends the last cursor back misses nothing and gets nothing twice. The caller's token is checked
again every few seconds: if it is revoked, expired or lacks the permission, the stream ends.

`pieces` is the stream itself. It is sent as server-sent events (`server_sent`), where the cursor is the id that a
browser or the SDK sends back as `Last-Event-ID`, or as WebSocket messages (`api/socket.py`).
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from mooring.api.request_context import RequestContext, encode_json
from mooring.api.schemas.records.record import EventQuery, event_view
from mooring.core.identity.source_network import is_allowed, not_allowed
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import BEGINNING, Event, StreamPosition, read_cursor
from mooring.core.kernel.permissions import AccessDecision, Authority, Scope, access_by_family
from mooring.storage.kernel import event as events

HEARTBEAT_SECONDS: Final = 15.0
BATCH: Final = 500
SHARE: Final = 0.5
"""The share of the token cache's lifetime that a look-up is accepted for here; the check is repeated after as long
again, so the whole lifetime is the bound.
"""


@dataclass(frozen=True, slots=True)
class StreamItem:
    """One item on the wire: its cursor, its type, and its JSON."""

    cursor: str
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What a stream sends next: items, its position, or its end with the reason."""

    place: StreamPosition
    items: tuple[StreamItem, ...] = ()
    opens: bool = False
    ends: Refusal | None = None


class StreamSource(Protocol):
    """Items in the order of their positions, which a stream sends and can resume after."""

    async def read(self, place: StreamPosition) -> tuple[list[StreamItem], StreamPosition]:
        """At most one batch of items after a position, and the position up to which this is everything."""

    async def wait(self, place: StreamPosition, seconds: float) -> None:
        """Wait until there may be something after the position, or the time is over."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Events from the hub."""

    call: RequestContext
    wanted: events.EventSelection

    async def read(self, place: StreamPosition) -> tuple[list[StreamItem], StreamPosition]:
        withhold = self.call.place.scope is Scope.PLATFORM
        found, place = await self.call.services.hub.read(self.wanted, place, BATCH)
        return [item_of(event, withhold=withhold) for event in found], place

    async def wait(self, place: StreamPosition, seconds: float) -> None:
        """Wait for any event, also of other projects."""
        await self.call.services.hub.wait(place, seconds)


def selection(
    request: RequestContext, correlation_id: str | None, app_instance_id: str | None = None
) -> events.EventSelection:
    """The events that this caller reads here."""
    project_id = request.place.project_id if request.place.scope is Scope.PROJECT else None
    return events.EventSelection(request.acting.tenant_id, project_id, correlation_id, app_instance_id)


async def position_of(request: RequestContext, cursor: str) -> StreamPosition:
    """The position of a cursor, unless the events after it were already deleted."""
    if cursor == "beginning":
        return await first_position(request)
    position = read_cursor(cursor)
    deleted = await events.forgotten(request.services.database)
    if position < deleted:
        raise Refusal(
            Code.CURSOR_EXPIRED,
            "the events after this cursor are no longer stored",
            {"oldest_cursor": deleted.cursor()},
        )
    return position


async def first_position(request: RequestContext) -> StreamPosition:
    """The position before the oldest stored event."""
    return max(BEGINNING, await events.forgotten(request.services.database))


def item_of(event: Event, *, withhold: bool) -> StreamItem:
    return StreamItem(event.position.cursor(), event.type, encode_json(event_view(event, withhold=withhold)))


async def pieces(
    request: RequestContext, source: StreamSource, place: StreamPosition
) -> AsyncGenerator[StreamChunk, None]:
    """Everything after a position, as long as the caller may read it."""
    hub, principal = request.services.hub, request.caller.actor.id
    streams = request.tools.streams
    streams[principal] = streams.get(principal, 0) + 1
    recheck = max(0.1, request.services.settings.token_cache_seconds * SHARE)
    sent_at = time.monotonic()
    try:
        # Send the position first, so that a client that disconnects before the first item misses nothing.
        yield StreamChunk(place, opens=True)
        if streams[principal] > request.services.settings.streams_per_principal:  # many were opened at the same time
            yield StreamChunk(place, ends=Refusal(Code.RATE_LIMITED, "this caller has too many open streams"))
            return
        while not hub.closed:
            found, after = await source.read(place)
            ended = await _ended(request)  # before sending: the items may be from after the permission ended
            if ended is not None:
                yield StreamChunk(place, ends=ended)
                return
            place = after
            if found or time.monotonic() - sent_at >= HEARTBEAT_SECONDS:
                sent_at = time.monotonic()
                yield StreamChunk(place, tuple(found))
            if len(found) < BATCH:
                await source.wait(place, recheck)
    finally:
        streams[principal] -= 1
        if not streams[principal]:
            del streams[principal]


async def server_sent(stream: AsyncIterator[StreamChunk]) -> AsyncIterator[bytes]:
    """A stream as server-sent events."""
    async for piece in stream:
        if piece.ends is not None:
            yield b"event: closed\ndata: %b\n\n" % encode_json({"reason": piece.ends.detail})
        elif piece.opens:
            yield b": the stream is open\nretry: 1000\nid: %b\n\n" % piece.place.cursor().encode()
        elif piece.items:
            yield b"".join(
                b"id: %b\nevent: %b\ndata: %b\n\n" % (item.cursor.encode(), item.type.encode(), item.body)
                for item in piece.items
            )
        else:
            yield b": still here\nid: %b\n\n" % piece.place.cursor().encode()


async def _ended(request: RequestContext) -> Refusal | None:
    """Why the caller lost the right to the stream, or None; an unavailable database does not end a stream."""
    try:
        await require_still_allowed(request)
    except Refusal as refusal:
        if refusal.code in (Code.UNAUTHENTICATED, Code.NOT_FOUND, Code.PERMISSION_DENIED):
            return Refusal(refusal.code, "the token or its permission ended")
        if refusal.code is Code.CALLER_ADDRESS_DENIED:
            return refusal
    return None


async def require_still_allowed(request: RequestContext) -> None:
    """Refuse what was allowed at the start and no longer is; usually answered from the cache."""
    caller = await request.tools.authenticator.caller(request.token or "", share=SHARE)
    if caller.source_networks and not is_allowed(caller.source_networks, request.origin.remote_address):
        raise not_allowed(request.origin.remote_address)
    decide = access_by_family if request.route.family else Authority.access
    access = decide(caller.authority, request.route.action, request.place)
    if access is AccessDecision.HIDDEN:
        raise Refusal(Code.NOT_FOUND, f"there is no such {request.place.scope}, or you may no longer see it")
    if access is not AccessDecision.ALLOWED:
        detail = f"this caller no longer has {request.route.action} here"
        raise Refusal(Code.PERMISSION_DENIED, detail, {"action": request.route.action})


def require_room(request: RequestContext) -> None:
    """Refuse if the caller has too many open streams."""
    limit = request.services.settings.streams_per_principal
    if request.tools.streams.get(request.caller.actor.id, 0) >= limit:
        raise Refusal(
            Code.RATE_LIMITED,
            f"this caller already has {limit} open streams",
            {"limit": limit, "retry_after_seconds": 5},
        )


async def wait_for_first(
    request: RequestContext, wanted: events.EventSelection, place: StreamPosition, query: EventQuery
) -> tuple[list[Event], StreamPosition]:
    """Wait until the selection has an event, or the time is over."""
    hub = request.services.hub
    deadline = time.monotonic() + min(query.wait, request.services.settings.wait_seconds_max)
    rows: list[Event] = []
    while not rows and not hub.closed:
        left = deadline - time.monotonic()
        if left <= 0 or not await hub.wait(place, left):
            break
        rows, place = await hub.read(wanted, place, query.limit)
    return rows, place
