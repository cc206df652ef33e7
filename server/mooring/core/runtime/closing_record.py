"""Closing records: what proves that a member is gone.

An instance becomes `stopped`, and a member `removed`, only with a closing record of each member concerned. The
lifecycle tables say which states need that (`Lifecycle.needs_closing_records`); this module says what a record is, when
it may be made, and which are missing. A database constraint checks the same again.

Each member has exactly one record, which is never deleted. A member that was removed long before its instance was
stopped is still one of the instance's members, and its record counts. The proof of an instance is only as good as its
worst record: one write-off among a hundred receipts makes it `written_off`. A receipt that arrives after a write-off is
added to it, and the record stays a write-off.

Every function here is pure and returns a named refusal, or None.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from mooring.core.fleet.node import NodeState
from mooring.core.fleet.task import TaskState
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.lifecycle import Lifecycle, State, Trigger
from mooring.core.runtime.instance import INSTANCE, InstanceState
from mooring.core.runtime.member import MEMBER, MemberState


class ClosingKind(StrEnum):
    RECEIPT = "receipt"
    NOTHING_STARTED = "nothing_started"
    WRITE_OFF = "write_off"


CLOSING_KIND_MEANING: Mapping[ClosingKind, str] = MappingProxyType(
    {
        ClosingKind.RECEIPT: "the node searched for leftovers and found none",
        ClosingKind.NOTHING_STARTED: "no task of this member was ever claimed, and its queued tasks were "
        "cancelled in the same transaction",
        ClosingKind.WRITE_OFF: "the node is lost for good; a platform admin retired it, and stated the reason "
        "and what may be left there",
    }
)


class TeardownProof(StrEnum):
    RECEIPTS = "receipts"
    WRITTEN_OFF = "written_off"


TEARDOWN_PROOF_MEANING: Mapping[TeardownProof, str] = MappingProxyType(
    {
        TeardownProof.RECEIPTS: "each member has a receipt, or was never started",
        TeardownProof.WRITTEN_OFF: "at least one member was written off, so leftovers are possible",
    }
)


class ClosingReason(StrEnum):
    """Why a state that needs closing records, or a closing record itself, is refused."""

    RECORD_MISSING = "record_missing"
    SOMETHING_LEFT = "something_left"
    TASK_WAS_CLAIMED = "task_was_claimed"
    NODE_NOT_RETIRED = "node_not_retired"


CLOSING_REASON_MEANING: Mapping[ClosingReason, str] = MappingProxyType(
    {
        ClosingReason.RECORD_MISSING: "a member has no closing record yet",
        ClosingReason.SOMETHING_LEFT: "the node searched and found leftovers",
        ClosingReason.TASK_WAS_CLAIMED: "an agent claimed a task of the member, so something may have started",
        ClosingReason.NODE_NOT_RETIRED: "the node is not retired and may come back, so it cannot be written off",
    }
)


class ClosingRefused(Refusal):
    """The end of a member or an instance is not proven; `reason` names what is missing."""

    def __init__(self, reason: ClosingReason, detail: str, member_ids: tuple[str, ...]):
        self.reason, self.member_ids = reason, member_ids
        super().__init__(Code.CLOSING_RECORD_MISSING, detail, {"reason": reason.value, "member_ids": list(member_ids)})


class IncompleteRecord(ValueError):
    """A closing record lacks a field that its kind requires, or has one that its kind does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRecord:
    """The proof that one member is gone; its kind decides which optional fields are set."""

    member_id: str
    kind: ClosingKind
    recorded_at: datetime
    receipt_id: str | None = None  # of a receipt; of a write-off only if the node came back later
    node_id: str | None = None  # of a write-off: the node that is lost
    written_off_by: str | None = None  # of a write-off: the responsible admin
    reason: str | None = None  # of a write-off
    may_be_left: str | None = None  # of a write-off: what may still be on the node

    def __post_init__(self) -> None:
        needed, possible = _FIELDS_OF_KIND[self.kind]
        for name in _OPTIONAL_FIELDS:
            value: str | None = getattr(self, name)
            if value is None and name in needed:
                raise IncompleteRecord(f"a closing record of kind {self.kind} must state {name}")
            if value is not None and name not in possible:
                raise IncompleteRecord(f"a closing record of kind {self.kind} cannot state {name}")
            if value is not None and not value.strip():
                raise IncompleteRecord(f"the {name} of a closing record must not be blank")


_WRITE_OFF_FIELDS = frozenset({"node_id", "written_off_by", "reason", "may_be_left"})
_OPTIONAL_FIELDS = ("receipt_id", "node_id", "written_off_by", "reason", "may_be_left")
_FIELDS_OF_KIND: Mapping[ClosingKind, tuple[frozenset[str], frozenset[str]]] = MappingProxyType(
    {
        ClosingKind.RECEIPT: (frozenset({"receipt_id"}), frozenset({"receipt_id"})),
        ClosingKind.NOTHING_STARTED: (frozenset(), frozenset()),
        ClosingKind.WRITE_OFF: (_WRITE_OFF_FIELDS, _WRITE_OFF_FIELDS | {"receipt_id"}),
    }
)


def add_late_receipt(record: ClosingRecord, receipt_id: str) -> ClosingRecord:
    """The write-off with the receipt of a node that came back; it stays a write-off."""
    if record.kind is not ClosingKind.WRITE_OFF:
        raise IncompleteRecord(f"a late receipt belongs to a write-off, not to a {record.kind} record")
    return replace(record, receipt_id=receipt_id)


def missing_closing_records(member_ids: Iterable[str], records: Iterable[ClosingRecord]) -> tuple[str, ...]:
    """The members without a closing record, in the given order."""
    closed = {record.member_id for record in records}
    return tuple(member_id for member_id in member_ids if member_id not in closed)


def teardown_proof(member_ids: Iterable[str], records: Iterable[ClosingRecord]) -> TeardownProof:
    """What the closing records of these members prove together; `ClosingRefused` if one is missing.

    An instance without members leaves nothing behind, so it counts as proven by receipts.
    """
    members, found = tuple(member_ids), tuple(records)
    missing = missing_closing_records(members, found)
    if missing:
        raise _record_missing("the teardown is not proven", missing)
    member_set = frozenset(members)
    return proof_of(record.kind for record in found if record.member_id in member_set)


def proof_of(kinds: Iterable[str]) -> TeardownProof:
    """What records of these kinds prove together: only as much as the worst of them."""
    return TeardownProof.WRITTEN_OFF if ClosingKind.WRITE_OFF in kinds else TeardownProof.RECEIPTS


def why_not_reached(
    machine: Lifecycle[State, Trigger],
    target: State,
    member_ids: Iterable[str],
    records: Iterable[ClosingRecord],
) -> ClosingRefused | None:
    """Why closing records do not allow `target` yet; None if it needs none or has them all."""
    if target not in machine.needs_closing_records:
        return None
    missing = missing_closing_records(member_ids, records)
    return _record_missing(f"{machine.name} cannot be {target}", missing) if missing else None


def why_not_stopped(member_ids: Iterable[str], records: Iterable[ClosingRecord]) -> ClosingRefused | None:
    """Why an instance with these members, including removed ones, is not stopped yet."""
    return why_not_reached(INSTANCE, InstanceState.STOPPED, member_ids, records)


def why_not_removed(member_id: str, records: Iterable[ClosingRecord]) -> ClosingRefused | None:
    return why_not_reached(MEMBER, MemberState.REMOVED, (member_id,), records)


def why_no_receipt(member_id: str, found: Collection[str]) -> ClosingRefused | None:
    """Why the node's answer does not close the member: it found these leftovers."""
    if not found:
        return None
    detail = f"the node still found {', '.join(found)} of member {member_id}"
    return ClosingRefused(ClosingReason.SOMETHING_LEFT, detail, (member_id,))


@dataclass(frozen=True, slots=True)
class MemberTask:
    """What is known of a task to decide whether its member was ever started."""

    task_id: str
    state: TaskState
    was_claimed: bool  # ever: a lost lease requeues a task that the node may have started


_STATES_BEFORE_A_CLAIM = frozenset({TaskState.QUEUED, TaskState.CANCELLED, TaskState.EXPIRED})


def why_not_nothing_started(member_id: str, tasks: Iterable[MemberTask]) -> ClosingRefused | None:
    """Why the record cannot be `nothing_started`."""
    claimed = [task.task_id for task in tasks if task.was_claimed or task.state not in _STATES_BEFORE_A_CLAIM]
    if not claimed:
        return None
    detail = f"agents claimed these tasks of member {member_id}: {', '.join(claimed)}"
    return ClosingRefused(ClosingReason.TASK_WAS_CLAIMED, detail, (member_id,))


def tasks_to_cancel(tasks: Iterable[MemberTask]) -> tuple[str, ...]:
    """The queued tasks, which the transaction that records `nothing_started` cancels."""
    return tuple(task.task_id for task in tasks if task.state is TaskState.QUEUED)


def why_no_write_off(member_id: str, node_id: str, node_state: NodeState) -> ClosingRefused | None:
    """Why the member cannot be written off: only a retired node is lost for good."""
    if node_state is NodeState.RETIRED:
        return None
    detail = f"node {node_id} of member {member_id} is {node_state}; retire the node before a write-off"
    return ClosingRefused(ClosingReason.NODE_NOT_RETIRED, detail, (member_id,))


def _record_missing(what: str, missing: tuple[str, ...]) -> ClosingRefused:
    detail = f"{what}: closing records are missing for {', '.join(missing)}"
    return ClosingRefused(ClosingReason.RECORD_MISSING, detail, missing)
