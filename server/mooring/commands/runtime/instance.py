"""Commands on instances: launching them, and changing existing ones.

No command here checks permissions: the API has checked the route's key and the category's (`api/category_access.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import launch
from mooring.commands.runtime.instance_trust import current_distrust
from mooring.commands.runtime.launch import LoadOptions, manifest_of, trusted
from mooring.commands.services import Services
from mooring.core.kernel.decision import Decision
from mooring.core.runtime.instance import Instance, InstanceRef, InstanceState
from mooring.core.runtime.instance_change import (
    InstanceContext,
    PinnedVersion,
    RepairScope,
    cancel_operation,
    configure_instance,
    reconcile_instance,
    repair_instance,
    restart_instance,
    rollback_instance,
    rollback_target,
    stop_instance,
    upgrade_instance,
)
from mooring.core.runtime.instance_launch import LaunchedInstance, OperationBounds, create_instance
from mooring.core.runtime.launch_plan import LaunchPlan, plan_launch
from mooring.core.runtime.launch_snapshot import EvaluationPurpose, LaunchRequest, LaunchSnapshot, PlacementSpec
from mooring.core.runtime.operation import Operation
from mooring.storage.catalog import entitlement
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import instance


@dataclass(frozen=True, slots=True)
class InstanceWithLaunch:
    """An instance, and the facts for launching more of it or another version."""

    current: InstanceContext
    launch: LaunchSnapshot


@dataclass(frozen=True, slots=True)
class _RollbackContext:
    current: InstanceContext
    target: PinnedVersion


@dataclass(frozen=True, slots=True)
class _OperationContext:
    instance: Instance
    operation: Operation


def bounds_of(services: Services) -> OperationBounds:
    """The platform's time limits of operations."""
    return OperationBounds(services.settings.deploy_seconds, services.settings.operation_seconds)


async def find(services: Services, acting: Acting, ref: InstanceRef) -> Instance:
    return require(await instance.find(services.database, acting, ref.project_id, ref.instance_id), "instance")


async def load_context(work: Work[Any], ref: InstanceRef) -> InstanceContext:
    """The instance with its members, its open operations and its manifest."""
    database, acting = work.database, work.acting
    row = await find(work.services, acting, ref)
    members = (await instance.members_of(database, acting, [row.id]))[row.id]
    operations = (await instance.open_operations(database, acting, [row.id]))[row.id]
    stopped = row.status == InstanceState.STOPPED
    return InstanceContext(
        row,
        members,
        operations,
        manifest_of(await instance.version(database, acting, row.version_id)),
        await instance.last_stop(database, acting, row.id) if stopped else None,
        await instance.held_digests(database, acting, row.id),
    )


async def load_for_use(work: Work[Any], ref: InstanceRef) -> InstanceContext:
    """The same, with whether what it runs is trusted at this moment."""
    current = await load_context(work, ref)
    return replace(current, distrust=await current_distrust(work.services, work.acting, current.instance.id))


async def plan(services: Services, acting: Acting, project_id: str, request: LaunchRequest) -> LaunchPlan:
    """What a launch would create, and every refusal that it would meet."""
    return plan_launch(await launch.load(services, acting, project_id, request, LoadOptions(planning=True)))


async def create(work: Work[LaunchedInstance], project_id: str, request: LaunchRequest) -> Answered:

    async def load() -> LaunchSnapshot:
        return await launch.load(work.services, work.acting, project_id, request, LoadOptions())

    return await work.execute(load, lambda facts: create_instance(work.context, facts, bounds_of(work.services)))


async def stop(work: Work[Operation], ref: InstanceRef) -> Answered:
    """Stop an instance for good."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: load_context(work, ref), lambda current: stop_instance(work.context, current, bounds)
    )


async def upgrade(work: Work[Operation], ref: InstanceRef, version: str | None, channel: str | None) -> Answered:
    """Change to another version, by its number or by a channel."""

    async def load() -> InstanceWithLaunch:
        current = await load_context(work, ref)
        ids = tuple(dict.fromkeys(each.allocation_id for each in current.members if each.allocation_id is not None))
        row = current.instance
        request = LaunchRequest(
            app=row.app_slug,
            name=row.name,
            version=version,
            channel=channel or row.channel,
            config=row.config,
            topology=row.topology,
            placement=PlacementSpec(allocations=ids),
        )
        options = LoadOptions(EvaluationPurpose.UPGRADE, row, current.members, len(current.members))
        facts = await launch.load(work.services, work.acting, ref.project_id, request, options)
        return InstanceWithLaunch(current, facts)

    def decide(loaded: InstanceWithLaunch) -> Decision[Operation]:
        return upgrade_instance(work.context, loaded.current, loaded.launch, bounds_of(work.services))

    return await work.execute(load, decide)


async def rollback(work: Work[Operation], ref: InstanceRef) -> Answered:
    """Change back to the previous version."""

    async def load() -> _RollbackContext:
        current = await load_context(work, ref)
        target = rollback_target(current.instance, current.members)
        if target is None:
            return _RollbackContext(current, PinnedVersion(None, ()))
        version = await instance.version(work.database, work.acting, target["version_id"])
        app_id = current.instance.app_id
        entitled = await entitlement.of_apps(work.database, work.acting, ref.project_id, [app_id])
        digests = sorted(set(target["artifacts"].values()))
        artifacts = await trusted(work.services, work.acting, ref.project_id, entitled.get(app_id), digests)
        return _RollbackContext(current, PinnedVersion(version, artifacts))

    def decide(loaded: _RollbackContext) -> Decision[Operation]:
        return rollback_instance(work.context, loaded.current, loaded.target, bounds_of(work.services))

    return await work.execute(load, decide)


async def reconcile(work: Work[Operation], ref: InstanceRef) -> Answered:
    """Let the adapter correct differences from the desired state."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: load_for_use(work, ref), lambda current: reconcile_instance(work.context, current, bounds)
    )


async def restart(work: Work[Operation], ref: InstanceRef) -> Answered:
    """Restart with the same version."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: load_for_use(work, ref), lambda current: restart_instance(work.context, current, bounds)
    )


async def update(work: Work[Operation], ref: InstanceRef, patch: Mapping[str, Any]) -> Answered:
    """Change the configuration."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: load_for_use(work, ref), lambda current: configure_instance(work.context, current, patch, bounds)
    )


async def repair(work: Work[Operation], ref: InstanceRef, scope: RepairScope, member_id: str | None) -> Answered:
    """Let the adapter rebuild what is broken."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: load_for_use(work, ref),
        lambda current: repair_instance(work.context, current, scope, member_id, bounds),
    )


async def cancel(work: Work[Operation], ref: InstanceRef, operation_id: str, reason: str) -> Answered:
    async def load() -> _OperationContext:
        row = await find(work.services, work.acting, ref)
        operation = await instance.find_operation(work.database, work.acting, ref, operation_id)
        return _OperationContext(row, require(operation, "operation"))

    return await work.execute(
        load, lambda loaded: cancel_operation(work.context, loaded.instance, loaded.operation, reason)
    )
