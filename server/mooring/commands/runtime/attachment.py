"""Commands on attachments: asked for and ended by admins of the tenant, used by the people of the attached project.

The attached project is where the caller stands, and where his keys count. The instance is looked for in the whole
tenant, and nothing else of its project is read for him.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.instance import InstanceRef, bounds_of, standing
from mooring.commands.services import Services
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place, Scope
from mooring.core.runtime.app_action import action_of, may_act, start_action
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.attachment_change import (
    AttachContext,
    DetachRequest,
    attach_project,
    detach_project,
    require_active,
)
from mooring.core.runtime.instance_change import InstanceContext
from mooring.core.runtime.operation import Operation
from mooring.storage.identity import project as projects
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import attachment as attachments


@dataclass(frozen=True, slots=True)
class AttachmentRef:
    """Which attachment, by the ids of an address: the attached project and itself."""

    project_id: str
    attachment_id: str


@dataclass(frozen=True, slots=True)
class AttachedAction:
    """An action that was asked for, and by which attachment."""

    attachment: Attachment
    operation: Operation


async def find(services: Services, acting: Acting, at: AttachmentRef) -> Attachment:
    """The attachment of this project."""
    row = await attachments.find(services.database, acting, at.project_id, at.attachment_id)
    return require(row, "attachment")


async def attach(work: Work[Attachment], project_id: str, instance_id: str) -> Answered:
    """Let a project use an instance of another project of its tenant."""
    database, acting = work.database, work.acting

    async def load() -> AttachContext:
        project = require(await projects.find(database, acting, project_id), "project")
        instance = require(await attachments.shared_instance(database, acting, instance_id), "instance")
        seen = await standing(work, InstanceRef(instance.project_id, instance.id))
        return AttachContext(
            seen,
            project,
            await attachments.live_of(database, acting, instance.id),
            await attachments.taken_names(database, acting, instance.id, project_id),
        )

    return await work.execute(load, lambda seen: attach_project(work.context, seen, bounds_of(work.services)))


async def detach(work: Work[Attachment], at: AttachmentRef, request: DetachRequest) -> Answered:
    """End a project's use of an instance."""
    return await work.execute(
        lambda: _used(work, at), lambda seen: detach_project(work.context, seen[1], seen[0], request)
    )


async def act(work: Work[AttachedAction], at: AttachmentRef, name: str, given: Mapping[str, Any]) -> Answered:
    """Ask the instance for an action, where the caller has the key that the manifest names in the attached project."""

    async def load() -> tuple[Attachment, InstanceContext]:
        attachment, seen = await _used(work, at)
        action = action_of(seen.manifest, name)
        place = Place(Scope.PROJECT, None, at.project_id)
        if not may_act(work.context.actor, work.authority, place, action.permission):
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"{action.permission} is not allowed to this caller here",
                {"action": action.permission},
            )
        if action.target == "member":
            raise Refusal(
                Code.NOT_SUPPORTED,
                "members are the owning project's: an attached project asks for actions of the whole instance",
                {"instead": "ask in the owning project"},
            )
        return attachment, seen

    def decide(loaded: tuple[Attachment, InstanceContext]) -> Decision[AttachedAction]:
        attachment, seen = loaded
        guard = require_active(attachment, seen.operations)
        started = start_action(work.context, seen, name, given, None, attached=attachment.told())
        made = AttachedAction(attachment, started.result)
        return Decision(made, (guard, *started.writes), started.events, started.audits, started.traceless)

    return await work.execute(load, decide)


async def _used(work: Work[Any], at: AttachmentRef) -> tuple[Attachment, InstanceContext]:
    attachment = await find(work.services, work.acting, at)
    return attachment, await standing(work, InstanceRef(attachment.owning_project_id, attachment.instance_id))
