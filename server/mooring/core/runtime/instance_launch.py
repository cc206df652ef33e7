"""Launching an app that passed evaluation: the instance, its members, their allocations and the operation.

One decision makes all of it true, or none: the instance, a hold on each pinned digest, the allocations that it needs
and does not have yet, a member row bound to each allocation, and the operation that deploys it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact_hold import take_holds
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.catalog.manifest import Manifest
from mooring.core.fleet.allocation import Allocation, AllocationContext, AllocationState, request_allocations
from mooring.core.fleet.allocation_group import AllocationGroupRequest, create_group, require_room
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.form_schema import hidden_places
from mooring.core.kernel.ids import Prefix
from mooring.core.pricing.spending import guard_of
from mooring.core.runtime.instance import INSTANCE, Instance, VersionPin
from mooring.core.runtime.instance_transitions import new_instance, new_member, new_operation, together
from mooring.core.runtime.launch import (
    Evaluation,
    allocation_request,
    evaluate,
    require,
    shares_node,
)
from mooring.core.runtime.launch_snapshot import LaunchSnapshot
from mooring.core.runtime.member import MEMBER, Member
from mooring.core.runtime.operation import OPERATION, Operation, OperationKind
from mooring.core.runtime.topology import MemberSlot, member_slots


@dataclass(frozen=True, slots=True)
class OperationBounds:
    """Default time limits of operations."""

    deploy_seconds: int = 1_800
    operation_seconds: int = 3_600


@dataclass(frozen=True, slots=True)
class LaunchedInstance:
    """An instance with its members and the operation that creates or changes them."""

    instance: Instance
    members: tuple[Member, ...]
    operation: Operation


def create_instance(
    context: DecisionContext, launch: LaunchSnapshot, bounds: OperationBounds
) -> Decision[LaunchedInstance]:
    """Create the instance and everything that belongs to it, or raise the first refusal of its evaluation."""
    evaluation = evaluate(launch)
    require(evaluation)
    version, manifest, account = launch.version, launch.manifest, launch.account
    if version is None or manifest is None or account is None:
        raise ValueError("an evaluation without refusals must have a version and an account")
    pin = pin_of_version(version, manifest)
    instance = Instance(
        id=context.mint(Prefix.INSTANCE),
        tenant_id=launch.tenant_id,
        project_id=launch.project_id,
        name=launch.request.name,
        app_id=launch.app.id,
        app_slug=launch.app.slug,
        app_category=launch.app.category,
        version_id=version.id,
        version=version.version,
        channel=None if launch.request.version is not None else (launch.request.channel or "stable"),
        pin=pin.plain(),
        config=dict(launch.request.config),
        secrets=dict(launch.request.secrets),
        config_hidden=list(hidden_places(launch.request.config, manifest.config_schema or {})),
        topology=dict(evaluation.topology),
        placement=launch.request.placement.plain(),
        operating_mode=launch.request.operating_mode,
        control_plane_scope=launch.request.control_plane_scope,
        runtime_backend=manifest.runtime_backend,
        service_account_id=account.id,
        requested_by=context.actor.id,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        status=INSTANCE.initial.value,
        generation=0,
        revision=0,
        created_at=context.now,
        bound_capacity_shape=None if evaluation.shape is None else evaluation.shape.value,
        topology_mode=launch.request.topology_mode,
    )
    holds = [Hold(digest, "instance", instance.id, version.id) for digest in sorted(set(pin.artifacts.values()))]
    assigned = assign_allocations(
        context, launch, evaluation, instance=instance, slots=member_slots(evaluation.topology)
    )
    request = {
        "topology": dict(evaluation.topology),
        "version": version.version,
        "version_id": version.id,
        "shape": instance.bound_capacity_shape,
    }
    operation = build_operation(context, instance, OperationKind.DEPLOY, request, bounds.deploy_seconds)
    operation = dispatched(
        context, launch, replace(operation, member_ids=[each.id for each in assigned.members]), assigned
    )
    members = tuple(replace(each, last_operation_id=operation.id) for each in assigned.members)
    # The request for capacity brings the guard of spending; without one, the count of instances needs it as well.
    counted: Decision[None] = Decision(None)
    if launch.spending is not None and not evaluation.is_new_capacity:
        counted = Decision(None, (guard_of(launch.spending),))
    return together(
        LaunchedInstance(instance, members, operation),
        counted,
        new_instance(instance),
        take_holds(context, holds, tenant_id=instance.tenant_id, project_id=instance.project_id),
        assigned.capacity_request,
        member_rows(instance, members),
        new_operation(instance, operation, "instance.create"),
    )


@dataclass(frozen=True, slots=True)
class AssignedMembers:
    """Members with their allocations, and the decision that requests the allocations that do not exist yet."""

    members: tuple[Member, ...]
    allocations: tuple[Allocation, ...]
    capacity_request: Decision[Any]


def assign_allocations(
    context: DecisionContext,
    launch: LaunchSnapshot,
    evaluation: Evaluation,
    *,
    instance: Instance,
    slots: Sequence[MemberSlot],
) -> AssignedMembers:
    """A new member for each slot, in its own new allocation or in the named ones in turn."""
    capacity_request: Decision[Any] = Decision(None)
    if evaluation.is_new_capacity:
        capacity_request = request_capacity(context, launch, evaluation, len(slots))
        allocations: tuple[Allocation, ...] = capacity_request.result
    else:
        allocations = tuple(launch.target_allocations[each].allocation for each in launch.request.placement.allocations)
    shares = launch.manifest is not None and launch.manifest.compatibility.shares_allocation
    members = tuple(
        Member(
            id=context.mint(Prefix.MEMBER),
            tenant_id=instance.tenant_id,
            project_id=instance.project_id,
            instance_id=instance.id,
            component_key=component,
            ordinal=ordinal,
            name=f"{instance.name}-{component}-{ordinal}",
            version_id=instance.version_id,
            version=instance.version,
            correlation_id=context.correlation_id,
            trace_id=context.trace_id,
            status=MEMBER.initial.value,
            generation=0,
            revision=0,
            created_at=context.now,
            allocation_id=allocations[number % len(allocations)].id,
            owns_allocation=evaluation.is_new_capacity,
            keep_allocation=evaluation.is_new_capacity and launch.request.placement.keep_allocations,
            shares=shares,
        )
        for number, (component, ordinal) in enumerate(slots)
    )
    return AssignedMembers(members, allocations, capacity_request)


def request_capacity(
    context: DecisionContext, launch: LaunchSnapshot, evaluation: Evaluation, count: int
) -> Decision[tuple[Allocation, ...]]:
    """Request one allocation per member; slices of one instance share a machine, where their network ends."""
    if launch.terms is None:
        raise ValueError("new capacity needs a SKU")
    allocation_context = AllocationContext(
        launch.tenant_id,
        launch.project_id,
        launch.terms,
        launch.chain,
        launch.holding,
        launch.place_seconds,
        launch.spending,
    )
    request, group = allocation_request(launch, launch.terms, evaluation.gpu_count), launch.group
    names: list[str | None] = [None] * count
    if group is not None and request.shape is CapacityShape.GPU_SLICE:
        require_room(group.group, request.shape, group.allocations)
        return request_allocations(context, allocation_context, request, names, group.group.id)
    if not launch.is_new or not shares_node(launch, request.shape):
        return request_allocations(context, allocation_context, request, names, None)
    name = f"grp-{context.mint(Prefix.ALLOCATION_GROUP)[-12:]}"
    grouped = create_group(context, allocation_context, AllocationGroupRequest(name, count, True, request))
    return Decision(grouped.result.allocations, grouped.writes, grouped.events, grouped.audits)


def member_rows(instance: Instance, members: Sequence[Member]) -> Decision[None]:
    """The rows of new members, without audit rows: their operation has one."""
    rows = together(None, *(new_member(instance, each) for each in members))
    return replace(rows, audits=())


def build_operation(
    context: DecisionContext, instance: Instance, kind: OperationKind, request: Mapping[str, Any], seconds: float
) -> Operation:
    """A new operation whose deadline is so many seconds from now."""
    return Operation(
        id=context.mint(Prefix.OPERATION),
        tenant_id=instance.tenant_id,
        project_id=instance.project_id,
        instance_id=instance.id,
        kind=kind.value,
        request=dict(request),
        deadline_at=context.now + timedelta(seconds=seconds),
        requested_by=context.actor.id,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        status=OPERATION.initial.value,
        generation=0,
        revision=0,
        created_at=context.now,
    )


def dispatched(
    context: DecisionContext, launch: LaunchSnapshot, operation: Operation, assigned: AssignedMembers
) -> Operation:
    """Offer the operation to adapters at once if every allocation is active; otherwise the worker does it later."""
    if all(each.status == AllocationState.ACTIVE for each in assigned.allocations):
        return replace(operation, dispatched_at=context.now)
    return replace(operation, deadline_at=operation.deadline_at + timedelta(seconds=launch.place_seconds))


def pin_of_version(version: AppVersion, manifest: Manifest) -> VersionPin:
    """Pin the version by its current digests."""
    return VersionPin(version.id, version.version, version.manifest_digest, dict(manifest.artifacts))
