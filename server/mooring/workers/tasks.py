"""Looks after leases: a task whose agent fell silent is offered again, and one whose time is over ends.

Any number of replicas may look side by side: each move names the generation that was seen, so one of them makes it.
"""

import logging
import time
from typing import Final

from mooring.commands.fleet.task import BATCH, expire_tasks
from mooring.commands.services import Services
from mooring.core.kernel.event import Event

PACE_SECONDS: Final = 1.0  # events come by the thousand; one look answers for all of them

log = logging.getLogger("mooring.tasks")


class TaskReaper:
    """Compares leases and deadlines with the time."""

    name = "tasks"
    poll_interval_seconds = 5.0

    def __init__(self, services: Services, *, pace_seconds: float = PACE_SECONDS) -> None:
        self._services = services
        self._pace_seconds = pace_seconds
        self._next_look = 0.0

    def wants(self, event: Event) -> bool:
        """Any task may be the one whose lease ends next."""
        return True

    async def tick(self) -> float | None:
        """One look; one that comes too soon is put off."""
        left = self._next_look - time.monotonic()
        if left > 0:
            return left
        count = await expire_tasks(self._services)
        if count:
            log.info("leases ran out, or tasks were over their time", extra={"tasks": count})
        self._next_look = time.monotonic() + self._pace_seconds
        return self._pace_seconds if count >= BATCH else None

    async def close(self) -> None:
        """Nothing is held between two looks."""
