"""What becomes of an instance when a machine is lost for ever, or an allocation under it is given back.

A lost machine fails the members that stood on it: the instance goes on degraded, or fails when a component has fewer
members than it needs. An allocation that is given back first lets its members go: they are removed one by one, and the
instance is stopped only where a component would fall below its minimum.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.catalog.manifest_schema import DRAIN_SECONDS
from mooring.core.fleet.allocation import AllocationState
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime.instance import Instance, InstanceHealth, InstanceState, InstanceTrigger
from mooring.core.runtime.instance_launch import new_row
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
)
from mooring.core.runtime.operation_advice import advice_of

SYSTEM: Final = "system"
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
    how: tuple[str, Phase],
    lasting: timedelta,
    *,
    members: Iterable[MemberSnapshot] | None = None,
) -> Operation:
    """An operation that the platform itself asks for: why, and whose turn it is."""
    instance, (reason, phase) = snapshot.instance, how
    concerned = snapshot.members if members is None else members
    drain = timedelta(seconds=DRAIN_SECONDS if kind is K.REMOVE else 0)
    graceful = snapshot.graceful + drain
    request = {"reason": reason, "timeout_seconds": int(drain.total_seconds())}
    return replace(
        new_row(context, instance, kind, request, (lasting + graceful).total_seconds()),
        phase_deadline_at=context.now + graceful if phase is Phase.ADAPTER else None,
        phase=phase.value,
        member_ids=[each.member.id for each in concerned],
        dispatched_at=context.now,
        requested_by=SYSTEM,
    )


def lost(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """The members on a machine that is gone for ever fail; the instance is degraded, or fails with too few of them."""
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
        told = {
            "failed_at": context.now,
            "failure_code": F.NODE_LOST.value,
            "health": InstanceHealth.UNKNOWN.value,
            "failure_detail": f"node {node_id} is gone for ever",
            "health_at": context.now,
        }
        parts.append(move_member(context, instance.app_slug, each.member, MemberTrigger.FAIL, (ACTION, told)))
    named = ", ".join(each.member.name for each in gone[:NAMED_MAX])
    lacking = _lacking(snapshot, gone)
    if lacking is not None:
        parts += _below_minimum(context, snapshot, f"the machine of {named} is lost, and {lacking}")
    elif instance.status == S.RUNNING:
        why: dict[str, Any] = {
            "health": InstanceHealth.DEGRADED.value,
            "health_at": context.now,
            "health_detail": f"the machine of {named} is lost",
        }
        parts.append(change_instance(instance, ACTION, **why))
    return together(instance, *parts)


def _lacking(snapshot: InstanceSnapshot, without: Iterable[MemberSnapshot]) -> str | None:
    """The component that would have too few members without these, in words."""
    leaving = list(without)
    beside = {each.member.id for each in leaving}
    for key in sorted({each.member.component_key for each in leaving if each.member.status in LIVE}):
        left, least = _left(snapshot, key, beside), snapshot.minimum.get(key, 0)
        if left < least:
            return f"{key} would have {left} members of the {least} that it needs"
    return None


def _below_minimum(context: DecisionContext, snapshot: InstanceSnapshot, detail: str) -> list[Decision[Any]]:
    """With fewer members than a component needs the instance has failed, and so has its launch."""
    told: dict[str, Any] = {
        "failed_at": context.now,
        "failure_code": F.BELOW_MINIMUM.value,
        "failure_detail": detail,
        "health": InstanceHealth.UNKNOWN.value,
        "health_detail": None,
        "health_at": context.now,
    }
    failing = {"failure_code": F.NODE_LOST.value, "failure_detail": detail, "evidence": advice_of(F.NODE_LOST.value)}
    launches = [
        move_operation(context, snapshot.instance.app_slug, each, OperationTrigger.FAIL, (ACTION, failing))
        for each in snapshot.open_of(K.DEPLOY)
    ]
    return [move_instance(context, snapshot.instance, InstanceTrigger.FAIL, ACTION, **told), *launches]


def given_back(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Members of allocations that are given back go first; the whole goes where too few would be left."""
    if snapshot.instance.status not in _STANDING:
        return None
    ending = {id_ for each in snapshot.operations if each.kind in TEARDOWN_KINDS for id_ in each.member_ids}
    leaving = [each for each in snapshot.members if _is_leaving(each) and each.member.id not in ending]
    if not leaving:
        return None
    lacking = _lacking(snapshot, [each for each in snapshot.members if _is_leaving(each)])
    if lacking is not None:
        return _stopped(context, snapshot, (f"an allocation is given back, and {lacking}", limits.operation))
    busy = _busy(snapshot, [each.member.id for each in leaving])
    if busy is not None:
        told = {"cancel_reason": "the allocation of a member is given back"}
        slug = snapshot.instance.app_slug
        return move_operation(context, slug, busy, OperationTrigger.CANCEL, (ACTION, told))
    named = {id_ for each in snapshot.operations if _is_of_members(each) for id_ in each.member_ids}
    free = [each for each in leaving if each.member.id not in named][:AT_ONCE]
    how = ("its allocation is given back", Phase.ADAPTER)
    return _removed(context, snapshot, free, how, limits.operation) if free else None


def orphans(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """A member that was to come, and of which no operation takes care any more, has failed."""
    instance = snapshot.instance
    if instance.status != S.RUNNING or any(each.kind in WHOLE_KINDS for each in snapshot.operations):
        return None
    cared = {id_ for each in snapshot.operations for id_ in each.member_ids}
    alone = [each for each in snapshot.members if each.member.id not in cared]
    parts = []
    for each in alone:
        if each.member.status not in COMING:
            continue
        code, detail = each.ended or (F.CANCELLED.value, "the operation that made it was cancelled")
        told = {"failed_at": context.now, "failure_code": code, "failure_detail": detail}
        parts.append(move_member(context, instance.app_slug, each.member, MemberTrigger.FAIL, (ACTION, told)))
    if parts:
        return together(instance, *parts[:AT_ONCE])
    unwanted = [each for each in alone if _is_failed(each) and each.member.failure_code == F.CANCELLED]
    how = ("the operation that made it was cancelled", Phase.PLATFORM)
    return _removed(context, snapshot, unwanted[:AT_ONCE], how, limits.operation) if unwanted else None


def _stopped(context: DecisionContext, snapshot: InstanceSnapshot, why: tuple[str, timedelta]) -> Step:
    """The platform stops the instance itself, as a caller would."""
    reason, lasting = why
    moved = move_instance(
        context, snapshot.instance, InstanceTrigger.STOP, ACTION, stop_requested_at=context.now, health_detail=reason
    )
    made = system_operation(context, snapshot, K.DECOMMISSION, (reason, Phase.ADAPTER), lasting)
    return together(moved.result, moved, new_operation(snapshot.instance, made, ACTION))


def _removed(
    context: DecisionContext,
    snapshot: InstanceSnapshot,
    members: list[MemberSnapshot],
    how: tuple[str, Phase],
    lasting: timedelta,
) -> Step:
    """An operation for each of the members; so many fewer are wanted from now on."""
    instance = snapshot.instance
    topology = dict(instance.topology)
    parts: list[Decision[Any]] = []
    for each in members:
        key = each.member.component_key
        topology[key] = max(snapshot.minimum.get(key, 0), topology.get(key, 0) - 1)
        operation = system_operation(context, snapshot, K.REMOVE, how, lasting, members=[each])
        parts += [new_operation(instance, operation, ACTION), _leaving(context, snapshot, each.member, operation)]
    return together(instance, change_instance(instance, ACTION, topology=topology), *parts)


def _leaving(
    context: DecisionContext, snapshot: InstanceSnapshot, member: Member, operation: Operation
) -> Decision[Member]:
    """A member that works is asked to finish; one that does not is only told of its operation."""
    slug, columns = snapshot.instance.app_slug, {"last_operation_id": operation.id}
    if operation.phase == Phase.ADAPTER and member.status in (MemberState.READY, MemberState.DEGRADED):
        return move_member(context, slug, member, MemberTrigger.DRAIN, (ACTION, columns))
    return change_member(slug, member, ACTION, **columns)


def _busy(snapshot: InstanceSnapshot, member_ids: list[str]) -> Operation | None:
    """An operation of members that is asked to end before these can be removed; one that brings others too is not."""
    going = set(member_ids)
    for each in snapshot.operations:
        concerned = set(each.member_ids)
        if not _is_of_members(each) or each.kind in TEARDOWN_KINDS or not concerned & going:
            continue
        if each.status != OperationState.CANCELLING and (each.kind != K.ADD or concerned <= going):
            return each
    return None


def _is_of_members(operation: Operation) -> bool:
    return operation.kind in (K.ADD, K.DRAIN, K.REMOVE, K.REPLACE)


def _is_leaving(each: MemberSnapshot) -> bool:
    """Whether its allocation is given back although the machine is there."""
    if each.allocation is None or each.member.status == MemberState.REMOVING:
        return False
    return each.allocation.status in _GIVEN_BACK and not (each.node is not None and each.node.is_gone)


def _is_failed(each: MemberSnapshot) -> bool:
    return each.member.status == MemberState.FAILED


def _left(snapshot: InstanceSnapshot, key: str, beside: set[str]) -> int:
    """How many members of a component do their part, or are on the way to it."""
    return sum(
        1
        for each in snapshot.members
        if each.member.component_key == key and each.member.status in LIVE and each.member.id not in beside
    )
