"""What happens to an instance when a machine is lost for good, or an allocation under it is released.

A lost machine fails the members on it: the instance continues degraded, or fails if a component has fewer members than
its minimum. Before an allocation is released, its members are removed one by one; the instance is stopped only if a
component would fall below its minimum.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.catalog.manifest_schema import DRAIN_SECONDS
from mooring.core.fleet.allocation import AllocationState
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime.instance import Instance, InstanceHealth, InstanceState, InstanceTrigger
from mooring.core.runtime.instance_launch import build_operation
from mooring.core.runtime.instance_snapshot import COMING, LIVE, InstanceSnapshot, MemberSnapshot, TimeLimits
from mooring.core.runtime.instance_teardown import ACTION, AT_ONCE
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_member,
    move_instance,
    move_member,
    move_operation,
    new_operation,
    together,
)
from mooring.core.runtime.member import Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import (
    TEARDOWN_KINDS,
    WHOLE_KINDS,
    Operation,
    OperationFailure,
    OperationKind,
    OperationState,
    OperationTrigger,
    Phase,
    advice_of,
)

SYSTEM: Final = "system"
ALLOCATION_ID: Final = "allocation_id"
"""Where the request of an operation names the released allocation that caused it."""
NAMED_MAX: Final = 10
_GIVEN_BACK: Final = frozenset(
    {AllocationState.RELEASING, AllocationState.RELEASE_FAILED, AllocationState.RELEASED, AllocationState.FAILED}
)
_STANDING: Final = frozenset({InstanceState.CREATED, InstanceState.STARTING, InstanceState.RUNNING})
S, K, F = InstanceState, OperationKind, OperationFailure

Step = Decision[Instance | Member | Operation]


def system_operation(
    context: DecisionContext,
    snapshot: InstanceSnapshot,
    kind: OperationKind,
    *,
    reason: str,
    phase: Phase,
    duration: timedelta,
    members: Iterable[MemberSnapshot] | None = None,
) -> Operation:
    """An operation that the platform itself starts; `phase` says whose turn it is, `members` defaults to all."""
    instance = snapshot.instance
    concerned = snapshot.members if members is None else members
    drain = timedelta(seconds=DRAIN_SECONDS if kind is K.REMOVE else 0)
    graceful = snapshot.graceful + drain
    request = {"reason": reason, "timeout_seconds": int(drain.total_seconds())}
    return replace(
        build_operation(context, instance, kind, request, (duration + graceful).total_seconds()),
        phase_deadline_at=context.now + graceful if phase is Phase.ADAPTER else None,
        phase=phase.value,
        member_ids=[each.member.id for each in concerned],
        dispatched_at=context.now,
        requested_by=SYSTEM,
    )


def lost(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Fail the members on machines that are gone for good; the instance is degraded, or fails below its minimum."""
    instance = snapshot.instance
    if instance.status not in _STANDING:
        return None
    gone = [
        each for each in snapshot.members if each.member.status in LIVE and each.node is not None and each.node.is_gone
    ]
    if not gone:
        return None
    parts: list[Decision[Any]] = []
    for each in gone[:AT_ONCE]:
        node_id = each.node.id if each.node is not None else ""
        failure = {
            "failed_at": context.now,
            "failure_code": F.NODE_LOST.value,
            "health": InstanceHealth.UNKNOWN.value,
            "failure_detail": f"node {node_id} is gone for good",
            "health_at": context.now,
        }
        parts.append(move_member(context, instance.app_slug, each.member, MemberTrigger.FAIL, ACTION, **failure))
    named = ", ".join(each.member.name for each in gone[:NAMED_MAX])
    lacking = _lacking(snapshot, gone)
    if lacking is not None:
        parts += _below_minimum(context, snapshot, f"the machine of {named} is lost, and {lacking}")
    elif instance.status == S.RUNNING:
        health: dict[str, Any] = {
            "health": InstanceHealth.DEGRADED.value,
            "health_at": context.now,
            "health_detail": f"the machine of {named} is lost",
        }
        parts.append(change_instance(instance, ACTION, **health))
    return together(instance, *parts)


def _lacking(snapshot: InstanceSnapshot, without: Iterable[MemberSnapshot]) -> str | None:
    """A sentence about the first component that would be below its minimum without these members; None if none."""
    members = list(without)
    excluded = {each.member.id for each in members}
    for key in sorted({each.member.component_key for each in members if each.member.status in LIVE}):
        left, least = _count_live(snapshot, key, excluded), snapshot.minimum.get(key, 0)
        if left < least:
            return f"{key} would have {left} members of the {least} that it needs"
    return None


def _below_minimum(context: DecisionContext, snapshot: InstanceSnapshot, detail: str) -> list[Decision[Any]]:
    """Fail the instance, and its launch if that is still open."""
    failure: dict[str, Any] = {
        "failed_at": context.now,
        "failure_code": F.BELOW_MINIMUM.value,
        "failure_detail": detail,
        "health": InstanceHealth.UNKNOWN.value,
        "health_detail": None,
        "health_at": context.now,
    }
    operation_failure = {
        "failure_code": F.NODE_LOST.value,
        "failure_detail": detail,
        "evidence": advice_of(F.NODE_LOST.value),
    }
    failed_launches = [
        move_operation(context, snapshot.instance.app_slug, each, OperationTrigger.FAIL, ACTION, **operation_failure)
        for each in snapshot.open_of(K.DEPLOY)
    ]
    return [move_instance(context, snapshot.instance, InstanceTrigger.FAIL, ACTION, **failure), *failed_launches]


def given_back(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Remove the members of released allocations; stop the instance if a component would be below its minimum."""
    if snapshot.instance.status not in _STANDING:
        return None
    ending = {id_ for each in snapshot.operations if each.kind in TEARDOWN_KINDS for id_ in each.member_ids}
    leaving = [each for each in snapshot.members if _is_leaving(each) and each.member.id not in ending]
    if not leaving:
        return None
    lacking = _lacking(snapshot, [each for each in snapshot.members if _is_leaving(each)])
    if lacking is not None:
        reason = f"{_released_name(leaving[0])} is released, and {lacking}"
        return _stop(context, snapshot, leaving[0], reason=reason, duration=limits.operation)
    blocking = _blocking_operation(snapshot, [each.member.id for each in leaving])
    if blocking is not None:
        reason, slug = "the allocation of a member is released", snapshot.instance.app_slug
        return move_operation(context, slug, blocking, OperationTrigger.CANCEL, ACTION, cancel_reason=reason)
    named = {id_ for each in snapshot.operations if _is_of_members(each) for id_ in each.member_ids}
    free = [each for each in leaving if each.member.id not in named][:AT_ONCE]
    if not free:
        return None
    return _remove(context, snapshot, free, reason=None, phase=Phase.ADAPTER, duration=limits.operation)


def orphans(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Fail members that were to join but that no open operation names any more; remove them if that was a cancel."""
    instance = snapshot.instance
    if instance.status != S.RUNNING or any(each.kind in WHOLE_KINDS for each in snapshot.operations):
        return None
    covered = {id_ for each in snapshot.operations for id_ in each.member_ids}
    uncovered = [each for each in snapshot.members if each.member.id not in covered]
    parts = []
    for each in uncovered:
        if each.member.status not in COMING:
            continue
        code, detail = each.ended or (F.CANCELLED.value, "the operation that created it was cancelled")
        failure = {"failed_at": context.now, "failure_code": code, "failure_detail": detail}
        parts.append(move_member(context, instance.app_slug, each.member, MemberTrigger.FAIL, ACTION, **failure))
    if parts:
        return together(instance, *parts[:AT_ONCE])
    unwanted = [each for each in uncovered if _is_failed(each) and each.member.failure_code == F.CANCELLED]
    if not unwanted:
        return None
    reason = "the operation that created it was cancelled"
    return _remove(
        context, snapshot, unwanted[:AT_ONCE], reason=reason, phase=Phase.PLATFORM, duration=limits.operation
    )


def _released_name(each: MemberSnapshot) -> str:
    return "its allocation" if each.allocation is None else f"allocation {each.allocation.name}"


def _because_of(operation: Operation, released: MemberSnapshot) -> Operation:
    """The operation with the released allocation as its cause, which an explanation names."""
    return replace(operation, request={**operation.request, ALLOCATION_ID: released.member.allocation_id})


def _stop(
    context: DecisionContext, snapshot: InstanceSnapshot, released: MemberSnapshot, *, reason: str, duration: timedelta
) -> Step:
    """Stop the instance as a caller would."""
    moved = move_instance(
        context, snapshot.instance, InstanceTrigger.STOP, ACTION, stop_requested_at=context.now, health_detail=reason
    )
    operation = system_operation(
        context, snapshot, K.DECOMMISSION, reason=reason, phase=Phase.ADAPTER, duration=duration
    )
    decided = new_operation(snapshot.instance, _because_of(operation, released), ACTION)
    return together(moved.result, moved, decided)


def _remove(
    context: DecisionContext,
    snapshot: InstanceSnapshot,
    members: list[MemberSnapshot],
    *,
    reason: str | None,
    phase: Phase,
    duration: timedelta,
) -> Step:
    """Start a remove operation for each of the members, and lower the desired counts accordingly.

    Without a reason, the released allocation of each member is its reason.
    """
    instance = snapshot.instance
    topology = dict(instance.topology)
    parts: list[Decision[Any]] = []
    for each in members:
        key = each.member.component_key
        topology[key] = max(snapshot.minimum.get(key, 0), topology.get(key, 0) - 1)
        stated = reason or f"{_released_name(each)} is released"
        operation = system_operation(
            context, snapshot, K.REMOVE, reason=stated, phase=phase, duration=duration, members=[each]
        )
        if reason is None:
            operation = _because_of(operation, each)
        parts += [new_operation(instance, operation, ACTION), _leaving(context, snapshot, each.member, operation)]
    return together(instance, change_instance(instance, ACTION, topology=topology), *parts)


def _leaving(
    context: DecisionContext, snapshot: InstanceSnapshot, member: Member, operation: Operation
) -> Decision[Member]:
    """Drain a member that works; otherwise only record the operation on it."""
    slug, columns = snapshot.instance.app_slug, {"last_operation_id": operation.id}
    if operation.phase == Phase.ADAPTER and member.status in (MemberState.READY, MemberState.DEGRADED):
        return move_member(context, slug, member, MemberTrigger.DRAIN, ACTION, **columns)
    return change_member(slug, member, ACTION, **columns)


def _blocking_operation(snapshot: InstanceSnapshot, member_ids: list[str]) -> Operation | None:
    """An open operation that must be cancelled before these members can be removed; an add that brings others too is
    left alone.
    """
    leaving = set(member_ids)
    for each in snapshot.operations:
        concerned = set(each.member_ids)
        if not _is_of_members(each) or each.kind in TEARDOWN_KINDS or not concerned & leaving:
            continue
        if each.status != OperationState.CANCELLING and (each.kind != K.ADD or concerned <= leaving):
            return each
    return None


def _is_of_members(operation: Operation) -> bool:
    return operation.kind in (K.ADD, K.DRAIN, K.REMOVE, K.REPLACE)


def _is_leaving(each: MemberSnapshot) -> bool:
    """Whether its allocation is released although the machine still exists."""
    if each.allocation is None or each.member.status == MemberState.REMOVING:
        return False
    return each.allocation.status in _GIVEN_BACK and not (each.node is not None and each.node.is_gone)


def _is_failed(each: MemberSnapshot) -> bool:
    return each.member.status == MemberState.FAILED


def _count_live(snapshot: InstanceSnapshot, key: str, excluded: set[str]) -> int:
    """How many live members of a component there are apart from the excluded ones."""
    return sum(
        1
        for each in snapshot.members
        if each.member.component_key == key and each.member.status in LIVE and each.member.id not in excluded
    )
