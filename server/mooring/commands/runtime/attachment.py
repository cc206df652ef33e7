"""Commands on attachments: tenant admins create and end them, people of the attached project use them.

The request acts in the attached project, and the caller's keys there count. The instance may be in any project of the
tenant, and nothing else of its project is read for the caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.instance import bounds_of, load_context, load_for_use
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
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.instance_change import InstanceContext
from mooring.core.runtime.operation import Operation
from mooring.storage.identity import project as projects
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import attachment as attachments


@dataclass(frozen=True, slots=True)
class AttachmentRef:
    """An attachment by its attached project and its id."""

    project_id: str
    attachment_id: str


@dataclass(frozen=True, slots=True)
class AttachedAction:
    """An action that was started through an attachment."""

    attachment: Attachment
    operation: Operation


async def find(services: Services, acting: Acting, ref: AttachmentRef) -> Attachment:
    row = await attachments.find(services.database, acting, ref.project_id, ref.attachment_id)
    return require(row, "attachment")


async def attach(work: Work[Attachment], project_id: str, instance_id: str) -> Answered:
    """Let a project use an instance of another project of its tenant."""
    database, acting = work.database, work.acting

    async def load() -> AttachContext:
        project = require(await projects.find(database, acting, project_id), "project")
        instance = require(await attachments.shared_instance(database, acting, instance_id), "instance")
        current = await load_for_use(work, InstanceRef(instance.project_id, instance.id))
        return AttachContext(
            current,
            project,
            await attachments.live_of(database, acting, instance.id),
            await attachments.taken_names(database, acting, instance.id, project_id),
        )

    return await work.execute(load, lambda facts: attach_project(work.context, facts, bounds_of(work.services)))


async def detach(work: Work[Attachment], ref: AttachmentRef, request: DetachRequest) -> Answered:
    """End a project's use of an instance."""
    return await work.execute(
        lambda: _load(work, ref),
        lambda loaded: detach_project(work.context, loaded.current, loaded.attachment, request),
    )


async def act(work: Work[AttachedAction], ref: AttachmentRef, name: str, arguments: Mapping[str, Any]) -> Answered:
    """Ask the instance for an action, if the caller holds the key that the manifest names in the attached project."""

    async def load() -> _AttachmentContext:
        loaded = await _load(work, ref, for_use=True)
        action = action_of(loaded.current.manifest, name)
        place = Place(Scope.PROJECT, None, ref.project_id)
        if not may_act(work.context.actor, work.authority, place, action.permission):
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"this caller does not have {action.permission} here",
                {"action": action.permission},
            )
        if action.target == "member":
            raise Refusal(
                Code.NOT_SUPPORTED,
                "an attached project can only ask for actions of the whole instance, not of its members",
                {"instead": "ask in the owning project"},
            )
        return loaded

    def decide(loaded: _AttachmentContext) -> Decision[AttachedAction]:
        attachment, current = loaded.attachment, loaded.current
        guard = require_active(attachment, current.operations)
        started = start_action(work.context, current, name, arguments, None, attached=attachment.for_adapter())
        made = AttachedAction(attachment, started.result)
        return Decision(made, (guard, *started.writes), started.events, started.audits, started.traceless)

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _AttachmentContext:
    attachment: Attachment
    current: InstanceContext


async def _load(work: Work[Any], ref: AttachmentRef, *, for_use: bool = False) -> _AttachmentContext:
    attachment = await find(work.services, work.acting, ref)
    instance = InstanceRef(attachment.owning_project_id, attachment.instance_id)
    current = await (load_for_use if for_use else load_context)(work, instance)
    return _AttachmentContext(attachment, current)
