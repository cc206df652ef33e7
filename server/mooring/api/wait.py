"""Reads that wait: until a state is reached, until something changes, or until the time is over.

Nobody needs to poll. The read is repeated whenever an event or a hint about the same subject arrives; it only wakes the
read, and the database has the truth.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Final, Protocol, TypeVar

import msgspec

from mooring.api.request_context import RequestContext
from mooring.api.stream import require_still_allowed
from mooring.core.runtime.operation import OPERATION, OperationState
from mooring.storage.kernel.event import EventSelection

View = TypeVar("View")


class HasOutcome(Protocol):
    """The part of an operation's view that waiting needs."""

    @property
    def status(self) -> OperationState: ...


Outcome = TypeVar("Outcome", bound=HasOutcome)
POLL_SECONDS: Final = 0.25
HINT_SECONDS: Final = 1.0


class WaitQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long to wait, and for what."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=60, description="Seconds to wait for a change or a state.")] = 0
    until: (
        Annotated[
            str,
            msgspec.Meta(max_length=200, pattern="^[a-z_,]+$", description="States to wait for, separated by commas."),
        ]
        | None
    ) = None
    changed_from: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=50,
                pattern="^[0-9.]+$",
                description="The last known `etag`: wait until it changes.",
            ),
        ]
        | None
    ) = None


async def waited(
    request: RequestContext,
    query: WaitQuery,
    subject_id: str,
    read: Callable[[], Awaitable[View]],
    *,
    silent: frozenset[str] = frozenset(),
) -> View:
    """The view as soon as it is what the caller waits for, or as it is when the time is over.

    `silent` are states that are reached without an event; while a caller waits for one of them, the read is repeated
    often.
    """
    seconds = min(query.wait, request.services.settings.wait_seconds_max)
    if not seconds or (query.until is None and query.changed_from is None):
        return await read()
    hinted: set[str] = set()
    stop = request.services.hub.on_hint(lambda hint: hinted.add(hint) if hint == subject_id else None)
    try:
        return await _waited(request, query, subject_id, read, seconds=seconds, silent=silent, hinted=hinted)
    finally:
        stop()


async def _waited(
    request: RequestContext,
    query: WaitQuery,
    subject_id: str,
    read: Callable[[], Awaitable[View]],
    *,
    seconds: float,
    silent: frozenset[str],
    hinted: set[str],
) -> View:
    """Read until the view is what the caller waits for; `hinted` gets the subject when it changed without an event."""
    hub = request.services.hub
    place = hub.head
    view = await read()
    deadline = time.monotonic() + seconds
    wanted = set(query.until.split(",")) if query.until else set()
    while not hub.closed:
        if wanted and getattr(view, "status", None) in wanted:
            return view
        if query.changed_from is not None and getattr(view, "etag", None) != query.changed_from:
            return view
        left = deadline - time.monotonic()
        if left <= 0:
            return view
        if not await hub.wait(place, min(left, POLL_SECONDS) if wanted & silent else left):
            if not wanted & silent:
                return view
            await require_still_allowed(request)
            view = await read()
            continue
        found, place = await hub.read(EventSelection(tenant_id=request.acting.tenant_id), place, 1000)
        concerned = any(subject_id in (event.subject_id, event.app_instance_id) for event in found)
        if concerned or hinted:
            hinted.clear()
            await require_still_allowed(request)
            view = await read()
    return view


async def wait_for_read_only(
    request: RequestContext, instance_id: str, seconds: float, read: Callable[[], Awaitable[Outcome]]
) -> Outcome:
    """A read-only action once it has ended or the time is over; it leaves no event, so a hint wakes the caller."""
    deadline = time.monotonic() + min(seconds, request.services.settings.wait_seconds_max)
    woken = asyncio.Event()
    stop = request.services.hub.on_hint(lambda hinted: woken.set() if hinted == instance_id else None)
    try:
        while True:
            woken.clear()
            view = await read()
            left = deadline - time.monotonic()
            if view.status in OPERATION.final or left <= 0 or request.services.hub.closed:
                return view
            with suppress(TimeoutError):  # a lost hint only delays
                async with asyncio.timeout(min(left, HINT_SECONDS)):
                    await woken.wait()
            await require_still_allowed(request)
    finally:
        stop()
