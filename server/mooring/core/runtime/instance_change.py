"""What callers ask of an existing instance: stop, upgrade, roll back, reconcile, repair, restart, configure, cancel.

Each request becomes an operation. Only one operation of the whole instance is open at a time; a stop cancels all others
and may be repeated. An operation that changes the version records the target's digests at the start and holds them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
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
from mooring.core.kernel.finding import below
from mooring.core.kernel.form_schema import hidden_places, hidden_values, without_hidden
from mooring.core.runtime.instance import INSTANCE, Instance, InstanceState, InstanceTrigger, VersionPin, pin_of
from mooring.core.runtime.instance_launch import OperationBounds, build_operation, pin_of_version
from mooring.core.runtime.instance_transitions import (
    change_instance,
    move_instance,
    move_operation,
    new_operation,
    together,
)
from mooring.core.runtime.instance_trust import Distrust
from mooring.core.runtime.launch import config_refusals, evaluate, require
from mooring.core.runtime.launch_snapshot import LaunchSnapshot
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.operation import WHOLE_KINDS, Operation, OperationKind, OperationState, OperationTrigger

GRACEFUL_SECONDS: Final = 60
REASON_LENGTH: Final = 500
CHANGED_MAX: Final = 50
"""How many changed places of a configuration an operation names."""


class RepairScope(StrEnum):
    """How much to repair."""

    WHOLE_RUNTIME = "whole_runtime"
    CONTROL_PLANE = "control_plane"
    MEMBER = "member"


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """The current state of an instance, its members that are not removed, and its open operations."""

    instance: Instance
    members: Sequence[Member]
    operations: Sequence[Operation]
    manifest: Manifest | None  # of the pinned version
    last_stop: Operation | None = None  # of a stopped instance: the operation that stopped it
    held: frozenset[str] = frozenset()  # digests that the instance holds
    distrust: Distrust | None = None  # as it is at this moment, for the verbs that ask for it

    @property
    def lifecycle(self) -> ManifestLifecycle | None:
        return None if self.manifest is None else self.manifest.lifecycle

    @property
    def graceful_seconds(self) -> int:
        """How long an adapter has to shut down what it started."""
        return GRACEFUL_SECONDS if self.lifecycle is None else self.lifecycle.delete.graceful_seconds


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """The version that a pin names, as it is now; None if it no longer exists."""

    version: AppVersion | None
    artifacts: Sequence[tuple[Artifact, Trust]]


def in_progress(operation: Operation) -> Refusal:
    """The refusal that names the operation that is still open."""
    return Refusal(
        Code.OPERATION_IN_PROGRESS,
        f"{operation.kind} {operation.id} is {operation.status}",
        {"operation_id": operation.id, "kind": operation.kind, "status": operation.status},
    )


def require_running(instance: Instance, verb: str) -> None:
    """Refuse unless the instance runs; in any other state it can only be stopped."""
    if instance.status == InstanceState.RUNNING:
        return
    allowed = [each.value for each in INSTANCE.allowed(InstanceState(instance.status))]
    raise Refusal(
        Code.ILLEGAL_TRANSITION,
        f"instance is {instance.status}: cannot {verb}; only a running instance can",
        {"machine": "instance", "state": instance.status, "trigger": verb, "allowed": allowed},
    )


def require_trusted(current: InstanceContext, verb: str) -> None:
    """Refuse an operation that needs trusted artifacts, if those of the instance are not trusted now."""
    if current.distrust is not None and current.distrust.refuses(verb):
        raise current.distrust.refusal(verb)


def stop_instance(
    context: DecisionContext,
    current: InstanceContext,
    bounds: OperationBounds,
    request: Mapping[str, Any] = MappingProxyType({}),
) -> Decision[Operation]:
    """Stop it for good: cancel all other open operations, tear down each member, and verify that nothing is left."""
    instance = current.instance
    stopping = next((each for each in current.operations if each.kind == OperationKind.DECOMMISSION), None)
    if instance.status == InstanceState.STOPPED and current.last_stop is not None:
        return Decision(current.last_stop)
    if instance.status == InstanceState.STOPPING and stopping is not None:
        return Decision(stopping)
    moved = move_instance(context, instance, InstanceTrigger.STOP, "instance.delete", stop_requested_at=context.now)
    cancellations = [
        _cancel(context, instance, each, "the instance is stopped")
        for each in current.operations
        if each.kind != OperationKind.DECOMMISSION and each.status != OperationState.CANCELLING
    ]
    if stopping is not None:  # the teardown of a failed instance is already under way
        return together(stopping, moved, *cancellations)
    operation = replace(
        build_operation(
            context, instance, OperationKind.DECOMMISSION, request, bounds.operation_seconds + current.graceful_seconds
        ),
        member_ids=[each.id for each in current.members],
        dispatched_at=context.now,
        phase_deadline_at=context.now + timedelta(seconds=current.graceful_seconds),
    )
    return together(operation, moved, *cancellations, new_operation(moved.result, operation, "instance.delete"))


def cancel_operation(
    context: DecisionContext, instance: Instance, operation: Operation, reason: str
) -> Decision[Operation]:
    """Ask an operation to end early; repeating it changes nothing."""
    if operation.status == OperationState.CANCELLING:
        return Decision(operation)
    if operation.kind == OperationKind.DECOMMISSION:
        raise Refusal(
            Code.NOT_SUPPORTED,
            "a stop cannot be cancelled: what is torn down does not come back",
            {"instead": "wait for it, and launch a new instance"},
        )
    if operation.kind == OperationKind.DETACH:
        raise Refusal(
            Code.NOT_SUPPORTED,
            "a detach cannot be cancelled: the project's account is already closed",
            {"instead": "wait for it, and attach the project again"},
        )
    return _cancel(context, instance, operation, validation.remark(reason, "reason", REASON_LENGTH))


def upgrade_instance(
    context: DecisionContext, current: InstanceContext, launch: LaunchSnapshot, bounds: OperationBounds
) -> Decision[Operation]:
    """Change to another version, unless `evaluate` finds a reason against it."""
    instance = current.instance
    require_running(instance, "upgrade")
    require_no_whole(current)
    evaluation = evaluate(launch)
    require(evaluation)
    if launch.version is None or launch.manifest is None:
        raise ValueError("an evaluation without refusals must have a version")
    target = pin_of_version(launch.version, launch.manifest)
    if target.version_id == instance.version_id and all(
        each.version_id == target.version_id for each in current.members
    ):
        raise Refusal(Code.CONFLICT, f"the instance already runs {target.version}", {"version": target.version})
    _require_upgrade(launch.manifest, instance)
    request = {"version": target.version, "from": instance.version}
    return _start_change(context, current, OperationKind.UPGRADE, bounds, request=request, target=target)


def rollback_instance(
    context: DecisionContext, current: InstanceContext, earlier: PinnedVersion, bounds: OperationBounds
) -> Decision[Operation]:
    """Change back to the previous version, by the same digests."""
    instance = current.instance
    require_running(instance, "rollback")
    require_no_whole(current)
    plain = rollback_target(instance, current.members)
    if plain is None:
        raise _unavailable("there is no previous version to roll back to", {})
    target = pin_of(plain)
    _require_rollback(current.lifecycle, target)
    version, details = earlier.version, {"version": target.version, "version_id": target.version_id}
    if version is None or version.promotion == PromotionState.RETIRED:
        raise _unavailable(f"version {target.version} is retired", details)
    if version.manifest_digest != target.manifest_digest:
        raise _unavailable(f"the manifest of version {target.version} has changed since", details)
    known = {artifact.digest: (artifact, trust) for artifact, trust in earlier.artifacts}
    for digest in sorted(set(target.artifacts.values())):
        if digest not in known:
            raise _unavailable(f"artifact {digest} no longer exists", details)
        artifact, trust = known[digest]
        if trust.state is TrustState.REVOKED:
            raise _unavailable(f"artifact {digest} is revoked", details)
        if (refusal := trust.refusal(artifact)) is not None:
            raise refusal
    request = {"version": target.version, "from": instance.version}
    return _start_change(context, current, OperationKind.ROLLBACK, bounds, request=request, target=target)


def rollback_target(instance: Instance, members: Iterable[Member]) -> dict[str, Any] | None:
    """The current pin if an upgrade failed half-way, otherwise the previous pin."""
    if any(each.version_id != instance.version_id for each in members):
        return instance.pin
    return instance.previous_pin


def reconcile_instance(
    context: DecisionContext, current: InstanceContext, bounds: OperationBounds
) -> Decision[Operation]:
    """Let the adapter compare actual with desired state and correct the difference."""
    require_running(current.instance, "reconcile")
    require_trusted(current, "reconcile")
    require_no_whole(current)
    return _start_change(context, current, OperationKind.RECONCILE, bounds)


def restart_instance(
    context: DecisionContext, current: InstanceContext, bounds: OperationBounds
) -> Decision[Operation]:
    """Restart with the same version, if the manifest allows it."""
    require_running(current.instance, "restart")
    restart = None if current.lifecycle is None else current.lifecycle.restart
    if restart is None or not restart.supported:
        instead = (restart.instead if restart is not None else "") or "reconcile or repair the instance"
        raise Refusal(
            Code.NOT_SUPPORTED, "the app does not support a restart of the whole instance", {"instead": instead}
        )
    require_trusted(current, "restart")
    require_no_whole(current)
    return _start_change(context, current, OperationKind.RESTART, bounds)


def configure_instance(
    context: DecisionContext, current: InstanceContext, patch: Mapping[str, Any], bounds: OperationBounds
) -> Decision[Operation]:
    """Ask the adapter to change the configuration, after validating all of it.

    A caller sends only the fields to change, because it cannot read those that are `writeOnly`. The instance keeps its
    old configuration until the adapter reports success, so a failed change leaves what was wanted before.
    """
    instance, manifest = current.instance, current.manifest
    require_running(instance, "update")
    configure = None if current.lifecycle is None else current.lifecycle.configure
    if manifest is None or configure is None or not configure.supported:
        instead = (configure.instead if configure is not None else "") or "launch a new instance and stop this one"
        detail = "the app does not support changes of its configuration while it runs"
        raise Refusal(Code.NOT_SUPPORTED, detail, {"instead": instead})
    for refusal in config_refusals(None, dict(patch)):  # before anything walks through it
        raise refusal
    target = merged(instance.config, patch)
    for refusal in config_refusals(manifest, target):
        raise refusal
    changed = list(changed_places(instance.config, target))
    if not changed:
        raise validation.invalid("config", "the instance already has this configuration")
    require_trusted(current, "update")
    require_no_whole(current)
    request: dict[str, Any] = {"changed": changed[:CHANGED_MAX], "input": target}
    request["previous"] = without_hidden(instance.config, instance.config_hidden)
    if hidden := list(hidden_places(target, manifest.config_schema or {}, "/input")):
        request["hidden"] = hidden  # hidden in every view; only the adapter gets the values
    return _start_change(context, current, OperationKind.CONFIGURE, bounds, request=request)


def configured(instance: Instance, manifest: Manifest, operation: Operation, action: str) -> Decision[Instance]:
    """The instance with the configuration that its adapter has put into force."""
    config = dict(operation.request["input"])
    hidden = list(hidden_places(config, manifest.config_schema or {}))
    return change_instance(
        instance,
        action,
        config=without_hidden(config, hidden),
        config_hidden=hidden,
        config_secrets=hidden_values(config, hidden) if hidden else None,
    )


def merged(config: Any, patch: Any) -> Any:
    """The configuration after a merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(config) if isinstance(config, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def changed_places(before: Any, after: Any, pointer: str = "") -> Iterator[str]:
    """JSON pointers to what differs; a list is one value."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            if name not in before or name not in after:
                yield below(pointer, name)
            else:
                yield from changed_places(before[name], after[name], below(pointer, name))
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield pointer


def repair_instance(
    context: DecisionContext,
    current: InstanceContext,
    scope: RepairScope,
    member_id: str | None,
    bounds: OperationBounds,
) -> Decision[Operation]:
    """Let the adapter rebuild what is broken: everything, the control plane, or one member."""
    require_running(current.instance, "repair")
    if (scope is RepairScope.MEMBER) != (member_id is not None):
        raise validation.invalid(
            "member_id", f"required with the scope {RepairScope.MEMBER}, and not allowed otherwise"
        )
    concerned = [each.id for each in current.members if member_id is None or each.id == member_id]
    if member_id is not None and not concerned:
        raise validation.invalid("member_id", "the instance has no such member")
    require_trusted(current, "repair")
    require_no_whole(current)
    if scope is RepairScope.MEMBER:
        require_no_member_operation(current.operations, concerned)
    request: dict[str, Any] = {"scope": scope.value}
    if member_id is not None:
        request["member_id"] = member_id
    return _start_change(context, current, OperationKind.REPAIR, bounds, request=request, member_ids=concerned)


def require_no_whole(current: InstanceContext) -> None:
    """Refuse while another operation of the whole instance is open."""
    for each in current.operations:
        if each.kind in WHOLE_KINDS or each.kind == OperationKind.DECOMMISSION:
            raise in_progress(each)


def require_no_member_operation(operations: Iterable[Operation], member_ids: Iterable[str]) -> None:
    """Refuse while another operation of these members is open."""
    wanted = set(member_ids)
    for each in operations:
        if each.kind in MEMBER_OPERATIONS and wanted & set(each.member_ids):
            raise in_progress(each)


MEMBER_OPERATIONS: Final = frozenset(
    {OperationKind.ADD, OperationKind.DRAIN, OperationKind.REMOVE, OperationKind.REPLACE, OperationKind.DECOMMISSION}
)
"""While one of these is open for a member, no other operation of that member may start."""


def _start_change(
    context: DecisionContext,
    current: InstanceContext,
    kind: OperationKind,
    bounds: OperationBounds,
    *,
    request: Mapping[str, Any] | None = None,
    target: VersionPin | None = None,
    member_ids: Sequence[str] | None = None,
) -> Decision[Operation]:
    instance = current.instance
    operation = replace(
        build_operation(context, instance, kind, request or {}, bounds.operation_seconds),
        member_ids=[each.id for each in current.members if each.status != MemberState.REMOVING]
        if member_ids is None
        else list(member_ids),
        target_pin=None if target is None else target.plain(),
        dispatched_at=context.now,
    )
    parts: list[Decision[Any]] = []
    if target is not None:
        holds = [
            Hold(digest, "instance", instance.id, target.version_id)
            for digest in sorted(set(target.artifacts.values()) - current.held)
        ]
        parts.append(take_holds(context, holds, tenant_id=instance.tenant_id, project_id=instance.project_id))
    return together(operation, *parts, new_operation(instance, operation, "instance.update"))


def _cancel(context: DecisionContext, instance: Instance, operation: Operation, reason: str) -> Decision[Operation]:
    return move_operation(
        context, instance.app_slug, operation, OperationTrigger.CANCEL, "operation.cancel", cancel_reason=reason
    )


def _require_upgrade(manifest: Manifest, instance: Instance) -> None:
    lifecycle = manifest.lifecycle
    if lifecycle is None or lifecycle.upgrade.strategy == "none":
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"version {manifest.version} does not support upgrades from another version",
            {"instead": "launch a new instance of that version and stop this one"},
        )
    ranges = lifecycle.upgrade.from_versions
    current = read_version(instance.version)
    if ranges and not any(current in read_range(each) for each in ranges):
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"version {manifest.version} supports upgrades from {' or '.join(ranges)}, not from {instance.version}",
            {"instead": f"upgrade to a version of {' or '.join(ranges)} first", "from_versions": list(ranges)},
        )


def _require_rollback(lifecycle: ManifestLifecycle | None, target: VersionPin) -> None:
    rollback = None if lifecycle is None else lifecycle.rollback
    if rollback is None or not rollback.supported:
        note = (rollback.note if rollback is not None else "") or "upgrade to a version that is offered"
        raise Refusal(Code.NOT_SUPPORTED, "the running version does not support a rollback", {"instead": note})
    target_version = read_version(target.version)
    if rollback.to_versions and not any(target_version in read_range(each) for each in rollback.to_versions):
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"the running version can be rolled back to {' or '.join(rollback.to_versions)}, not to {target.version}",
            {"instead": rollback.note or "upgrade to a version that is offered"},
        )


def _unavailable(detail: str, details: Mapping[str, Any]) -> Refusal:
    return Refusal(Code.ROLLBACK_UNAVAILABLE, detail, dict(details))
