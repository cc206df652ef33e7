"""The event stream: server-sent events, resumable, closed when its caller may no longer read it.

A follower holds one place in the stream and asks the hub for what is after it. Each event goes out with its cursor as
the id; a browser, or the SDK, sends the last one back as `Last-Event-ID` and misses nothing. The caller's token is
looked at again every few seconds: revoked, expired or without the permission, the stream ends.
"""

import time
from collections.abc import AsyncIterator
from typing import Final

from mooring.api.call import Call, encode_json
from mooring.api.schemas.record import EventQuery, event_view
from mooring.core.errors import Code, Refusal
from mooring.core.event import BEGINNING, Event, Position, read_cursor
from mooring.core.permissions import Access, Scope
from mooring.storage import event as events

HEARTBEAT_SECONDS: Final = 15.0
BATCH: Final = 500
SHARE: Final = 0.5
"""Of the token cache's time: a look-up counts for one half and is repeated after the other: the whole is the bound."""


def selection(call: Call, correlation_id: str | None) -> events.Selection:
    """Whose events this caller reads here."""
    if call.place.scope is Scope.PROJECT:
        return events.Selection(call.acting.tenant_id, call.place.project_id, correlation_id)
    return events.Selection(call.acting.tenant_id, None, correlation_id)


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


def server_sent(event: Event, *, withhold: bool) -> bytes:
    """One event on the wire."""
    body = encode_json(event_view(event, withhold=withhold))
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.position.cursor().encode(), event.type.encode(), body)


async def follow(call: Call, wanted: events.Selection, place: Position) -> AsyncIterator[bytes]:
    """Everything after a place, for as long as the caller may read it."""
    hub, principal = call.services.hub, call.caller.actor.id
    streams = call.tools.streams
    streams[principal] = streams.get(principal, 0) + 1
    withhold = call.place.scope is Scope.PLATFORM
    recheck = max(0.1, call.services.settings.token_cache_seconds * SHARE)
    quiet = 0.0
    try:
        # An id without data moves the caller's cursor: whoever is cut off before the first event misses none either.
        yield b": the stream is open\nretry: 1000\nid: %b\n\n" % place.cursor().encode()
        if streams[principal] > call.services.settings.streams_per_principal:  # many were opened at the same moment
            yield b'event: closed\ndata: {"reason": "this caller holds too many streams"}\n\n'
            return
        while not hub.closed:
            found, place = await hub.read(wanted, place, BATCH)
            if not await _may_go_on(call):  # before the events are shown: they may be what came after the end of it
                yield b'event: closed\ndata: {"reason": "the token or its permission ended"}\n\n'
                return
            if found:
                quiet = 0.0
                yield b"".join(server_sent(event, withhold=withhold) for event in found)
            else:
                quiet += recheck
                if quiet >= HEARTBEAT_SECONDS:
                    quiet = 0.0
                    yield b": still here\nid: %b\n\n" % place.cursor().encode()
            if len(found) < BATCH:
                await hub.wait(place, recheck)
    finally:
        streams[principal] -= 1
        if not streams[principal]:
            del streams[principal]


async def _may_go_on(call: Call) -> bool:
    """Whether the caller still holds what the stream asks for; a database that is away does not end a stream."""
    try:
        await require_still_allowed(call)
    except Refusal as refusal:
        return refusal.code not in (Code.UNAUTHENTICATED, Code.NOT_FOUND, Code.PERMISSION_DENIED)
    return True


async def require_still_allowed(call: Call) -> None:
    """Refuse what was allowed when it began and is no longer; the cache answers most of the time."""
    caller = await call.tools.authenticator.caller(call.token or "", share=SHARE)
    access = caller.authority.access(call.route.action, call.place)
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
    await require_still_allowed(call)
    return rows, place
