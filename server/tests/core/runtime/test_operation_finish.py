"""Ends of operations: for every kind and every outcome, state in, decision out."""

from dataclasses import replace
from typing import Any

import pytest

from mooring.core.catalog.artifact_hold import ArtifactHold
from mooring.core.kernel.decision import Decision, Remove, RowGuard
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.adapter_report import FailureReport
from mooring.core.runtime.instance_transitions import move_operation
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import OperationFailure, OperationKind, OperationTrigger
from mooring.core.runtime.operation_finish import FinishContext, FinishOutcome, OperationEnd, finish_operation
from server.tests.core.runtime.test_adapter_report import changes, moves
from server.tests.support.decision_context import context
from server.tests.support.manifests import digest
from server.tests.support.runtime_rows import NEXT, NOW, PIN, PLACE, instance, manifest, member, operation, seen
from tests.support.rows import every_row

DONE = OperationEnd(FinishOutcome.SUCCEEDED)
FAILED = OperationEnd(FinishOutcome.FAILED, failure=FailureReport(OperationFailure.NOT_QUIET, "busy", ("last",)))
CANCELLED = OperationEnd(FinishOutcome.CANCELLED)
K = OperationKind


def ended(kind: OperationKind, ending: OperationEnd, *members: Member, **columns: Any) -> Decision[Any]:
    """What the end of such an operation makes true."""
    whole = instance(**columns.pop("whole", {}))
    status = "cancelling" if ending is CANCELLED else "running"
    during = operation(kind, **{"status": status, "member_ids": [each.id for each in members], **columns})
    holds = [
        ArtifactHold(
            id=f"hld_{each}",
            digest=digest(each),
            holder_noun="instance",
            holder_id="ins_1",
            version_id=None,
            revision=0,
            created_at=NOW,
            **PLACE,
        )
        for each in "abc"
    ]
    there = FinishContext(seen(*members, of=whole, during=during), during, manifest(), holds)
    return finish_operation(context(), there, ending)


def refused(kind: OperationKind, ending: OperationEnd, *members: Member, **columns: Any) -> Refusal:
    """Why such an operation does not end so."""
    with pytest.raises(Refusal) as raised:
        ended(kind, ending, *members, **columns)
    return raised.value


def test_every_end_is_guarded_by_the_fence() -> None:
    for kind in K:
        columns = {"target_pin": PIN} if kind in (K.UPGRADE, K.ROLLBACK) else {}
        decision = ended(kind, FAILED, **columns)
        assert [each for each in decision.writes if isinstance(each, RowGuard)]


def test_a_launch_succeeds_with_the_members_that_every_component_needs() -> None:
    starting = {"whole": {"status": "starting"}}
    assert refused(K.DEPLOY, DONE, member("hand"), **starting).details["component_key"] == "head"
    assert refused(K.DEPLOY, DONE, member(status="joining"), **starting).code is Code.CONFLICT
    for status in ("ready", "degraded"):
        decision = ended(K.DEPLOY, DONE, member(status=status), **starting)
        assert moves(decision) == [("operation", "succeeded"), ("instance", "running")]
        assert [str(each.type) for each in decision.events][-1] == "apps.instance.start_completed"


def test_a_launch_that_fails_takes_with_it_what_was_still_to_come_and_keeps_the_cause() -> None:
    members = (member(), member("hand-1", "joining"), member("hand-2", "requested"), member("hand-3", "failed"))
    decision = ended(K.DEPLOY, FAILED, *members, whole={"status": "starting"})
    assert moves(decision) == [
        ("operation", "failed"),
        ("instance", "failed"),
        ("member", "failed"),
        ("member", "failed"),
    ]
    assert decision.result.last_lines == ["last"]


def test_a_launch_that_is_cancelled_alone_ends_in_a_failed_instance_and_one_that_is_stopped_goes_on_stopping() -> None:
    assert ("instance", "failed") in moves(ended(K.DEPLOY, CANCELLED, whole={"status": "starting"}))
    for ending in (CANCELLED, FAILED):
        stopping = ended(K.DEPLOY, ending, member(status="joining"), whole={"status": "stopping"})
        assert "instance" not in [noun for noun, _ in moves(stopping)]
    late = ended(K.DEPLOY, DONE, member(), status="cancelling", whole={"status": "stopping"})
    assert moves(late) == [("operation", "succeeded")]


def test_an_add_succeeds_when_its_members_are_up_and_a_failed_one_leaves_those_that_are() -> None:
    assert moves(ended(K.ADD, DONE, member(), member("hand", "degraded"))) == [("operation", "succeeded")]
    for status in ("requested", "joining", "failed"):
        assert refused(K.ADD, DONE, member(), member("hand", status)).details["member_ids"] == ["mem_hand"]
    decision = ended(K.ADD, FAILED, member(), member("hand", "joining"))
    assert moves(decision) == [("operation", "failed"), ("member", "failed")]


def test_only_drained_counts_and_a_drain_that_fails_leaves_its_members_draining() -> None:
    for status in ("ready", "degraded", "draining", "failed"):
        assert refused(K.DRAIN, DONE, member(status=status)).code is Code.CONFLICT
    assert moves(ended(K.DRAIN, DONE, member(status="drained"))) == [("operation", "succeeded")]
    assert moves(ended(K.DRAIN, FAILED, member(status="draining"))) == [("operation", "failed")]
    taken_back = ended(K.DRAIN, CANCELLED, member(status="draining"))
    assert moves(taken_back) == [("operation", "cancelled"), ("member", "ready")]
    assert moves(ended(K.DRAIN, CANCELLED, member(status="draining"), whole={"status": "stopping"})) == [
        ("operation", "cancelled")
    ]


@every_row("ending", [DONE, FAILED])
@every_row("kind", [K.REMOVE, K.REPLACE, K.DECOMMISSION])
def test_what_tears_down_goes_over_to_the_platform(kind: OperationKind, ending: OperationEnd) -> None:
    decision = ended(kind, ending, member(status="drained"))
    if ending is DONE or kind is K.DECOMMISSION:
        assert moves(decision) == []
        assert changes(decision)["phase"] == "platform"
        assert changes(decision)["evidence"]["adapter"]["outcome"] == ending.outcome
        assert decision.result.status == "running"
    else:
        assert moves(decision) == [("operation", "failed")]


def test_a_removal_that_the_platform_began_goes_over_whatever_its_adapter_says() -> None:
    assert changes(ended(K.REMOVE, FAILED, member(), requested_by="system"))["phase"] == "platform"


def test_a_replacement_that_fails_keeps_the_old_member_and_gives_up_the_new_one() -> None:
    decision = ended(K.REPLACE, FAILED, member(), member("hand", "joining", replaces_id="mem_head"))
    assert moves(decision) == [("operation", "failed"), ("member", "failed")]


def test_an_upgrade_moves_the_pin_and_drops_what_nobody_needs() -> None:
    moved = member(version="2.0.0", version_id="ver_2")
    assert refused(K.UPGRADE, DONE, member(), target_pin=NEXT).details["member_ids"] == ["mem_head"]
    decision = ended(K.UPGRADE, DONE, moved, target_pin=NEXT)
    assert (changes(decision)["pin"], changes(decision)["previous_pin"]) == (NEXT, PIN)
    assert [each.id for each in decision.writes if isinstance(each, Remove)] == ["hld_c"]


def test_an_upgrade_that_fails_leaves_the_pin() -> None:
    decision = ended(K.UPGRADE, FAILED, member(), target_pin=NEXT)
    assert "pin" not in changes(decision)
    assert moves(decision) == [("operation", "failed")]


def test_a_rollback_moves_the_pin_back_and_from_a_half_made_upgrade_stays_where_it_is() -> None:
    upgraded = {"pin": NEXT, "previous_pin": PIN, "version": "2.0.0", "version_id": "ver_2"}
    decision = ended(K.ROLLBACK, DONE, member(), target_pin=PIN, whole=upgraded)
    assert (changes(decision)["pin"], changes(decision)["previous_pin"]) == (PIN, None)
    half = ended(K.ROLLBACK, DONE, member(), target_pin=PIN, whole={"previous_pin": NEXT})
    assert (changes(half)["pin"], changes(half)["previous_pin"]) == (PIN, NEXT)


@every_row("kind", list(K))
def test_the_same_end_again_writes_nothing_and_another_is_refused(kind: OperationKind) -> None:
    for ending, status in ((DONE, "succeeded"), (FAILED, "failed"), (CANCELLED, "cancelled")):
        assert ended(kind, ending, status=status).writes == ()
        other = FAILED if ending is not FAILED else DONE
        assert refused(kind, other, status=status).code is Code.ILLEGAL_TRANSITION


def test_an_operation_that_has_not_begun_or_is_not_cancelled_does_not_end_so() -> None:
    assert refused(K.ADD, DONE, status="accepted").code is Code.ILLEGAL_TRANSITION
    assert refused(K.ADD, replace(CANCELLED), status="running").code is Code.ILLEGAL_TRANSITION
    assert refused(K.ADD, OperationEnd(FinishOutcome.FAILED)).code is Code.VALIDATION_FAILED
    assert refused(K.ADD, replace(DONE, output={"a": 1})).code is Code.VALIDATION_FAILED


@every_row(("trigger", "status"), [(OperationTrigger.SUCCEED, "succeeded"), (OperationTrigger.FAIL, "failed")])
def test_an_operation_that_is_over_has_no_step_that_still_runs(trigger: OperationTrigger, status: str) -> None:
    begun = {"attempts": 1, "started_at": NOW.isoformat(), "ended_at": None}
    steps = [{"name": "stop", "status": "done", **begun}, {"name": "quiet", "status": "running", **begun}]
    failure = {"failure_code": "runtime_error"} if status == "failed" else {}
    under = operation(OperationKind.REMOVE, status="running", steps=steps)
    after = move_operation(context(), "hello", under, trigger, "test", **failure).result
    assert (after.status, [each["status"] for each in after.steps]) == (status, ["done", "skipped"])
    assert after.steps[1]["ended_at"] == context().now.isoformat()
