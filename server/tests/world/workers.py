"""The workers of the simulated world: their own commands, one step of one thing at a time.

What paces the real workers (time, chance, several at once) is left out; what they look at and what they do is theirs.
"""

from dataclasses import dataclass
from random import Random

from mooring.commands.fleet import allocation_reconcile
from mooring.commands.fleet.task import expire_tasks
from mooring.commands.runtime import instance_reconcile
from mooring.commands.runtime.trust_reaction import mark_all, react_all
from mooring.commands.services import Services
from mooring.core.fleet.placement import PlacementBoard
from mooring.core.fleet.placement_explanation import AllowedChoices, explain
from mooring.storage.fleet import placement
from mooring.storage.runtime import instance_reconcile as instances
from mooring.workers.allocation_reconciler import BATCH, units_of


@dataclass
class InstanceWorker:
    """Takes an instance one step further."""

    services: Services
    chance: Random

    async def step(self) -> bool:
        """One step; whether there may be more."""
        database, now = self.services.database, self.services.clock.now()
        ids = await instances.due(database, now, instance_reconcile.limits_of(self.services.settings), "", BATCH)
        if not ids:
            return False
        (seen,) = await instances.snapshot(database, now, [self.chance.choice(ids)])
        return await instance_reconcile.step(self.services, seen)


@dataclass
class AllocationWorker:
    """Takes an allocation one step further, or finds a place for what waits."""

    services: Services
    chance: Random
    asked: bool = True  # something may wait for a place

    async def step(self) -> bool:
        """One step; whether there may be more."""
        database, now = self.services.database, self.services.clock.now()
        ids = await placement.due(database, now, "", BATCH)
        if ids:
            (seen,) = await placement.allocation_snapshots(database, [self.chance.choice(ids)])
            if await allocation_reconcile.step(self.services, seen):
                return True
        return self.asked and await self._place()

    async def _place(self) -> bool:
        database = self.services.database
        waiting = await placement.requested(database, BATCH)
        if not waiting:
            self.asked = False
            return False
        facts = sorted({need["fact"] for each in waiting for need in each.allocation.needs})
        board = PlacementBoard(await placement.snapshot(database, with_facts=bool(facts)), facts)
        for unit in units_of(waiting):
            plan = board.place(unit.requests())
            if plan is not None:
                return (await allocation_reconcile.claim(self.services, unit.allocations, plan)).done
        said = False
        for unit in units_of(waiting):
            answer = explain(board, unit.requests(), AllowedChoices())
            for each in unit.allocations:
                said |= await allocation_reconcile.keep_waiting(self.services, each, f"no room: {answer.because}")
        return said


@dataclass
class TrustActor:
    """Marks what lost or regained its trust, and reacts."""

    services: Services

    async def step(self) -> bool:
        """One pass; whether there may be more."""
        complete = await mark_all(self.services)
        return bool(await react_all(self.services)) or not complete


@dataclass
class TaskWatch:
    """Offers again what lost its lease."""

    services: Services

    async def step(self) -> bool:
        """One look; whether there was anything."""
        return bool(await expire_tasks(self.services))
