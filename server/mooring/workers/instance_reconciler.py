"""The worker that reconciles instances: takes each of them one step further as soon as it can go.

It offers operations to adapters when their allocations are ready, enforces deadlines, tears down what adapters let go
of or never claimed, closes members with their records, and marks instances whose adapter is gone. It never waits for an
adapter longer than the limits allow, and whenever it waits for a node it names that node.
"""

from typing import Final

from mooring.commands.runtime.instance_reconcile import limits_of, step
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.core.runtime.instance_snapshot import InstanceSnapshot
from mooring.storage.runtime import instance_reconcile
from mooring.workers.loop import WakePace, is_of_app
from mooring.workers.reconcile_loop import Reconciled, ReconcileLoop

PACE_SECONDS: Final = 0.05  # events come by the thousand; one pass answers all of them
PACE_SECONDS_MAX: Final = 0.25
REST_RATIO: Final = 2  # passes take at most a third of the time, however long one takes
BATCH: Final = 100


class InstanceReconciler:
    """Takes instances from requested to removed."""

    name = "instances"
    poll_interval_seconds = 5.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._limits = limits_of(services.settings)
        self._pace = WakePace(PACE_SECONDS, ratio=REST_RATIO, rest_seconds=PACE_SECONDS_MAX)
        database = services.database
        self._loop = ReconcileLoop[InstanceSnapshot](
            Reconciled(
                noun="instance",
                due=lambda now, after: instance_reconcile.due(database, now, self._limits, after, BATCH),
                snapshots=lambda now, ids: instance_reconcile.snapshot(database, now, ids),
                id_of=lambda snapshot: snapshot.instance.id,
                step=lambda snapshot: step(services, snapshot),
            ),
            services.clock,
        )

    def wants(self, event: Event) -> bool:
        """Everything but the tasks of apps: their adapters read those."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """Take every step that is due; returns in how many seconds the next deadline is, or None."""
        async with self._pace.turn():
            await self.advance()
            now = self._services.clock.now()
            moment = await instance_reconcile.next_moment(self._services.database, now, self._limits)
        return None if moment is None else max(0.0, (moment - now).total_seconds())

    async def advance(self) -> int:
        """Take every next step there is; returns how many were taken."""
        return await self._loop.run()

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
