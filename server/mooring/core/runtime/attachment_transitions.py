"""Steps of attachments along their lifecycle, each with its row, its events and its audit rows.

Two projects are concerned, and both are told: each has an event and an audit row of its own, and both rows name both.
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
    """The row of a new attachment."""
    row = {name: each for name, each in asdict(attachment).items() if name not in _UNWRITTEN}
    return Decision(
        attachment, (Insert("attachment", row, (ATTACHMENT,)),), _events(attachment), _audits(action, attachment, None)
    )


def move_attachment(
    context: DecisionContext, attachment: Attachment, trigger: AttachmentTrigger, told: tuple[str, Mapping[str, Any]]
) -> Decision[Attachment]:
    """One step of an attachment; `told` is the action of the audit rows and the columns that change with it."""
    action, columns = told
    edge = ATTACHMENT.step(AttachmentState(attachment.status), trigger)
    after = replace(attachment, status=edge.target.value, generation=attachment.generation + 1, **columns)
    return Decision(
        after,
        (StateChange("attachment", after.id, ATTACHMENT, edge, attachment.generation, after.tenant_id, dict(columns)),),
        _events(after),
        _audits(action, after, {"status": attachment.status}),
    )


def change_attachment(attachment: Attachment, action: str, **columns: Any) -> Decision[Attachment]:
    """Columns of an attachment that are no step of its lifecycle."""
    after = replace(attachment, revision=attachment.revision + 1, **columns)
    change = Update("attachment", after.id, attachment.revision, columns, generation_expected=attachment.generation)
    return Decision(after, (change,), _events(after), _audits(action, after, None))


def activated(context: DecisionContext, attachment: Attachment, action: str) -> Decision[Attachment]:
    """The instance serves the project."""
    columns = {"activated_at": context.now}
    return move_attachment(context, attachment, AttachmentTrigger.ACTIVATE, (action, columns))


def refused(context: DecisionContext, attachment: Attachment, action: str, reason: str) -> Decision[Attachment]:
    """It does not come about."""
    columns = {"refused_at": context.now, "refusal_reason": reason[:REASON_LENGTH]}
    return move_attachment(context, attachment, AttachmentTrigger.REFUSE, (action, columns))


def detached(context: DecisionContext, attachment: Attachment, action: str) -> Decision[Attachment]:
    """What the project was given is taken back."""
    columns = {"detached_at": context.now, "blocker": None, "retry_at": None}
    return move_attachment(context, attachment, AttachmentTrigger.FINISH_DETACH, (action, columns))


def _events(attachment: Attachment) -> tuple[EventRecord, ...]:
    return tuple(
        EventRecord(
            EventType.ATTACHMENT_CHANGED,
            "attachment",
            attachment.id,
            attachment.tenant_id,
            project_id,
            data=_told(attachment),
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
            after=_told(attachment),
            app_instance_id=attachment.instance_id,
        )
        for project_id in (attachment.project_id, attachment.owning_project_id)
    )


def _told(attachment: Attachment) -> dict[str, Any]:
    told = {
        "status": attachment.status,
        "instance_id": attachment.instance_id,
        "account_name": attachment.account_name,
        "attached_project_id": attachment.project_id,
        "owning_project_id": attachment.owning_project_id,
        "operation_id": attachment.operation_id,
        "blocker": attachment.blocker,
        "refusal_reason": attachment.refusal_reason,
    }
    return {name: value for name, value in told.items() if value is not None}
