"""Nothing is called stopped or removed without its closing records: the database's own refusals, races included."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from mooring.core.fleet.node import NODE, NodeState
from mooring.core.fleet.task import TASK, TaskState, TaskTrigger
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.errors import Code
from mooring.core.kernel.lifecycle import AnyLifecycle
from mooring.core.lifecycle_docs import closing_rows
from mooring.core.runtime.instance import INSTANCE, InstanceState, InstanceTrigger
from mooring.core.runtime.member import MEMBER, MemberState, MemberTrigger
from mooring.storage.kernel.constraints import REFUSALS
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from server.tests.support.lifecycle_rows import (
    HOMES,
    LifecycleSubject,
    ProjectRows,
    machines_of,
    make_project_rows,
    refused_by,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

STOPPED_NEEDS = "instance_stopped_needs_closing_records"
REMOVED_NEEDS = "member_removed_needs_closing_record"


@pytest.fixture(scope="module")
async def database(shared_database_url: str) -> AsyncIterator[Database]:
    opened = Database(PoolSettings(shared_database_url, 4))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
async def rows(database: Database) -> ProjectRows:
    return await make_project_rows(database)


async def instance_with_member(
    rows: ProjectRows, state: MemberState = MemberState.READY
) -> tuple[ProjectRows, LifecycleSubject]:
    own = replace(rows, instance_id=await rows.birth("instance"))
    return own, await own.subject("member", MEMBER, state)


async def test_the_states_that_need_closing_records_are_those_tested_here() -> None:
    machines: tuple[AnyLifecycle, ...] = tuple(machine for _, machine in HOMES)
    assert set(closing_rows(machines)) == {("instance", "stopped"), ("member", "removed")}


async def test_a_member_is_not_removed_without_its_closing_record(rows: ProjectRows) -> None:
    member = await rows.subject("member", MEMBER, MemberState.REMOVING)
    edge = MEMBER.step(MemberState.REMOVING, MemberTrigger.FINISH_TEARDOWN)
    already_closed = replace(member, state=MemberState.REMOVED)  # so that no record is written along
    assert await refused_by(rows.move(already_closed, edge)) == REMOVED_NEEDS
    assert REFUSALS[REMOVED_NEEDS][0] is Code.CLOSING_RECORD_MISSING
    assert (await rows.move(member, edge)).state is MemberState.REMOVED


async def test_an_instance_is_not_stopped_before_each_member_has_its_closing_record(rows: ProjectRows) -> None:
    own, first = await instance_with_member(rows)
    second = await own.subject("member", MEMBER, MemberState.FAILED)
    instance = LifecycleSubject("instance", INSTANCE, own.instance_id, InstanceState.CREATED)
    stopping = await own.move(instance, INSTANCE.step(InstanceState.CREATED, InstanceTrigger.STOP))
    finish = INSTANCE.step(InstanceState.STOPPING, InstanceTrigger.FINISH_TEARDOWN)
    assert await refused_by(own.move(stopping, finish)) == STOPPED_NEEDS
    await own.write(Insert("closing_record", own.receipt(first.id)))
    assert await refused_by(own.move(stopping, finish)) == STOPPED_NEEDS
    await own.write(Insert("closing_record", own.receipt(second.id)))
    assert (await own.move(stopping, finish)).state is InstanceState.STOPPED
    assert REFUSALS[STOPPED_NEEDS][0] is Code.CLOSING_RECORD_MISSING


async def test_a_member_has_one_closing_record_for_ever(rows: ProjectRows) -> None:
    member = await rows.subject("member", MEMBER, MemberState.REMOVED)
    again = Insert("closing_record", rows.receipt(member.id))
    assert await refused_by(rows.write(again)) == "closing_record_one_per_member"


async def test_a_closing_record_says_what_its_kind_must_say(rows: ProjectRows) -> None:
    member = await rows.subject("member", MEMBER, MemberState.READY)
    stated = {
        "kind": "write_off",
        "node_id": rows.node_id,
        "reason": "the machine burnt down",
        "may_be_left": "disks",
    }
    for columns, name in (
        ({"kind": "receipt"}, "closing_record_receipt_present"),
        ({"kind": "rumour"}, "closing_record_kind_known"),
        (stated | {"node_id": None}, "closing_record_write_off_stated"),
        (stated | {"reason": "   lost     "}, "closing_record_write_off_stated"),
        (stated | {"may_be_left": None}, "closing_record_write_off_stated"),
    ):
        record = Insert("closing_record", rows.closing_record(member.id, **columns))
        assert await refused_by(rows.write(record)) == name, columns


async def test_only_allocations_of_a_retired_node_are_written_off(rows: ProjectRows) -> None:
    for state in NodeState:
        node = await rows.subject("node", NODE, state)
        member = await rows.subject("member", MEMBER, MemberState.READY)
        record = rows.closing_record(
            member.id, kind="write_off", node_id=node.id, reason="the machine burnt down", may_be_left="its disks"
        )
        name = await refused_by(rows.write(Insert("closing_record", record)))
        assert name == ("" if state is NodeState.RETIRED else "closing_record_node_is_retired"), state


async def test_never_started_is_not_claimed_of_a_member_with_a_waiting_or_claimed_task(
    rows: ProjectRows,
) -> None:
    for state in TaskState:
        member = await rows.subject("member", MEMBER, MemberState.REQUESTED)
        task = await task_of(rows, member.id, state)
        record = Insert("closing_record", rows.closing_record(member.id, kind="nothing_started"))
        never_begun = state in (TaskState.CANCELLED, TaskState.EXPIRED)
        assert await refused_by(rows.write(record)) == ("" if never_begun else "closing_record_nothing_was_started"), (
            state
        )
        assert task.state is state


async def test_a_task_that_lost_its_lease_still_counts_as_claimed(rows: ProjectRows) -> None:
    member = await rows.subject("member", MEMBER, MemberState.REQUESTED)
    task = await task_of(rows, member.id, TaskState.CLAIMED)
    for trigger in (TaskTrigger.LOSE_LEASE, TaskTrigger.CANCEL):
        task = await rows.move(task, TASK.step(TaskState(task.state), trigger))
    record = Insert("closing_record", rows.closing_record(member.id, kind="nothing_started"))
    assert await refused_by(rows.write(record)) == "closing_record_nothing_was_started"


async def test_no_task_is_made_for_a_closed_member(rows: ProjectRows) -> None:
    member = await rows.subject("member", MEMBER, MemberState.READY)
    await rows.write(Insert("closing_record", rows.receipt(member.id)))
    assert await refused_by(rows.birth("task", member_id=member.id)) == "task_member_is_open"


async def test_no_member_is_added_to_an_instance_that_is_being_stopped(rows: ProjectRows) -> None:
    for state in InstanceState:
        instance = await rows.subject("instance", INSTANCE, state)
        own = replace(rows, instance_id=instance.id)
        ends = state in (InstanceState.STOPPING, InstanceState.STOPPED)
        assert await refused_by(own.birth("member")) == ("member_instance_is_open" if ends else ""), state


async def test_a_member_does_not_slip_in_while_its_instance_is_being_stopped(rows: ProjectRows) -> None:
    own = replace(rows, instance_id=await rows.birth("instance"))
    stop = INSTANCE.step(InstanceState.CREATED, InstanceTrigger.STOP)
    async with rows.database.connection(PLATFORM) as stopping:
        async with stopping.transaction():
            await stopping.execute("SELECT FROM instance WHERE id = $1 FOR NO KEY UPDATE", own.instance_id)
            adding = asyncio.create_task(refused_by(own.birth("member")))
            await until_one_waits_for(stopping, rows)
            await stopping.execute(
                "INSERT INTO transition (machine, subject_id, generation, tenant_id, source, trigger, target, "
                "occurred_at, correlation_id) VALUES ('instance', $1, 1, $2, $3, $4, $5, now(), 'c')",
                own.instance_id,
                own.tenant_id,
                stop.source,
                stop.trigger,
                stop.target,
            )
            moved = "UPDATE instance SET status = $2, generation = 1 WHERE id = $1"
            await stopping.execute(moved, own.instance_id, stop.target)
        assert await adding == "member_instance_is_open"


async def test_a_task_does_not_slip_in_while_its_member_is_being_closed(rows: ProjectRows) -> None:
    member = await rows.subject("member", MEMBER, MemberState.READY)
    record = rows.closing_record(member.id)
    async with rows.database.connection(PLATFORM) as closing:
        async with closing.transaction():
            await closing.execute(
                "INSERT INTO closing_record (id, tenant_id, project_id, member_id, kind, receipt, created_at) "
                "VALUES ($1, $2, $3, $4, 'receipt', '{}', now())",
                record["id"],
                record["tenant_id"],
                record["project_id"],
                member.id,
            )
            adding = asyncio.create_task(refused_by(rows.birth("task", member_id=member.id)))
            await until_one_waits_for(closing, rows)
        assert await adding == "task_member_is_open"


async def task_of(rows: ProjectRows, member_id: str, state: TaskState) -> LifecycleSubject:
    (machine,) = machines_of("task")
    task = LifecycleSubject("task", machine, await rows.birth("task", member_id=member_id), machine.initial)
    ways: dict[TaskState, tuple[TaskTrigger, ...]] = {
        TaskState.QUEUED: (),
        TaskState.CLAIMED: (TaskTrigger.CLAIM,),
        TaskState.CANCELLING: (TaskTrigger.CLAIM, TaskTrigger.CANCEL),
        TaskState.SUCCEEDED: (TaskTrigger.CLAIM, TaskTrigger.SUCCEED),
        TaskState.FAILED: (TaskTrigger.CLAIM, TaskTrigger.FAIL),
        TaskState.CANCELLED: (TaskTrigger.CANCEL,),
        TaskState.EXPIRED: (TaskTrigger.EXPIRE,),
    }
    for trigger in ways[state]:
        task = await rows.move(task, TASK.step(TaskState(task.state), trigger))
    return task


async def until_one_waits_for(holder: asyncpg.Connection, rows: ProjectRows) -> None:
    """Until another session waits for a lock that this one holds."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
    await until(lambda: rows.database.fetchval(PLATFORM, waiting, holder.get_server_pid()))
