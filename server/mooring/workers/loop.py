"""The loop of every worker: level-triggered, bounded, and never stopped by one failed tick.

A tick reads the state and does what is due; it may be repeated at any time, by any replica. It returns in how many
seconds something is due, or None when only an event can change that. A hint wakes the loop early, but never says what
to do. A failed tick is logged and retried after a growing pause.
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
QUICK_PASSES: Final = 30
QUIET_SECONDS: Final = 0.2

log = logging.getLogger("mooring.worker")


class Worker(Protocol):
    """A background job of the platform."""

    name: str
    poll_interval_seconds: float  # the longest time between two ticks, whatever the hints

    def wants(self, event: Event) -> bool:
        """Whether there may be something to do after this event."""

    async def tick(self) -> float | None:
        """Do what is due; returns in how many seconds to tick again, None for `poll_interval_seconds`."""

    async def close(self) -> None:
        """No tick will follow: end what is running and hand back leases."""


def is_of_app(event: Event) -> bool:
    """Whether the event is about a task of an app: no allocation and no instance waits for that."""
    if event.type == EventType.TASK_QUEUED:
        return True
    return event.type == EventType.TASK_FINISHED and event.data.get("type") not in PLATFORM_TASKS


class WakePace:
    """Limits how often a worker makes a pass: at once after a quiet time, less often in a burst of hints.

    Events come by the thousand, and one pass answers all of them. In a burst at least `seconds` lie between the starts
    of two passes, and a long pass is followed by a pause of `ratio` times its duration, at most `rest_seconds`. The
    first passes of a burst follow each other closely, so that the events of one launch do not wait for each other.
    """

    def __init__(self, seconds: float, *, ratio: float = 0.0, rest_seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._ratio, self._rest_seconds = ratio, rest_seconds
        self._in_a_row = 0
        self._until = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the time of the next pass, then run it; a failed pass counts too."""
        await asyncio.sleep(self.wait_seconds(time.monotonic()))
        begun = time.monotonic()
        try:
            yield
        finally:
            self.passed(begun, time.monotonic())

    def wait_seconds(self, now: float) -> float:
        """How long to wait before a pass that is requested now."""
        if now - self._until > QUIET_SECONDS:
            self._in_a_row = 0
        return max(0.0, self._until - now)

    def passed(self, begun: float, ended: float) -> None:
        """Note a pass, which decides when the next one may start."""
        self._in_a_row += 1
        pause = QUICK_SECONDS if self._in_a_row < QUICK_PASSES else self._seconds
        self._until = max(begun + pause, ended + min(self._ratio * (ended - begun), self._rest_seconds))


class WorkerLoop:
    """Runs one worker until `stop`."""

    def __init__(self, worker: Worker, observe: Callable[[str], AbstractContextManager[object]]) -> None:
        self._worker = worker
        self._observe = observe
        self._hint = asyncio.Event()
        self._stopping = asyncio.Event()

    def wake(self, event: Event) -> None:
        if self._worker.wants(event):
            self._hint.set()

    def stop(self) -> None:
        """End after the running tick."""
        self._stopping.set()
        self._hint.set()

    async def run(self) -> None:
        """Tick and wait in turn; at the end, also when cancelled, the worker hands back what it holds."""
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
                log.warning(
                    "worker %s cannot work now; retrying in %.1f s: %s", self._worker.name, pause, refusal.detail
                )
                wait, pause = pause, min(pause * 2, PAUSE_MAX_SECONDS)
            except Exception:
                log.exception("worker %s failed; retrying in %.1f s", self._worker.name, pause)
                wait, pause = pause, min(pause * 2, PAUSE_MAX_SECONDS)
            await _wait(self._hint, wait)


async def _wait(hint: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await hint.wait()
    except TimeoutError:
        return
