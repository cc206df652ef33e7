"""Garbage collection without long pauses.

A server that thousands of agents wait on holds a million objects. Nearly all of them are freed by reference counting
when their request ends, but a full collection visits each of them and stops the process for a good part of a second,
every few seconds. So all objects are frozen once a second: the collector then ignores them. Garbage among them is found
by a full collection, which runs only when there are twice as many objects as the last one left.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

FREEZE_SECONDS: Final = 1.0
TICKS_PER_COUNT: Final = 60
"""The frozen objects are counted only once in so many ticks, because counting takes some milliseconds."""
MARGIN: Final = 200_000


class GarbageTuner:
    """Freezes objects regularly, and occasionally runs a full collection."""

    def __init__(self, margin: int = MARGIN) -> None:
        self._margin = margin
        self._times = 0
        self._left = 0  # how many objects the last full collection left

    def tick(self) -> bool:
        """Freeze all objects; returns whether a full collection ran."""
        gc.freeze()
        self._times += 1
        if self._times % TICKS_PER_COUNT or gc.get_freeze_count() < 2 * self._left + self._margin:
            return False
        self.collect()
        return True

    def collect(self) -> None:
        """Run a full collection."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._left = gc.get_freeze_count()


@asynccontextmanager
async def collecting() -> AsyncIterator[None]:
    """Tune the garbage collection while the process serves; restore the default afterwards."""
    collector = GarbageTuner()
    collector.collect()

    async def keep() -> None:
        while True:
            await asyncio.sleep(FREEZE_SECONDS)
            collector.tick()

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gc.unfreeze()
