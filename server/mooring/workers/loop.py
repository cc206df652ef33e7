"""The loop of every worker: level-triggered, bounded, and never stopped by one bad tick.

A tick looks at the state of things and does what is due; it may be repeated at any time, by any replica. It returns
how many seconds from now something is due, or nothing when only an event can change that. A hint wakes the loop
early; it never tells it what to do. A tick that fails is logged and tried again after a growing pause.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from mooring.core.errors import Refusal

PAUSE_FIRST_SECONDS: Final = 0.5
PAUSE_MAX_SECONDS: Final = 30.0

log = logging.getLogger("mooring.worker")


class Worker(Protocol):
    """Something that is looked after."""

    name: str
    look_seconds: float  # the longest time between two looks, whatever the hints

    async def tick(self) -> float | None:
        """Do what is due; returns in how many seconds to look again, at the latest after `look_seconds`."""

    async def close(self) -> None:
        """No tick will follow: end what is under way and hand back what is held."""


class Loop:
    """Runs one worker until it is told to stop."""

    def __init__(self, worker: Worker, observe: Callable[[str], AbstractContextManager[object]]) -> None:
        self._worker = worker
        self._observe = observe
        self._hint = asyncio.Event()
        self._stopping = asyncio.Event()

    def wake(self) -> None:
        """There may be something to do."""
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
                wait = self._worker.look_seconds if due is None else min(due, self._worker.look_seconds)
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
