"""Views of instances, members and operations, with what the caller may do to them now."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from mooring.api.schemas.runtime.instance import (
    ClaimView,
    ClosingRecordView,
    DistrustView,
    HealthState,
    InstanceEndpointView,
    InstanceView,
    MemberHoldView,
    MemberView,
    OpenOperationView,
    OperationStepView,
    OperationView,
    PinView,
    RoleSummaryView,
)
from mooring.core.catalog.operating_mode import ControlPlaneScope, OperatingMode
from mooring.core.identity.caller import Caller
from mooring.core.kernel.form_schema import without_hidden
from mooring.core.kernel.permissions import Authority, Place, Scope, holds_family
from mooring.core.runtime.app_action import may_act
from mooring.core.runtime.closing_record import ClosingKind
from mooring.core.runtime.instance import Instance, InstanceHealth, InstanceState
from mooring.core.runtime.instance_change import rollback_target
from mooring.core.runtime.instance_trust import Distrust, distrust_of
from mooring.core.runtime.member import MEMBER, Member, MemberState, MemberTrigger
from mooring.core.runtime.next_steps import needs_attention
from mooring.core.runtime.operation import WHOLE_KINDS, Operation, OperationKind, OperationState, Phase
from mooring.core.runtime.topology import GOING
from mooring.storage.runtime.instance import ClaimHolder, MemberBinding, MemberClosing

HIDDEN_INPUT: Final = ("/input",)
UNCANCELLED: Final = frozenset({OperationKind.DECOMMISSION, OperationKind.DETACH})
"""Operations that cannot be cancelled."""
STOPPABLE: Final = frozenset(
    {InstanceState.CREATED, InstanceState.STARTING, InstanceState.RUNNING, InstanceState.FAILED}
)
RUNNING_VERBS: Final = ("add", "reconcile", "repair", "restart", "update", "upgrade")
ACTION_OF_VERB: Final = {
    "stop": "instance.delete", "upgrade": "instance.update", "rollback": "instance.update",
    "reconcile": "instance.update", "repair": "instance.update", "restart": "instance.update",
    "update": "instance.update", "add": "member.add",
    "drain": "member.drain", "resume": "member.drain", "remove": "member.remove", "replace": "member.replace",
    "cancel": "operation.cancel", "connect": "instance.connect",
    "exec": "instance.exec",
}  # fmt: skip
MEMBER_VERBS: Final = {
    "drain": MemberTrigger.DRAIN, "resume": MemberTrigger.RESUME, "remove": MemberTrigger.REMOVE,
    "replace": MemberTrigger.REMOVE,
}  # fmt: skip
RUNS_COMMANDS: Final = frozenset(
    {MemberState.JOINING, MemberState.READY, MemberState.DEGRADED, MemberState.DRAINING, MemberState.DRAINED}
)


@dataclass(frozen=True, slots=True)
class InstanceSurroundings:
    """What a view of an instance shows besides its own row."""

    members: Sequence[Member] = ()
    operations: Sequence[Operation] = ()
    claim: ClaimHolder | None = None
    now: datetime | None = None


def instance_view(authority: Authority, instance: Instance, around: InstanceSurroundings) -> InstanceView:
    verbs = _instance_verbs(instance, around.members)
    return InstanceView(
        id=instance.id,
        tenant_id=instance.tenant_id,
        project_id=instance.project_id,
        name=instance.name,
        app_id=instance.app_id,
        app=instance.app_slug,
        app_category=instance.app_category,
        version_id=instance.version_id,
        version=instance.version,
        channel=instance.channel,
        pin=msgspec.convert(instance.pin, PinView),
        previous_pin=None if instance.previous_pin is None else msgspec.convert(instance.previous_pin, PinView),
        config=without_hidden(instance.config, instance.config_hidden),
        topology=instance.topology,
        placement=instance.placement,
        operating_mode=OperatingMode(instance.operating_mode),
        control_plane_scope=ControlPlaneScope(instance.control_plane_scope),
        runtime_backend=instance.runtime_backend,
        bound_capacity_shape=instance.bound_capacity_shape,
        topology_mode=instance.topology_mode,
        secrets=instance.secrets,
        service_account_id=instance.service_account_id,
        status=InstanceState(instance.status),
        health=_health(instance.health),
        health_detail=instance.health_detail,
        health_at=instance.health_at,
        members_summary=_summary(instance, around.members),
        endpoints=msgspec.convert(instance.endpoints, list[InstanceEndpointView]),
        adapter_detail=instance.adapter_detail,
        operation=_open_operation(around.operations),
        claim=_claim(around),
        failure_code=instance.failure_code,
        failure_detail=instance.failure_detail,
        last_lines=list(instance.last_lines or ()),
        teardown_proof=instance.teardown_proof,
        distrust=None if instance.distrust is None else msgspec.convert(instance.distrust, DistrustView),
        needs_attention=needs_attention(instance, around.operations),
        requested_by=instance.requested_by,
        correlation_id=instance.correlation_id,
        trace_id=instance.trace_id,
        created_at=instance.created_at,
        failed_at=instance.failed_at,
        stop_requested_at=instance.stop_requested_at,
        stopped_at=instance.stopped_at,
        revision=instance.revision,
        etag=_etag(instance, *around.members, *around.operations),
        allowed_verbs=verbs,
        allowed_actions=_allowed(authority, instance.project_id, verbs, instance.app_category),
    )


def member_view(
    authority: Authority, member: Member, binding: MemberBinding | None, distrust: Distrust | None = None
) -> MemberView:
    """A member; of its machine the caller sees the id and whether it answers."""
    allowed = MEMBER.allowed(MemberState(member.status))
    repeated_drain = (
        {"drain"} if member.status == MemberState.DRAINING else set()
    )  # an earlier drain may have timed out
    possible = {verb for verb, trigger in MEMBER_VERBS.items() if trigger in allowed} | repeated_drain
    runs_commands = {"exec"} if member.allocation_id is not None and member.status in RUNS_COMMANDS else set()
    verbs = sorted({verb for verb in possible if distrust is None or not distrust.refuses(verb)} | runs_commands)
    return MemberView(
        id=member.id,
        tenant_id=member.tenant_id,
        project_id=member.project_id,
        instance_id=member.instance_id,
        component_key=member.component_key,
        ordinal=member.ordinal,
        name=member.name,
        version_id=member.version_id,
        version=member.version,
        status=MemberState(member.status),
        allocation_id=member.allocation_id,
        node_id=None if binding is None else binding.node_id,
        node_reachable=None if binding is None else binding.reachable,
        owns_allocation=member.owns_allocation,
        keep_allocation=member.keep_allocation,
        health=_health(member.health),
        health_detail=member.health_detail,
        health_at=member.health_at,
        adapter_detail=member.adapter_detail,
        holds=msgspec.convert(member.holds, list[MemberHoldView]),
        replaces_id=member.replaces_id,
        last_operation_id=member.last_operation_id,
        blocker=member.blocker,
        failure_code=member.failure_code,
        failure_detail=member.failure_detail,
        last_lines=list(member.last_lines or ()),
        teardown_attempts=member.teardown_attempts,
        correlation_id=member.correlation_id,
        trace_id=member.trace_id,
        created_at=member.created_at,
        failed_at=member.failed_at,
        retry_at=member.retry_at,
        removed_at=member.removed_at,
        revision=member.revision,
        etag=_etag(member),
        allowed_verbs=verbs,
        allowed_actions=_allowed(authority, member.project_id, verbs, ""),
    )


def operation_view(caller: Caller, operation: Operation) -> OperationView:
    """An operation; only callers who may run the action see its input and output."""
    authority = caller.authority
    shown = _is_shown(caller, operation)
    verbs = ["cancel"] if not operation.is_over and operation.kind not in UNCANCELLED else []
    if operation.status == OperationState.CANCELLING:
        verbs = []
    return OperationView(
        id=operation.id,
        tenant_id=operation.tenant_id,
        project_id=operation.project_id,
        instance_id=operation.instance_id,
        kind=OperationKind(operation.kind),
        status=OperationState(operation.status),
        phase=Phase(operation.phase),
        member_ids=operation.member_ids,
        request=without_hidden(operation.request, operation.request.get("hidden", ()) if shown else HIDDEN_INPUT),
        target_version=None if operation.target_pin is None else str(operation.target_pin["version"]),
        steps=[_step(each) for each in operation.steps],
        progress=operation.progress,
        attempts=operation.attempts,
        blocker=operation.blocker,
        blocker_code=operation.blocker_code,
        cancel_reason=operation.cancel_reason,
        output=operation.output if shown else None,
        evidence=operation.evidence,
        failure_code=operation.failure_code,
        failure_detail=operation.failure_detail,
        last_lines=list(operation.last_lines or ()),
        read_only=operation.read_only,
        requested_by=operation.requested_by,
        correlation_id=operation.correlation_id,
        trace_id=operation.trace_id,
        created_at=operation.created_at,
        deadline_at=operation.deadline_at,
        phase_deadline_at=operation.phase_deadline_at,
        dispatched_at=operation.dispatched_at,
        started_at=operation.started_at,
        finished_at=operation.finished_at,
        revision=operation.revision,
        etag=_etag(operation),
        allowed_verbs=verbs,
        allowed_actions=_allowed(authority, operation.project_id, verbs, ""),
    )


def closing_record_view(record: MemberClosing) -> ClosingRecordView:
    return ClosingRecordView(
        id=record.id,
        member_id=record.member_id,
        member_name=record.member_name,
        component_key=record.component_key,
        ordinal=record.ordinal,
        allocation_id=record.allocation_id,
        kind=ClosingKind(record.kind),
        receipt=record.receipt,
        node_id=record.node_id,
        reason=record.reason,
        may_be_left=record.may_be_left,
        created_at=record.created_at,
    )


def _health(text: str) -> HealthState:
    known: HealthState = msgspec.convert(text, HealthState)
    return known


def _summary(instance: Instance, members: Sequence[Member]) -> list[RoleSummaryView]:
    """Desired, current and healthy members of each component."""
    keys = list(dict.fromkeys([*instance.topology, *(each.component_key for each in members)]))
    current = {
        key: [each for each in members if each.component_key == key and each.status not in GOING] for key in keys
    }
    return [
        RoleSummaryView(
            component_key=key,
            desired=instance.topology.get(key, 0) if instance.status in STOPPABLE else 0,
            current=len(current[key]),
            healthy=sum(1 for each in current[key] if each.health == InstanceHealth.HEALTHY),
        )
        for key in keys
    ]


def _is_shown(caller: Caller, operation: Operation) -> bool:
    """Whether the caller may see the action's input and output."""
    permission = operation.request.get("permission")
    if operation.kind != OperationKind.ACTION or permission is None or operation.requested_by == caller.actor.id:
        return True
    if operation.attachment is not None:
        return False  # the attached project reads it through its attachment
    return may_act(caller.actor, caller.authority, Place(Scope.PROJECT, None, operation.project_id), str(permission))


def _open_operation(operations: Sequence[Operation]) -> OpenOperationView | None:
    whole = [each for each in operations if each.kind in WHOLE_KINDS or each.kind == OperationKind.DECOMMISSION]
    if not whole:
        return None
    last = whole[-1]
    return OpenOperationView(
        id=last.id,
        kind=OperationKind(last.kind),
        status=OperationState(last.status),
        phase=Phase(last.phase),
        blocker=last.blocker,
        blocker_code=last.blocker_code,
    )


def _claim(around: InstanceSurroundings) -> ClaimView:
    claim = around.claim
    if claim is None or (around.now is not None and claim.expires_at <= around.now):
        return ClaimView(held=False, holder=None, since=None)
    return ClaimView(held=True, holder=claim.holder, since=claim.since)


def _step(step: dict[str, Any]) -> OperationStepView:
    return msgspec.convert(
        {name: step[name] for name in OperationStepView.__struct_fields__ if name in step}, OperationStepView
    )


def _instance_verbs(instance: Instance, members: Sequence[Member]) -> list[str]:
    verbs = ["stop"] if instance.status in STOPPABLE else []
    if instance.status == InstanceState.RUNNING:
        verbs += [*RUNNING_VERBS, "connect"]
        if rollback_target(instance, members) is not None:
            verbs.append("rollback")
    distrust = distrust_of(instance.distrust)
    return sorted(verb for verb in verbs if distrust is None or not distrust.refuses(verb))


def _allowed(authority: Authority, project_id: str, verbs: Sequence[str], category: str) -> list[str]:
    """The keys behind these verbs that the caller holds here, for all apps or for this category."""
    place = Place(Scope.PROJECT, None, project_id)
    wanted = {ACTION_OF_VERB[verb] for verb in verbs}
    return sorted(key for key in wanted if holds_family(authority, place, key, category))


def _etag(*rows: Instance | Member | Operation) -> str:
    """A value that changes with each of the rows, and with their number."""
    first = rows[0]
    own = f"{first.generation}.{first.revision}"
    if len(rows) == 1:
        return own
    return f"{own}.{len(rows)}.{sum(each.generation + each.revision for each in rows[1:])}"
