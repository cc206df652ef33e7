"""Reads artifacts: takes up checks that are due and that nobody reads, and takes them from holders that were lost.

The process that accepts a check begins it when it has room. What comes here is the rest: checks that found no room,
and those whose holder died. Nothing is kept in memory that is not in the database: a worker that dies leaves leases,
one that stops hands them back.
"""

import logging
import random
from typing import Final

from mooring.commands.catalog.artifact_check import begin, give_up_lost
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.storage.catalog import artifact_check as checks
from mooring.workers.loop import WakePace, is_of_app

PACE_SECONDS: Final = 0.2  # events come by the thousand; one look answers for all of them

log = logging.getLogger("mooring.check")


class CheckWorker:
    """Takes up checks; any number of workers may do so side by side."""

    name = "artifact_check"
    poll_interval_seconds = 2.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pace = WakePace(PACE_SECONDS)

    def wants(self, event: Event) -> bool:
        """What apps do on nodes asks for no check."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """Give up on lost holders, then begin what there is room for."""
        async with self._pace.look():
            await self._look()
        return None

    async def _look(self) -> None:
        services = self._services
        lost = await give_up_lost(services)
        if lost:
            log.warning("%d checks of lost processes are due again, or failed", lost)
        if services.checks.room(services.settings.checks_at_once):
            due = await checks.due(services.database, services.clock.now())
            # Several workers see the same list: who begins at its head would always meet the others there.
            for check in random.sample(due, len(due)):
                begin(services, check)

    async def close(self) -> None:
        """What is read goes on until the platform is closed, which hands it back."""
