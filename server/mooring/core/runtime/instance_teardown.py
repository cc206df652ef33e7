"""How members end: the platform tears them down, their nodes verify that nothing is left, and a record closes them.

This starts when the adapter has shut down its part, or its time limit has passed. A member becomes `removing`; its node
ends everything of it, searches for leftovers, and signs what it found. Only three things close the member: a clean
receipt, the fact that no node ever started anything, or a node that an admin retired. Any other outcome is retried
after a pause, and until then the member and its operation name the blocker.

An allocation that was requested for a member is released as soon as the member is being removed: from then on nobody
pays for it, even while its node does not answer. The allocation's own teardown waits for the members in it. When nobody
asked for the end, but the platform tears down what failed, a node that does not answer keeps its allocations until it
does: a tenant with root on a machine could otherwise cut it off, let the app fail, and go on using it for free.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.core.catalog.artifact_hold import drop_holds
from mooring.core.fleet.allocation import AllocationState, release_allocation
from mooring.core.fleet.runtime_secret import destroy_all
from mooring.core.fleet.task import SYSTEM_MAKER, TASK, TaskState
from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.fleet.task_family import FailureCode
from mooring.core.fleet.task_transitions import cancel_all
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Insert
from mooring.core.kernel.ids import Prefix
from mooring.core.runtime.attachment_reconcile import ended_with
from mooring.core.runtime.closing_record import ClosingKind, proof_of
from mooring.core.runtime.instance import InstanceHealth, InstanceState, InstanceTrigger
from mooring.core.runtime.instance_snapshot import ClosedMember, InstanceSnapshot, MemberSnapshot
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_member,
    change_operation,
    move_instance,
    move_member,
    move_operation,
    together,
)
from mooring.core.runtime.member import Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import Operation, OperationKind, OperationState, OperationTrigger

ACTION: Final = "instance.run"
AT_ONCE: Final = 50
"""How many members one decision changes: all of it is one SQL statement, which must not grow without bound."""
VERIFY: Final = "teardown.verify"
VERIFY_LIFETIME: Final = timedelta(hours=1)
ATTEMPTS_AT_ONCE: Final = 3
RETRY_FIRST: Final = timedelta(seconds=30)
RETRY_MAX: Final = timedelta(hours=1)
BLOCKER_LENGTH: Final = 1000
RECEIPTS_MAX: Final = 1000
UNREACHABLE: Final = "node_unreachable"
SOMETHING_LEFT: Final = "something_left"
_GIVEN_BACK: Final = frozenset({AllocationState.REQUESTED, AllocationState.PROVISIONING, AllocationState.ACTIVE})

Step = Decision[Operation] | None


def tear_down(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> Step:
    """The next step of an operation in the platform's phase; None while nodes are at work."""
    targets = snapshot.torn_down_by(operation)
    parts = _start_removal(context, snapshot, operation, targets)
    if not parts:
        parts = _release_allocations(context, snapshot, operation, targets)
    if not parts:
        parts = [part for each in targets if (part := _member(context, snapshot, operation, each)) is not None][
            :AT_ONCE
        ]
    if parts:
        return together(operation, *parts)
    if targets:
        return _wait(context, snapshot, operation, targets)
    return _finished(context, snapshot, operation)


def why_waiting(each: MemberSnapshot) -> str | None:
    """What blocks the end of a member now; None while its node is at work on it."""
    node, member = each.node, each.member
    if node is not None and node.unreachable_since is not None and not node.is_gone:
        return f"node {node.id} unreachable since {node.unreachable_since.isoformat(timespec='seconds')}"
    return member.blocker if member.retry_at is not None else None


def _start_removal(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, targets: Sequence[MemberSnapshot]
) -> list[Decision[Member]]:
    """Mark the members as being removed, after which nothing of them can be started."""
    columns = {"last_operation_id": operation.id, "blocker": None, "retry_at": None}
    return [
        move_member(context, snapshot.instance.app_slug, each.member, MemberTrigger.REMOVE, ACTION, **columns)
        for each in targets
        if each.member.status != MemberState.REMOVING
    ][:AT_ONCE]


def _release_allocations(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, targets: Sequence[MemberSnapshot]
) -> list[Decision[Any]]:
    """Release the allocations that were requested for these members, unless another member uses them."""
    staying = {each.member.allocation_id for each in snapshot.members if each.member.status != MemberState.REMOVING}
    staying |= {each.member.allocation_id for each in targets if _stays_charged(snapshot, operation, each)}
    wanted = {
        each.allocation.id: each.allocation
        for each in targets
        if each.allocation is not None and _goes_with_member(each) and each.allocation.id not in staying
    }
    return [release_allocation(context, wanted[key]) for key in sorted(wanted)[:AT_ONCE]]


def _goes_with_member(each: MemberSnapshot) -> bool:
    return (
        each.allocation is not None
        and (each.inherited or each.member.owns_allocation)
        and not each.member.keep_allocation
        and not each.shared
        and each.allocation.status in _GIVEN_BACK
    )


def _stays_charged(snapshot: InstanceSnapshot, operation: Operation, each: MemberSnapshot) -> bool:
    """Whether the allocation waits for its node: nobody asked for its end, and nothing proves that it is over."""
    node = each.node
    return (
        operation.requested_by == SYSTEM_MAKER
        and snapshot.instance.stop_requested_at is None
        and node is not None
        and node.unreachable_since is not None
        and not node.is_gone
        and each.clean_receipt_id is None
        and _goes_with_member(each)
        and each.allocation is not None
        and each.allocation.status == AllocationState.ACTIVE
    )


def _member(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, each: MemberSnapshot
) -> Decision[Any] | None:
    """The next step of one member that is being removed."""
    if each.clean_receipt_id is not None:
        receipt = {"receipt_id": each.clean_receipt_id, "clean": True}
        return _closed(context, snapshot, each, ClosingKind.RECEIPT, receipt=receipt)
    if not each.started and _stays_charged(snapshot, operation, each):
        return _set_blocker(snapshot, each, why_waiting(each))  # the member closes after its allocation is released
    if not each.started:
        return _never_started(context, snapshot, each)
    if each.node is not None and each.node.is_gone:
        return _closed(
            context,
            snapshot,
            each,
            ClosingKind.WRITE_OFF,
            node_id=each.node.id,
            reason=each.node.retirement_reason,
            may_be_left=each.node.may_be_left or "unknown",
        )
    task = each.task
    if task is None or task.type != VERIFY:
        return _verify(context, snapshot, operation, each)
    if task.status not in TASK.final:
        return _set_blocker(snapshot, each, why_waiting(each))
    return _retry(context, snapshot, operation, each)


def _retry(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, each: MemberSnapshot
) -> Decision[Any] | None:
    """Retry a teardown that ended without a clean receipt, at once or after a pause."""
    task, member = each.task, each.member
    if task is None or (member.retry_at is not None and member.retry_at <= context.now):
        return _verify(context, snapshot, operation, each)
    if member.retry_at is not None:
        return None
    lapsed = task.status == TaskState.EXPIRED and not task.claimed  # no agent claimed it, so nobody searched
    interrupted = task.failure_code == FailureCode.INTERRUPTED
    if lapsed or (interrupted and member.teardown_attempts < ATTEMPTS_AT_ONCE):
        return _verify(context, snapshot, operation, each)
    blocker = "the node tore it down and searched, and found leftovers"
    if each.receipt_id is not None:
        blocker += f": receipt {each.receipt_id} names them"
    elif task.status != TaskState.SUCCEEDED:
        blocker = f"the teardown did not succeed: {task.failure_code or task.status}"
        blocker += f", {task.failure_detail}" if task.failure_detail else ""
    pause = min(RETRY_FIRST * (1 << min(max(0, member.teardown_attempts - 1), 10)), RETRY_MAX)
    columns = {"retry_at": context.now + pause, "blocker": blocker[:BLOCKER_LENGTH]}
    return change_member(snapshot.instance.app_slug, member, ACTION, **columns)


def _verify(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, each: MemberSnapshot
) -> Decision[Any]:
    """Ask its node to end everything of the member, to search for leftovers, and to sign what it found."""
    member, allocation = each.member, each.allocation
    if allocation is None or allocation.node_id is None:
        raise ValueError("a member that was started must have a node")
    number = each.teardowns + 1
    task = make_task(
        context,
        TaskRequest(
            tenant_id=member.tenant_id,
            project_id=member.project_id,
            allocation_id=allocation.id,
            node_id=allocation.node_id,
            type=VERIFY,
            step=f"{VERIFY}/{member.id}/{number}",
            label=member.id,
            instance_id=member.instance_id,
            member_id=member.id,
            operation_id=operation.id,
            lifetime=VERIFY_LIFETIME,
        ),
    )
    columns = {
        "teardown_task_id": task.task.id,
        "teardown_attempts": member.teardown_attempts + 1,
        "retry_at": None,
        "blocker": None,
    }
    change = change_member(snapshot.instance.app_slug, member, ACTION, **columns)
    writes, events = cancel_all(context, each.queued)  # unclaimed tasks would be refused: their owner is closed
    return Decision(
        change.result,
        (*change.writes, *writes, *task.writes),
        (*change.events, *events, *task.events),
        (*change.audits, *task.audits),
    )


def _never_started(context: DecisionContext, snapshot: InstanceSnapshot, each: MemberSnapshot) -> Decision[Any]:
    """Close a member of which no agent claimed a task, and cancel its queued tasks in the same statement."""
    writes, events = cancel_all(context, each.queued)
    closed = _closed(context, snapshot, each, ClosingKind.NOTHING_STARTED)
    return replace(closed, writes=(*writes, *closed.writes), events=(*closed.events, *events))


def _closed(
    context: DecisionContext, snapshot: InstanceSnapshot, each: MemberSnapshot, kind: ClosingKind, **columns: object
) -> Decision[Member]:
    member = each.member
    row = {
        "id": context.mint(Prefix.CLOSING_RECORD),
        "tenant_id": member.tenant_id,
        "project_id": member.project_id,
        "member_id": member.id,
        "kind": kind.value,
        "created_at": context.now,
        **columns,
    }
    ends = {"removed_at": context.now, "blocker": None, "retry_at": None, "health": InstanceHealth.UNKNOWN.value}
    moved = move_member(context, snapshot.instance.app_slug, member, MemberTrigger.FINISH_TEARDOWN, ACTION, **ends)
    details = {"kind": kind.value} | columns
    audit = AuditRecord(
        "member.close", "member", member.id, *member.place, after=details, app_instance_id=member.instance_id
    )
    return replace(moved, writes=(Insert("closing_record", row), *moved.writes), audits=(*moved.audits, audit))


def _set_blocker(snapshot: InstanceSnapshot, each: MemberSnapshot, blocker: str | None) -> Decision[Member] | None:
    """Record what a member waits for; None if that is already recorded."""
    if blocker == each.member.blocker:
        return None
    return change_member(snapshot.instance.app_slug, each.member, ACTION, blocker=blocker)


def _wait(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, targets: Sequence[MemberSnapshot]
) -> Step:
    """Record what the members wait for as the operation's blocker; unblock it when that is gone."""
    reasons = [(each, why) for each in targets if (why := why_waiting(each)) is not None]
    slug = snapshot.instance.app_slug
    if not reasons:
        if operation.status != OperationState.BLOCKED:
            return None
        return move_operation(context, slug, operation, OperationTrigger.UNBLOCK, ACTION)
    first, why = reasons[0]
    more = f"; {len(reasons) - 1} more members wait" if len(reasons) > 1 else ""
    blocker = f"member {first.member.name}: {why}{more}"[:BLOCKER_LENGTH]
    code = UNREACHABLE if why.startswith("node ") else SOMETHING_LEFT
    if operation.status == OperationState.RUNNING:
        columns = {"blocker": blocker, "blocker_code": code}
        return move_operation(context, slug, operation, OperationTrigger.BLOCK, ACTION, **columns)
    if operation.status == OperationState.BLOCKED and operation.blocker != blocker:
        return change_operation(slug, operation, ACTION, blocker=blocker, blocker_code=code)
    return None


def _finished(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> Step:
    """End the operation: each of its members has its closing record."""
    slug = snapshot.instance.app_slug
    if operation.status == OperationState.BLOCKED:
        return move_operation(context, slug, operation, OperationTrigger.UNBLOCK, ACTION)
    whole = operation.kind == OperationKind.DECOMMISSION
    closed = [each for each in snapshot.closed if whole or each.member_id in operation.member_ids]
    evidence = (operation.evidence or {}) | evidence_of(closed, context.now)
    succeeded = move_operation(context, slug, operation, OperationTrigger.SUCCEED, ACTION, evidence=evidence)
    parts: list[Decision[Any]] = [succeeded]
    if whole:
        parts += [*_finish_cancelled(context, snapshot, operation), *_end_instance(context, snapshot)]
    return together(succeeded.result, *parts)


def _finish_cancelled(context: DecisionContext, snapshot: InstanceSnapshot, ending: Operation) -> list[Decision[Any]]:
    """End all operations that were being cancelled: there is nothing left for them to work on."""
    return [
        move_operation(context, snapshot.instance.app_slug, each, OperationTrigger.FINISH_CANCEL, ACTION)
        for each in snapshot.operations
        if each.id != ending.id and each.status == OperationState.CANCELLING
    ]


def _end_instance(context: DecisionContext, snapshot: InstanceSnapshot) -> list[Decision[Any]]:
    """Release everything that the ended instance held, and complete a stop."""
    instance = snapshot.instance
    parts: list[Decision[Any]] = [drop_holds(context, snapshot.holds), destroy_all(context, snapshot.secrets)]
    parts += ended_with(context, snapshot)
    gone: dict[str, Any] = {"endpoints": [], "health": InstanceHealth.UNKNOWN.value, "health_detail": None}
    if instance.status == InstanceState.STOPPING:
        proof = proof_of(each.kind for each in snapshot.closed)
        stopped = {"stopped_at": context.now, "teardown_proof": proof.value, **gone}
        parts.append(move_instance(context, instance, InstanceTrigger.FINISH_TEARDOWN, ACTION, **stopped))
    elif instance.endpoints or instance.health != InstanceHealth.UNKNOWN:
        parts.append(change_instance(instance, ACTION, **gone))
    return parts


def evidence_of(closed: Sequence[ClosedMember], now: datetime) -> dict[str, Any]:
    """The evidence that members are gone: receipts, the number of closing records of each kind, and GPU seconds."""
    kinds = {kind.value: sum(1 for each in closed if each.kind == kind) for kind in ClosingKind}
    receipts = sorted({each.receipt_id for each in closed if each.receipt_id is not None})
    return {
        "receipts": receipts[:RECEIPTS_MAX],
        "closing": {kind: count for kind, count in kinds.items() if count},
        "gpu_seconds": _gpu_seconds(closed, now),
    }


def _gpu_seconds(closed: Sequence[ClosedMember], now: datetime) -> int:
    """GPUs × seconds for which these members held allocations; an allocation with two members counts once."""
    spans: dict[str, tuple[datetime, datetime, int]] = {}
    for each in closed:
        if each.allocation_id is None or each.held_from is None:
            continue
        until = each.held_until or now
        begin, end, gpus = spans.get(each.allocation_id, (each.held_from, until, each.gpu_count))
        spans[each.allocation_id] = (min(begin, each.held_from), max(end, until), gpus)
    return sum(gpus * max(0, round((end - begin).total_seconds())) for begin, end, gpus in spans.values())
