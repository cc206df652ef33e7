"""Looks after nodes: who is no longer heard of, who is heard of again, whose drain has ended.

Any number of replicas may look side by side: each change names the revision or the generation that was seen, so one of
them makes it. A node is silent by the database's clock. When nobody could listen, silence means nothing: after a start,
or after a time in which the database did not answer, a worker listens for as long as a node may be silent before it
calls one unreachable.
"""

import logging
import time
from typing import Final

from mooring.commands.fleet.node import BATCH, finish_drains, mark_returned, mark_silent
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.workers.loop import is_of_app

PACE_SECONDS: Final = 0.5  # events come by the thousand; one look answers for all of them
GAP_SECONDS: Final = 30.0  # a worker that did not look for so long does not know who was silent

log = logging.getLogger("mooring.nodes")


class NodeWatch:
    """Compares what is marked with what was heard."""

    name = "nodes"
    poll_interval_seconds = 5.0

    def __init__(
        self, services: Services, *, listen_seconds: float | None = None, pace_seconds: float = PACE_SECONDS
    ) -> None:
        self._services = services
        self._silence_seconds = services.settings.node_unreachable_seconds
        self._listen_seconds = self._silence_seconds if listen_seconds is None else listen_seconds
        self._listening_since = time.monotonic()
        self._last_look = self._listening_since
        self._pace_seconds = pace_seconds
        self._next_look = 0.0

    def wants(self, event: Event) -> bool:
        """What apps do on nodes ends no drain."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """One look at all of it; one that comes too soon is put off."""
        begun = time.monotonic()
        left = self._next_look - begun
        if left > 0:
            return left
        listened = self._has_listened(begun)
        drained = await finish_drains(self._services)
        heard = await mark_returned(self._services, self._silence_seconds)
        silent = await mark_silent(self._services, self._silence_seconds) if listened else 0
        if silent:
            log.warning("%d nodes are unreachable: not heard of for %.0f s", silent, self._silence_seconds)
        if heard:
            log.info("%d nodes are heard of again", heard)
        self._last_look, self._next_look = begun, begun + self._pace_seconds
        return PACE_SECONDS if max(drained, heard, silent) >= BATCH else None

    async def close(self) -> None:
        """Nothing is held between two looks."""

    def _has_listened(self, now: float) -> bool:
        """Whether this worker has looked without a gap for as long as a node may be silent."""
        if now - self._last_look > GAP_SECONDS:
            self._listening_since = now
        return now - self._listening_since >= self._listen_seconds
