"""Commands on instances: launching, and what is asked of one that is there."""

from dataclasses import dataclass
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import launch
from mooring.commands.runtime.launch import LoadOptions, manifest_of, trusted
from mooring.commands.services import Services
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Authority, Place, Scope, holds_family
from mooring.core.runtime.instance import Instance, InstanceState
from mooring.core.runtime.instance_change import (
    InstanceContext,
    PinnedVersion,
    RepairScope,
    cancel_operation,
    reconcile_instance,
    repair_instance,
    restart_instance,
    rollback_instance,
    rollback_target,
    stop_instance,
    upgrade_instance,
)
from mooring.core.runtime.instance_launch import (
    LaunchedInstance,
    LaunchPlan,
    OperationBounds,
    create_instance,
    plan_launch,
)
from mooring.core.runtime.launch import EvaluationPurpose, LaunchRequest, LaunchSnapshot, PlacementSpec
from mooring.core.runtime.operation import Operation
from mooring.storage.catalog import entitlement
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import instance


@dataclass(frozen=True, slots=True)
class InstanceRef:
    """Which instance, by the ids of an address."""

    project_id: str
    instance_id: str

    @property
    def place(self) -> tuple[str, str]:
        """As the storage takes it."""
        return self.project_id, self.instance_id


def bounds_of(services: Services) -> OperationBounds:
    """How long operations may take here."""
    return OperationBounds(services.settings.deploy_seconds, services.settings.operation_seconds)


def require_family(authority: Authority, project_id: str, family: str, category: str) -> None:
    """The caller has the key for every app, or that of this category."""
    if not holds_family(authority, Place(Scope.PROJECT, None, project_id), family, category):
        raise Refusal(
            Code.PERMISSION_DENIED,
            f"neither {family} nor {category}.{family} is allowed to this caller here",
            {"action": family, "category": category},
        )


async def find(services: Services, acting: Acting, authority: Authority, at: InstanceRef) -> Instance:
    """The instance, where the caller may read those of its category."""
    row = require(await instance.find(services.database, acting, *at.place), "instance")
    if not holds_family(authority, Place(Scope.PROJECT, None, at.project_id), "instance.read", row.app_category):
        return require(None, "instance")
    return row


async def standing(work: Work[Any], at: InstanceRef, family: str | None = None) -> InstanceContext:
    """The instance with its members and what is open; `family` is the key that the caller needs for its category."""
    database, acting = work.database, work.acting
    row = require(await instance.find(database, acting, *at.place), "instance")
    if family is not None:
        require_family(work.authority, at.project_id, family, row.app_category)
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


async def plan(
    services: Services, acting: Acting, authority: Authority, project_id: str, request: LaunchRequest
) -> LaunchPlan:
    """What a launch would be, and all that stands in its way."""
    facts = await launch.load(services, acting, project_id, request, LoadOptions(planning=True))
    require_family(authority, project_id, "instance.create", facts.app.category)
    return plan_launch(facts)


async def create(work: Work[LaunchedInstance], project_id: str, request: LaunchRequest) -> Answered:
    """Launch an app."""

    async def load() -> LaunchSnapshot:
        facts = await launch.load(work.services, work.acting, project_id, request, LoadOptions())
        require_family(work.authority, project_id, "instance.create", facts.app.category)
        return facts

    return await work.execute(load, lambda facts: create_instance(work.context, facts, bounds_of(work.services)))


async def stop(work: Work[Operation], at: InstanceRef) -> Answered:
    """Stop an instance for ever."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: standing(work, at, "instance.delete"), lambda seen: stop_instance(work.context, seen, bounds)
    )


async def upgrade(work: Work[Operation], at: InstanceRef, version: str | None, channel: str | None) -> Answered:
    """Another version."""

    async def load() -> tuple[InstanceContext, LaunchSnapshot]:
        seen = await standing(work, at, "instance.update")
        ids = tuple(dict.fromkeys(each.allocation_id for each in seen.members if each.allocation_id is not None))
        row = seen.instance
        wish = LaunchRequest(
            app=row.app_slug,
            name=row.name,
            version=version,
            channel=channel or row.channel,
            config=row.config,
            topology=row.topology,
            placement=PlacementSpec(allocations=ids),
        )
        about = LoadOptions(EvaluationPurpose.UPGRADE, row, seen.members, len(seen.members))
        return seen, await launch.load(work.services, work.acting, at.project_id, wish, about)

    def decide(loaded: tuple[InstanceContext, LaunchSnapshot]) -> Decision[Operation]:
        return upgrade_instance(work.context, *loaded, bounds_of(work.services))

    return await work.execute(load, decide)


async def rollback(work: Work[Operation], at: InstanceRef) -> Answered:
    """Back to the version before."""

    async def load() -> tuple[InstanceContext, PinnedVersion]:
        seen = await standing(work, at, "instance.update")
        target = rollback_target(seen.instance, seen.members)
        if target is None:
            return seen, PinnedVersion(None, ())
        version = await instance.version(work.database, work.acting, target["version_id"])
        app_id = seen.instance.app_id
        entitled = await entitlement.of_apps(work.database, work.acting, at.project_id, [app_id])
        digests = sorted(set(target["artifacts"].values()))
        judged = await trusted(work.services, work.acting, at.project_id, entitled.get(app_id), digests)
        return seen, PinnedVersion(version, judged)

    def decide(loaded: tuple[InstanceContext, PinnedVersion]) -> Decision[Operation]:
        return rollback_instance(work.context, *loaded, bounds_of(work.services))

    return await work.execute(load, decide)


async def reconcile(work: Work[Operation], at: InstanceRef) -> Answered:
    """Compare what is with what is wanted."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: standing(work, at, "instance.update"), lambda seen: reconcile_instance(work.context, seen, bounds)
    )


async def restart(work: Work[Operation], at: InstanceRef) -> Answered:
    """Begin anew with the same version."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: standing(work, at, "instance.update"), lambda seen: restart_instance(work.context, seen, bounds)
    )


async def repair(work: Work[Operation], at: InstanceRef, scope: RepairScope, member_id: str | None) -> Answered:
    """Build again what is broken."""
    bounds = bounds_of(work.services)
    return await work.execute(
        lambda: standing(work, at, "instance.update"),
        lambda seen: repair_instance(work.context, seen, scope, member_id, bounds),
    )


async def cancel(work: Work[Operation], at: InstanceRef, operation_id: str, reason: str) -> Answered:
    """End an operation early."""

    async def load() -> tuple[Instance, Operation]:
        row = require(await instance.find(work.database, work.acting, *at.place), "instance")
        operation = await instance.find_operation(work.database, work.acting, at.place, operation_id)
        return row, require(operation, "operation")

    return await work.execute(load, lambda seen: cancel_operation(work.context, *seen, reason))
