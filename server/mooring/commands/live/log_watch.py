"""Following a task's output: whoever waits for more is woken when more came, in this process at once."""

import asyncio
from typing import Final

LOOK_SECONDS: Final = 1.0
"""What another process took is found by looking: so often, while somebody waits."""


class LogWatch:
    """One per process."""

    def __init__(self) -> None:
        self._grown: dict[str, asyncio.Future[None]] = {}

    def grew(self, task_id: str) -> None:
        """More output of the task is there, or the task is over."""
        waiting = self._grown.pop(task_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self, task_id: str, seconds: float) -> None:
        """Wait until there may be more, or for as long; at the most for one look's time."""
        waiting = self._grown.get(task_id)
        if waiting is None or waiting.done():
            waiting = self._grown[task_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(min(seconds, LOOK_SECONDS)):
                await asyncio.shield(waiting)
        except TimeoutError:
            if self._grown.get(task_id) is waiting:  # whoever else waits on it looks within its own time
                del self._grown[task_id]
