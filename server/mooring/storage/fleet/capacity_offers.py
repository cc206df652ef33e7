"""Reads what capacity a project has and could have: its active allocations, the offered SKUs, the kinds of machines.

The database groups the machines by kind, so that ten thousand machines are only as many rows as they differ. The
process caches the kinds and reads them again when a node or a SKU has changed, or after a while.
"""

import asyncio
import time
from typing import Final

from mooring.core.catalog.compatibility import Capacity, CapacityShape
from mooring.core.catalog.policy import PolicyChain
from mooring.core.fleet.allocation import SkuTerms
from mooring.core.fleet.capacity_offers import HeldCapacity, MachineKind, ProjectCapacity, possible_for
from mooring.core.fleet.inventory import facts_from
from mooring.core.kernel.event import Event
from mooring.storage.kernel.database import PLATFORM, Database

KINDS_MAX: Final = 10_000
HELD_MAX: Final = 200
CACHE_SECONDS: Final = 30.0
INVALIDATING_EVENTS: Final = ("nodes.node.", "nodes.sku.")

INVENTORY: Final = "n.inventory - 'addresses' - 'agent_version' - 'limits' - 'numa'"
KINDS: Final = f"""
SELECT n.host, n.region, {INVENTORY}, s.gpu_model, s.gpus, s.slots, count(*)::int
  FROM node n
  JOIN (SELECT node_id, gpu_model, count(*)::int AS gpus, (sum(count(*)) OVER (PARTITION BY node_id))::int AS slots
          FROM slot WHERE status <> 'quarantined' GROUP BY node_id, gpu_model) s ON s.node_id = n.id
 WHERE n.status = 'ready' AND n.cordoned_at IS NULL AND n.inventory IS NOT NULL
 GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 7 DESC LIMIT $1"""
TERMS: Final = """
SELECT id, slug, shape, gpu_model, regions, allowed_gpu_counts, price_minor_per_gpu_hour, currency, price_revision,
       status
  FROM sku WHERE status = 'offered' ORDER BY id"""
HELD: Final = f"""
SELECT a.shape, a.gpu_count, a.node_id, n.host, n.region, {INVENTORY},
       EXISTS (SELECT FROM member m WHERE m.allocation_id = a.id AND m.status <> 'removed')
  FROM allocation a JOIN node n ON n.id = a.node_id
 WHERE a.project_id = $1 AND a.status = 'active' ORDER BY a.id LIMIT $2"""


class FleetCapacity:
    """Caches the kinds of machines and the SKUs; one per process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._cached: tuple[list[MachineKind], list[SkuTerms]] | None = None
        self._until = 0.0
        self._invalidations = 0

    def forget(self, event: Event) -> None:
        """Drop the cache if this event, of any process, may change it."""
        self.forget_after(event.type)

    def forget_after(self, event_type: str) -> None:
        """Drop the cache if an event of this type may change it."""
        if event_type.startswith(INVALIDATING_EVENTS):
            self._cached = None
            self._invalidations += 1

    async def capacity_of(self, database: Database, project_id: str, chain: PolicyChain) -> ProjectCapacity:
        """The active allocations of a project, and what its policy lets it request."""
        kinds, terms = await self.read(database)
        return ProjectCapacity(tuple(await held(database, project_id)), possible_for(terms, kinds, chain))

    async def read(self, database: Database) -> tuple[list[MachineKind], list[SkuTerms]]:
        """The kinds of machines, and the offered SKUs."""
        async with self._lock:
            if self._cached is not None and time.monotonic() < self._until:
                return self._cached
            invalidations = self._invalidations
            found = await _kinds(database), [SkuTerms(*row) for row in await database.fetch(PLATFORM, TERMS)]
            # A change during the read may be missing in it: then it is not cached, and the next caller reads again.
            self._cached = found if invalidations == self._invalidations else None
            self._until = time.monotonic() + CACHE_SECONDS
            return found


async def held(database: Database, project_id: str) -> list[HeldCapacity]:
    """The active allocations of a project, with the facts of their nodes."""
    rows = await database.fetch(PLATFORM, HELD, project_id, HELD_MAX)
    return [
        HeldCapacity(Capacity(CapacityShape(shape), count, node_id, facts_from(host, region, inventory)), occupied)
        for shape, count, node_id, host, region, inventory, occupied in rows
    ]


async def _kinds(database: Database) -> list[MachineKind]:
    return [
        MachineKind(region, model, gpus, slots, machines, facts_from(host, region, inventory))
        for host, region, inventory, model, gpus, slots, machines in await database.fetch(PLATFORM, KINDS, KINDS_MAX)
    ]
