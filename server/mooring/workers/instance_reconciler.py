"""The runtime worker of instances: takes each of them one step further as soon as it can go.

It offers operations to adapters when their allocations stand, keeps deadlines, tears down what adapters let go of or
never took, closes members with their records, and marks what nobody watches. It never waits for an adapter longer than
the limits say, and never for a node without naming it.

Nothing is held between two ticks that matters: any number of workers may do this side by side, and one that dies
leaves nothing behind but steps that were not taken yet.
"""

import asyncio
import logging
import time
from typing import Final

from mooring.commands.runtime.instance_reconcile import limits_of, step
from mooring.commands.services import Services
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.event import Event
from mooring.core.runtime.instance_snapshot import InstanceSnapshot
from mooring.storage.runtime import instance_reconcile
from mooring.workers.loop import WakePace, is_of_app

PACE_SECONDS: Final = 0.05  # events come by the thousand; one look answers for all of them
PACE_SECONDS_MAX: Final = 0.25
REST_RATIO: Final = 2  # looks take a third of the time at the most, however long one takes
ROUND_SECONDS: Final = 20.0
BATCH: Final = 100
REST_SECONDS: Final = 30.0
AT_ONCE: Final = 4

log = logging.getLogger("mooring.instances")


class InstanceReconciler:
    """Takes instances from asked for to gone."""

    name = "instances"
    poll_interval_seconds = 5.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = limits_of(services.settings)
        self._pace = WakePace(PACE_SECONDS, ratio=REST_RATIO, rest_seconds=PACE_SECONDS_MAX)
        self._resting: dict[str, float] = {}  # instances that met an error, and until when they are left alone

    def wants(self, event: Event) -> bool:
        """What apps do on nodes is read by their adapters."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """Everything that can go on goes on; returns when something else will be due."""
        async with self._pace.look():
            await self.advance()
            now = self._services.clock.now()
            moment = await instance_reconcile.next_moment(self._services.database, now, self._limits)
        return None if moment is None else max(0.0, (moment - now).total_seconds())

    async def close(self) -> None:
        """Nothing is held between two ticks."""

    async def advance(self) -> int:
        """Take every next step there is, until a whole pass finds none; returns how many were taken."""
        services, until = self._services, time.monotonic() + ROUND_SECONDS
        self._resting = {each: end for each, end in self._resting.items() if end > time.monotonic()}
        taken, in_this_pass, after = 0, 0, ""
        while time.monotonic() < until:
            now = services.clock.now()
            ids = await instance_reconcile.due(services.database, now, self._limits, after, BATCH)
            if not ids:
                if not in_this_pass:
                    break
                in_this_pass, after = 0, ""
                continue
            seen = await instance_reconcile.snapshot(services.database, now, ids)
            done = sum(await self._side_by_side(seen))
            taken, in_this_pass, after = taken + done, in_this_pass + done, ids[-1]
        return taken

    async def _side_by_side(self, seen: list[InstanceSnapshot]) -> list[bool]:
        """A step of each, a few at a time."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(each: InstanceSnapshot) -> bool:
            async with turn:
                return await self._step(each)

        results = await asyncio.gather(*(one(each) for each in seen), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, bool)]

    async def _step(self, snapshot: InstanceSnapshot) -> bool:
        """One step; an instance that cannot go on rests for a while, and holds up no other."""
        instance_id = snapshot.instance.id
        if self._resting.get(instance_id, 0.0) > time.monotonic():
            return False
        try:
            return await step(self._services, snapshot)
        except Refusal as refusal:
            log.warning("instance %s cannot go on now: %s", instance_id, refusal.detail)
        except Exception:  # an error with one instance must not end the others; the log has its cause
            log.exception("instance %s cannot go on", instance_id)
        self._resting[instance_id] = time.monotonic() + REST_SECONDS
        return False
