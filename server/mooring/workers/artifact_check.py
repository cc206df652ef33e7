"""The worker of artifact checks: starts checks that wait, and takes over those whose process was lost.

The process that accepts a check starts it when it has room. The worker gets the rest: checks that found no room, and
those whose process died. The database has everything that is in memory: a worker that dies leaves leases that expire,
and one that stops hands them back.
"""

import logging
import random
from typing import Final

from mooring.commands.catalog.artifact_check import begin, give_up_lost
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.storage.catalog import artifact_check as checks
from mooring.workers.loop import WakePace, is_of_app

PACE_SECONDS: Final = 0.2  # events come by the thousand; one pass answers all of them

log = logging.getLogger("mooring.check")


class CheckWorker:
    """Starts checks; any number of workers may run side by side."""

    name = "artifact_check"
    poll_interval_seconds = 2.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pace = WakePace(PACE_SECONDS)

    def wants(self, event: Event) -> bool:
        """Everything but the tasks of apps: those request no check."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """Take checks from lost processes, then start as many as there is room for."""
        async with self._pace.turn():
            await self._start_due()
        return None

    async def _start_due(self) -> None:
        services = self._services
        lost = await give_up_lost(services)
        if lost:
            log.warning(
                "the leases of %d checks expired; queued them again, and failed those without attempts left", lost
            )
        if services.checks.room(services.settings.checks_at_once):
            due = await checks.due(services.database, services.clock.now())
            # All workers read the same list: if each started at its head, they would always collide.
            for check in random.sample(due, len(due)):
                begin(services, check)

    async def close(self) -> None:
        """Running checks continue until the platform closes, which hands back their leases."""
