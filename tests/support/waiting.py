"""The one way in which tests wait: `until(condition, bound)`.

A test never waits for a length of time, since on a slow machine every length is too short and on a fast one it is lost.
It waits for a condition, and fails with what it saw last when the bound is over. The bound says when to give up, so it
is generous: two minutes unless the test says otherwise. The condition is looked at ever more rarely, since a look costs
the machine time that the awaited thing needs.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

Seen = TypeVar("Seen")
What = str | Callable[[], str]
"""The name of what is waited for, in the message of a failure; or a function that says it then."""
PATIENCE_SECONDS = 120.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.001, 0.5


@overload
async def until(
    condition: Callable[[], Awaitable[Seen | None]], bound: float = PATIENCE_SECONDS, *, what: What = ""
) -> Seen: ...


@overload
async def until(condition: Callable[[], Seen | None], bound: float = PATIENCE_SECONDS, *, what: What = "") -> Seen: ...


async def until(condition: Callable[[], Any], bound: float = PATIENCE_SECONDS, *, what: What = "") -> Any:
    """What the condition returns as soon as that is true; the condition may be a coroutine function."""
    begun, seen = time.monotonic(), None
    try:
        async with asyncio.timeout(bound):
            while True:
                found = condition()
                seen = await found if inspect.isawaitable(found) else found
                if seen:
                    return seen
                await asyncio.sleep(_pause(time.monotonic() - begun))
    except TimeoutError:
        raise AssertionError(_failure(condition, bound, what, seen)) from None


def until_sync(condition: Callable[[], Seen | None], bound: float = PATIENCE_SECONDS, *, what: What = "") -> Seen:
    """The same for a test without an event loop."""
    begun = time.monotonic()
    while not (seen := condition()):
        elapsed = time.monotonic() - begun
        assert elapsed < bound, _failure(condition, bound, what, seen)
        time.sleep(_pause(elapsed))
    return seen


async def turns(count: int = 1) -> None:
    """Let the other tasks of this event loop run, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def linger(seconds: float) -> None:
    """Be slow on purpose: for a double that plays a slow partner, never to wait for something."""
    await asyncio.sleep(seconds)


def _pause(elapsed: float) -> float:
    return min(max(elapsed / 4, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)


def _failure(condition: object, bound: float, what: What, seen: object) -> str:
    name = what() if callable(what) else what or condition
    return f"{name} did not come about within {bound:g} s; seen last: {seen!r}"
