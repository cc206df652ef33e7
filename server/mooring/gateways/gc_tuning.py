"""Garbage collection without long pauses.

A server that thousands of agents wait on holds a million objects. Nearly all of them go away by themselves, without the
collector, when their request ends; but a full collection looks at each of them, and stops everything meanwhile for a
good part of a second, every few seconds. So what there is is set aside once a second, where the collector does not
look. What is garbage there is found when much has been set aside: a full collection is due when there is twice as much
as the last one left, and no sooner.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

SET_ASIDE_SECONDS: Final = 1.0
LOOKS_APART: Final = 60
"""Only every so many times is it counted what was set aside: counting takes some milliseconds."""
MARGIN: Final = 200_000


class GarbageTuner:
    """Sets objects aside, and now and then looks through all of them."""

    def __init__(self, margin: int = MARGIN) -> None:
        self._margin = margin
        self._times = 0
        self._left = 0  # how many objects the last full collection left

    def tick(self) -> bool:
        """Set aside what there is; returns whether everything was looked through."""
        gc.freeze()
        self._times += 1
        if self._times % LOOKS_APART or gc.get_freeze_count() < 2 * self._left + self._margin:
            return False
        self.collect()
        return True

    def collect(self) -> None:
        """Look through everything."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._left = gc.get_freeze_count()


@asynccontextmanager
async def collecting() -> AsyncIterator[None]:
    """Collect in this way while the process serves; afterwards in the usual one."""
    collector = GarbageTuner()
    collector.collect()

    async def keep() -> None:
        while True:
            await asyncio.sleep(SET_ASIDE_SECONDS)
            collector.tick()

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gc.unfreeze()
