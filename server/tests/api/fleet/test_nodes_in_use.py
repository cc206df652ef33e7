"""Nodes on which somebody stands: what a report, a drain, a retirement and a write-off may do then, and what not."""

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from mooring.core.kernel.decision import Update
from mooring.core.kernel.errors import Refusal
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.allocation_reconciler import AllocationReconciler
from mooring.workers.nodes import NodeWatch
from server.tests.conftest import World
from server.tests.support.agents import MachineKeys, joined
from server.tests.support.fleet import FleetWithAgents

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

NODES = "/api/v1/platform/nodes"
SKU = {
    "slug": "slice", "display_name": "A slice", "shape": "gpu_slice", "gpu_model": "made-up", "regions": ["local"],
    "allowed_gpu_counts": [1, 2], "price_minor_per_gpu_hour": 250, "currency": "EUR",
}  # fmt: skip


ONE_GPU = {"shape": "gpu_slice", "sku": "slice", "gpu_count": 1}


@dataclass
class NodeInUse:
    """A machine that joined, and a project that may ask for a part of it."""

    world: World
    machine: MachineKeys
    project: str
    client: httpx.AsyncClient
    fleet: FleetWithAgents

    @property
    def path(self) -> str:
        return f"{NODES}/{self.machine.node_id}"

    async def node(self) -> dict[str, Any]:
        return dict((await self.world.admin.get(self.path)).json())

    async def look(self) -> None:
        """One look of each worker that cares."""
        services = self.world.running.platform.services
        await AllocationReconciler(services).tick()
        await NodeWatch(services).tick()

    async def ask(self) -> str:
        answer = await self.client.post(f"{self.project}/allocations", json=ONE_GPU)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def active(self) -> str:
        """An allocation whose sandbox stands."""
        allocation_id = await self.ask()
        await self.look()
        await self.fleet.do(allocation_id)
        await self.look()
        assert (await self.allocation(allocation_id))["status"] == "active"
        return allocation_id

    async def allocation(self, allocation_id: str) -> dict[str, Any]:
        return dict((await self.client.get(f"{self.project}/allocations/{allocation_id}")).json())

    async def claimed(self) -> int:
        count = "SELECT count(*) FROM slot WHERE node_id = $1 AND status = 'claimed'"
        return int(await self.fleet.database.fetchval(PLATFORM, count, self.machine.node_id))


@pytest.fixture
async def site(world: World) -> NodeInUse:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    machine = await joined(world.client(), world.admin)
    await machine.report(world.client(), 2)
    made = await world.admin.post("/api/v1/platform/skus", json=SKU)
    assert made.status_code == 201, made.text
    fleet = FleetWithAgents(world.running.platform.services.database)
    return NodeInUse(world, machine, f"/api/v1/projects/{project_id}", world.client(tenant.token), fleet)


async def test_a_gpu_that_somebody_has_and_that_is_gone_is_a_finding(site: NodeInUse) -> None:
    allocation_id = await site.active()
    taken = await site.machine.report(site.world.client(), 0)
    assert [(each["code"], each["slot_index"], each["allocation_id"]) for each in taken["findings"]] == [
        ("gpu_missing", 0, allocation_id)
    ]
    seen = await site.node()
    assert [(each["index"], each["status"]) for each in seen["slots"]] == [(0, "claimed")]
    assert seen["findings"] == taken["findings"]
    back = await site.machine.report(site.world.client(), 2)
    assert back["findings"] == []
    assert [each["status"] for each in (await site.node())["slots"]] == ["claimed", "free"]


async def test_another_gpu_or_another_host_under_somebody_is_a_finding_too(site: NodeInUse) -> None:
    await site.active()
    gpus = [{"index": 0, "model": "another", "memory_bytes": 1, "simulated": True}]
    headers = {"Authorization": f"Bearer {await site.machine.token(site.world.client())}"}
    body = {"agent_version": "2", "host": "process", "cpus": 1, "memory_bytes": 1, "gpus": gpus}
    answer = await site.world.client().post("/api/v1/agent/inventory", json=body, headers=headers)
    codes = [each["code"] for each in answer.json()["findings"]]
    assert codes == ["host_changed", "gpu_changed", "cpus_lost", "memory_lost"]
    seen = await site.node()
    assert (seen["host"], seen["slots"][0]["gpu_model"]) == ("simulated", "made-up")


async def test_a_drain_waits_for_the_last_allocation(site: NodeInUse) -> None:
    allocation_id = await site.active()
    await site.world.admin.post(f"{site.path}/drain")
    await site.look()
    seen = await site.node()
    assert (seen["status"], seen["allocations"]) == ("draining", 1)
    assert seen["why"] == [{"code": "draining", "detail": "an operator is draining it; 1 allocations are left"}]
    waiting = await site.ask()
    await site.look()
    assert (await site.allocation(waiting))["status"] == "requested"
    await site.client.post(f"{site.project}/allocations/{allocation_id}/release")
    await site.look()
    await site.fleet.do(allocation_id)
    await site.look()
    assert (await site.allocation(allocation_id))["status"] == "released"
    assert (await site.node())["status"] == "drained"


async def test_a_node_with_allocations_is_not_retired(site: NodeInUse) -> None:
    allocation_id = await site.active()
    answer = await site.world.admin.post(f"{site.path}/retire", json={"reason": "the machine goes back"})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_empty")
    assert answer.json()["details"] == {"allocation_ids": [allocation_id]}
    assert (await site.node())["status"] == "ready"


async def test_a_write_off_retires_the_node_and_ends_its_allocations(site: NodeInUse) -> None:
    allocation_id = await site.active()
    stated = {"reason": "the rack burnt down", "may_be_left": "a disk"}
    answer = await site.world.admin.post(f"{site.path}/write-off", json=stated)
    assert (answer.status_code, answer.json()["status"]) == (200, "retired")
    assert {each["status"] for each in (await site.node())["slots"]} == {"quarantined"}
    for _ in range(3):
        await site.look()
    ended = await site.allocation(allocation_id)
    assert (ended["status"], ended["teardown_proof"]) == ("released", "written_off")
    assert {each["status"] for each in (await site.node())["slots"]} == {"quarantined"}


async def test_no_claim_slips_past_a_drain(site: NodeInUse) -> None:
    allocation_id = await site.active()
    await site.world.admin.post(f"{site.path}/drain")
    row = await site.fleet.database.fetchrow(PLATFORM, "SELECT id, revision FROM slot WHERE status = 'free'")
    assert row is not None
    claim = Update("slot", row["id"], row["revision"], {"status": "claimed", "allocation_id": allocation_id})
    with pytest.raises(Refusal, match="accepts no new allocations"):
        await site.fleet.write(claim)


async def test_of_a_drain_and_many_claims_at_once_what_was_claimed_first_stays_and_nothing_comes_after(
    site: NodeInUse,
) -> None:
    for _ in range(5):
        await site.ask()
        placers = [AllocationReconciler(site.world.running.platform.services).tick() for _ in range(3)]
        answers = await asyncio.gather(site.world.admin.post(f"{site.path}/drain"), *placers)
        assert answers[0].status_code == 200, answers[0].text  # type: ignore[union-attr]
        after = await site.claimed()
        await site.look()
        assert await site.claimed() == after
        assert (await site.node())["status"] == ("draining" if after else "drained")
        await site.world.admin.post(f"{site.path}/resume")


async def test_of_a_retirement_and_many_claims_at_once_one_side_wins(site: NodeInUse) -> None:
    waiting = await site.ask()
    placers = [AllocationReconciler(site.world.running.platform.services).tick() for _ in range(3)]
    asked = site.world.admin.post(f"{site.path}/retire", json={"reason": "the machine goes back"})
    answer = (await asyncio.gather(asked, *placers))[0]
    status = (await site.node())["status"]
    placed = (await site.allocation(waiting))["status"] == "provisioning"
    assert (answer.status_code, status, placed) in {  # type: ignore[union-attr]
        (200, "retired", False),
        (409, "ready", True),
    }
