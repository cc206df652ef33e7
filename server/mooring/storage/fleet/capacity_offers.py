"""What capacity a project has and could have: its active allocations, the SKUs on offer, the kinds of machines.

The kinds are counted by the database, so that ten thousand machines are as many rows as there are different ones; and
they are read again only when a node or a SKU has changed, or after a while.
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
KEPT_SECONDS: Final = 30.0
NEWS: Final = ("nodes.node.", "nodes.sku.")

_INVENTORY: Final = "n.inventory - 'addresses' - 'agent_version' - 'limits' - 'numa'"
KINDS: Final = f"""
SELECT n.host, n.region, {_INVENTORY}, s.gpu_model, s.gpus, s.slots, count(*)::int
  FROM node n
  JOIN (SELECT node_id, gpu_model, count(*)::int AS gpus, (sum(count(*)) OVER (PARTITION BY node_id))::int AS slots
          FROM slot WHERE status <> 'quarantined' GROUP BY node_id, gpu_model) s ON s.node_id = n.id
 WHERE n.status = 'ready' AND n.inventory IS NOT NULL
 GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 7 DESC LIMIT $1"""
TERMS: Final = """
SELECT id, slug, shape, gpu_model, regions, allowed_gpu_counts, price_minor_per_gpu_hour, currency, price_revision,
       status
  FROM sku WHERE status = 'offered' ORDER BY id"""
HELD: Final = f"""
SELECT a.shape, a.gpu_count, a.node_id, n.host, n.region, {_INVENTORY},
       EXISTS (SELECT FROM member m WHERE m.allocation_id = a.id AND m.status <> 'removed')
  FROM allocation a JOIN node n ON n.id = a.node_id
 WHERE a.project_id = $1 AND a.status = 'active' ORDER BY a.id LIMIT $2"""


class FleetCapacity:
    """The machines by their kinds, and the SKUs: one per process, read anew when something has changed."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._kept: tuple[list[MachineKind], list[SkuTerms]] | None = None
        self._until = 0.0
        self._news = 0

    def forget(self, event: Event) -> None:
        """Something happened, here or elsewhere."""
        self.forget_after(event.type)

    def forget_after(self, event_type: str) -> None:
        """Something of this type happened."""
        if event_type.startswith(NEWS):
            self._kept = None
            self._news += 1

    async def capacity_of(self, database: Database, project_id: str, chain: PolicyChain) -> ProjectCapacity:
        """The active allocations of a project, and what its policy lets it ask for."""
        kinds, terms = await self.read(database)
        return ProjectCapacity(tuple(await held(database, project_id)), possible_for(terms, kinds, chain))

    async def read(self, database: Database) -> tuple[list[MachineKind], list[SkuTerms]]:
        """The kinds of machines, and what is sold."""
        async with self._lock:
            if self._kept is not None and time.monotonic() < self._until:
                return self._kept
            news = self._news
            found = await _kinds(database), [SkuTerms(*row) for row in await database.fetch(PLATFORM, TERMS)]
            # What changed while it was read is read again by the next who asks.
            self._kept = found if news == self._news else None
            self._until = time.monotonic() + KEPT_SECONDS
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
