"""The worker of task leases: offers a task again when its lease expired, and ends a task at its deadline.

Any number of replicas may run side by side: each transition names the generation that it was decided on, so only one
of them wins.
"""

import logging
import time
from typing import Final

from mooring.commands.fleet.task import BATCH, expire_tasks
from mooring.commands.services import Services
from mooring.core.kernel.event import Event

PACE_SECONDS: Final = 1.0  # events come by the thousand; one pass answers all of them

log = logging.getLogger("mooring.tasks")


class TaskReaper:
    """Ends expired leases and tasks."""

    name = "tasks"
    poll_interval_seconds = 5.0

    def __init__(self, services: Services, *, pace_seconds: float = PACE_SECONDS) -> None:
        self._services = services
        self._pace_seconds = pace_seconds
        self._next_pass = 0.0

    def wants(self, event: Event) -> bool:
        """Every event: any task may be the one whose lease ends next."""
        return True

    async def tick(self) -> float | None:
        """Make one pass; a tick that comes too soon is postponed."""
        left = self._next_pass - time.monotonic()
        if left > 0:
            return left
        count = await expire_tasks(self._services)
        if count:
            log.info(
                "queued tasks with expired leases again, and ended tasks past their deadline", extra={"tasks": count}
            )
        self._next_pass = time.monotonic() + self._pace_seconds
        return self._pace_seconds if count >= BATCH else None

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
