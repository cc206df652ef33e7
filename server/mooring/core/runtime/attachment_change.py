"""What an admin of the tenant asks of attachments, and what an attached project asks of the instance.

An attachment is asked for once for each pair of project and instance. Detaching closes it for new work at once; what
the project still has there is waited for, or cancelled, within a bound. Asked again with `cancel_work`, a detach that
waits stops waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.identity.project import Project
from mooring.core.kernel import validation
from mooring.core.kernel.decision import Decision, DecisionContext, RowGuard
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.lifecycle import IllegalTransition
from mooring.core.runtime.attachment import (
    ATTACHMENT,
    ATTACHMENTS_MAX,
    Attachment,
    AttachmentState,
    AttachmentTrigger,
    account_name,
)
from mooring.core.runtime.attachment_reconcile import DETACH_SECONDS, detach_operation
from mooring.core.runtime.attachment_transitions import change_attachment, move_attachment, new_attachment
from mooring.core.runtime.instance import InstanceState
from mooring.core.runtime.instance_change import InstanceContext, require_running
from mooring.core.runtime.instance_launch import OperationBounds, new_row
from mooring.core.runtime.instance_transitions import move_operation, new_operation, together
from mooring.core.runtime.operation import ATTACHMENT_KINDS, Operation, OperationKind, OperationState, OperationTrigger

DETACH_SECONDS_MAX: Final = 604_800
OPEN_MAX: Final = 20
"""Actions of one attachment that are open at a time: what is the instance's bound is not one project's to fill."""
S = AttachmentState


@dataclass(frozen=True, slots=True)
class AttachContext:
    """What an attachment is decided on."""

    standing: InstanceContext
    project: Project
    live: Sequence[Attachment]  # of the instance
    taken: frozenset[str]  # account names that other projects have, or had


@dataclass(frozen=True, slots=True)
class DetachRequest:
    """How an attachment ends."""

    cancel_work: bool = False
    timeout_seconds: int = DETACH_SECONDS


def attach_project(context: DecisionContext, seen: AttachContext, bounds: OperationBounds) -> Decision[Attachment]:
    """Let the project use the instance; the adapter makes what it needs there."""
    instance, project = seen.standing.instance, seen.project
    _require_shared(seen)
    require_running(instance, "attach")
    there = next((each for each in seen.live if each.project_id == project.id), None)
    if there is not None:
        raise Refusal(
            Code.CONFLICT,
            f"the project has attachment {there.id} to the instance, which is {there.status}",
            {"attachment_id": there.id, "status": there.status},
        )
    if len(seen.live) >= ATTACHMENTS_MAX:
        raise Refusal(
            Code.LIMIT_REACHED, f"an instance has at most {ATTACHMENTS_MAX} attachments", {"limit": ATTACHMENTS_MAX}
        )
    attachment = Attachment(
        id=context.mint(Prefix.ATTACHMENT),
        tenant_id=instance.tenant_id,
        project_id=project.id,
        instance_id=instance.id,
        owning_project_id=instance.project_id,
        instance_name=instance.name,
        app_slug=instance.app_slug,
        account_name=account_name(project.slug, project.id, seen.taken),
        operation_id=context.mint(Prefix.OPERATION),
        requested_by=context.actor.id,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        status=ATTACHMENT.initial.value,
        generation=0,
        revision=0,
        created_at=context.now,
    )
    row = new_row(context, instance, OperationKind.ATTACH, {"attachment": attachment.told()}, bounds.operation_seconds)
    operation = replace(row, id=attachment.operation_id, dispatched_at=context.now)
    return together(
        attachment,
        new_attachment(attachment, "attachment.create"),
        new_operation(instance, operation, "attachment.create"),
    )


def detach_project(
    context: DecisionContext, standing: InstanceContext, attachment: Attachment, request: DetachRequest
) -> Decision[Attachment]:
    """End the project's use of the instance; asking again changes nothing, unless it asks for more."""
    if not 0 <= request.timeout_seconds <= DETACH_SECONDS_MAX:
        raise validation.invalid("timeout_seconds", f"0 to {DETACH_SECONDS_MAX}")
    state = AttachmentState(attachment.status)
    open_ = next((each for each in standing.operations if each.id == attachment.operation_id), None)
    if state is S.DETACHED:
        return Decision(attachment)
    if state is S.REQUESTED:
        return _taken_back(context, standing, attachment, open_)
    if state is S.REFUSED:
        raise IllegalTransition("attachment", state, AttachmentTrigger.DETACH, ATTACHMENT.allowed(state))
    asked: dict[str, Any] = {"cancel_work": request.cancel_work, "timeout_seconds": request.timeout_seconds}
    graceful = timedelta(seconds=standing.graceful_seconds)
    runs = standing.instance.status == InstanceState.RUNNING
    if state is S.ACTIVE:
        columns: dict[str, Any] = {**asked, "detach_requested_at": context.now, "blocker": None}
        if not runs:  # it ends with the instance
            return move_attachment(context, attachment, AttachmentTrigger.DETACH, ("attachment.delete", columns))
        operation = detach_operation(context, standing.instance, replace(attachment, **columns), graceful)
        columns["operation_id"] = operation.id
        moved = move_attachment(context, attachment, AttachmentTrigger.DETACH, ("attachment.delete", columns))
        return together(moved.result, moved, new_operation(standing.instance, operation, "attachment.delete"))
    if open_ is not None:
        return _hurried(context, standing, attachment, (open_, request))
    if not runs:
        return Decision(attachment)
    operation = detach_operation(context, standing.instance, replace(attachment, **asked), graceful)
    again = change_attachment(attachment, "attachment.delete", operation_id=operation.id, retry_at=None, **asked)
    return together(again.result, again, new_operation(standing.instance, operation, "attachment.delete"))


def require_active(attachment: Attachment, operations: Sequence[Operation]) -> RowGuard:
    """The attachment takes work now, and still does when the work is written."""
    state = AttachmentState(attachment.status)
    if state is not S.ACTIVE:
        allowed = [each.value for each in ATTACHMENT.allowed(state)]
        raise Refusal(
            Code.ILLEGAL_TRANSITION,
            f"attachment is {attachment.status}: cannot act; that needs an active one",
            {"machine": "attachment", "state": attachment.status, "trigger": "act", "allowed": allowed},
        )
    own = [each for each in operations if (each.attachment or {}).get("id") == attachment.id]
    if sum(1 for each in own if each.kind == OperationKind.ACTION) >= OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"{OPEN_MAX} actions of the attachment are open", {"limit": OPEN_MAX})
    return RowGuard("attachment", {"id": attachment.id, "generation": attachment.generation})


def _require_shared(seen: AttachContext) -> None:
    instance = seen.standing.instance
    if instance.project_id == seen.project.id:
        raise Refusal(Code.CONFLICT, "the instance is the project's own", {"instance_id": instance.id})
    if not instance.is_shared:
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"the instance serves its own project alone: its control_plane_scope is {instance.control_plane_scope}",
            {"instead": "launch one with control_plane_scope tenant", "control_plane_scope": "tenant"},
        )
    lifecycle = seen.standing.lifecycle
    if lifecycle is None or not lifecycle.attach.supported:
        note = "" if lifecycle is None else lifecycle.attach.note
        instead = note or "launch an instance of it in the project"
        raise Refusal(Code.NOT_SUPPORTED, "the app lets no other project attach", {"instead": instead})


def _taken_back(
    context: DecisionContext, standing: InstanceContext, attachment: Attachment, open_: Operation | None
) -> Decision[Attachment]:
    """What is not active yet is refused as soon as its operation has ended."""
    if open_ is None or open_.status == OperationState.CANCELLING:
        return Decision(attachment)
    cancelled = _cancelled(context, standing, open_, "the attachment was taken back")
    return together(attachment, cancelled)


def _hurried(
    context: DecisionContext, standing: InstanceContext, attachment: Attachment, asked: tuple[Operation, DetachRequest]
) -> Decision[Attachment]:
    """A detach that waits for work is begun again without waiting, where that is asked for now."""
    open_, wish = asked
    if not wish.cancel_work or attachment.cancel_work or open_.kind not in ATTACHMENT_KINDS:
        return Decision(attachment)
    columns = {"cancel_work": True, "timeout_seconds": wish.timeout_seconds, "retry_at": context.now}
    changed = change_attachment(attachment, "attachment.delete", **columns)
    if open_.status == OperationState.CANCELLING:
        return changed
    cancelled = _cancelled(context, standing, open_, "the work is to be cancelled and not waited for")
    return together(changed.result, changed, cancelled)


def _cancelled(
    context: DecisionContext, standing: InstanceContext, operation: Operation, reason: str
) -> Decision[Operation]:
    told = ("attachment.delete", {"cancel_reason": reason})
    return move_operation(context, standing.instance.app_slug, operation, OperationTrigger.CANCEL, told)
