"""Attachment: a project's use of an instance that belongs to another project of its tenant.

It exists only for instances whose control plane is the tenant's. An admin of the tenant, who speaks for both projects,
asks for it; the instance's adapter makes what the project needs there, under an account name of its own, and with that
it is active; or it cannot, and the attachment is refused with the reason. Ending it takes all of that back. Both ends
stay readable afterwards.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

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
        S.REQUESTED: "asked for; the adapter has not made what it needs yet",
        S.ACTIVE: "the project uses the instance",
        S.DETACHING: "the use is being ended, and what belongs to it is taken back",
        S.DETACHED: "the use has ended; the record stays readable",
        S.REFUSED: "it did not come about, and says why",
    },
    edges=(
        Transition(
            S.REQUESTED, T.ACTIVATE, S.ACTIVE, Who.ADAPTER, "The instance serves the project under its account."
        ),
        Transition(
            S.REQUESTED, T.REFUSE, S.REFUSED, Who.ADAPTER, "The instance cannot serve it, or it was taken back."
        ),
        Transition(S.ACTIVE, T.DETACH, S.DETACHING, Who.USER, "An admin ends it, or the instance ends."),
        Transition(
            S.DETACHING,
            T.FINISH_DETACH,
            S.DETACHED,
            Who.ADAPTER,
            "What the project was given is taken back; with the end of the instance the worker says so.",
        ),
    ),
    requires={
        S.ACTIVE: frozenset({"activated_at"}),
        S.DETACHED: frozenset({"detached_at"}),
        S.REFUSED: frozenset({"refused_at", "refusal_reason"}),
    },
)

LIVE: Final = frozenset({S.REQUESTED, S.ACTIVE, S.DETACHING})
"""The states in which it is not over."""

ATTACHMENTS_MAX: Final = 100
"""Attachments of one instance that are not over."""
ACCOUNT_NAME_PATTERN: Final = "^[a-z][a-z0-9-]{0,30}$"
ACCOUNT_NAME_LENGTH: Final = 31
_MARK: Final = "p-"
"""No account of the app's own, nor a user of an operating system, is called so: a slug alone may be `root`."""
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A project's use of another project's instance."""

    id: str
    tenant_id: str
    project_id: str  # the one that is attached
    instance_id: str
    owning_project_id: str
    instance_name: str
    app_slug: str
    account_name: str
    operation_id: str  # the last one that attaches or detaches it
    requested_by: str
    correlation_id: str
    trace_id: str
    status: str
    generation: int
    revision: int
    created_at: datetime
    cancel_work: bool = False
    timeout_seconds: int | None = None  # of a detach: how long its work may go on
    attempts: int = 0  # detaches that failed
    blocker: str | None = None
    retry_at: datetime | None = None
    activated_at: datetime | None = None
    detach_requested_at: datetime | None = None
    detached_at: datetime | None = None
    refused_at: datetime | None = None
    refusal_reason: str | None = None

    @property
    def place(self) -> tuple[str, str]:
        """The tenant and the attached project."""
        return self.tenant_id, self.project_id

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return AttachmentState(self.status) in ATTACHMENT.final

    def told(self) -> dict[str, Any]:
        """What an adapter learns of it with a request."""
        return {"id": self.id, "project_id": self.project_id, "account_name": self.account_name}


def account_name(slug: str, project_id: str, taken: Collection[str]) -> str:
    """The account's name for a project of this slug; where it is taken, or too long, a mark of the project follows.

    Names that other projects ever had at this instance are `taken`: what an app keeps under a name is not handed on.
    """
    plain = f"{_MARK}{slug}"
    if len(plain) <= ACCOUNT_NAME_LENGTH and plain not in taken:
        return plain
    mark = hashlib.sha256(project_id.encode()).hexdigest()
    marked = (
        f"{plain[: ACCOUNT_NAME_LENGTH - digits - 1].rstrip('-')}-{mark[:digits]}"
        for digits in range(_DIGITS, ACCOUNT_NAME_LENGTH - len(_MARK))
    )  # a slug may look like another project's mark: then there is more of it
    return next(each for each in marked if each not in taken)
