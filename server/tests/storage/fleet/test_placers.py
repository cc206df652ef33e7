"""Sixteen placers at once on one database: nothing is claimed twice, and no claim is stored in part.

Each placer has connections of its own, as a process of its own would. While they work, an observer looks all the
time: in every snapshot that it sees, each claimed slot belongs to one allocation that stands on the slot's node, and
each such allocation has exactly its slots.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import asyncpg
import pytest

from mooring.commands.services import Services
from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.catalog.policy import PolicyChain
from mooring.core.fleet.allocation import (
    ALLOCATION,
    AllocationContext,
    AllocationRequest,
    AllocationState,
    AllocationTrigger,
    ProjectHolding,
    release_allocation,
    request_allocations,
)
from mooring.core.fleet.allocation_reconcile import AllocationPlacement, place_allocations
from mooring.core.fleet.placement import PlacementBoard, PlacementRequest
from mooring.core.fleet.project_network import plan_network, pool_of
from mooring.core.kernel.decision import StateChange, Update, Write
from mooring.core.kernel.errors import Refusal
from mooring.settings import Settings
from mooring.storage.fleet import allocation as allocations
from mooring.storage.fleet import placement
from mooring.storage.kernel.database import PLATFORM, Acting, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import StaleWrite, apply
from mooring.workers.allocation_reconciler import AllocationReconciler
from server.tests.conftest import Running, World
from server.tests.support.fleet import FleetWithAgents
from server.tests.support.lifecycle_rows import CLOCK, context

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

S, T = AllocationState, AllocationTrigger
PLACERS: Final = 16
NODES: Final = 20
PATIENCE_SECONDS: Final = 120.0
UNTRUE: Final = """
SELECT 'a claimed slot of nobody who stands there' AS untrue, s.id FROM slot s
  LEFT JOIN allocation a ON a.id = s.allocation_id AND a.node_id = s.node_id
   AND a.status NOT IN ('requested', 'released')
 WHERE s.status IN ('claimed', 'cleanup_blocked') AND a.id IS NULL
UNION ALL
SELECT 'an allocation with other slots than its own', a.id FROM allocation a
 WHERE a.node_id IS NOT NULL AND a.status <> 'released'
   AND (SELECT coalesce(jsonb_agg(s.index ORDER BY s.index), '[]') FROM slot s WHERE s.allocation_id = a.id)
    <> (SELECT coalesce(jsonb_agg(each -> 'index' ORDER BY (each ->> 'index')::int), '[]')
          FROM jsonb_array_elements(a.slots) each)
UNION ALL
SELECT 'a whole machine with somebody else on it', a.id FROM allocation a JOIN allocation b
    ON b.node_id = a.node_id AND b.id <> a.id AND b.status <> 'released'
 WHERE a.shape = 'baremetal' AND a.status <> 'released'
UNION ALL
SELECT 'one address of two', min(a.id) FROM allocation a
 WHERE a.node_id IS NOT NULL AND a.status <> 'released' GROUP BY a.node_id, a.address HAVING count(*) > 1
UNION ALL
SELECT 'a placed allocation without its one task', a.id FROM allocation a
 WHERE a.status = 'provisioning' AND (SELECT count(*) FROM task t WHERE t.allocation_id = a.id) <> 1"""


class Observer:
    """Looks all the time, on a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.looks = 0
        self.untrue: list[str] = []

    async def look(self) -> None:
        self.looks += 1
        self.untrue += [f"{row[0]}: {row[1]}" for row in await self._database.fetch(PLATFORM, UNTRUE)]

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                await self.look()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.look()


@asynccontextmanager
async def placers(running: Running, settings: Settings, count: int) -> AsyncIterator[Sequence[AllocationReconciler]]:
    """Workers with connections of their own."""
    databases = [Database(PoolSettings(settings.database_url, 2, acquire_timeout_seconds=60.0)) for _ in range(count)]
    try:
        for each in databases:
            await each.open()
        services: Services = running.platform.services
        yield [AllocationReconciler(replace(services, database=each)) for each in databases]
    finally:
        for each in databases:
            await each.close()


async def ask(world: World, slug: str, shape: str, counts: Sequence[int]) -> None:
    """Requests of one project, written down as the API would."""
    tenant = await world.tenant(slug)
    project_id = await world.project(tenant, f"{slug}-train")
    fleet = FleetWithAgents(world.running.platform.services.database)
    sku = await fleet.sku(shape, tuple(sorted(set(counts))))
    acting = Acting(tenant.id)
    terms = await allocations.terms(fleet.database, acting, sku)
    assert terms is not None
    for count in counts:
        asking = AllocationContext(tenant.id, project_id, terms, PolicyChain([]), ProjectHolding(0, 0, 0), 3_600)
        requested = AllocationRequest(CapacityShape(shape), sku, count)
        now = context()
        await apply(fleet.database, acting, now, request_allocations(now, asking, requested, [None], None))


async def statuses(database: Database) -> dict[str, int]:
    rows = await database.fetch(PLATFORM, "SELECT status, count(*)::int FROM allocation GROUP BY 1")
    return {row[0]: row[1] for row in rows}


async def test_sixteen_placers_claim_every_slot_once(world: World, settings: Settings) -> None:
    database = world.running.platform.services.database
    fleet = FleetWithAgents(database)
    for _ in range(NODES):
        await fleet.node(8)
    await ask(world, "slices", "gpu_slice", [1, 2, 4, 1, 2, 1] * 12)
    await ask(world, "wholes", "baremetal", [8] * 10)
    observer = Observer(database)
    async with placers(world.running, settings, PLACERS) as workers, observer.watching():
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await statuses(database)).get("provisioning", 0) < 72:
                await asyncio.gather(*(worker.tick() for worker in workers))
        for _ in range(3):
            await asyncio.gather(*(worker.tick() for worker in workers))
    assert observer.untrue == []
    assert observer.looks > 10
    found = await statuses(database)
    slots = await database.fetchval(PLATFORM, "SELECT count(*) FROM slot WHERE status = 'claimed'")
    gpus = await database.fetchval(PLATFORM, "SELECT sum(gpu_count) FROM allocation WHERE status = 'provisioning'")
    assert slots == gpus > 0
    assert found["provisioning"] >= 72, "there is room for all slices, and for some whole machines"
    assert set(found) <= {"provisioning", "requested"}


async def test_what_is_given_back_while_others_are_placed_is_never_given_twice(
    world: World, settings: Settings
) -> None:
    database = world.running.platform.services.database
    fleet = FleetWithAgents(database)
    for _ in range(4):
        await fleet.node(4)
    await ask(world, "churn", "gpu_slice", [1, 2, 1] * 12)
    observer = Observer(database)
    runner = AllocationReconciler(world.running.platform.services)
    async with placers(world.running, settings, PLACERS) as workers, observer.watching():
        for _ in range(6):
            await asyncio.gather(*(worker.tick() for worker in workers), give_back_some(database))
    for _ in range(3):
        await runner.tick()
    assert observer.untrue == []
    found = await statuses(database)
    assert found.get("released", 0) > 0
    assert set(found) <= {"provisioning", "requested", "released"}


async def give_back_some(database: Database) -> None:
    """Every third allocation that has a place is given back by its tenant."""
    rows = await database.fetch(
        PLATFORM, "SELECT tenant_id, project_id, id FROM allocation WHERE status = 'provisioning' ORDER BY id"
    )
    for row in rows[::3]:
        allocation = await allocations.find(database, Acting(row[0]), row[1], row[2])
        assert allocation is not None
        now = context()
        try:
            await apply(database, Acting(row[0]), now, release_allocation(now, allocation))
        except (StaleWrite, Refusal):
            continue  # a worker was faster; the next round finds it as it stands then


async def test_of_two_who_planned_the_same_slots_one_wins_and_nothing_of_the_other_is_left(world: World) -> None:
    database = world.running.platform.services.database
    node_id = await FleetWithAgents(database).node(2)
    await ask(world, "racing", "gpu_slice", [2, 2])
    waiting = await placement.requested(database, 10)
    node, nodes = await placement.node_facts(database, node_id), await placement.snapshot(database, with_facts=False)
    assert node is not None
    decided = []
    for each in waiting:
        allocation = each.allocation
        requested = PlacementRequest(
            allocation.id, allocation.project_id, CapacityShape.GPU_SLICE, allocation.gpu_model, 2
        )
        plan = PlacementBoard(nodes).place([requested])
        seen = await placement.networks(database, node_id)
        now = context()
        owner = {"tenant_id": allocation.tenant_id, "project_id": allocation.project_id}
        network = plan_network(now, seen, pool_of(None), 1, node_id=node_id, **owner, single=False)
        assert plan is not None
        assert network is not None
        decided.append((now, place_allocations(now, [AllocationPlacement(allocation, plan[0])], node, network)))
    outcomes = await asyncio.gather(
        *(apply(database, PLATFORM, now, decision) for now, decision in decided), return_exceptions=True
    )
    assert [type(each) for each in outcomes if each is not None] == [StaleWrite]
    assert await statuses(database) == {"provisioning": 1, "requested": 1}
    assert await database.fetchval(PLATFORM, "SELECT count(*) FROM task") == 1


async def refused(fleet: FleetWithAgents, write: Write) -> str:
    """The name of the constraint by which the database refuses the write; empty when it does not."""
    try:
        await fleet.write(write)
    except (asyncpg.PostgresError, StaleWrite, Refusal) as error:
        return str(getattr(error.__cause__ or error, "constraint_name", error))
    return ""


async def test_the_database_refuses_what_no_placer_should_do(world: World) -> None:
    database = world.running.platform.services.database
    fleet = FleetWithAgents(database)
    node_id = await fleet.node(2)
    await ask(world, "strict", "gpu_slice", [1])
    await AllocationReconciler(world.running.platform.services).tick()
    await ask(world, "waits", "gpu_slice", [1])
    placed, waits = await database.fetch(PLATFORM, "SELECT * FROM allocation ORDER BY id")
    free, claimed = await database.fetch(PLATFORM, "SELECT * FROM slot ORDER BY status DESC")
    network_id = await database.fetchval(PLATFORM, "SELECT id FROM project_network")
    assert (free["status"], claimed["status"]) == ("free", "claimed")

    def slot(row: asyncpg.Record, status: str, allocation_id: str | None) -> Update:
        return Update("slot", row["id"], row["revision"], {"status": status, "allocation_id": allocation_id})

    assert await refused(fleet, slot(claimed, "free", None)) == "slot_freed_is_proven"
    assert await refused(fleet, slot(free, "claimed", waits["id"])) == "slot_claim_stands_on_the_node"
    moved_in = Update("allocation", waits["id"], 0, {"node_id": node_id, "address": placed["address"]})
    assert await refused(fleet, moved_in) == "allocation_address_taken"
    renamed = Update("project_network", network_id, 0, {"subnet": "10.64.9.0/24"})
    assert await refused(fleet, renamed) == "project_network_is_idle"
    place = StateChange(
        "allocation",
        waits["id"],
        ALLOCATION,
        ALLOCATION.step(S.REQUESTED, T.PROVISION),
        0,
        waits["tenant_id"],
        {"node_id": node_id},
    )
    assert await refused(fleet, place) == "allocation_has_its_slots"


async def test_the_database_takes_no_end_without_its_proof(world: World) -> None:
    database = world.running.platform.services.database
    fleet = FleetWithAgents(database)
    await fleet.node(1)
    await ask(world, "strict", "gpu_slice", [1])
    await AllocationReconciler(world.running.platform.services).tick()
    (row,) = await database.fetch(PLATFORM, "SELECT * FROM allocation")
    (held,) = await database.fetch(PLATFORM, "SELECT * FROM slot")

    def step(number: int, source: AllocationState, trigger: AllocationTrigger, **columns: object) -> StateChange:
        edge = ALLOCATION.step(source, trigger)
        return StateChange(
            "allocation", row["id"], ALLOCATION, edge, row["generation"] + number, row["tenant_id"], columns
        )

    await fleet.write(step(0, S.PROVISIONING, T.FAIL, failed_at=CLOCK.now(), failure_code="any"))
    await fleet.write(step(1, S.FAILED, T.RELEASE, releasing_at=CLOCK.now()))
    freed = Update("slot", held["id"], held["revision"], {"status": "free", "allocation_id": None})
    for proof in ("receipts", "nothing_started", "written_off"):
        end = step(2, S.RELEASING, T.FINISH_TEARDOWN, released_at=CLOCK.now(), teardown_proof=proof)
        assert await refused(fleet, end) == "allocation_released_is_proven"
    assert await refused(fleet, freed) == "slot_freed_is_proven"
