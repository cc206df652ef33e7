"""What tenant admins ask of attachments, and what attached projects ask of the instance.

A project has at most one live attachment to an instance. Detaching refuses new work at once; work that still runs is
waited for, or cancelled, within a time limit. A second detach with `cancel_work` ends the waiting.
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
    change_attachment,
    move_attachment,
    new_attachment,
)
from mooring.core.runtime.attachment_reconcile import DETACH_SECONDS, detach_operation
from mooring.core.runtime.instance import InstanceState
from mooring.core.runtime.instance_change import InstanceContext, require_running, require_trusted
from mooring.core.runtime.instance_launch import OperationBounds, build_operation
from mooring.core.runtime.instance_transitions import move_operation, new_operation, together
from mooring.core.runtime.operation import ATTACHMENT_KINDS, Operation, OperationKind, OperationState, OperationTrigger

DETACH_SECONDS_MAX: Final = 604_800
OPEN_MAX: Final = 20
"""How many actions of one attachment may be open: one project must not use up the limit of the instance."""
S = AttachmentState


@dataclass(frozen=True, slots=True)
class AttachContext:
    """The facts on which an attachment is decided."""

    current: InstanceContext
    project: Project
    live: Sequence[Attachment]  # of the instance
    taken: frozenset[str]  # account names that other projects have, or had


@dataclass(frozen=True, slots=True)
class DetachRequest:
    """How to detach a project."""

    cancel_work: bool = False
    timeout_seconds: int = DETACH_SECONDS


def attach_project(context: DecisionContext, facts: AttachContext, bounds: OperationBounds) -> Decision[Attachment]:
    """Let a project use the instance; its adapter sets up the account."""
    instance, project = facts.current.instance, facts.project
    _require_shared(facts)
    require_running(instance, "attach")
    require_trusted(facts.current, "attach")
    existing = next((each for each in facts.live if each.project_id == project.id), None)
    if existing is not None:
        raise Refusal(
            Code.CONFLICT,
            f"the project has attachment {existing.id} to the instance, which is {existing.status}",
            {"attachment_id": existing.id, "status": existing.status},
        )
    if len(facts.live) >= ATTACHMENTS_MAX:
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
        account_name=account_name(project.slug, project.id, facts.taken),
        operation_id=context.mint(Prefix.OPERATION),
        requested_by=context.actor.id,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        status=ATTACHMENT.initial.value,
        generation=0,
        revision=0,
        created_at=context.now,
    )
    row = build_operation(
        context, instance, OperationKind.ATTACH, {"attachment": attachment.for_adapter()}, bounds.operation_seconds
    )
    operation = replace(row, id=attachment.operation_id, dispatched_at=context.now)
    return together(
        attachment,
        new_attachment(attachment, "attachment.create"),
        new_operation(instance, operation, "attachment.create"),
    )


def detach_project(
    context: DecisionContext, current: InstanceContext, attachment: Attachment, request: DetachRequest
) -> Decision[Attachment]:
    """End the project's use of the instance; repeating it changes nothing unless it asks for `cancel_work`."""
    if not 0 <= request.timeout_seconds <= DETACH_SECONDS_MAX:
        raise validation.invalid("timeout_seconds", f"0 to {DETACH_SECONDS_MAX}")
    state = AttachmentState(attachment.status)
    open_operation = next((each for each in current.operations if each.id == attachment.operation_id), None)
    if state is S.DETACHED:
        return Decision(attachment)
    if state is S.REQUESTED:
        return _withdraw(context, current, attachment, open_operation)
    if state is S.REFUSED:
        raise IllegalTransition("attachment", state, AttachmentTrigger.DETACH, ATTACHMENT.allowed(state))
    changes: dict[str, Any] = {"cancel_work": request.cancel_work, "timeout_seconds": request.timeout_seconds}
    graceful = timedelta(seconds=current.graceful_seconds)
    runs = current.instance.status == InstanceState.RUNNING
    if state is S.ACTIVE:
        columns: dict[str, Any] = {**changes, "detach_requested_at": context.now, "blocker": None}
        if not runs:  # the attachment ends together with the instance
            return move_attachment(context, attachment, AttachmentTrigger.DETACH, "attachment.delete", **columns)
        operation = detach_operation(context, current.instance, replace(attachment, **columns), graceful)
        columns["operation_id"] = operation.id
        moved = move_attachment(context, attachment, AttachmentTrigger.DETACH, "attachment.delete", **columns)
        return together(moved.result, moved, new_operation(current.instance, operation, "attachment.delete"))
    if open_operation is not None:
        return _hurry(context, current, attachment, operation=open_operation, request=request)
    if not runs:
        return Decision(attachment)
    operation = detach_operation(context, current.instance, replace(attachment, **changes), graceful)
    changed = change_attachment(attachment, "attachment.delete", operation_id=operation.id, retry_at=None, **changes)
    return together(changed.result, changed, new_operation(current.instance, operation, "attachment.delete"))


def require_active(attachment: Attachment, operations: Sequence[Operation]) -> RowGuard:
    """Refuse unless the attachment is active and below its limit; the guard checks again at the write."""
    state = AttachmentState(attachment.status)
    if state is not S.ACTIVE:
        allowed = [each.value for each in ATTACHMENT.allowed(state)]
        raise Refusal(
            Code.ILLEGAL_TRANSITION,
            f"attachment is {attachment.status}: cannot act; only an active attachment can",
            {"machine": "attachment", "state": attachment.status, "trigger": "act", "allowed": allowed},
        )
    own = [each for each in operations if (each.attachment or {}).get("id") == attachment.id]
    if sum(1 for each in own if each.kind == OperationKind.ACTION) >= OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"{OPEN_MAX} actions of the attachment are open", {"limit": OPEN_MAX})
    return RowGuard("attachment", {"id": attachment.id, "generation": attachment.generation})


def _require_shared(facts: AttachContext) -> None:
    instance = facts.current.instance
    if instance.project_id == facts.project.id:
        raise Refusal(Code.CONFLICT, "the instance belongs to the project itself", {"instance_id": instance.id})
    if not instance.is_shared:
        raise Refusal(
            Code.NOT_SUPPORTED,
            f"the instance serves its own project alone: its control_plane_scope is {instance.control_plane_scope}",
            {"instead": "launch one with control_plane_scope tenant", "control_plane_scope": "tenant"},
        )
    lifecycle = facts.current.lifecycle
    if lifecycle is None or not lifecycle.attach.supported:
        note = "" if lifecycle is None else lifecycle.attach.note
        instead = note or "launch an instance of it in the project"
        raise Refusal(Code.NOT_SUPPORTED, "the app does not support attachments", {"instead": instead})


def _withdraw(
    context: DecisionContext, current: InstanceContext, attachment: Attachment, operation: Operation | None
) -> Decision[Attachment]:
    """Cancel the attach operation; when it has ended, the attachment becomes refused."""
    if operation is None or operation.status == OperationState.CANCELLING:
        return Decision(attachment)
    cancellation = _cancel(context, current, operation, "the attachment request was withdrawn")
    return together(attachment, cancellation)


def _hurry(
    context: DecisionContext,
    current: InstanceContext,
    attachment: Attachment,
    *,
    operation: Operation,
    request: DetachRequest,
) -> Decision[Attachment]:
    """Restart a detach that waits for work, so that it cancels the work, if the caller asks for that now."""
    if not request.cancel_work or attachment.cancel_work or operation.kind not in ATTACHMENT_KINDS:
        return Decision(attachment)
    columns = {"cancel_work": True, "timeout_seconds": request.timeout_seconds, "retry_at": context.now}
    changed = change_attachment(attachment, "attachment.delete", **columns)
    if operation.status == OperationState.CANCELLING:
        return changed
    cancellation = _cancel(
        context, current, operation, "the caller asked to cancel running work instead of waiting for it"
    )
    return together(changed.result, changed, cancellation)


def _cancel(
    context: DecisionContext, current: InstanceContext, operation: Operation, reason: str
) -> Decision[Operation]:
    slug = current.instance.app_slug
    return move_operation(context, slug, operation, OperationTrigger.CANCEL, "attachment.delete", cancel_reason=reason)
