"""Attachment: a project's use of an instance that belongs to another project of its tenant.

It exists only for instances whose control plane has the scope `tenant`. An admin of the tenant, who acts for both
projects, requests it. The instance's adapter then creates what the project needs, under a separate account name, and
the attachment becomes active; if the adapter cannot do that, the attachment is refused with the reason. Detaching
removes all of it. Detached and refused attachments stay readable.

Two projects are concerned, the attached one and the owning one. Each gets its own event and audit row for every step,
and both rows name both projects.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
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
from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who


class AttachmentState(StrEnum):
    REQUESTED = "requested"
    ACTIVE = "active"
    DETACHING = "detaching"
    DETACHED = "detached"
    REFUSED = "refused"


class AttachmentTrigger(StrEnum):
    ACTIVATE = "activate"
    REFUSE = "refuse"
    DETACH = "detach"
    FINISH_DETACH = "finish_detach"


S, T = AttachmentState, AttachmentTrigger

ATTACHMENT = Lifecycle(
    name="attachment",
    about="A project's use of an instance that belongs to another project of its tenant.",
    states=AttachmentState,
    triggers=AttachmentTrigger,
    initial=S.REQUESTED,
    meaning={
        S.REQUESTED: "requested; the adapter has not set up the account yet",
        S.ACTIVE: "the project uses the instance",
        S.DETACHING: "the adapter removes what the project has there",
        S.DETACHED: "the project no longer uses the instance; the record stays readable",
        S.REFUSED: "it was not set up; `refusal_reason` says why",
    },
    edges=(
        Transition(
            S.REQUESTED,
            T.ACTIVATE,
            S.ACTIVE,
            Who.ADAPTER,
            "The adapter set up the account; the instance serves the project.",
        ),
        Transition(
            S.REQUESTED, T.REFUSE, S.REFUSED, Who.ADAPTER, "The adapter cannot set it up, or the request was withdrawn."
        ),
        Transition(
            S.ACTIVE,
            T.DETACH,
            S.DETACHING,
            Who.USER,
            "An admin detaches the project, or the instance is stopped or fails.",
        ),
        Transition(
            S.DETACHING,
            T.FINISH_DETACH,
            S.DETACHED,
            Who.ADAPTER,
            "The adapter removed what the project had; if the instance has ended, the worker records it.",
        ),
    ),
    requires={
        S.ACTIVE: frozenset({"activated_at"}),
        S.DETACHED: frozenset({"detached_at"}),
        S.REFUSED: frozenset({"refused_at", "refusal_reason"}),
    },
)

LIVE: Final = frozenset({S.REQUESTED, S.ACTIVE, S.DETACHING})
"""The states that are not final."""

ATTACHMENTS_MAX: Final = 100
"""How many attachments of one instance may be live."""
ACCOUNT_NAME_PATTERN: Final = "^[a-z][a-z0-9-]{0,30}$"
ACCOUNT_NAME_LENGTH: Final = 31
_PREFIX: Final = "p-"
"""A prefix that keeps account names apart from the app's own accounts and from system users: a slug may be `root`."""
_SUFFIX_LENGTH: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A project's use of an instance of another project of its tenant."""

    id: str
    tenant_id: str
    project_id: str  # the attached project
    instance_id: str
    owning_project_id: str
    instance_name: str
    app_slug: str
    account_name: str
    operation_id: str  # the latest attach or detach operation
    requested_by: str
    correlation_id: str
    trace_id: str
    status: str
    generation: int
    revision: int
    created_at: datetime
    cancel_work: bool = False
    timeout_seconds: int | None = None  # of a detach: how long running work may continue
    attempts: int = 0  # failed detach operations so far
    blocker: str | None = None
    retry_at: datetime | None = None
    activated_at: datetime | None = None
    detach_requested_at: datetime | None = None
    detached_at: datetime | None = None
    refused_at: datetime | None = None
    refusal_reason: str | None = None

    @property
    def place(self) -> tuple[str, str]:
        """(tenant id, attached project's id)."""
        return self.tenant_id, self.project_id

    @property
    def is_over(self) -> bool:
        return AttachmentState(self.status) in ATTACHMENT.final

    def for_adapter(self) -> dict[str, Any]:
        """The part that an adapter sees in an operation's request."""
        return {"id": self.id, "project_id": self.project_id, "account_name": self.account_name}


def account_name(slug: str, project_id: str, taken: Collection[str]) -> str:
    """The account name for a project of this slug; a hash of the project id follows if it is taken or too long.

    `taken` includes names that other projects had in the past: an app may have data under a name, and no other project
    must get it.
    """
    plain = f"{_PREFIX}{slug}"
    if len(plain) <= ACCOUNT_NAME_LENGTH and plain not in taken:
        return plain
    digest = hashlib.sha256(project_id.encode()).hexdigest()
    candidates = (
        f"{plain[: ACCOUNT_NAME_LENGTH - digits - 1].rstrip('-')}-{digest[:digits]}"
        for digits in range(_SUFFIX_LENGTH, ACCOUNT_NAME_LENGTH - len(_PREFIX))
    )  # a slug may look like a suffixed name; then use a longer suffix
    return next(each for each in candidates if each not in taken)


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
