"""Making and moving tasks: a request in, rows out; a state in, a state out."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.core.fleet.task import TASK, Task, TaskState
from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.fleet.task_family import RefusalReason
from mooring.core.fleet.task_transitions import (
    AWAITED_FOR,
    TaskEnd,
    TaskOutcome,
    cancel,
    cancel_all,
    finish,
    lapse,
    refuse,
)
from mooring.core.kernel.decision import Insert, StateChange
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.lifecycle import IllegalTransition
from server.tests.support.lifecycle_rows import context
from tests.support.rows import every_row

NOW = context()
REQUESTED = TaskRequest(
    tenant_id="ten_1", project_id="prj_1", allocation_id="alc_1", node_id="nod_1", type="process.run", step="one",
    arguments={"argv": ["true"]},
)  # fmt: skip


def a_task(status: str = "claimed", **columns: Any) -> Task:
    made = make_task(NOW, REQUESTED).task
    standing: dict[str, Any] = {"status": status, "generation": 1, "fence": 1, "lease_expires_at": NOW.now}
    return replace(made, **(standing | columns))


def test_a_request_becomes_a_row_an_event_and_an_audit_row() -> None:
    made = make_task(NOW, replace(REQUESTED, label="mem_1", instance_id="ins_1"))
    (insert,) = made.writes
    assert isinstance(insert, Insert)
    assert (insert.noun, insert.born) == ("task", (TASK,))
    assert insert.row["owner"] == "alc_1/mem_1"
    assert insert.row["expires_at"] == NOW.now + timedelta(hours=1)
    assert [(each.type, each.app_instance_id) for each in made.events] == [("nodes.task.queued", "ins_1")]
    assert [each.action for each in made.audits] == ["task.create"]


@every_row(
    "wrong",
    [
        {"type": "shell.run"},
        {"arguments": {"argv": "true"}},
        {"arguments": {"argv": ["x" * 9_000] * 10, "stdin": "y" * 65_000, "environment": {"A": "z" * 32_000,
         "B": "z" * 32_000, "C": "z" * 32_000, "D": "z" * 32_000}}},
        {"step": ""},
        {"step": "../one"},
        {"label": "no/such"},
        {"label": "one", "type": "sandbox.destroy", "arguments": {}},
        {"lifetime": timedelta(seconds=1)},
        {"lifetime": timedelta(days=8)},
    ],
)  # fmt: skip
def test_what_a_node_would_refuse_is_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        make_task(NOW, replace(REQUESTED, **wrong))
    assert refused.value.code is Code.VALIDATION_FAILED


@every_row("type_", ["sandbox.create", "sandbox.destroy", "teardown.verify"])
def test_only_the_platform_begins_and_ends_sandboxes(type_: str) -> None:
    with pytest.raises(Refusal) as refused:
        make_task(NOW, replace(REQUESTED, type=type_, arguments={}, maker="sa_1"))
    assert refused.value.code is Code.PERMISSION_DENIED


@every_row(
    ("status", "outcome", "after"),
    [
        ("claimed", TaskOutcome.SUCCEEDED, "succeeded"),
        ("claimed", TaskOutcome.FAILED, "failed"),
        ("claimed", TaskOutcome.CANCELLED, "failed"),
        ("cancelling", TaskOutcome.SUCCEEDED, "succeeded"),
        ("cancelling", TaskOutcome.FAILED, "failed"),
        ("cancelling", TaskOutcome.CANCELLED, "cancelled"),
    ],
)
def test_a_result_leads_where_the_table_says(status: str, outcome: TaskOutcome, after: str) -> None:
    decided = finish(NOW, a_task(status), TaskEnd(outcome, "exited", "no"))
    (move,) = decided.writes
    assert isinstance(move, StateChange)
    assert (decided.result.status, move.edge.target.value) == (after, after)
    assert (decided.result.failure_code is None) == (after == "succeeded")
    assert [each.type for each in decided.events] == ["nodes.task.finished"]


@every_row("status", [*sorted(state.value for state in TASK.final), "queued"])
def test_what_nobody_holds_does_not_end_by_a_result(status: str) -> None:
    with pytest.raises(IllegalTransition):
        finish(NOW, a_task(status), TaskEnd(TaskOutcome.SUCCEEDED))


def test_a_cancel_is_immediate_before_work_began_and_otherwise_a_request() -> None:
    assert cancel(NOW, a_task("queued")).result.status == "cancelled"
    asked = cancel(NOW, a_task("claimed"))
    assert (asked.result.status, [each.type for each in asked.events]) == ("cancelling", ["nodes.task.cancelling"])
    again = cancel(NOW, a_task("cancelling"))
    assert (again.writes, again.result.status) == ((), "cancelling")
    writes, events = cancel_all(NOW, [a_task(state.value) for state in TaskState])
    assert (len(writes), len(events)) == (2, 2)


def test_a_lost_lease_is_offered_again_and_a_task_over_its_time_ends() -> None:
    later = replace(NOW, now=NOW.now + timedelta(seconds=1))
    over = {"expires_at": NOW.now}
    tasks = [
        a_task("claimed"),
        a_task("claimed", **over),
        a_task("queued", **over),
        a_task("cancelling", **over),
        a_task("cancelling", lease_expires_at=None),
    ]
    decided = lapse(later, tasks)
    assert [each.status for each in decided.result] == ["queued", "expired", "expired", "expired"]
    assert decided.result[0].fence == 1  # it grows at the next claim
    assert len(decided.writes) == len(decided.events) == len(decided.audits) == 4


def test_a_refusal_is_a_failure_that_says_so() -> None:
    decided = refuse(NOW, a_task(), RefusalReason.OWNER_CLOSED, "it was torn down\x00")
    assert (decided.result.status, decided.result.failure_code) == ("failed", "refused")
    assert decided.result.failure_detail == "owner_closed: it was torn down"


def test_a_tunnel_that_nobody_came_for_is_over_while_one_that_is_open_is_not() -> None:
    asked = a_task("queued", type="tunnel.open", created_at=NOW.now, first_claimed_at=None, lease_expires_at=None)
    later = replace(NOW, now=NOW.now + AWAITED_FOR)
    assert [each.status for each in lapse(later, [asked]).result] == ["expired"]
    assert lapse(replace(NOW, now=later.now - timedelta(seconds=1)), [asked]).result == ()
    lease = later.now + timedelta(minutes=1)
    for other in (
        replace(asked, status="claimed", first_claimed_at=NOW.now, lease_expires_at=lease),
        replace(asked, first_claimed_at=NOW.now),
        replace(asked, type="process.run"),
    ):
        assert lapse(later, [other]).result == ()


def test_a_program_that_ended_well_has_its_exit_code_too() -> None:
    ended = TaskEnd(TaskOutcome.SUCCEEDED, result={"exit_code": 0})
    assert finish(NOW, a_task("claimed"), ended).result.exit_code == 0
    assert (
        finish(NOW, a_task("claimed"), TaskEnd(TaskOutcome.SUCCEEDED, result={"written": 1})).result.exit_code is None
    )
