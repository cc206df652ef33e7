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

from mooring.api.request_context import Call, encode_json
from mooring.api.schemas.records.record import EventQuery, event_view
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import BEGINNING, Event, Position, read_cursor
from mooring.core.kernel.permissions import Access, Authority, Scope, access_by_family
from mooring.storage.kernel import event as events

HEARTBEAT_SECONDS: Final = 15.0
BATCH: Final = 500
SHARE: Final = 0.5
"""Of the token cache's time: a look-up counts for one half and is repeated after the other: the whole is the bound."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing on the wire: its cursor, its type, and itself as JSON."""

    cursor: str
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """What a stream says next: items, where it stands, or that it ends and why."""

    place: Position
    items: tuple[Item, ...] = ()
    opens: bool = False
    ends: Refusal | None = None


class Source(Protocol):
    """What is followed."""

    async def read(self, place: Position) -> tuple[list[Item], Position]:
        """The next items after a place, at the most a batch, and the place up to which that is all there is."""

    async def wait(self, place: Position, seconds: float) -> None:
        """Wait until there may be something after the place, or the time is over."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Events, out of the hub."""

    call: Call
    wanted: events.Selection

    async def read(self, place: Position) -> tuple[list[Item], Position]:
        """The next events."""
        withhold = self.call.place.scope is Scope.PLATFORM
        found, place = await self.call.services.hub.read(self.wanted, place, BATCH)
        return [item_of(event, withhold=withhold) for event in found], place

    async def wait(self, place: Position, seconds: float) -> None:
        """Wait for an event of anybody's."""
        await self.call.services.hub.wait(place, seconds)


def selection(call: Call, correlation_id: str | None, app_instance_id: str | None = None) -> events.Selection:
    """Whose events this caller reads here."""
    project_id = call.place.project_id if call.place.scope is Scope.PROJECT else None
    return events.Selection(call.acting.tenant_id, project_id, correlation_id, app_instance_id)


async def place_of(call: Call, cursor: str) -> Position:
    """The place that a cursor names, unless what follows it is no longer kept."""
    if cursor == "beginning":
        return await first_place(call)
    position = read_cursor(cursor)
    forgotten = await events.forgotten(call.services.database)
    if position < forgotten:
        raise Refusal(
            Code.CURSOR_EXPIRED,
            "the events after this cursor are no longer kept",
            {"oldest_cursor": forgotten.cursor()},
        )
    return position


async def first_place(call: Call) -> Position:
    """Where the events that are still kept begin."""
    return max(BEGINNING, await events.forgotten(call.services.database))


def item_of(event: Event, *, withhold: bool) -> Item:
    """An event on the wire."""
    return Item(event.position.cursor(), event.type, encode_json(event_view(event, withhold=withhold)))


async def pieces(call: Call, source: Source, place: Position) -> AsyncGenerator[Piece, None]:
    """Everything after a place, for as long as the caller may read it."""
    hub, principal = call.services.hub, call.caller.actor.id
    streams = call.tools.streams
    streams[principal] = streams.get(principal, 0) + 1
    recheck = max(0.1, call.services.settings.token_cache_seconds * SHARE)
    told_at = time.monotonic()
    try:
        # The place is told first: whoever is cut off before the first item misses none either.
        yield Piece(place, opens=True)
        if streams[principal] > call.services.settings.streams_per_principal:  # many were opened at the same moment
            yield Piece(place, ends=Refusal(Code.RATE_LIMITED, "this caller holds too many streams"))
            return
        while not hub.closed:
            found, after = await source.read(place)
            ended = await _ended(call)  # before the items are shown: they may be what came after the end of it
            if ended is not None:
                yield Piece(place, ends=ended)
                return
            place = after
            if found or time.monotonic() - told_at >= HEARTBEAT_SECONDS:
                told_at = time.monotonic()
                yield Piece(place, tuple(found))
            if len(found) < BATCH:
                await source.wait(place, recheck)
    finally:
        streams[principal] -= 1
        if not streams[principal]:
            del streams[principal]


async def server_sent(stream: AsyncIterator[Piece]) -> AsyncIterator[bytes]:
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


async def _ended(call: Call) -> Refusal | None:
    """Why the caller no longer holds what the stream asks for; a database that is away does not end a stream."""
    try:
        await require_still_allowed(call)
    except Refusal as refusal:
        if refusal.code in (Code.UNAUTHENTICATED, Code.NOT_FOUND, Code.PERMISSION_DENIED):
            return Refusal(refusal.code, "the token or its permission ended")
    return None


async def require_still_allowed(call: Call) -> None:
    """Refuse what was allowed when it began and is no longer; the cache answers most of the time."""
    caller = await call.tools.authenticator.caller(call.token or "", share=SHARE)
    decide = access_by_family if call.route.family else Authority.access
    access = decide(caller.authority, call.route.action, call.place)
    if access is Access.HIDDEN:
        raise Refusal(Code.NOT_FOUND, f"there is no such {call.place.scope}, or it is no longer yours to see")
    if access is not Access.ALLOWED:
        detail = f"{call.route.action} is no longer allowed to this caller here"
        raise Refusal(Code.PERMISSION_DENIED, detail, {"action": call.route.action})


def require_room(call: Call) -> None:
    """One caller holds a bounded number of streams."""
    limit = call.services.settings.streams_per_principal
    if call.tools.streams.get(call.caller.actor.id, 0) >= limit:
        raise Refusal(
            Code.RATE_LIMITED,
            f"this caller holds {limit} streams already",
            {"limit": limit, "retry_after_seconds": 5},
        )


async def wait_for_first(
    call: Call, wanted: events.Selection, place: Position, query: EventQuery
) -> tuple[list[Event], Position]:
    """Wait until there is an event of the selection, or the time is over."""
    hub = call.services.hub
    deadline = time.monotonic() + min(query.wait, call.services.settings.wait_seconds_max)
    rows: list[Event] = []
    while not rows and not hub.closed:
        left = deadline - time.monotonic()
        if left <= 0 or not await hub.wait(place, left):
            break
        rows, place = await hub.read(wanted, place, query.limit)
    return rows, place
