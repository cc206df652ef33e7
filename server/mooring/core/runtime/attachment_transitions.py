"""Lifecycle steps of attachments, each with its row, its events and its audit rows.

Two projects are concerned, the attached one and the owning one. Each gets its own event and audit row, and both rows
name both projects.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    StateChange,
    Update,
)
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.attachment import ATTACHMENT, Attachment, AttachmentState, AttachmentTrigger

REASON_LENGTH: Final = 1000
_UNWRITTEN: Final = frozenset({"status", "generation"})


def new_attachment(attachment: Attachment, action: str) -> Decision[Attachment]:
    row = {name: each for name, each in asdict(attachment).items() if name not in _UNWRITTEN}
    return Decision(
        attachment, (Insert("attachment", row, (ATTACHMENT,)),), _events(attachment), _audits(action, attachment, None)
    )


def move_attachment(
    context: DecisionContext, attachment: Attachment, trigger: AttachmentTrigger, action: str, **columns: Any
) -> Decision[Attachment]:
    """One lifecycle step of an attachment, with the columns that change in it."""
    edge = ATTACHMENT.step(AttachmentState(attachment.status), trigger)
    after = replace(attachment, status=edge.target.value, generation=attachment.generation + 1, **columns)
    return Decision(
        after,
        (StateChange("attachment", after.id, ATTACHMENT, edge, attachment.generation, after.tenant_id, columns),),
        _events(after),
        _audits(action, after, {"status": attachment.status}),
    )


def change_attachment(attachment: Attachment, action: str, **columns: Any) -> Decision[Attachment]:
    """Change columns without a lifecycle step."""
    after = replace(attachment, revision=attachment.revision + 1, **columns)
    change = Update("attachment", after.id, attachment.revision, columns, generation_expected=attachment.generation)
    return Decision(after, (change,), _events(after), _audits(action, after, None))


def activated(context: DecisionContext, attachment: Attachment, action: str) -> Decision[Attachment]:
    columns = {"activated_at": context.now}
    return move_attachment(context, attachment, AttachmentTrigger.ACTIVATE, action, **columns)


def refused(context: DecisionContext, attachment: Attachment, action: str, reason: str) -> Decision[Attachment]:
    columns = {"refused_at": context.now, "refusal_reason": reason[:REASON_LENGTH]}
    return move_attachment(context, attachment, AttachmentTrigger.REFUSE, action, **columns)


def detached(context: DecisionContext, attachment: Attachment, action: str) -> Decision[Attachment]:
    columns = {"detached_at": context.now, "blocker": None, "retry_at": None}
    return move_attachment(context, attachment, AttachmentTrigger.FINISH_DETACH, action, **columns)


def _events(attachment: Attachment) -> tuple[EventRecord, ...]:
    return tuple(
        EventRecord(
            EventType.ATTACHMENT_CHANGED,
            "attachment",
            attachment.id,
            attachment.tenant_id,
            project_id,
            data=_data(attachment),
            app_slug=attachment.app_slug,
            app_instance_id=attachment.instance_id,
        )
        for project_id in (attachment.project_id, attachment.owning_project_id)
    )


def _audits(action: str, attachment: Attachment, before: Mapping[str, Any] | None) -> tuple[AuditRecord, ...]:
    return tuple(
        AuditRecord(
            action,
            "attachment",
            attachment.id,
            attachment.tenant_id,
            project_id,
            before=before,
            after=_data(attachment),
            app_instance_id=attachment.instance_id,
        )
        for project_id in (attachment.project_id, attachment.owning_project_id)
    )


def _data(attachment: Attachment) -> dict[str, Any]:
    data = {
        "status": attachment.status,
        "instance_id": attachment.instance_id,
        "account_name": attachment.account_name,
        "attached_project_id": attachment.project_id,
        "owning_project_id": attachment.owning_project_id,
        "operation_id": attachment.operation_id,
        "blocker": attachment.blocker,
        "refusal_reason": attachment.refusal_reason,
    }
    return {name: value for name, value in data.items() if value is not None}
