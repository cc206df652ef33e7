"""The runtime worker of instances on a real database: from a launch to the closing records."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from mooring.core.runtime.instance_transitions import move_operation
from mooring.core.runtime.operation import OperationKind, OperationTrigger
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, Acting, Database, PoolSettings
from mooring.storage.runtime import instance_reconcile
from server.tests.conftest import World
from server.tests.support.instance_setup import InstanceSetup, make_setup

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def test_a_launch_waits_for_its_capacity_and_names_what_it_waits_for(world: World) -> None:
    setup = await make_setup(world)
    asked = await setup.site.ask(setup.sku, gpu_count=1)
    instance_id = await setup.launch([asked["id"]], owned=True)
    await setup.look()
    (operation,) = await setup.operations(instance_id)
    assert (operation.status, operation.blocker_code, operation.dispatched_at) == ("blocked", "no_capacity", None)
    assert operation.blocker is not None
    assert operation.blocker.startswith("no capacity: no room")
    await setup.site.fleet.node(1)
    await setup.look()
    await setup.site.fleet.do(asked["id"])
    await setup.look()
    (operation,) = await setup.operations(instance_id)
    assert operation.status == "running"
    assert operation.dispatched_at is not None
    assert operation.blocker is None
    assert operation.started_at is None


async def test_a_launch_without_an_adapter_fails_by_name_and_leaves_nothing(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(1)
    asked = await setup.site.active(setup.sku, gpu_count=1)
    instance_id = await setup.launch([asked["id"]], owned=True)
    await setup.look()
    setup.site.later(timedelta(seconds=301))
    await setup.look(2)
    instance = await setup.instance(instance_id)
    deploy, leftovers = await setup.operations(instance_id)
    assert (instance.status, instance.failure_code) == ("failed", "adapter_unavailable")
    assert deploy.failure_detail is not None
    assert deploy.failure_detail.endswith("one was last seen: never")
    assert deploy.evidence is not None
    assert deploy.evidence["retryable"] is True
    assert (leftovers.kind, leftovers.requested_by, leftovers.status) == ("decommission", "system", "succeeded")
    assert await setup.closings(instance_id) == ["nothing_started"]
    assert (await setup.site.get(asked["id"]))["status"] == "releasing"
    await setup.stop(instance_id)
    await setup.look()
    stopped = await setup.instance(instance_id)
    assert (stopped.status, stopped.teardown_proof, stopped.failure_code) == (
        "stopped",
        "receipts",
        "adapter_unavailable",
    )


async def test_a_stop_ends_each_member_with_the_receipt_of_its_node(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(2)
    instance_id = await setup.running(2, owned=True)
    members = await setup.members(instance_id)
    operation = await setup.stop(instance_id)
    await setup.look()
    assert [each.status for each in await setup.members(instance_id)] == ["ready", "ready"]  # the adapter has its time
    setup.site.later(timedelta(seconds=61))
    await setup.look(2)
    assert [each.status for each in await setup.members(instance_id)] == ["removing", "removing"]
    for each in members:
        allocation = await setup.site.get(str(each.allocation_id))
        assert (allocation["status"], allocation["blocker"]) == ("releasing", f"members {each.name} are removed first")
        task = await setup.site.fleet.do(str(each.allocation_id))
        assert (task["type"], task["step"]) == ("teardown.verify", f"teardown.verify/{each.id}/1")
        assert task["owner"] == f"{each.allocation_id}/{each.id}"
    await setup.look()
    instance = await setup.instance(instance_id)
    ended = (await setup.operations(instance_id))[-1]
    assert (instance.status, instance.teardown_proof) == ("stopped", "receipts")
    assert ended.id == operation.id
    assert ended.evidence is not None
    assert len(ended.evidence["receipts"]) == 2
    assert ended.evidence["closing"] == {"receipt": 2}
    assert ended.evidence["handed_over"] == "the adapter's time limit passed"
    await setup.look()
    for each in members:
        assert (await setup.site.fleet.do(str(each.allocation_id)))["type"] == "sandbox.destroy"
    await setup.look()
    assert [(await setup.site.get(str(each.allocation_id)))["status"] for each in members] == ["released"] * 2


async def test_what_is_left_is_torn_down_again_after_a_pause_and_named_until_then(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(1)
    instance_id = await setup.running()
    (member,) = await setup.members(instance_id)
    await setup.stop(instance_id)
    setup.site.later(timedelta(seconds=61))
    await setup.look()
    await setup.site.fleet.do(str(member.allocation_id), clean=False)
    await setup.look()
    (member,) = await setup.members(instance_id)
    operation = (await setup.operations(instance_id))[-1]
    assert member.blocker is not None
    assert "found leftovers: receipt rcp_" in member.blocker
    assert (operation.status, operation.blocker_code) == ("blocked", "something_left")
    setup.site.later(timedelta(seconds=95))
    await setup.look()
    assert (await setup.site.fleet.do(str(member.allocation_id)))["step"].endswith("/2")
    await setup.look()
    assert (await setup.instance(instance_id)).status == "stopped"
    assert (await setup.site.get(str(member.allocation_id)))["status"] == "active"  # it was there before, and stays


async def test_a_machine_that_is_destroyed_under_a_stop_is_named_and_ends_by_a_write_off(world: World) -> None:
    setup = await make_setup(world)
    node_id = await setup.site.fleet.node(1)
    instance_id = await setup.running(owned=True)
    (member,) = await setup.members(instance_id)
    await setup.stop(instance_id)
    database = setup.services.database
    await database.fetch(
        PLATFORM, "UPDATE node SET unreachable_since = now(), revision = revision + 1 WHERE id = $1", node_id
    )
    setup.site.later(timedelta(seconds=61))
    await setup.look(2)
    (member,) = await setup.members(instance_id)
    operation = (await setup.operations(instance_id))[-1]
    assert member.status == "removing"
    assert str(member.blocker).startswith(f"node {node_id} unreachable since")
    assert (operation.status, operation.blocker_code) == ("blocked", "node_unreachable")
    allocation = await setup.site.get(str(member.allocation_id))
    assert allocation["status"] == "releasing"
    assert allocation["releasing_at"] is not None
    setup.site.later(timedelta(days=3))
    await setup.look()
    assert (await setup.instance(instance_id)).status == "stopping"
    await write_off(setup, node_id)
    await setup.look(2)
    instance = await setup.instance(instance_id)
    assert (instance.status, instance.teardown_proof) == ("stopped", "written_off")
    assert await setup.closings(instance_id) == ["write_off"]
    assert (await setup.site.get(str(member.allocation_id)))["status"] == "released"


async def test_a_member_is_removed_with_its_receipt_while_the_others_live(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(2)
    instance_id = await setup.running(2, owned=True)
    first, second = await setup.members(instance_id)
    await setup.ask(instance_id, OperationKind.REMOVE, [second.id], phase="platform")
    await setup.look(2)
    assert (await setup.site.fleet.do(str(second.allocation_id)))["type"] == "teardown.verify"
    await setup.look(2)
    assert [each.status for each in await setup.members(instance_id)] == ["ready", "removed"]
    removal = (await setup.operations(instance_id))[-1]
    assert removal.status == "succeeded"
    assert removal.evidence is not None
    assert removal.evidence["closing"] == {"receipt": 1}
    assert removal.evidence["gpu_seconds"] >= 0
    assert (await setup.site.fleet.do(str(second.allocation_id)))["type"] == "sandbox.destroy"
    await setup.look()
    assert (await setup.site.get(str(first.allocation_id)))["status"] == "active"
    assert (await setup.site.get(str(second.allocation_id)))["status"] == "released"
    assert (await setup.instance(instance_id)).status == "running"


async def test_giving_back_an_allocation_first_removes_its_member(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(2)
    instance_id = await setup.running(2)
    _, second = await setup.members(instance_id)
    await setup.site.post(f"/allocations/{second.allocation_id}/release")
    await setup.look()
    removal = (await setup.operations(instance_id))[-1]
    assert (removal.kind, removal.requested_by, removal.member_ids) == ("remove", "system", [second.id])
    assert [each.status for each in await setup.members(instance_id)] == ["ready", "draining"]
    allocation = await setup.site.get(str(second.allocation_id))
    assert (allocation["status"], allocation["blocker"]) == ("releasing", "members main-1 are removed first")
    setup.site.later(timedelta(seconds=361))
    await setup.look(2)
    assert (await setup.site.fleet.do(str(second.allocation_id)))["type"] == "teardown.verify"
    await setup.look(2)
    assert (await setup.site.fleet.do(str(second.allocation_id)))["type"] == "sandbox.destroy"
    await setup.look()
    instance = await setup.instance(instance_id)
    assert (instance.status, instance.topology) == ("running", {"main": 1})
    assert (await setup.site.get(str(second.allocation_id)))["status"] == "released"


async def test_giving_back_the_allocation_of_a_member_that_is_needed_stops_the_instance(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(1)
    instance_id = await setup.running(1)
    (member,) = await setup.members(instance_id)
    await setup.site.post(f"/allocations/{member.allocation_id}/release")
    await setup.look()
    assert (await setup.instance(instance_id)).status == "stopping"
    stop = (await setup.operations(instance_id))[-1]
    assert (stop.kind, stop.requested_by) == ("decommission", "system")
    assert stop.request["reason"].endswith("main would have 0 members of the 1 that it needs")
    setup.site.later(timedelta(seconds=61))
    await setup.look(2)
    await setup.site.fleet.do(str(member.allocation_id))
    await setup.look(2)
    assert (await setup.instance(instance_id)).status == "stopped"


@pytest.mark.parametrize("left", [1, 0])
async def test_a_lost_machine_degrades_the_instance_or_fails_it_below_the_minimum(world: World, left: int) -> None:
    setup = await make_setup(world)
    nodes = [await setup.site.fleet.node(1) for _ in range(left + 1)]
    instance_id = await setup.running(left + 1)
    members = await setup.members(instance_id)
    lost = await setup.node_of(str(members[-1].allocation_id))
    assert lost in nodes
    await write_off(setup, lost)
    await setup.look(3)
    members = await setup.members(instance_id)
    instance = await setup.instance(instance_id)
    allocation = await setup.site.get(str(members[-1].allocation_id))
    assert (allocation["status"], allocation["teardown_proof"]) == ("released", "written_off")
    assert members[-1].failure_code == "node_lost"
    if left:
        assert (instance.status, instance.health, members[-1].status) == ("running", "degraded", "failed")
        await setup.stop(instance_id)
        setup.site.later(timedelta(seconds=61))
        await setup.look()
        await setup.site.fleet.do(str(members[0].allocation_id))
        await setup.look()
        stopped = await setup.instance(instance_id)
        assert (stopped.status, stopped.teardown_proof) == ("stopped", "written_off")
        assert await setup.closings(instance_id) == ["receipt", "write_off"]
    else:
        assert (instance.status, instance.failure_code, members[-1].status) == ("failed", "below_minimum", "removed")
        assert await setup.closings(instance_id) == ["write_off"]


async def test_nobody_who_watches_means_unknown_health(world: World) -> None:
    setup = await make_setup(world)
    node_id = await setup.site.fleet.node(1)
    instance_id = await setup.running(1)
    await setup.look()
    assert (await setup.instance(instance_id)).health == "healthy"
    await setup.services.database.fetch(PLATFORM, "UPDATE node SET unreachable_since = now() WHERE id = $1", node_id)
    await setup.look()
    (member,) = await setup.members(instance_id)
    assert member.health == "unknown"
    assert str(member.health_detail).startswith(f"node {node_id} unreachable since")
    assert (await setup.instance(instance_id)).health == "healthy"
    await setup.held(instance_id, seconds=-60)
    await setup.look()
    instance = await setup.instance(instance_id)
    assert instance.health == "unknown"
    assert str(instance.health_detail).startswith("no adapter watches it")


async def test_cancelling_is_bounded(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(1)
    instance_id = await setup.running(1)
    upgrade = await setup.begin(instance_id, await setup.ask(instance_id, OperationKind.RECONCILE, []))
    cancelled = move_operation(
        setup.context(), "app", upgrade, OperationTrigger.CANCEL, "test", cancel_reason="not wanted"
    )
    await setup.apply(cancelled)
    await setup.look()
    assert (await setup.operations(instance_id))[-1].status == "cancelling"  # its adapter has time to finish
    setup.site.later(timedelta(seconds=121))
    await setup.look()
    assert (await setup.operations(instance_id))[-1].status == "cancelled"


async def test_no_statement_calls_an_instance_stopped_before_its_members_are_closed(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(1)
    instance_id = await setup.running(1)
    await setup.stop(instance_id)
    database = setup.services.database
    moved = (
        "WITH moved AS (UPDATE instance SET status = 'stopped', stopped_at = now(), teardown_proof = $2, "
        "generation = generation + 1 WHERE id = $1 RETURNING id, generation, tenant_id) "
        "INSERT INTO transition (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, "
        "correlation_id) SELECT 'instance', id, generation, tenant_id, 'stopping', 'finish_teardown', 'stopped', "
        "now(), 'cor_x' FROM moved"
    )
    for proof in ("receipts", "written_off"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await database.fetch(PLATFORM, moved, instance_id, proof)
        assert refused.value.constraint_name == "instance_stopped_needs_closing_records"
    (member,) = await setup.members(instance_id)
    record = (
        "INSERT INTO closing_record (id, tenant_id, project_id, member_id, kind, node_id, reason, may_be_left, "
        "created_at) VALUES ('clo_x', $1, $2, $3, $4, $5, 'the machine burnt down', 'disks', now())"
    )
    node_id = await setup.node_of(str(member.allocation_id))
    for kind, name in (
        ("write_off", "closing_record_node_is_retired"),
        ("nothing_started", "closing_record_nothing_was_started"),
        ("receipt", "closing_record_receipt_present"),
    ):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await database.fetch(PLATFORM, record, member.tenant_id, member.project_id, member.id, kind, node_id)
        assert refused.value.constraint_name == name


async def test_an_add_without_capacity_fails_by_name_and_its_member_goes(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(1)
    instance_id = await setup.running(1)
    asked = await setup.site.ask(setup.sku, gpu_count=1, place_within_seconds=60)
    member_id = await setup.add(instance_id, asked["id"])
    await setup.look()
    assert (await setup.operations(instance_id))[-1].blocker_code == "no_capacity"
    setup.site.later(timedelta(seconds=61))
    await setup.look(4)
    kinds = [(each.kind, each.status, each.failure_code) for each in await setup.operations(instance_id)]
    assert kinds[1:] == [("add", "failed", "no_capacity"), ("remove", "succeeded", None)]
    assert [(each.id, each.status) for each in await setup.members(instance_id)][1:] == [(member_id, "removed")]
    assert (await setup.site.get(asked["id"]))["status"] == "released"
    assert (await setup.instance(instance_id)).status == "running"


async def test_a_version_whose_launches_keep_failing_is_not_begun_again_until_the_circuit_closes(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(4)
    for _ in range(3):
        instance_id = await setup.launch([(await setup.site.active(setup.sku, gpu_count=1))["id"]])
        await setup.look()
        await setup.held(instance_id)
        await setup.begin(instance_id, (await setup.operations(instance_id))[0])
    setup.site.later(timedelta(seconds=1801))
    await setup.look()
    waits = await setup.launch([(await setup.site.active(setup.sku, gpu_count=1))["id"]], seconds=7200)
    await setup.look()
    (blocked,) = await setup.operations(waits)
    assert (blocked.status, blocked.blocker_code, blocked.dispatched_at) == ("blocked", "circuit_open", None)
    setup.site.later(timedelta(seconds=3700))
    await setup.look()
    assert (await setup.operations(waits))[0].dispatched_at is not None


class CountingDatabase(Database):
    """Counts what is read."""

    reads = 0

    async def _read(
        self, acting: Acting, way: Callable[..., Awaitable[Any]], statement: str, arguments: Sequence[object]
    ) -> Any:
        self.reads += 1
        return await super()._read(acting, way, statement, arguments)


async def test_a_snapshot_of_many_instances_takes_as_many_statements_as_one_of_a_single_one(
    world: World, settings: Settings
) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(4)
    ids = [await setup.running(1) for _ in range(4)]
    for each in ids:
        await setup.stop(each)
    setup.site.later(timedelta(seconds=61))
    await setup.look()
    counted = CountingDatabase(PoolSettings(settings.database_url, 2))
    await counted.open()
    try:
        taken = []
        for some in (ids[:1], ids):
            counted.reads = 0
            assert len(await instance_reconcile.snapshot(counted, setup.services.clock.now(), some)) == len(some)
            taken.append(counted.reads)
    finally:
        await counted.close()
    assert taken[0] == taken[1] <= 9


async def write_off(setup: InstanceSetup, node_id: str) -> None:
    """An admin gives a machine up."""
    answer = await setup.site.world.admin.post(
        f"/api/v1/platform/nodes/{node_id}/write-off",
        json={"reason": "the machine burnt down", "may_be_left": "its disks"},
    )
    assert answer.status_code == 200, answer.text
