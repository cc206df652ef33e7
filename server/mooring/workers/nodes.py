"""The worker of nodes: marks nodes as unreachable or reachable, and ends drains.

Any number of replicas may run side by side: each change names the revision or generation that it was decided on, so
only one of them wins. The database's clock decides how old a heartbeat is. A missing heartbeat means nothing while
nobody could receive it: after a start, or after a time without the database, a worker waits as long as a node may be
silent before it marks one as unreachable.
"""

import logging
import time
from typing import Final

from mooring.commands.fleet.node import BATCH, finish_drains, mark_returned, mark_silent
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.workers.loop import is_of_app

PACE_SECONDS: Final = 0.5  # events come by the thousand; one pass answers all of them
GAP_SECONDS: Final = 30.0  # after such a gap the worker does not know who was silent

log = logging.getLogger("mooring.nodes")


class NodeWatch:
    """Compares the reachability of nodes with their heartbeats."""

    name = "nodes"
    poll_interval_seconds = 5.0

    def __init__(
        self, services: Services, *, listen_seconds: float | None = None, pace_seconds: float = PACE_SECONDS
    ) -> None:
        self._services = services
        self._silence_seconds = services.settings.node_unreachable_seconds
        self._listen_seconds = self._silence_seconds if listen_seconds is None else listen_seconds
        self._listening_since = time.monotonic()
        self._last_pass = self._listening_since
        self._pace_seconds = pace_seconds
        self._next_pass = 0.0

    def wants(self, event: Event) -> bool:
        """Everything but the tasks of apps: those end no drain."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """Make one pass; a tick that comes too soon is postponed."""
        begun = time.monotonic()
        left = self._next_pass - begun
        if left > 0:
            return left
        listened = self._has_listened(begun)
        drained = await finish_drains(self._services)
        returned = await mark_returned(self._services, self._silence_seconds)
        silent = await mark_silent(self._services, self._silence_seconds) if listened else 0
        if silent:
            log.warning(
                "%d nodes sent no heartbeat for %.0f s; marked them as unreachable", silent, self._silence_seconds
            )
        if returned:
            log.info("%d nodes send heartbeats again; marked them as reachable", returned)
        self._last_pass, self._next_pass = begun, begun + self._pace_seconds
        return PACE_SECONDS if max(drained, returned, silent) >= BATCH else None

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""

    def _has_listened(self, now: float) -> bool:
        """Whether this worker has run without a gap for as long as a node may be silent."""
        if now - self._last_pass > GAP_SECONDS:
            self._listening_since = now
        return now - self._listening_since >= self._listen_seconds
