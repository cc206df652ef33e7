"""What people ask of an instance that is there: stop, upgrade, roll back, reconcile, repair, restart, cancel.

Each is an operation. One of the whole is open at a time; a stop cancels whatever else is open, and is asked for as
often as one likes. An operation that changes the version has its target by digests from the beginning, and holds them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_hold import take_holds
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.catalog.artifact_trust import Trust
from mooring.core.catalog.manifest import Manifest, ManifestLifecycle
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.semver import read_range, read_version
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel import validation
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.instance import INSTANCE, Instance, InstanceState, InstanceTrigger, VersionPin, pin_of
from mooring.core.runtime.instance_launch import OperationBounds, new_row, pin_of_version
from mooring.core.runtime.instance_transitions import move_instance, move_operation, new_operation, together
from mooring.core.runtime.launch import LaunchSnapshot, evaluate, require
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.operation import WHOLE_KINDS, Operation, OperationKind, OperationState, OperationTrigger

GRACEFUL_SECONDS: Final = 60
REASON_LENGTH: Final = 500


class RepairScope(StrEnum):
    """How much is repaired."""

    WHOLE_RUNTIME = "whole_runtime"
    CONTROL_PLANE = "control_plane"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """An instance as it stands: its members that are not removed, and its operations that are not over."""

    instance: Instance
    members: Sequence[Member]
    operations: Sequence[Operation]
    manifest: Manifest | None  # of the version that it is pinned to
    last_stop: Operation | None = None  # of an instance that was stopped: the operation that did it
    held: frozenset[str] = frozenset()  # the digests that the instance holds

    @property
    def lifecycle(self) -> ManifestLifecycle | None:
        """What the manifest says of later changes."""
        return None if self.manifest is None else self.manifest.lifecycle

    @property
    def graceful_seconds(self) -> int:
        """How long an adapter has to let go of what it started."""
        return GRACEFUL_SECONDS if self.lifecycle is None else self.lifecycle.delete.graceful_seconds


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """The version that a pin names, as it is now."""

    version: AppVersion | None
    artifacts: Sequence[tuple[Artifact, Trust]]


def in_progress(operation: Operation) -> Refusal:
    """Another operation is not over."""
    return Refusal(
        Code.OPERATION_IN_PROGRESS,
        f"{operation.kind} {operation.id} is {operation.status}",
        {"operation_id": operation.id, "kind": operation.kind, "status": operation.status},
    )


def require_running(instance: Instance, verb: str) -> None:
    """Only what runs is changed; what does not run can be stopped."""
    if instance.status == InstanceState.RUNNING:
        return
    allowed = [each.value for each in INSTANCE.allowed(InstanceState(instance.status))]
    raise Refusal(
        Code.ILLEGAL_TRANSITION,
        f"instance is {instance.status}: cannot {verb}; that needs a running one",
        {"machine": "instance", "state": instance.status, "trigger": verb, "allowed": allowed},
    )


def stop_instance(context: DecisionContext, seen: InstanceContext, bounds: OperationBounds) -> Decision[Operation]:
    """Stop it for ever: everything else that is open is cancelled, and each member is torn down and looked for."""
    instance = seen.instance
    stopping = next((each for each in seen.operations if each.kind == OperationKind.DECOMMISSION), None)
    if instance.status == InstanceState.STOPPED and seen.last_stop is not None:
        return Decision(seen.last_stop)
    if instance.status == InstanceState.STOPPING and stopping is not None:
        return Decision(stopping)
    moved = move_instance(context, instance, InstanceTrigger.STOP, "instance.delete", stop_requested_at=context.now)
    others = [
        _cancelled(context, instance, each, "the instance is stopped")
        for each in seen.operations
        if each.kind != OperationKind.DECOMMISSION and each.status != OperationState.CANCELLING
    ]
    if stopping is not None:  # the leftovers of a failed one are torn down already
        return together(stopping, moved, *others)
    operation = replace(
        new_row(context, instance, OperationKind.DECOMMISSION, {}, bounds.operation_seconds + seen.graceful_seconds),
        member_ids=[each.id for each in seen.members],
        dispatched_at=context.now,
        phase_deadline_at=context.now + timedelta(seconds=seen.graceful_seconds),
    )
    return together(operation, moved, *others, new_operation(moved.result, operation, "instance.delete"))


def cancel_operation(
    context: DecisionContext, instance: Instance, operation: Operation, reason: str
) -> Decision[Operation]:
    """Ask an operation to end early; asking again changes nothing."""
    if operation.status == OperationState.CANCELLING:
        return Decision(operation)
    if operation.kind == OperationKind.DECOMMISSION:
        raise Refusal(
            Code.NOT_SUPPORTED,
            "a stop is not taken back: what is torn down does not come again",
            {"instead": "wait for it, and launch a new instance"},
        )
    if operation.kind == OperationKind.DETACH:
        raise Refusal(
            Code.NOT_SUPPORTED,
            "a detach is not taken back: the project's account is closed",
            {"instead": "wait for it, and attach the project again"},
        )
    return _cancelled(context, instance, operation, validation.remark(reason, "reason", REASON_LENGTH))


def upgrade_instance(
    context: DecisionContext, seen: InstanceContext, launch: LaunchSnapshot, bounds: OperationBounds
) -> Decision[Operation]:
    """Another version; refused early with what a plan of it would tell."""
    instance = seen.instance
    require_running(instance, "upgrade")
    require_no_whole(seen)
    judged = evaluate(launch)
    require(judged)
    if launch.version is None or launch.manifest is None:
        raise ValueError("an upgrade without refusals has a version")
    target = pin_of_version(launch.version, launch.manifest)
    if target.version_id == instance.version_id and all(each.version_id == target.version_id for each in seen.members):
        raise Refusal(Code.CONFLICT, f"the instance runs {target.version} already", {"version": target.version})
    _require_upgrade(launch.manifest, instance)
    request = {"version": target.version, "from": instance.version}
    return _changing(context, seen, (OperationKind.UPGRADE, request, target), bounds)


def rollback_instance(
    context: DecisionContext, seen: InstanceContext, earlier: PinnedVersion, bounds: OperationBounds
) -> Decision[Operation]:
    """Back to what it was before, by the same digests."""
    instance = seen.instance
    require_running(instance, "rollback")
    require_no_whole(seen)
    plain = rollback_target(instance, seen.members)
    if plain is None:
        raise _unavailable("there is no earlier version to go back to", {})
    target = pin_of(plain)
    _require_rollback(seen.lifecycle, target)
    version, told = earlier.version, {"version": target.version, "version_id": target.version_id}
    if version is None or version.promotion == PromotionState.RETIRED:
        raise _unavailable(f"version {target.version} is retired", told)
    if version.manifest_digest != target.manifest_digest:
        raise _unavailable(f"version {target.version} is not what it was", told)
    known = {artifact.digest: (artifact, trust) for artifact, trust in earlier.artifacts}
    for digest in sorted(set(target.artifacts.values())):
        if digest not in known:
            raise _unavailable(f"artifact {digest} is not there any more", told)
        artifact, trust = known[digest]
        if trust.state is TrustState.REVOKED:
            raise _unavailable(f"artifact {digest} is revoked", told)
        if (refusal := trust.refusal(artifact)) is not None:
            raise refusal
    request = {"version": target.version, "from": instance.version}
    return _changing(context, seen, (OperationKind.ROLLBACK, request, target), bounds)


def rollback_target(instance: Instance, members: Iterable[Member]) -> dict[str, Any] | None:
    """Where a rollback leads: after an upgrade that failed half-way to the pin, otherwise to the pin before it."""
    if any(each.version_id != instance.version_id for each in members):
        return instance.pin
    return instance.previous_pin


def reconcile_instance(context: DecisionContext, seen: InstanceContext, bounds: OperationBounds) -> Decision[Operation]:
    """Let the adapter compare what is with what is wanted, and put it right."""
    require_running(seen.instance, "reconcile")
    require_no_whole(seen)
    return _changing(context, seen, (OperationKind.RECONCILE, {}, None), bounds)


def restart_instance(context: DecisionContext, seen: InstanceContext, bounds: OperationBounds) -> Decision[Operation]:
    """Begin anew with the same version, where the manifest allows it."""
    require_running(seen.instance, "restart")
    restart = None if seen.lifecycle is None else seen.lifecycle.restart
    if restart is None or not restart.supported:
        instead = (restart.instead if restart is not None else "") or "reconcile or repair the instance"
        raise Refusal(Code.NOT_SUPPORTED, "the app is not restarted as a whole", {"instead": instead})
    require_no_whole(seen)
    return _changing(context, seen, (OperationKind.RESTART, {}, None), bounds)


def repair_instance(
    context: DecisionContext, seen: InstanceContext, scope: RepairScope, member_id: str | None, bounds: OperationBounds
) -> Decision[Operation]:
    """Let the adapter build again what is broken: all of it, what steers it, or one member."""
    require_running(seen.instance, "repair")
    if (scope is RepairScope.MEMBER) != (member_id is not None):
        raise validation.invalid("member_id", f"it goes with the scope {RepairScope.MEMBER}, and only with that")
    concerned = [each.id for each in seen.members if member_id is None or each.id == member_id]
    if member_id is not None and not concerned:
        raise validation.invalid("member_id", "the instance has no such member")
    require_no_whole(seen)
    if scope is RepairScope.MEMBER:
        require_no_member_operation(seen.operations, concerned)
    request: dict[str, Any] = {"scope": scope.value}
    if member_id is not None:
        request["member_id"] = member_id
    return _changing(context, seen, (OperationKind.REPAIR, request, None), bounds, concerned)


def require_no_whole(seen: InstanceContext) -> None:
    """No other operation of the whole is open."""
    for each in seen.operations:
        if each.kind in WHOLE_KINDS or each.kind == OperationKind.DECOMMISSION:
            raise in_progress(each)


def require_no_member_operation(operations: Iterable[Operation], member_ids: Iterable[str]) -> None:
    """No other operation of these members is open."""
    wanted = set(member_ids)
    for each in operations:
        if each.kind in MEMBER_OPERATIONS and wanted & set(each.member_ids):
            raise in_progress(each)


MEMBER_OPERATIONS: Final = frozenset(
    {OperationKind.ADD, OperationKind.DRAIN, OperationKind.REMOVE, OperationKind.REPLACE, OperationKind.DECOMMISSION}
)
"""Operations beside which no other one of the same member is begun."""


def _changing(
    context: DecisionContext,
    seen: InstanceContext,
    what: tuple[OperationKind, Mapping[str, Any], VersionPin | None],
    bounds: OperationBounds,
    members: Sequence[str] | None = None,
) -> Decision[Operation]:
    kind, request, target = what
    instance = seen.instance
    operation = replace(
        new_row(context, instance, kind, request, bounds.operation_seconds),
        member_ids=[each.id for each in seen.members if each.status != MemberState.REMOVING]
        if members is None
        else list(members),
        target_pin=None if target is None else target.plain(),
        dispatched_at=context.now,
    )
    parts: list[Decision[Any]] = []
    if target is not None:
        wanted = [
            Hold(digest, "instance", instance.id, target.version_id)
            for digest in sorted(set(target.artifacts.values()) - seen.held)
        ]
        parts.append(take_holds(context, wanted, tenant_id=instance.tenant_id, project_id=instance.project_id))
    return together(operation, *parts, new_operation(instance, operation, "instance.update"))


def _cancelled(context: DecisionContext, instance: Instance, operation: Operation, reason: str) -> Decision[Operation]:
    told = ("operation.cancel", {"cancel_reason": reason})
    return move_operation(context, instance.app_slug, operation, OperationTrigger.CANCEL, told)


def _require_upgrade(manifest: Manifest, instance: Instance) -> None:
    lifecycle = manifest.lifecycle
    if lifecycle is None or lifecycle.upgrade.strategy == "none":
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"version {manifest.version} does not take over from another one",
            {"instead": "launch a new instance of that version and stop this one"},
        )
    ranges = lifecycle.upgrade.from_versions
    current = read_version(instance.version)
    if ranges and not any(current in read_range(each) for each in ranges):
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"version {manifest.version} takes over from {' or '.join(ranges)}, not from {instance.version}",
            {"instead": f"upgrade to a version of {' or '.join(ranges)} first", "from_versions": list(ranges)},
        )


def _require_rollback(lifecycle: ManifestLifecycle | None, target: VersionPin) -> None:
    rollback = None if lifecycle is None else lifecycle.rollback
    if rollback is None or not rollback.supported:
        note = (rollback.note if rollback is not None else "") or "upgrade to a version that is offered"
        raise Refusal(Code.NOT_SUPPORTED, "the version that runs does not go back", {"instead": note})
    wanted = read_version(target.version)
    if rollback.to_versions and not any(wanted in read_range(each) for each in rollback.to_versions):
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"the version that runs goes back to {' or '.join(rollback.to_versions)}, not to {target.version}",
            {"instead": rollback.note or "upgrade to a version that is offered"},
        )


def _unavailable(detail: str, details: Mapping[str, Any]) -> Refusal:
    return Refusal(Code.ROLLBACK_UNAVAILABLE, detail, dict(details))
