"""What people ask of members: add, drain, resume, remove, replace.

One operation is open for each member. Draining asks a member to finish its work and take no more; whoever asks holds
it, and others' holds are not taken away with one's own. Taking members out never leaves a component with fewer than
its manifest needs: what is wanted then is to stop the instance.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
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
)
from mooring.core.runtime.instance_launch import (
    AssignedMembers,
    LaunchedInstance,
    OperationBounds,
    assign_allocations,
    dispatched,
    member_rows,
    new_row,
)
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_member,
    move_member,
    move_operation,
    new_operation,
    together,
)
from mooring.core.runtime.launch import STANDS, LaunchSnapshot, evaluate, require
from mooring.core.runtime.member import MEMBER, Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import Operation, OperationKind, OperationState, OperationTrigger, Phase
from mooring.core.runtime.topology import AT_ONCE_MAX, GOING, MEMBERS_MAX, component_of, free_ordinals, standing

HOLDS_MAX: Final = 16
TELLING: Final = timedelta(seconds=15)
"""When the time of a drain is over, its adapter still tells what held it up: the platform does not know."""


@dataclass(frozen=True, slots=True)
class AddMembersRequest:
    """So many members of a component."""

    component: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class RemoveMemberRequest:
    """How a member is taken out."""

    timeout_seconds: int | None = None  # for its work to finish; where none is told, as the app says
    force: bool = False  # do not ask the app: tear it down at once
    keep_allocation: bool | None = None


@dataclass(frozen=True, slots=True)
class ReplaceMemberRequest:
    """How a member is exchanged for a new one."""

    surge: bool | None = None  # the new one joins before the old one goes; where none is told, if there may be one more
    timeout_seconds: int | None = None


def add_members(
    context: DecisionContext,
    seen: InstanceContext,
    launch: LaunchSnapshot,
    wish: AddMembersRequest,
    bounds: OperationBounds,
) -> Decision[LaunchedInstance]:
    """New members, each bound to a place; `launch` is what they would be launched into."""
    instance = seen.instance
    require_running(instance, "add")
    _require_not_stopping(seen)
    component = _component(seen.manifest, wish.component)
    if not 1 <= wish.count <= AT_ONCE_MAX:
        raise validation.invalid("count", f"1 to {AT_ONCE_MAX}")
    wanted = standing(seen.members, component.key) + wish.count
    if wanted > component.max_count:
        raise Refusal(
            Code.LIMIT_REACHED,
            f"the app has at most {component.max_count} members of {component.key}; there would be {wanted}",
            {"limit": component.max_count, "component": component.key},
        )
    if len(seen.members) + wish.count > MEMBERS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"an instance has at most {MEMBERS_MAX} members", {"limit": MEMBERS_MAX})
    judged = evaluate(launch)
    require(judged)
    spots = [(component.key, each) for each in free_ordinals(seen.members, component.key, wish.count)]
    seated = assign_allocations(context, launch, judged, (instance, spots))
    request = {"component": component.key, "count": wish.count}
    row = new_row(context, instance, OperationKind.ADD, request, bounds.deploy_seconds)
    operation = dispatched(context, launch, replace(row, member_ids=[each.id for each in seated.members]), seated)
    members = tuple(replace(each, last_operation_id=operation.id) for each in seated.members)
    topology = {**instance.topology, component.key: wanted}
    changed = change_instance(instance, "member.add", topology=topology)
    return together(
        LaunchedInstance(changed.result, members, operation),
        changed,
        seated.asked,
        member_rows(instance, members),
        new_operation(instance, operation, "member.add"),
    )


def drain_member(
    context: DecisionContext,
    seen: InstanceContext,
    member: Member,
    asked: tuple[int | None, str],
    bounds: OperationBounds,
) -> Decision[Operation]:
    """Ask it to finish its work and take no more; `asked` is how long that may take, and why.

    One whose drain ran out of time is draining still, and is asked again.
    """
    instance, reason = seen.instance, asked[1]
    require_running(instance, "drain")
    timeout_seconds = _drain_seconds(seen, asked[0])
    require_no_member_operation(seen.operations, [member.id])
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
        new_row(context, instance, OperationKind.DRAIN, {"timeout_seconds": timeout_seconds}, timeout_seconds),
        member_ids=[member.id],
        dispatched_at=context.now,
        phase_deadline_at=until,
        deadline_at=until + TELLING,
    )
    columns = {"holds": holds, "last_operation_id": operation.id}
    if member.status == MemberState.DRAINING:
        asked_again = change_member(instance.app_slug, member, "member.drain", **columns)
        return together(operation, asked_again, new_operation(instance, operation, "member.drain"))
    moved = move_member(context, instance.app_slug, member, MemberTrigger.DRAIN, ("member.drain", columns))
    return together(operation, moved, new_operation(instance, operation, "member.drain"))


def resume_member(context: DecisionContext, seen: InstanceContext, member: Member) -> Decision[Member]:
    """Put it back to work: one's own hold goes, and that of other people; an adapter's stays until it lets go."""
    instance = seen.instance
    require_running(instance, "resume")
    state = MemberState(member.status)
    if MemberTrigger.RESUME not in MEMBER.allowed(state):
        raise IllegalTransition("member", state, MemberTrigger.RESUME, MEMBER.allowed(state))
    left = [each for each in member.holds if not _may_lift(context, str(each.get("owner", "")))]
    if left:
        owners = sorted({str(each["owner"]) for each in left})
        raise Refusal(Code.CONFLICT, f"{', '.join(owners)} still holds the member", {"holds": left})
    open_ = [each for each in seen.operations if member.id in each.member_ids and each.kind in _TAKING_OUT]
    for each in open_:
        if each.kind != OperationKind.DRAIN:
            raise in_progress(each)
    told: tuple[str, dict[str, Any]] = ("member.drain", {"holds": []})
    moved = move_member(context, instance.app_slug, member, MemberTrigger.RESUME, told)
    reason = {"cancel_reason": "the member is put back to work"}
    cancelled = [
        move_operation(context, instance.app_slug, each, OperationTrigger.CANCEL, ("operation.cancel", reason))
        for each in open_
        if each.status != OperationState.CANCELLING
    ]
    return together(moved.result, moved, *cancelled)


def remove_member(
    context: DecisionContext, seen: InstanceContext, member: Member, wish: RemoveMemberRequest, bounds: OperationBounds
) -> Decision[Operation]:
    """Take it out: its work finishes within a bound, then it is torn down, and looked for."""
    instance = seen.instance
    require_running(instance, "remove")
    _require_not_stopping(seen)
    timeout_seconds = _drain_seconds(seen, wish.timeout_seconds)
    require_no_member_operation(seen.operations, [member.id])
    if member.status in GOING:
        state = MemberState(member.status)
        raise IllegalTransition("member", state, MemberTrigger.REMOVE, MEMBER.allowed(state))
    lowered = _lowered(seen, member)
    request: dict[str, Any] = {"timeout_seconds": timeout_seconds, "force": wish.force}
    graceful = 0 if wish.force else timeout_seconds + seen.graceful_seconds
    operation = replace(
        new_row(context, instance, OperationKind.REMOVE, request, bounds.operation_seconds + graceful),
        member_ids=[member.id],
        dispatched_at=context.now,
        phase=Phase.PLATFORM.value if wish.force else Phase.ADAPTER.value,
        phase_deadline_at=context.now + timedelta(seconds=graceful),
    )
    keep = member.keep_allocation if wish.keep_allocation is None else wish.keep_allocation
    return together(
        operation,
        _leaving(context, instance, member, {"keep_allocation": keep, "last_operation_id": operation.id}),
        change_instance(instance, "member.remove", topology=lowered),
        new_operation(instance, operation, "member.remove"),
    )


def replace_member(
    context: DecisionContext,
    seen: InstanceContext,
    launch: LaunchSnapshot,
    what: tuple[Member, ReplaceMemberRequest],
    bounds: OperationBounds,
) -> Decision[LaunchedInstance]:
    """A new member in its place; without a surge it takes over the allocation, where that still stands."""
    member, wish = what
    instance = seen.instance
    require_running(instance, "replace")
    _require_not_stopping(seen)
    timeout_seconds = _drain_seconds(seen, wish.timeout_seconds)
    require_no_member_operation(seen.operations, [member.id])
    if member.status in GOING:
        state = MemberState(member.status)
        raise IllegalTransition("member", state, MemberTrigger.REMOVE, MEMBER.allowed(state))
    component = _component(seen.manifest, member.component_key)
    surge = surges(seen, member, wish)
    if surge and not _has_room(seen, component):
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"the app has at most {component.max_count} members of {component.key}, so none joins before one goes",
            {"instead": "replace it without a surge"},
        )
    judged = evaluate(launch)
    require(judged)
    seated = assign_allocations(
        context, launch, judged, (instance, [(component.key, free_ordinals(seen.members, component.key, 1)[0])])
    )
    takes_over = any(each.id == member.allocation_id for each in seated.allocations)
    new = replace(seated.members[0], replaces_id=member.id)
    if takes_over:
        new = replace(new, owns_allocation=member.owns_allocation, keep_allocation=member.keep_allocation)
    seconds = timeout_seconds + seen.graceful_seconds
    request = {"surge": surge, "timeout_seconds": timeout_seconds, "old": member.id, "new": new.id}
    row = new_row(context, instance, OperationKind.REPLACE, request, bounds.deploy_seconds + bounds.operation_seconds)
    row = replace(
        row,
        member_ids=[member.id, new.id],
        phase_deadline_at=context.now + timedelta(seconds=seconds + bounds.deploy_seconds),
    )
    operation = dispatched(context, launch, row, AssignedMembers((new,), seated.allocations, seated.asked))
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
        seated.asked,
        leaving,
        member_rows(instance, [new]),
        new_operation(instance, operation, "member.replace"),
    )


def surges(seen: InstanceContext, member: Member, request: ReplaceMemberRequest) -> bool:
    """Whether the new member joins before the old one goes."""
    if request.surge is not None:
        return request.surge
    return _has_room(seen, _component(seen.manifest, member.component_key))


def _has_room(seen: InstanceContext, component: Component) -> bool:
    return standing(seen.members, component.key) < component.max_count


def takes_over(seen: InstanceContext, member: Member, status: str | None, request: ReplaceMemberRequest) -> bool:
    """Whether the new member goes into the allocation of the old one, which is in this state."""
    if surges(seen, member, request):
        return False
    return member.allocation_id is not None and status in {each.value for each in STANDS}


def _leaving(context: DecisionContext, instance: Instance, member: Member, columns: dict[str, Any]) -> Decision[Member]:
    """A member that works is asked to finish; one that does not is only told of its operation."""
    if member.status in (MemberState.READY, MemberState.DEGRADED):
        return move_member(context, instance.app_slug, member, MemberTrigger.DRAIN, ("member.remove", columns))
    return change_member(instance.app_slug, member, "member.remove", **columns)


def _lowered(seen: InstanceContext, member: Member) -> dict[str, int]:
    """The topology with one member less, where that may be; one that failed does nothing for its component."""
    key, topology = member.component_key, dict(seen.instance.topology)
    component = _component(seen.manifest, key)
    after = standing(seen.members, key) - 1
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


def _require_not_stopping(seen: InstanceContext) -> None:
    for each in seen.operations:
        if each.kind == OperationKind.DECOMMISSION:
            raise in_progress(each)


def _drain_seconds(seen: InstanceContext, asked: int | None) -> int:
    """How long a member's work may take: as it was asked for, or as the app says, by its configuration where it can."""
    drain = Drain() if seen.lifecycle is None else seen.lifecycle.drain
    chosen = None if drain.from_config is None else seen.instance.config.get(drain.from_config)
    told = chosen if isinstance(chosen, int) and 0 <= chosen <= DRAIN_SECONDS_MAX else drain.seconds
    seconds = told if asked is None else asked
    if not 0 <= seconds <= DRAIN_SECONDS_MAX:
        raise validation.invalid("timeout_seconds", f"0 to {DRAIN_SECONDS_MAX}")
    return seconds


def _may_lift(context: DecisionContext, owner: str) -> bool:
    """Whether this caller may take the hold of that owner away."""
    return owner == context.actor.id or (context.actor.kind is PrincipalKind.USER and owner.startswith("usr_"))


_TAKING_OUT: Final = frozenset({OperationKind.DRAIN, OperationKind.REMOVE, OperationKind.REPLACE})
