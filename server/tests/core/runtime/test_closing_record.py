"""Closing records: what one must say, which are missing, and what they prove together."""

from datetime import UTC, datetime

import pytest

from mooring.core.fleet.node import NodeState
from mooring.core.fleet.task import TaskState
from mooring.core.kernel.errors import Code
from mooring.core.runtime.closing_record import (
    CLOSING_KIND_MEANING,
    CLOSING_REASON_MEANING,
    TEARDOWN_PROOF_MEANING,
    ClosingKind,
    ClosingReason,
    ClosingRecord,
    ClosingRefused,
    IncompleteRecord,
    MemberTask,
    TeardownProof,
    add_late_receipt,
    missing_closing_records,
    tasks_to_cancel,
    teardown_proof,
    why_no_receipt,
    why_no_write_off,
    why_not_nothing_started,
    why_not_reached,
    why_not_removed,
    why_not_stopped,
)
from mooring.core.runtime.instance import INSTANCE, InstanceState
from tests.support.rows import every_row

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WRITE_OFF_FIELDS = {
    "node_id": "nod_1",
    "written_off_by": "usr_1",
    "reason": "the rack burned",
    "may_be_left": "two processes and their files",
}


def receipt(member_id: str) -> ClosingRecord:
    return ClosingRecord(
        member_id=member_id, kind=ClosingKind.RECEIPT, recorded_at=NOON, receipt_id=f"receipt of {member_id}"
    )


def nothing_started(member_id: str) -> ClosingRecord:
    return ClosingRecord(member_id=member_id, kind=ClosingKind.NOTHING_STARTED, recorded_at=NOON)


def write_off(member_id: str) -> ClosingRecord:
    return ClosingRecord(member_id=member_id, kind=ClosingKind.WRITE_OFF, recorded_at=NOON, **WRITE_OFF_FIELDS)


def test_the_members_without_a_record_are_named_in_their_order() -> None:
    records = [receipt("b"), write_off("d"), receipt("of another instance")]

    assert missing_closing_records(["c", "b", "a", "d"], records) == ("c", "a")
    assert missing_closing_records([], records) == ()


def test_stopped_is_refused_by_name_while_one_member_has_no_record() -> None:
    refused = why_not_stopped(["a", "b"], [receipt("a")])

    assert isinstance(refused, ClosingRefused)
    assert refused.reason is ClosingReason.RECORD_MISSING
    assert refused.member_ids == ("b",)
    assert refused.code is Code.CLOSING_RECORD_MISSING
    assert refused.detail == "instance cannot be stopped: closing records are missing for b"
    assert refused.details == {"reason": "record_missing", "member_ids": ["b"]}


def test_stopped_is_reached_with_a_record_of_each_member_of_whatever_kind() -> None:
    records = [receipt("a"), nothing_started("b"), write_off("c")]

    assert why_not_stopped(["a", "b", "c"], records) is None


def test_an_instance_that_never_had_members_may_be_stopped() -> None:
    assert why_not_stopped([], []) is None
    assert teardown_proof([], []) is TeardownProof.RECEIPTS


def test_removed_is_refused_by_name_without_the_members_own_record() -> None:
    refused = why_not_removed("a", [receipt("b")])

    assert refused is not None
    assert (refused.reason, refused.member_ids) == (ClosingReason.RECORD_MISSING, ("a",))
    assert refused.detail == "member cannot be removed: closing records are missing for a"
    assert why_not_removed("a", [nothing_started("a")]) is None


@every_row("state", [state for state in InstanceState if state is not InstanceState.STOPPED])
def test_a_state_that_needs_no_records_is_not_refused_for_want_of_them(state: InstanceState) -> None:
    assert why_not_reached(INSTANCE, state, ["a"], []) is None


@every_row(
    ("records", "proof"),
    [
        ([receipt("a"), receipt("b")], TeardownProof.RECEIPTS),
        ([receipt("a"), nothing_started("b")], TeardownProof.RECEIPTS),
        ([receipt("a"), write_off("b")], TeardownProof.WRITTEN_OFF),
        ([receipt("a"), add_late_receipt(write_off("b"), "late")], TeardownProof.WRITTEN_OFF),
        ([receipt("a"), receipt("b"), write_off("of another instance")], TeardownProof.RECEIPTS),
    ],
    ids=["receipts", "nothing started", "written off", "written off, then late", "foreign write-off"],
)
def test_a_proof_is_no_better_than_the_worst_record(records: list[ClosingRecord], proof: TeardownProof) -> None:
    assert teardown_proof(["a", "b"], records) is proof


def test_there_is_no_proof_while_a_record_is_missing() -> None:
    with pytest.raises(ClosingRefused) as caught:
        teardown_proof(["a", "b"], [write_off("a")])

    assert (caught.value.reason, caught.value.member_ids) == (ClosingReason.RECORD_MISSING, ("b",))


def test_iterators_serve_as_well_as_lists() -> None:
    assert teardown_proof(iter(["a"]), iter([write_off("a")])) is TeardownProof.WRITTEN_OFF


def test_a_receipt_closes_nothing_while_the_node_still_finds_something() -> None:
    refused = why_no_receipt("a", ["process 12", "port 8080"])

    assert refused is not None
    assert refused.reason is ClosingReason.SOMETHING_LEFT
    assert refused.detail == "the node still found process 12, port 8080 of member a"
    assert why_no_receipt("a", []) is None


@every_row("state", TaskState)
def test_nothing_was_started_only_where_no_task_was_ever_claimed(state: TaskState) -> None:
    possible_without_claim = {TaskState.QUEUED, TaskState.CANCELLED, TaskState.EXPIRED}

    refused = why_not_nothing_started("a", [MemberTask("t", state, was_claimed=False)])
    refused_after_claim = why_not_nothing_started("a", [MemberTask("t", state, was_claimed=True)])

    assert (refused is None) == (state in possible_without_claim)
    assert refused_after_claim is not None
    assert refused_after_claim.reason is ClosingReason.TASK_WAS_CLAIMED
    assert refused_after_claim.detail == "agents claimed these tasks of member a: t"


def test_the_queued_tasks_of_a_member_that_never_started_are_cancelled() -> None:
    tasks = [
        MemberTask("t1", TaskState.QUEUED, was_claimed=False),
        MemberTask("t2", TaskState.CANCELLED, was_claimed=False),
        MemberTask("t3", TaskState.QUEUED, was_claimed=False),
    ]

    assert why_not_nothing_started("a", tasks) is None
    assert tasks_to_cancel(tasks) == ("t1", "t3")


@every_row("state", NodeState)
def test_a_member_is_written_off_only_with_a_retired_node(state: NodeState) -> None:
    refused = why_no_write_off("a", "nod_1", state)

    if state is NodeState.RETIRED:
        assert refused is None
    else:
        assert refused is not None
        assert refused.reason is ClosingReason.NODE_NOT_RETIRED
        assert f"node nod_1 of member a is {state}" in refused.detail


@every_row("name", WRITE_OFF_FIELDS)
def test_a_write_off_states_node_person_reason_and_what_may_be_left(name: str) -> None:
    others = {key: value for key, value in WRITE_OFF_FIELDS.items() if key != name}

    with pytest.raises(IncompleteRecord, match=f"kind write_off must state {name}"):
        ClosingRecord(member_id="a", kind=ClosingKind.WRITE_OFF, recorded_at=NOON, **others)
    with pytest.raises(IncompleteRecord, match=f"the {name} of a closing record must not be blank"):
        ClosingRecord(member_id="a", kind=ClosingKind.WRITE_OFF, recorded_at=NOON, **others, **{name: " "})


def test_a_receipt_record_names_its_receipt_and_nothing_else() -> None:
    with pytest.raises(IncompleteRecord, match="kind receipt must state receipt_id"):
        ClosingRecord(member_id="a", kind=ClosingKind.RECEIPT, recorded_at=NOON)
    with pytest.raises(IncompleteRecord, match="kind receipt cannot state reason"):
        ClosingRecord(member_id="a", kind=ClosingKind.RECEIPT, recorded_at=NOON, receipt_id="r", reason="none")


@every_row("name", ["receipt_id", *WRITE_OFF_FIELDS])
def test_where_nothing_started_there_is_nothing_to_state(name: str) -> None:
    with pytest.raises(IncompleteRecord, match=f"kind nothing_started cannot state {name}"):
        ClosingRecord(member_id="a", kind=ClosingKind.NOTHING_STARTED, recorded_at=NOON, **{name: "x"})


def test_a_late_receipt_is_added_to_the_write_off_which_stays_one() -> None:
    before = write_off("a")

    after = add_late_receipt(before, "receipt of the swept node")

    assert after.kind is ClosingKind.WRITE_OFF
    assert after.receipt_id == "receipt of the swept node"
    assert after.reason == before.reason
    assert before.receipt_id is None
    with pytest.raises(IncompleteRecord, match="a late receipt belongs to a write-off"):
        add_late_receipt(receipt("a"), "second")


def test_every_kind_proof_and_reason_explains_itself() -> None:
    assert list(CLOSING_KIND_MEANING) == list(ClosingKind)
    assert list(TEARDOWN_PROOF_MEANING) == list(TeardownProof)
    assert list(CLOSING_REASON_MEANING) == list(ClosingReason)
