"""Allocations from asked for to gone: through the API, by the runtime worker, with an agent that is played.

Each look of the worker is one of a new worker, so that nothing it does depends on what it remembers.
"""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from mooring.core.fleet.node import WriteOff, write_off_node
from mooring.core.fleet.slot import Slot
from mooring.core.kernel.decision import Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.fleet import node as nodes
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.lifecycle_rows import context

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def site(world: World) -> AllocationSite:
    return await make_site(world)


async def test_an_allocation_is_placed_runs_and_ends_with_a_clean_receipt(site: AllocationSite) -> None:
    node_id, sku = await site.fleet.node(4), await site.fleet.sku()
    asked = await site.ask(sku, gpu_count=2, name="trainer")
    assert (asked["status"], asked["node_id"], asked["regions"]) == ("requested", None, ["local"])

    await site.look()
    placed = await site.get(asked["id"])
    assert (placed["status"], placed["node_id"]) == ("provisioning", node_id)
    assert [slot["index"] for slot in placed["slots"]] == [0, 1]
    assert await site.fleet.slots(node_id) == ["claimed", "claimed", "free", "free"]

    task = await site.fleet.do(asked["id"])
    assert task["type"] == "sandbox.create"
    assert task["arguments"] == {
        "hostname": "trainer",
        "cpus": 8.0,
        "memory_bytes": 32 << 30,
        "pids": 32_768,
        "devices": [{"index": 0, "simulated": True}, {"index": 1, "simulated": True}],
        "network": {"name": site.project_id, "address": "10.64.0.2", "subnet": "10.64.0.0/24", "machine": False},
        "peers": [],
        "isolation": "user_namespace",
    }
    await site.look()
    stands = await site.get(asked["id"])
    assert (stands["status"], stands["isolation"], stands["address"]) == ("active", "simulated", "10.64.0.2")
    assert stands["charge"]["started_at"] == stands["activated_at"] is not None
    assert stands["charge"]["ended_at"] is None

    given_back = await site.post(f"/allocations/{asked['id']}/release")
    assert given_back["status"] == "releasing"
    assert given_back["charge"]["ended_at"] == given_back["releasing_at"]
    await site.look()
    assert await site.fleet.slots(node_id) == ["claimed", "claimed", "free", "free"]
    assert (await site.fleet.do(asked["id"]))["type"] == "sandbox.destroy"
    await site.look()
    over = await site.get(asked["id"])
    assert (over["status"], over["teardown_proof"], over["allowed_actions"]) == ("released", "receipts", [])
    assert over["receipt_id"] is not None
    assert await site.fleet.slots(node_id) == ["free"] * 4
    assert await site.events(asked["id"]) == ["requested", "placed", "active", "releasing", "released"]


async def test_what_is_left_blocks_the_slots_until_a_retry_is_clean(site: AllocationSite) -> None:
    node_id, sku = await site.fleet.node(2), await site.fleet.sku()
    stands = await site.active(sku, gpu_count=1)
    one = f"/allocations/{stands['id']}"
    await site.post(f"{one}/release")
    await site.look()
    await site.fleet.do(stands["id"], clean=False)
    await site.look()
    failed = await site.get(stands["id"])
    assert (failed["status"], failed["allowed_verbs"]) == ("release_failed", ["release", "retry"])
    assert "something is left" in failed["blocker"]
    assert await site.fleet.slots(node_id) == ["cleanup_blocked", "free"]

    await site.look()
    assert len(await site.fleet.tasks(stands["id"])) == 2, "its pause is not over"
    ended = (await site.get(stands["id"]))["charge"]["ended_at"]
    await site.post(f"{one}/retry")
    await site.look()
    assert (await site.fleet.do(stands["id"]))["step"] == "sandbox.destroy/2"
    await site.look()
    over = await site.get(stands["id"])
    assert (over["status"], over["teardown_proof"]) == ("released", "receipts")
    assert over["charge"]["ended_at"] == ended, "a retry does not charge again"
    assert await site.fleet.slots(node_id) == ["free", "free"]


async def test_a_teardown_that_failed_is_tried_again_after_a_pause_that_grows(site: AllocationSite) -> None:
    await site.fleet.node(1)
    stands = await site.active(await site.fleet.sku(), gpu_count=1)
    await site.post(f"/allocations/{stands['id']}/release")
    await site.look()
    pauses = []
    for _ in range(3):
        await site.fleet.fail(stands["id"])
        await site.look()
        failed = await site.get(stands["id"])
        assert failed["status"] == "release_failed"
        row = await site.fleet.database.fetchrow(
            PLATFORM,
            "SELECT retry_at - (SELECT max(occurred_at) FROM transition WHERE subject_id = $1) AS pause "
            "FROM allocation WHERE id = $1",
            stands["id"],
        )
        assert row is not None
        pauses.append(row["pause"])
        site.later(sum(pauses, timedelta(seconds=1)))
        await site.look()
        assert (await site.get(stands["id"]))["status"] == "releasing"
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[2]


async def test_without_room_it_waits_with_a_reason_and_is_placed_when_there_is_some(site: AllocationSite) -> None:
    await site.fleet.node(2)
    asked = await site.ask(await site.fleet.sku(), gpu_count=4)
    await site.look()
    waits = await site.get(asked["id"])
    assert waits["status"] == "requested"
    assert waits["blocker"].endswith("what would help: 2 more GPUs on one machine")
    await site.fleet.node(4)
    await site.look()
    placed = await site.get(asked["id"])
    assert (placed["status"], placed["blocker"]) == ("provisioning", None)


async def test_without_room_until_its_time_is_over_it_fails_and_ends(site: AllocationSite) -> None:
    asked = await site.ask(await site.fleet.sku(), gpu_count=4, place_within_seconds=60)
    await site.look()
    site.later(timedelta(seconds=61))
    await site.look()
    await site.look()
    over = await site.get(asked["id"])
    assert (over["status"], over["failure_code"]) == ("released", "no_capacity")
    assert (over["teardown_proof"], over["charge"]["started_at"]) == ("nothing_started", None)
    assert await site.events(asked["id"]) == ["requested", "waiting", "failed", "releasing", "released"]


async def test_what_is_given_back_before_it_is_placed_ends_at_once(site: AllocationSite) -> None:
    asked = await site.ask(await site.fleet.sku(), gpu_count=4)
    failed = await site.post(f"/allocations/{asked['id']}/release")
    assert (failed["status"], failed["failure_code"]) == ("failed", "cancelled")
    await site.look()
    assert (await site.get(asked["id"]))["teardown_proof"] == "nothing_started"


async def test_what_no_agent_began_is_taken_back_and_leaves_no_task(site: AllocationSite) -> None:
    node_id = await site.fleet.node(2)
    asked = await site.ask(await site.fleet.sku(), gpu_count=2)
    await site.look()
    await site.post(f"/allocations/{asked['id']}/release")
    await site.look()
    over = await site.get(asked["id"])
    assert (over["status"], over["teardown_proof"]) == ("released", "nothing_started")
    assert [each["status"] for each in await site.fleet.tasks(asked["id"])] == ["cancelled"]
    assert await site.fleet.slots(node_id) == ["free", "free"]


async def test_what_an_agent_began_is_torn_down_when_it_is_given_back(site: AllocationSite) -> None:
    node_id = await site.fleet.node(2)
    asked = await site.ask(await site.fleet.sku(), gpu_count=2)
    await site.look()
    await site.fleet.take(asked["id"])
    await site.post(f"/allocations/{asked['id']}/release")
    await site.look()
    assert (await site.get(asked["id"]))["status"] == "releasing"
    assert await site.fleet.slots(node_id) == ["claimed", "claimed"]
    await site.fleet.do(asked["id"])
    await site.look()
    assert (await site.get(asked["id"]))["teardown_proof"] == "receipts"


async def test_a_sandbox_that_cannot_be_made_fails_and_is_torn_down(site: AllocationSite) -> None:
    node_id = await site.fleet.node(1)
    asked = await site.ask(await site.fleet.sku(), gpu_count=1)
    await site.look()
    await site.fleet.fail(asked["id"], "capacity", "no more user ids")
    await site.look()
    failing = await site.get(asked["id"])
    assert (failing["status"], failing["failure_code"]) == ("releasing", "capacity")
    assert failing["failure_detail"] == "no more user ids"
    await site.fleet.do(asked["id"])
    await site.look()
    over = await site.get(asked["id"])
    assert (over["status"], over["failure_code"], over["charge"]["started_at"]) == ("released", "capacity", None)
    assert await site.fleet.slots(node_id) == ["free"]


async def test_an_interrupted_create_is_tried_again_a_few_times(site: AllocationSite) -> None:
    await site.fleet.node(1)
    asked = await site.ask(await site.fleet.sku(), gpu_count=1)
    for number in (1, 2, 3):
        await site.look()
        task = await site.fleet.fail(asked["id"], "interrupted", "the agent was killed")
        assert task["step"] == f"sandbox.create/{number}"
    await site.look()
    assert (await site.get(asked["id"]))["failure_code"] == "interrupted"


async def test_an_unreachable_node_is_named_while_it_blocks(site: AllocationSite) -> None:
    node_id, sku = await site.fleet.node(2), await site.fleet.sku()
    stands = await site.active(sku, gpu_count=1)
    await mark(site, node_id, unreachable=True)
    await site.look()
    blocked = await site.get(stands["id"])
    assert blocked["status"] == "active"
    assert blocked["blocker"].startswith(f"node {node_id} unreachable since ")
    await site.post(f"/allocations/{stands['id']}/release")
    await site.look()
    await site.look()
    assert (await site.get(stands["id"]))["blocker"].startswith(f"node {node_id} unreachable since ")
    await mark(site, node_id, unreachable=False)
    await site.look()
    assert (await site.get(stands["id"]))["blocker"] is None


async def test_a_tenant_that_cuts_its_machine_off_pays_until_it_releases_it(site: AllocationSite) -> None:
    node_id, sku = await site.fleet.node(2), await site.fleet.sku("baremetal", (2,))
    stands = await site.active(sku, shape="baremetal", gpu_count=2)
    await mark(site, node_id, unreachable=True)
    site.later(timedelta(hours=5))
    await site.look()
    cut_off = await site.get(stands["id"])
    assert (cut_off["status"], cut_off["charge"]["ended_at"]) == ("active", None)
    released = await site.post(f"/allocations/{stands['id']}/release")
    started, ended = (datetime.fromisoformat(released["charge"][name]) for name in ("started_at", "ended_at"))
    assert ended - started >= timedelta(hours=5), "it ends with the request, not with the last heartbeat"


async def test_tasks_that_begin_and_end_an_allocation_are_never_too_many(site: AllocationSite) -> None:
    services = site.world.running.platform.services
    object.__setattr__(services, "settings", replace(services.settings, open_tasks_per_project_max=0))
    await site.fleet.node(2)
    stands = await site.active(await site.fleet.sku(), gpu_count=1)
    await site.post(f"/allocations/{stands['id']}/release")
    await site.look()
    assert (await site.fleet.do(stands["id"]))["type"] == "sandbox.destroy"


async def mark(site: AllocationSite, node_id: str, *, unreachable: bool) -> None:
    node = await nodes.find(site.fleet.database, node_id)
    assert node is not None
    since = node.last_seen_at if unreachable else None
    await site.fleet.write(Update("node", node_id, node.revision, {"unreachable_since": since}))


async def test_allocations_of_a_written_off_node_are_lost_and_end(site: AllocationSite) -> None:
    node_id, sku = await site.fleet.node(4), await site.fleet.sku()
    stands = await site.active(sku, gpu_count=1)
    leaving = await site.active(sku, gpu_count=1)
    await site.post(f"/allocations/{leaving['id']}/release")
    await site.look()
    await site.fleet.do(leaving["id"], clean=False)
    await site.look()
    coming = await site.ask(sku, gpu_count=1)
    await site.look()
    node = await nodes.find(site.fleet.database, node_id)
    slots = await nodes_slots(site, node_id)
    assert node is not None
    stated = WriteOff("it burnt down last night", "a disk with the project's data")
    await apply(site.fleet.database, PLATFORM, context(), write_off_node(context(), node, slots, stated))
    await site.look()
    for each in (stands, leaving, coming):
        over = await site.get(each["id"])
        assert (over["status"], over["teardown_proof"]) == ("released", "written_off"), over
        assert over["receipt_id"] is None
    lost = await site.get(stands["id"])
    assert lost["charge"]["ended_at"] == lost["lost_at"] is not None, "it was charged until somebody gave it up"
    assert (await site.get(coming["id"]))["failure_code"] == "node_lost"
    assert "lost" in await site.events(stands["id"])
    assert "lost" not in await site.events(leaving["id"]), "it was given back before"
    assert await site.fleet.slots(node_id) == ["quarantined"] * 4


async def nodes_slots(site: AllocationSite, node_id: str) -> list[Any]:
    from_slots = await site.fleet.database.fetch(
        PLATFORM,
        "SELECT id, node_id, index, numa, gpu_model, memory_bytes, simulated, status, allocation_id, revision, "
        "created_at FROM slot WHERE node_id = $1",
        node_id,
    )
    return [Slot(*row) for row in from_slots]


async def test_two_workers_side_by_side_make_one_task_of_each_step(site: AllocationSite) -> None:
    await site.fleet.node(4)
    sku = await site.fleet.sku()
    asked = [await site.ask(sku, gpu_count=1) for _ in range(4)]
    await asyncio.gather(*(site.look() for _ in range(4)))
    for each in asked:
        assert [task["step"] for task in await site.fleet.tasks(each["id"])] == ["sandbox.create/1"]
        await site.fleet.do(each["id"])
    await asyncio.gather(*(site.look() for _ in range(4)))
    for each in asked:
        await site.post(f"/allocations/{each['id']}/release")
    await asyncio.gather(*(site.look() for _ in range(4)))
    for each in asked:
        steps = [task["step"] for task in await site.fleet.tasks(each["id"])]
        assert steps == ["sandbox.create/1", "sandbox.destroy/1"]


async def test_a_reader_can_wait_for_it(site: AllocationSite) -> None:
    await site.fleet.node(1)
    asked = await site.ask(await site.fleet.sku(), gpu_count=1)
    waiting = asyncio.create_task(
        site.client.get(f"{site.path}/allocations/{asked['id']}", params={"wait": 30, "until": "active,failed"})
    )
    await site.look()
    await site.fleet.do(asked["id"])
    await site.look()
    assert (await waiting).json()["status"] == "active"


async def test_a_cordoned_node_keeps_what_runs_and_takes_nothing_new(site: AllocationSite) -> None:
    node_id, sku = await site.fleet.node(4), await site.fleet.sku()
    stands = await site.active(sku, gpu_count=1)
    node, admin = f"/api/v1/platform/nodes/{node_id}", site.world.admin
    cordoned = (await admin.post(f"{node}/cordon", json={"reason": "its fan is loud"})).json()
    assert (cordoned["status"], cordoned["takes_work"], cordoned["cordon_reason"]) == (
        "ready",
        False,
        "its fan is loud",
    )
    assert [each["code"] for each in cordoned["why"]] == ["cordoned"]
    asked = await site.ask(sku, gpu_count=1)
    await site.look()
    waiting = await site.get(asked["id"])
    assert (waiting["status"], waiting["node_id"]) == ("requested", None)
    assert (await site.get(stands["id"]))["status"] == "active"
    (slot, *_) = await site.fleet.database.fetch(PLATFORM, "SELECT id, revision FROM slot WHERE status = 'free'")
    claim = {"status": "claimed", "allocation_id": stands["id"]}
    with pytest.raises(Refusal) as refused:
        await site.fleet.write(Update("slot", slot["id"], slot["revision"], claim))
    assert refused.value.code is Code.CONFLICT, "a placement that was decided before loses to the cordon"
    again = await admin.post(f"{node}/cordon", json={"reason": "another reason altogether"})
    assert again.json()["cordon_reason"] == "its fan is loud"
    assert (await admin.post(f"{node}/uncordon")).json()["takes_work"] is True
    assert (await admin.post(f"{node}/uncordon")).status_code == 200
    await site.look()
    assert (await site.get(asked["id"]))["node_id"] == node_id
