"""Streams of what happens: resumable, closed when their caller may no longer read them.

A follower holds one place in the stream and asks its source for what is after it. Each item goes out with its cursor;
whoever sends the last one back misses nothing and is told nothing twice. The caller's token is looked at again every
few seconds: revoked, expired or without the permission, the stream ends.

`pieces` is the stream itself. It goes out as server-sent events (`server_sent`), where the cursor is the id that a
browser, or the SDK, sends back as `Last-Event-ID`, or as messages of a WebSocket (`api/socket.py`).
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from mooring.api.request_context import RequestContext, encode_json
from mooring.api.schemas.records.record import EventQuery, event_view
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import BEGINNING, Event, StreamPosition, read_cursor
from mooring.core.kernel.permissions import AccessDecision, Authority, Scope, access_by_family
from mooring.storage.kernel import event as events

HEARTBEAT_SECONDS: Final = 15.0
BATCH: Final = 500
SHARE: Final = 0.5
"""Of the token cache's time: a look-up counts for one half and is repeated after the other: the whole is the bound."""


@dataclass(frozen=True, slots=True)
class StreamItem:
    """One thing on the wire: its cursor, its type, and itself as JSON."""

    cursor: str
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What a stream says next: items, where it stands, or that it ends and why."""

    place: StreamPosition
    items: tuple[StreamItem, ...] = ()
    opens: bool = False
    ends: Refusal | None = None


class StreamSource(Protocol):
    """What is followed."""

    async def read(self, place: StreamPosition) -> tuple[list[StreamItem], StreamPosition]:
        """The next items after a place, at the most a batch, and the place up to which that is all there is."""

    async def wait(self, place: StreamPosition, seconds: float) -> None:
        """Wait until there may be something after the place, or the time is over."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Events, out of the hub."""

    call: RequestContext
    wanted: events.EventSelection

    async def read(self, place: StreamPosition) -> tuple[list[StreamItem], StreamPosition]:
        """The next events."""
        withhold = self.call.place.scope is Scope.PLATFORM
        found, place = await self.call.services.hub.read(self.wanted, place, BATCH)
        return [item_of(event, withhold=withhold) for event in found], place

    async def wait(self, place: StreamPosition, seconds: float) -> None:
        """Wait for an event of anybody's."""
        await self.call.services.hub.wait(place, seconds)


def selection(
    request: RequestContext, correlation_id: str | None, app_instance_id: str | None = None
) -> events.EventSelection:
    """Whose events this caller reads here."""
    project_id = request.place.project_id if request.place.scope is Scope.PROJECT else None
    return events.EventSelection(request.acting.tenant_id, project_id, correlation_id, app_instance_id)


async def place_of(request: RequestContext, cursor: str) -> StreamPosition:
    """The place that a cursor names, unless what follows it is no longer kept."""
    if cursor == "beginning":
        return await first_place(request)
    position = read_cursor(cursor)
    forgotten = await events.forgotten(request.services.database)
    if position < forgotten:
        raise Refusal(
            Code.CURSOR_EXPIRED,
            "the events after this cursor are no longer kept",
            {"oldest_cursor": forgotten.cursor()},
        )
    return position


async def first_place(request: RequestContext) -> StreamPosition:
    """Where the events that are still kept begin."""
    return max(BEGINNING, await events.forgotten(request.services.database))


def item_of(event: Event, *, withhold: bool) -> StreamItem:
    """An event on the wire."""
    return StreamItem(event.position.cursor(), event.type, encode_json(event_view(event, withhold=withhold)))


async def pieces(
    request: RequestContext, source: StreamSource, place: StreamPosition
) -> AsyncGenerator[StreamChunk, None]:
    """Everything after a place, for as long as the caller may read it."""
    hub, principal = request.services.hub, request.caller.actor.id
    streams = request.tools.streams
    streams[principal] = streams.get(principal, 0) + 1
    recheck = max(0.1, request.services.settings.token_cache_seconds * SHARE)
    told_at = time.monotonic()
    try:
        # The place is told first: whoever is cut off before the first item misses none either.
        yield StreamChunk(place, opens=True)
        if streams[principal] > request.services.settings.streams_per_principal:  # many were opened at the same moment
            yield StreamChunk(place, ends=Refusal(Code.RATE_LIMITED, "this caller holds too many streams"))
            return
        while not hub.closed:
            found, after = await source.read(place)
            ended = await _ended(request)  # before the items are shown: they may be what came after the end of it
            if ended is not None:
                yield StreamChunk(place, ends=ended)
                return
            place = after
            if found or time.monotonic() - told_at >= HEARTBEAT_SECONDS:
                told_at = time.monotonic()
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
    """Why the caller no longer holds what the stream asks for; a database that is away does not end a stream."""
    try:
        await require_still_allowed(request)
    except Refusal as refusal:
        if refusal.code in (Code.UNAUTHENTICATED, Code.NOT_FOUND, Code.PERMISSION_DENIED):
            return Refusal(refusal.code, "the token or its permission ended")
    return None


async def require_still_allowed(request: RequestContext) -> None:
    """Refuse what was allowed when it began and is no longer; the cache answers most of the time."""
    caller = await request.tools.authenticator.caller(request.token or "", share=SHARE)
    decide = access_by_family if request.route.family else Authority.access
    access = decide(caller.authority, request.route.action, request.place)
    if access is AccessDecision.HIDDEN:
        raise Refusal(Code.NOT_FOUND, f"there is no such {request.place.scope}, or it is no longer yours to see")
    if access is not AccessDecision.ALLOWED:
        detail = f"{request.route.action} is no longer allowed to this caller here"
        raise Refusal(Code.PERMISSION_DENIED, detail, {"action": request.route.action})


def require_room(request: RequestContext) -> None:
    """One caller holds a bounded number of streams."""
    limit = request.services.settings.streams_per_principal
    if request.tools.streams.get(request.caller.actor.id, 0) >= limit:
        raise Refusal(
            Code.RATE_LIMITED,
            f"this caller holds {limit} streams already",
            {"limit": limit, "retry_after_seconds": 5},
        )


async def wait_for_first(
    request: RequestContext, wanted: events.EventSelection, place: StreamPosition, query: EventQuery
) -> tuple[list[Event], StreamPosition]:
    """Wait until there is an event of the selection, or the time is over."""
    hub = request.services.hub
    deadline = time.monotonic() + min(query.wait, request.services.settings.wait_seconds_max)
    rows: list[Event] = []
    while not rows and not hub.closed:
        left = deadline - time.monotonic()
        if left <= 0 or not await hub.wait(place, left):
            break
        rows, place = await hub.read(wanted, place, query.limit)
    return rows, place
