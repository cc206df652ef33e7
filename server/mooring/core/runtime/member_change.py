"""What callers ask of members: add, drain, resume, remove, replace.

Each member has at most one open operation. Draining asks a member to finish its work and accept no more; the caller
then holds the member, and lifting one's own hold leaves the holds of others. Removing members never leaves a component
below its manifest's minimum: then the instance should be stopped instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from mooring.core.catalog.manifest import Component, Drain, Manifest
from mooring.core.catalog.manifest_schema import DRAIN_SECONDS_MAX
from mooring.core.kernel import validation
from mooring.core.kernel.decision import Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.lifecycle import IllegalTransition
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_change import (
    InstanceContext,
    in_progress,
    require_no_member_operation,
    require_running,
    require_trusted,
)
from mooring.core.runtime.instance_launch import (
    AssignedMembers,
    LaunchedInstance,
    OperationBounds,
    assign_allocations,
    build_operation,
    dispatched,
    member_rows,
)
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_member,
    move_member,
    move_operation,
    new_operation,
    together,
)
from mooring.core.runtime.launch import STANDS, evaluate, require
from mooring.core.runtime.launch_snapshot import LaunchSnapshot
from mooring.core.runtime.member import MEMBER, Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import Operation, OperationKind, OperationState, OperationTrigger, Phase
from mooring.core.runtime.topology import (
    AT_ONCE_MAX,
    GOING,
    MEMBERS_MAX,
    MemberSlot,
    component_of,
    count_staying,
    free_ordinals,
)

HOLDS_MAX: Final = 16
REPORT_GRACE: Final = timedelta(seconds=15)
"""After the time limit of a drain the adapter gets this long to report what blocked it."""


@dataclass(frozen=True, slots=True)
class AddMembersRequest:
    """How many members to add to a component."""

    component: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class RemoveMemberRequest:
    """How to remove a member."""

    timeout_seconds: int | None = None  # for its work to finish; None: the app's default
    force: bool = False  # tear it down at once without the adapter
    keep_allocation: bool | None = None


@dataclass(frozen=True, slots=True)
class ReplaceMemberRequest:
    """How to replace a member by a new one."""

    surge: bool | None = None  # the new one joins before the old one leaves; None: if the maximum allows it
    timeout_seconds: int | None = None


def add_members(
    context: DecisionContext,
    current: InstanceContext,
    launch: LaunchSnapshot,
    request: AddMembersRequest,
    bounds: OperationBounds,
) -> Decision[LaunchedInstance]:
    """Add members, each in an allocation; `launch` is evaluated as it would be for a launch."""
    instance = current.instance
    require_running(instance, "add")
    _require_not_stopping(current)
    component = _component(current.manifest, request.component)
    if not 1 <= request.count <= AT_ONCE_MAX:
        raise validation.invalid("count", f"1 to {AT_ONCE_MAX}")
    wanted = count_staying(current.members, component.key) + request.count
    if wanted > component.max_count:
        raise Refusal(
            Code.LIMIT_REACHED,
            f"the app allows at most {component.max_count} members of {component.key}; there would be {wanted}",
            {"limit": component.max_count, "component": component.key},
        )
    if len(current.members) + request.count > MEMBERS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"an instance has at most {MEMBERS_MAX} members", {"limit": MEMBERS_MAX})
    evaluation = evaluate(launch)
    require(evaluation)
    slots = [MemberSlot(component.key, each) for each in free_ordinals(current.members, component.key, request.count)]
    assigned = assign_allocations(context, launch, evaluation, instance=instance, slots=slots)
    operation_request = {"component": component.key, "count": request.count}
    row = build_operation(context, instance, OperationKind.ADD, operation_request, bounds.deploy_seconds)
    operation = dispatched(context, launch, replace(row, member_ids=[each.id for each in assigned.members]), assigned)
    members = tuple(replace(each, last_operation_id=operation.id) for each in assigned.members)
    topology = {**instance.topology, component.key: wanted}
    changed = change_instance(instance, "member.add", topology=topology)
    return together(
        LaunchedInstance(changed.result, members, operation),
        changed,
        assigned.capacity_request,
        member_rows(instance, members),
        new_operation(instance, operation, "member.add"),
    )


def drain_member(
    context: DecisionContext,
    current: InstanceContext,
    member: Member,
    *,
    timeout_seconds: int | None,
    reason: str,
    request: Mapping[str, Any] = MappingProxyType({}),
) -> Decision[Operation]:
    """Ask a member to finish its work and accept no more; `timeout_seconds` None means the app's default.

    A member whose drain timed out is still draining, and can be asked again.
    """
    instance = current.instance
    require_running(instance, "drain")
    timeout_seconds = _drain_seconds(current, timeout_seconds)
    require_no_member_operation(current.operations, [member.id])
    if len(member.holds) >= HOLDS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a member has at most {HOLDS_MAX} holds", {"limit": HOLDS_MAX})
    hold = {
        "owner": context.actor.id,
        "reason": validation.remark(reason, "reason"),
        "since": context.now.isoformat(),
    }
    holds = [*(each for each in member.holds if each.get("owner") != context.actor.id), hold]
    until = context.now + timedelta(seconds=timeout_seconds)
    operation = replace(
        build_operation(
            context, instance, OperationKind.DRAIN, {**request, "timeout_seconds": timeout_seconds}, timeout_seconds
        ),
        member_ids=[member.id],
        dispatched_at=context.now,
        phase_deadline_at=until,
        deadline_at=until + REPORT_GRACE,
    )
    columns = {"holds": holds, "last_operation_id": operation.id}
    if member.status == MemberState.DRAINING:
        changed = change_member(instance.app_slug, member, "member.drain", **columns)
        return together(operation, changed, new_operation(instance, operation, "member.drain"))
    moved = move_member(context, instance.app_slug, member, MemberTrigger.DRAIN, "member.drain", **columns)
    return together(operation, moved, new_operation(instance, operation, "member.drain"))


def resume_member(context: DecisionContext, current: InstanceContext, member: Member) -> Decision[Member]:
    """Put it back to work: lifts the caller's own hold and those of other users; an adapter's hold stays until the
    adapter drops it.
    """
    instance = current.instance
    require_running(instance, "resume")
    require_trusted(current, "resume")
    state = MemberState(member.status)
    if MemberTrigger.RESUME not in MEMBER.allowed(state):
        raise IllegalTransition("member", state, MemberTrigger.RESUME, MEMBER.allowed(state))
    remaining = [each for each in member.holds if not _may_lift(context, str(each.get("owner", "")))]
    if remaining:
        owners = sorted({str(each["owner"]) for each in remaining})
        raise Refusal(Code.CONFLICT, f"{', '.join(owners)} still holds the member", {"holds": remaining})
    operations = [each for each in current.operations if member.id in each.member_ids and each.kind in _REMOVING_KINDS]
    for each in operations:
        if each.kind != OperationKind.DRAIN:
            raise in_progress(each)
    moved = move_member(context, instance.app_slug, member, MemberTrigger.RESUME, "member.drain", holds=[])
    reason = {"cancel_reason": "the member was put back to work"}
    cancelled = [
        move_operation(context, instance.app_slug, each, OperationTrigger.CANCEL, "operation.cancel", **reason)
        for each in operations
        if each.status != OperationState.CANCELLING
    ]
    return together(moved.result, moved, *cancelled)


def remove_member(
    context: DecisionContext,
    current: InstanceContext,
    member: Member,
    request: RemoveMemberRequest,
    bounds: OperationBounds,
) -> Decision[Operation]:
    """Remove a member: its work may finish within a time limit, then it is torn down and verified."""
    instance = current.instance
    require_running(instance, "remove")
    _require_not_stopping(current)
    timeout_seconds = _drain_seconds(current, request.timeout_seconds)
    require_no_member_operation(current.operations, [member.id])
    if member.status in GOING:
        state = MemberState(member.status)
        raise IllegalTransition("member", state, MemberTrigger.REMOVE, MEMBER.allowed(state))
    lowered = _lowered(current, member)
    operation_request: dict[str, Any] = {"timeout_seconds": timeout_seconds, "force": request.force}
    graceful = 0 if request.force else timeout_seconds + current.graceful_seconds
    operation = replace(
        build_operation(
            context, instance, OperationKind.REMOVE, operation_request, bounds.operation_seconds + graceful
        ),
        member_ids=[member.id],
        dispatched_at=context.now,
        phase=Phase.PLATFORM.value if request.force else Phase.ADAPTER.value,
        phase_deadline_at=context.now + timedelta(seconds=graceful),
    )
    keep = member.keep_allocation if request.keep_allocation is None else request.keep_allocation
    return together(
        operation,
        _leaving(context, instance, member, {"keep_allocation": keep, "last_operation_id": operation.id}),
        change_instance(instance, "member.remove", topology=lowered),
        new_operation(instance, operation, "member.remove"),
    )


def replace_member(
    context: DecisionContext,
    current: InstanceContext,
    launch: LaunchSnapshot,
    bounds: OperationBounds,
    *,
    member: Member,
    request: ReplaceMemberRequest,
) -> Decision[LaunchedInstance]:
    """Replace it by a new member; without a surge the new one takes over the allocation if that is still usable."""
    instance = current.instance
    require_running(instance, "replace")
    _require_not_stopping(current)
    timeout_seconds = _drain_seconds(current, request.timeout_seconds)
    require_no_member_operation(current.operations, [member.id])
    if member.status in GOING:
        state = MemberState(member.status)
        raise IllegalTransition("member", state, MemberTrigger.REMOVE, MEMBER.allowed(state))
    component = _component(current.manifest, member.component_key)
    surge = surges(current, member, request)
    if surge and not _has_room(current, component):
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"the app allows at most {component.max_count} members of {component.key}, so a surge is impossible",
            {"instead": "replace it without a surge"},
        )
    evaluation = evaluate(launch)
    require(evaluation)
    ordinal = free_ordinals(current.members, component.key, 1)[0]
    assigned = assign_allocations(
        context, launch, evaluation, instance=instance, slots=[MemberSlot(component.key, ordinal)]
    )
    takes_over = any(each.id == member.allocation_id for each in assigned.allocations)
    new = replace(assigned.members[0], replaces_id=member.id)
    if takes_over:
        new = replace(new, owns_allocation=member.owns_allocation, keep_allocation=member.keep_allocation)
    seconds = timeout_seconds + current.graceful_seconds
    operation_request = {"surge": surge, "timeout_seconds": timeout_seconds, "old": member.id, "new": new.id}
    row = build_operation(
        context, instance, OperationKind.REPLACE, operation_request, bounds.deploy_seconds + bounds.operation_seconds
    )
    row = replace(
        row,
        member_ids=[member.id, new.id],
        phase_deadline_at=context.now + timedelta(seconds=seconds + bounds.deploy_seconds),
    )
    operation = dispatched(
        context, launch, row, AssignedMembers((new,), assigned.allocations, assigned.capacity_request)
    )
    new = replace(new, last_operation_id=operation.id)
    columns: dict[str, Any] = {"last_operation_id": operation.id}
    if takes_over:
        columns |= {"owns_allocation": False}
    leaving = (
        change_member(instance.app_slug, member, "member.replace", **columns)
        if surge
        else _leaving(context, instance, member, columns)
    )
    return together(
        LaunchedInstance(instance, (member, new), operation),
        assigned.capacity_request,
        leaving,
        member_rows(instance, [new]),
        new_operation(instance, operation, "member.replace"),
    )


def surges(current: InstanceContext, member: Member, request: ReplaceMemberRequest) -> bool:
    """Whether the new member joins before the old one leaves."""
    if request.surge is not None:
        return request.surge
    return _has_room(current, _component(current.manifest, member.component_key))


def _has_room(current: InstanceContext, component: Component) -> bool:
    return count_staying(current.members, component.key) < component.max_count


def takes_over(current: InstanceContext, member: Member, status: str | None, request: ReplaceMemberRequest) -> bool:
    """Whether the new member gets the old one's allocation, which has this status."""
    if surges(current, member, request):
        return False
    return member.allocation_id is not None and status in {each.value for each in STANDS}


def _leaving(context: DecisionContext, instance: Instance, member: Member, columns: dict[str, Any]) -> Decision[Member]:
    """Drain a member that works; otherwise only record the operation on it."""
    if member.status in (MemberState.READY, MemberState.DEGRADED):
        return move_member(context, instance.app_slug, member, MemberTrigger.DRAIN, "member.remove", **columns)
    return change_member(instance.app_slug, member, "member.remove", **columns)


def _lowered(current: InstanceContext, member: Member) -> dict[str, int]:
    """The topology with one member less, refused below the minimum; a failed member does not count towards it."""
    key, topology = member.component_key, dict(current.instance.topology)
    component = _component(current.manifest, key)
    after = count_staying(current.members, key) - 1
    if after < component.min_count and member.status != MemberState.FAILED:
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"the app needs at least {component.min_count} members of {key}, and {after} would be left",
            {"instead": "replace the member, or stop the instance", "min_count": component.min_count, "component": key},
        )
    topology[key] = max(component.min_count, after)
    return topology


def _component(manifest: Manifest | None, key: str) -> Component:
    found = None if manifest is None else component_of(manifest, key)
    if found is None:
        raise validation.invalid("component", f"the app has no component {key}")
    return found


def _require_not_stopping(current: InstanceContext) -> None:
    for each in current.operations:
        if each.kind == OperationKind.DECOMMISSION:
            raise in_progress(each)


def _drain_seconds(current: InstanceContext, requested: int | None) -> int:
    """How long a member's work may take: as requested, or the app's default, which its config may set."""
    drain = Drain() if current.lifecycle is None else current.lifecycle.drain
    configured = None if drain.from_config is None else current.instance.config.get(drain.from_config)
    default = configured if isinstance(configured, int) and 0 <= configured <= DRAIN_SECONDS_MAX else drain.seconds
    seconds = default if requested is None else requested
    if not 0 <= seconds <= DRAIN_SECONDS_MAX:
        raise validation.invalid("timeout_seconds", f"0 to {DRAIN_SECONDS_MAX}")
    return seconds


def _may_lift(context: DecisionContext, owner: str) -> bool:
    """Whether the caller may lift a hold of this owner: their own, or any user's if the caller is a user."""
    return owner == context.actor.id or (context.actor.kind is PrincipalKind.USER and owner.startswith("usr_"))


_REMOVING_KINDS: Final = frozenset({OperationKind.DRAIN, OperationKind.REMOVE, OperationKind.REPLACE})
