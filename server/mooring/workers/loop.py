"""The loop of every worker: level-triggered, bounded, and never stopped by one bad tick.

A tick looks at the state of things and does what is due; it may be repeated at any time, by any replica. It returns
how many seconds from now something is due, or nothing when only an event can change that. A hint wakes the loop
early; it never tells it what to do. A tick that fails is logged and tried again after a growing pause.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final, Protocol

from mooring.core.fleet.task_family import PLATFORM_TASKS
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType

PAUSE_FIRST_SECONDS: Final = 0.5
PAUSE_MAX_SECONDS: Final = 30.0
QUICK_SECONDS: Final = 0.005
QUICK_LOOKS: Final = 30
QUIET_SECONDS: Final = 0.2

log = logging.getLogger("mooring.worker")


class Worker(Protocol):
    """Something that is looked after."""

    name: str
    poll_interval_seconds: float  # the longest time between two looks, whatever the hints

    def wants(self, event: Event) -> bool:
        """Whether there may be something to do after this event."""

    async def tick(self) -> float | None:
        """Do what is due; returns in how many seconds to look again, at the latest after `poll_interval_seconds`."""

    async def close(self) -> None:
        """No tick will follow: end what is under way and hand back what is held."""


def is_of_app(event: Event) -> bool:
    """Whether an event tells of a task that an app asked for: no allocation and no instance waits for that."""
    if event.type == EventType.TASK_QUEUED:
        return True
    return event.type == EventType.TASK_FINISHED and event.data.get("type") not in PLATFORM_TASKS


class WakePace:
    """How soon a worker looks again: at once after a quiet time, and later while one hint follows the other.

    Events come by the thousand, and one look answers for all of them: then `seconds` pass from look to look, and after
    one that took long a rest of `ratio` times that, at the most `rest_seconds`. The first few looks of such a time
    follow each other closely: the events of one launch are not made to wait for each other.
    """

    def __init__(self, seconds: float, *, ratio: float = 0.0, rest_seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._ratio, self._rest_seconds = ratio, rest_seconds
        self._in_a_row = 0
        self._until = 0.0

    @asynccontextmanager
    async def look(self) -> AsyncIterator[None]:
        """One look, when it is time for it; one that comes to an error counts too."""
        await asyncio.sleep(self.wait_seconds(time.monotonic()))
        begun = time.monotonic()
        try:
            yield
        finally:
            self.looked(begun, time.monotonic())

    def wait_seconds(self, now: float) -> float:
        """How long to wait before the look that somebody asks for now."""
        if now - self._until > QUIET_SECONDS:
            self._in_a_row = 0
        return max(0.0, self._until - now)

    def looked(self, begun: float, ended: float) -> None:
        """A look is over: what it says of the next one."""
        self._in_a_row += 1
        pause = QUICK_SECONDS if self._in_a_row < QUICK_LOOKS else self._seconds
        self._until = max(begun + pause, ended + min(self._ratio * (ended - begun), self._rest_seconds))


class WorkerLoop:
    """Runs one worker until it is told to stop."""

    def __init__(self, worker: Worker, observe: Callable[[str], AbstractContextManager[object]]) -> None:
        self._worker = worker
        self._observe = observe
        self._hint = asyncio.Event()
        self._stopping = asyncio.Event()

    def wake(self, event: Event) -> None:
        """There may be something to do."""
        if self._worker.wants(event):
            self._hint.set()

    def stop(self) -> None:
        """End after the tick that is under way."""
        self._stopping.set()
        self._hint.set()

    async def run(self) -> None:
        """Tick, wait, tick; at the end, and also when it is cut short, the worker hands back what it holds."""
        try:
            await self._run()
        finally:
            await self._worker.close()

    async def _run(self) -> None:
        pause = PAUSE_FIRST_SECONDS
        while not self._stopping.is_set():
            self._hint.clear()
            try:
                with self._observe(self._worker.name):
                    due = await self._worker.tick()
                pause = PAUSE_FIRST_SECONDS
                wait = (
                    self._worker.poll_interval_seconds if due is None else min(due, self._worker.poll_interval_seconds)
                )
            except Refusal as refusal:
                log.warning("worker %s cannot work now: %s", self._worker.name, refusal.detail)
                wait, pause = pause, min(pause * 2, PAUSE_MAX_SECONDS)
            except Exception:
                log.exception("worker %s failed; it goes on in %.1f s", self._worker.name, pause)
                wait, pause = pause, min(pause * 2, PAUSE_MAX_SECONDS)
            await _wait(self._hint, wait)


async def _wait(hint: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await hint.wait()
    except TimeoutError:
        return
