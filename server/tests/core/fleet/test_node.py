"""Decisions about nodes: state in, decision out."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from mooring.core.fleet.node import (
    NODE,
    Node,
    NodeState,
    NodeTrigger,
    WriteOff,
    drain_node,
    finish_drain,
    finish_sweep,
    mark_reachable,
    mark_unreachable,
    resume_node,
    retire_node,
    why_no_work,
    write_off_node,
)
from mooring.core.kernel.decision import Decision, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.lifecycle import IllegalTransition
from server.tests.support.decision_context import NOW, context
from server.tests.support.node_rows import ALLOCATION, NODE_ID, a_node, a_slot
from tests.support.rows import every_row

WHY = "the machine goes back to its vendor"
LOST = WriteOff("the rack burnt down", "disks with data")


@every_row(
    ("decide", "source", "target", "change"),
    [
        (drain_node, "ready", "draining", "draining"), (resume_node, "draining", "ready", "resumed"),
        (resume_node, "drained", "ready", "resumed"), (finish_drain, "draining", "drained", "drained"),
    ],
)  # fmt: skip
def test_a_move_names_the_generation_that_was_seen_and_publishes_what_changed(
    decide: object, source: str, target: str, change: str
) -> None:
    decision = decide(context(), a_node(source))  # type: ignore[operator]
    (move,) = decision.writes
    assert isinstance(move, StateChange)
    assert (move.id, move.generation_expected, move.edge.target) == (NODE_ID, 3, target)
    assert (decision.result.status, decision.result.generation) == (target, 4)
    assert decision.events[0].data == {"name": "machine", "change": change, "status": target}
    assert decision.audits[0].action == "node.drain"


@every_row("state", list(NodeState))
def test_a_node_takes_the_moves_of_its_lifecycle_and_no_other(state: NodeState) -> None:
    ways: list[tuple[NodeTrigger, Callable[[Node], Decision[Node]]]] = [
        (NodeTrigger.DRAIN, lambda node: drain_node(context(), node)),
        (NodeTrigger.RESUME, lambda node: resume_node(context(), node)),
        (NodeTrigger.FINISH_DRAIN, lambda node: finish_drain(context(), node)),
        (NodeTrigger.RETIRE, lambda node: retire_node(context(), node, [], [], WHY)),
        (NodeTrigger.RETIRE, lambda node: write_off_node(context(), node, [], LOST)),
    ]
    for trigger, decide in ways:
        if trigger in NODE.allowed(state):
            assert decide(a_node(state.value)).writes
        else:
            with pytest.raises(IllegalTransition):
                decide(a_node(state.value))


def test_an_empty_node_is_retired_with_all_its_slots() -> None:
    decision = retire_node(context(), a_node("drained"), [a_slot(0), a_slot(1)], [], WHY)
    move, *slots = decision.writes
    assert isinstance(move, StateChange)
    assert move.set == {
        "retired_at": NOW,
        "retirement_reason": WHY,
        "written_off_at": None,
        "may_be_left": None,
        "sweep_due": False,
    }
    assert [(change.id, change.revision_expected, change.set["status"]) for change in slots] == [  # type: ignore[union-attr]
        ("slt_0", 7, "quarantined"),
        ("slt_1", 7, "quarantined"),
    ]
    assert decision.events[0].data["written_off"] is False
    assert decision.audits[0].action == "node.retire"


@every_row(("slots", "allocations"), [([], [ALLOCATION]), ([a_slot(0, "claimed")], [])])
def test_a_node_with_allocations_is_not_retired(slots: list[object], allocations: list[str]) -> None:
    with pytest.raises(Refusal) as refused:
        retire_node(context(), a_node(), slots, allocations, WHY)  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.details) == (Code.NOT_EMPTY, {"allocation_ids": allocations})


def test_a_write_off_quarantines_what_is_held_and_keeps_whose_it_was() -> None:
    slots = [a_slot(0, "claimed"), a_slot(1, "cleanup_blocked"), a_slot(2), a_slot(3, "quarantined")]
    decision = write_off_node(context(), a_node(), slots, LOST)
    move, *changes = decision.writes
    assert isinstance(move, StateChange)
    assert (move.set["written_off_at"], move.set["may_be_left"]) == (NOW, "disks with data")
    assert [(change.id, change.set) for change in changes] == [  # type: ignore[union-attr]
        ("slt_0", {"status": "quarantined", "allocation_id": ALLOCATION}),
        ("slt_1", {"status": "quarantined", "allocation_id": ALLOCATION}),
        ("slt_2", {"status": "quarantined", "allocation_id": None}),
    ]
    assert decision.audits[0].action == "teardown.write_off"
    assert decision.events[0].data["written_off"] is True


@every_row("stated", [WriteOff("short", "x"), WriteOff("long enough a reason", " ")])
def test_a_write_off_states_its_reason_and_what_may_be_left(stated: WriteOff) -> None:
    with pytest.raises(Refusal) as refused:
        write_off_node(context(), a_node(), [], stated)
    assert refused.value.code is Code.VALIDATION_FAILED


def test_a_sweep_ends_once() -> None:
    decision = finish_sweep(context(), a_node(sweep_due=True))
    assert decision.writes == (Update("node", NODE_ID, 5, {"sweep_due": False}),)
    assert finish_sweep(context(), a_node()).writes == ()
    assert finish_sweep(context(), a_node("retired", sweep_due=True)).writes == ()


def test_a_node_is_unreachable_since_it_was_last_seen() -> None:
    seen = NOW - timedelta(minutes=2)
    decision = mark_unreachable(context(), [a_node(last_seen_at=seen)])
    assert decision.writes == (Update("node", NODE_ID, 5, {"unreachable_since": seen}),)
    assert decision.events[0].type == "nodes.node.unreachable"
    back = mark_reachable(context(), [a_node(last_seen_at=NOW, unreachable_since=seen)])
    assert back.writes == (Update("node", NODE_ID, 5, {"unreachable_since": None}),)
    assert back.events[0].data["unreachable_since"] == seen.isoformat()


def test_why_a_node_takes_no_work_is_said_and_agrees_with_whether_it_does() -> None:
    for node in (
        a_node(),
        a_node("enrolled"),
        a_node("draining"),
        a_node("drained"),
        a_node(sweep_due=True),
        a_node(unreachable_since=NOW),
        a_node("retired", retirement_reason=WHY),
        a_node("draining", unreachable_since=NOW, sweep_due=True),
    ):
        assert node.takes_work is (why_no_work(node) == [])
    codes = [each["code"] for each in why_no_work(a_node("draining", unreachable_since=NOW, sweep_due=True), 2)]
    assert codes == ["draining", "unreachable", "sweep_due"]
