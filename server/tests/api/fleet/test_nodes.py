"""Nodes as operators see them: what they report, drain, retirement, write-off, and a machine that comes back."""

import asyncio
from typing import Any

import httpx
import pytest

from mooring.storage.kernel.database import PLATFORM
from mooring.workers.nodes import NodeWatch
from server.tests.conftest import World
from server.tests.support.agents import INVENTORY, MachineKeys, an_inventory, joined

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

NODES = "/api/v1/platform/nodes"
WHY = "the machine goes back to its vendor"


async def ready(world: World, gpus: int = 2) -> MachineKeys:
    """A machine that has joined and reported."""
    machine = await joined(world.client(), world.admin)
    await machine.report(world.client(), gpus)
    return machine


async def node(world: World, machine: MachineKeys) -> dict[str, Any]:
    """The machine as an admin reads it."""
    answer = await world.admin.get(f"{NODES}/{machine.node_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def move(world: World, machine: MachineKeys, verb: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """Ask for a move of the node."""
    return await world.admin.post(f"{NODES}/{machine.node_id}/{verb}", json=body)


async def execute(world: World, statement: str, *arguments: object) -> Any:
    """One statement, as the platform."""
    return await world.running.platform.services.database.fetchval(PLATFORM, statement, *arguments)


async def test_a_node_is_ready_when_it_has_said_what_it_has(world: World) -> None:
    machine = await joined(world.client(), world.admin, labels={"rack": "a7"})
    seen = await node(world, machine)
    assert (seen["status"], seen["takes_work"], seen["slots"]) == ("enrolled", False, [])
    assert [each["code"] for each in seen["why"]] == ["inventory_missing"]
    taken = await machine.report(world.client(), 3)
    assert taken == {"node_id": machine.node_id, "status": "ready", "sweep_due": False, "findings": []}
    seen = await node(world, machine)
    assert (seen["status"], seen["takes_work"], seen["why"]) == ("ready", True, [])
    assert [(each["index"], each["numa"], each["status"]) for each in seen["slots"]] == [
        (0, 0, "free"),
        (1, 1, "free"),
        (2, 0, "free"),
    ]
    assert all(each["simulated"] for each in seen["slots"])
    assert seen["labels"] == {"rack": "a7"}
    expected = {
        "rdma": True,
        "kernel": "6.1",
        "gpu_count": 3,
        "gpu_memory_gib": 80,
        "gpu_model": "made-up",
        "simulated_gpus": True,
        "host": "simulated",
        "region": "local",
        "cpus": 16,
        "memory_gib": 64,
    }
    assert seen["facts"] == expected


async def test_a_report_that_is_like_the_last_one_writes_nothing(world: World) -> None:
    machine = await ready(world)
    before = await node(world, machine)
    written = await execute(world, "SELECT count(*) FROM audit WHERE action = 'agent.report'")
    await machine.report(world.client())
    assert await node(world, machine) == before
    assert await execute(world, "SELECT count(*) FROM audit WHERE action = 'agent.report'") == written


async def test_free_slots_follow_what_is_reported(world: World) -> None:
    machine = await ready(world, 2)
    await machine.report(world.client(), 4, cpus=32)
    seen = await node(world, machine)
    assert (len(seen["slots"]), seen["inventory"]["cpus"]) == (4, 32)
    await machine.report(world.client(), 1)
    assert [each["index"] for each in (await node(world, machine))["slots"]] == [0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpus", -1), ("cpus", 10**9), ("memory_bytes", 2**61), ("addresses", ["not an address"]),
        ("facts", {"NOT A NAME": True}), ("facts", {"kernel": "x" * 300}), ("facts", {"kernel": "a\u202eb"}),
        ("facts", {f"fact_{number}": True for number in range(201)}), ("agent_version", "a\nb"), ("host", "unheard-of"),
        ("gpus", [{"index": 0, "model": "m", "memory_bytes": 1, "simulated": True}] * 2), ("unknown", 1),
        ("gpus", [{"index": 0, "model": "", "memory_bytes": 1, "simulated": True}]),
        ("gpus", [{"index": n, "model": "m", "memory_bytes": 1, "simulated": True} for n in range(129)]),
    ],
)  # fmt: skip
async def test_a_report_out_of_bounds_is_refused(world: World, field: str, value: object) -> None:
    machine = await joined(world.client(), world.admin)
    client = world.client(await machine.token(world.client()))
    answer = await client.post(INVENTORY, json=an_inventory(1) | {field: value})
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert (await node(world, machine))["status"] == "enrolled"


@pytest.mark.usefixtures("private_platform")
async def test_the_list_is_narrowed_by_status_region_and_reachability(world: World) -> None:
    first, second = await ready(world), await joined(world.client(), world.admin)
    services = world.running.platform.services
    services.presence.record(first.node_id, services.clock.now())
    await services.presence.flush(services.database, services.clock.now())

    async def listed(query: str) -> list[str]:
        answer = await world.admin.get(f"{NODES}?{query}")
        assert answer.status_code == 200, answer.text
        return [each["id"] for each in answer.json()["items"]]

    assert await listed("") == [first.node_id, second.node_id]
    assert await listed("status=ready") == [first.node_id]
    assert await listed("status=enrolled&region=local") == [second.node_id]
    assert await listed("region=elsewhere") == []
    assert await listed("reachable=true") == [first.node_id]
    assert await listed("reachable=false") == [second.node_id]
    page = (await world.admin.get(f"{NODES}?limit=1")).json()
    assert await listed(f"limit=1&cursor={page['next_cursor']}") == [second.node_id]


async def test_an_empty_node_drains_at_once_and_resumes(world: World) -> None:
    machine = await ready(world)
    answer = await move(world, machine, "drain")
    assert (answer.status_code, answer.json()["status"], answer.json()["takes_work"]) == (200, "draining", False)
    await NodeWatch(world.running.platform.services).tick()
    seen = await node(world, machine)
    assert (seen["status"], seen["allowed_moves"]) == ("drained", ["resume", "retire", "write_off"])
    assert (await move(world, machine, "resume")).json()["status"] == "ready"
    refused = await move(world, machine, "resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")


async def test_a_reader_waits_for_the_end_of_a_drain(world: World) -> None:
    machine = await ready(world)
    await move(world, machine, "drain")
    waiting = asyncio.create_task(world.admin.get(f"{NODES}/{machine.node_id}?wait=30&until=drained"))
    await NodeWatch(world.running.platform.services).tick()
    assert (await waiting).json()["status"] == "drained"


async def test_a_retired_node_can_no_longer_sign_in(world: World) -> None:
    machine = await ready(world)
    client = world.client(await machine.token(world.client()))
    assert (await client.get("/api/v1/agent/platform-keys")).status_code == 200
    answer = await move(world, machine, "retire", {"reason": WHY})
    assert (answer.status_code, answer.json()["status"], answer.json()["allowed_moves"]) == (200, "retired", [])
    assert (await client.get("/api/v1/agent/platform-keys")).status_code == 401
    refused = await machine.exchange(world.client())
    assert (refused.status_code, refused.json()["code"]) == (401, "assertion_refused")
    seen = await node(world, machine)
    assert {each["status"] for each in seen["slots"]} == {"quarantined"}
    assert seen["retirement_reason"] == WHY


async def test_a_write_off_says_why_and_what_may_be_left(world: World) -> None:
    machine = await ready(world)
    refused = await move(world, machine, "write-off", {"reason": WHY, "may_be_left": " "})
    assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")
    stated = {"reason": "the rack burnt down", "may_be_left": "disks with the tenants' data"}
    answer = await move(world, machine, "write-off", stated)
    assert (answer.status_code, answer.json()["status"]) == (200, "retired")
    assert answer.json()["may_be_left"] == stated["may_be_left"]
    done = "SELECT reason FROM audit WHERE action = 'teardown.write_off' AND outcome = 'done' AND subject_id = $1"
    audited = await execute(world, done, machine.node_id)
    assert audited == stated["reason"]


async def test_a_machine_that_comes_back_is_swept_before_it_takes_work(world: World) -> None:
    machine = await ready(world)
    await move(world, machine, "write-off", {"reason": "the rack burnt down", "may_be_left": "everything"})
    again = MachineKeys(signing=machine.signing, sealing=machine.sealing, name=machine.name)
    enrolled = await again.enrol(world.client(), world.admin)
    assert (enrolled["sweep_due"], enrolled["node_id"] != machine.node_id) == (True, True)
    assert (await again.report(world.client()))["sweep_due"] is True
    seen = await node(world, again)
    assert (seen["status"], seen["takes_work"], seen["previous_node_id"]) == ("ready", False, machine.node_id)
    assert [each["code"] for each in seen["why"]] == ["sweep_due"]
    assert await execute(world, "SELECT node_takes_work($1)", again.node_id) is False


async def test_a_machine_that_kept_its_state_and_not_its_keys_is_swept_as_well(world: World) -> None:
    machine, other = await ready(world), MachineKeys()
    await move(world, machine, "retire", {"reason": WHY})
    enrolled = await other.enrol(world.client(), world.admin, previous_node_id=machine.node_id)
    assert enrolled["sweep_due"] is True
    assert (await node(world, other))["previous_node_id"] == machine.node_id


async def test_of_drain_and_retire_at_once_the_end_is_one_that_the_lifecycle_has(world: World) -> None:
    machine = await ready(world)
    answers = await asyncio.gather(
        *(move(world, machine, "drain") for _ in range(4)),
        *(move(world, machine, "retire", {"reason": WHY}) for _ in range(4)),
    )
    assert {answer.status_code for answer in answers} == {200, 409}
    assert sum(answer.status_code == 200 for answer in answers[4:]) == 1
    assert (await node(world, machine))["status"] == "retired"


async def test_only_the_platforms_people_read_and_move_nodes(world: World) -> None:
    machine, tenant = await ready(world), await world.tenant("acme")
    client = world.client(tenant.token)
    assert (await client.get(NODES)).status_code == 403
    assert (await client.get(f"{NODES}/{machine.node_id}")).status_code == 403
    assert (await client.post(f"{NODES}/{machine.node_id}/drain")).status_code == 403


async def test_labels_are_set_and_removed_within_bounds(world: World) -> None:
    machine = await ready(world)
    first = await move(world, machine, "label", {"labels": {"rack": "a7", "spare": "yes"}})
    assert first.json()["labels"] == {"rack": "a7", "spare": "yes"}
    second = await move(world, machine, "label", {"labels": {"rack": "b1", "spare": None, "absent": None}})
    assert second.json()["labels"] == {"rack": "b1"}
    for labels in (
        {},
        {"Rack": "a"},
        {"rack": "x" * 201},
        {f"label-{number}": "x" for number in range(33)},
        {"network_pool": "10.0.0.0/8"},
    ):
        refused = await move(world, machine, "label", {"labels": labels})
        assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed"), labels
    many = {f"label-{number}": "x" for number in range(32)}
    assert (await move(world, machine, "label", {"labels": many})).status_code == 422, "with the one that is there"
    trail = (await world.admin.get("/api/v1/platform/audit?limit=20&action=node.operate")).json()["items"]
    assert {"rack": "b1"} in [each["after"].get("labels") for each in trail if each["subject_id"] == machine.node_id]
    await move(world, machine, "retire", {"reason": WHY})
    for verb, body in (("label", {"labels": {"rack": "c"}}), ("cordon", {"reason": WHY})):
        assert (await move(world, machine, verb, body)).status_code == 409


async def test_operators_drain_with_the_key_of_before_and_cordon_with_the_new_one(world: World) -> None:
    machine = await ready(world)
    for key, allowed in (
        ("node.drain", {"drain", "resume"}),
        ("node.operate", {"drain", "resume", "cordon", "uncordon"}),
    ):
        token = (await world.admin.post("/api/v1/tokens", json={"name": key, "actions": [key]})).json()["token"]
        client = world.client(token)
        for verb in ("drain", "resume", "cordon", "uncordon"):
            body = {"reason": WHY} if verb == "cordon" else None
            answer = await client.post(f"{NODES}/{machine.node_id}/{verb}", json=body)
            assert answer.status_code == (200 if verb in allowed else 403), (key, verb, answer.text)
