"""Wakes requests that follow a task's output, at once when this process received more of it."""

import asyncio
from typing import Final

POLL_SECONDS: Final = 1.0
"""How often a waiting request reads the database, for output that another process received."""


class LogWatch:
    """Requests that wait for output, by task; one per process."""

    def __init__(self) -> None:
        self._grown: dict[str, asyncio.Future[None]] = {}

    def grew(self, task_id: str) -> None:
        """The task has more output, or has ended: wake its followers."""
        waiting = self._grown.pop(task_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self, task_id: str, seconds: float) -> None:
        """Wait until there may be more output, at most for `seconds` and for POLL_SECONDS."""
        waiting = self._grown.get(task_id)
        if waiting is None or waiting.done():
            waiting = self._grown[task_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(min(seconds, POLL_SECONDS)):
                await asyncio.shield(waiting)
        except TimeoutError:
            if self._grown.get(task_id) is waiting:  # other waiters on it have time-outs of their own
                del self._grown[task_id]
