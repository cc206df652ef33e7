"""Task: one typed, signed, expiring piece of work for a node agent.

A claim is a lease. Losing it puts the task back, and the next claim has a higher fencing token. A task that
nobody has claimed is cancelled at once; a claimed one is asked, and its agent may have been faster. After
an expired claim nobody knows what the node did, so the owner is verified before anything else is done to
it.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from mooring.core.fleet.task_log_read import LOG_READ
from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who


class TaskState(StrEnum):
    QUEUED = "queued"
    CLAIMED = "claimed"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class TaskTrigger(StrEnum):
    CLAIM = "claim"
    LOSE_LEASE = "lose_lease"
    CANCEL = "cancel"
    FINISH_CANCEL = "finish_cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    EXPIRE = "expire"


S, T = TaskState, TaskTrigger

TASK = Lifecycle(
    name="task",
    about="One typed, signed, expiring piece of work for a node agent.",
    states=TaskState,
    triggers=TaskTrigger,
    initial=S.QUEUED,
    meaning={
        S.QUEUED: "it waits for its node's agent",
        S.CLAIMED: "the agent holds it under a lease",
        S.CANCELLING: "the agent that holds it is asked to end early",
        S.SUCCEEDED: "done; the receipt says what was observed",
        S.FAILED: "not done; the receipt says why",
        S.CANCELLED: "ended early, or never begun, because somebody asked",
        S.EXPIRED: "its time is over; if it was claimed, the owner is verified before anything else",
    },
    edges=(
        Transition(S.QUEUED, T.CLAIM, S.CLAIMED, Who.AGENT, "The node's agent takes it under a lease."),
        Transition(S.QUEUED, T.CANCEL, S.CANCELLED, Who.SYSTEM, "What wanted it has ended, and nobody has begun it."),
        Transition(S.QUEUED, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its time is over before any agent came for it."),
        Transition(S.CLAIMED, T.SUCCEED, S.SUCCEEDED, Who.AGENT, "The receipt shows that it is done."),
        Transition(S.CLAIMED, T.FAIL, S.FAILED, Who.AGENT, "The receipt shows that it could not be done."),
        Transition(S.CLAIMED, T.LOSE_LEASE, S.QUEUED, Who.WORKER, "The agent fell silent, so it is offered again."),
        Transition(S.CLAIMED, T.CANCEL, S.CANCELLING, Who.SYSTEM, "What wanted it has ended, but it is begun."),
        Transition(S.CLAIMED, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its time is over; nobody knows what was done."),
        Transition(S.CANCELLING, T.FINISH_CANCEL, S.CANCELLED, Who.AGENT, "The receipt shows that it ended early."),
        Transition(S.CANCELLING, T.SUCCEED, S.SUCCEEDED, Who.AGENT, "It was done before the agent heard of it."),
        Transition(S.CANCELLING, T.FAIL, S.FAILED, Who.AGENT, "It came to an error before it had ended early."),
        Transition(S.CANCELLING, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its time is over, and the agent is silent."),
    ),
    requires={
        S.CLAIMED: frozenset({"lease_expires_at"}),
        S.CANCELLING: frozenset({"lease_expires_at"}),
        S.SUCCEEDED: frozenset({"finished_at"}),
        S.FAILED: frozenset({"finished_at", "failure_code"}),
        S.CANCELLED: frozenset({"finished_at"}),
        S.EXPIRED: frozenset({"finished_at"}),
    },
)


SYSTEM_MAKER = "system"
"""The maker of what the platform asks for by itself; every other maker is a service account."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task as it stands."""

    id: str
    tenant_id: str
    project_id: str
    allocation_id: str
    node_id: str
    owner: str
    instance_id: str | None
    member_id: str | None
    operation_id: str | None
    step: str
    type: str
    arguments: dict[str, Any]
    maker: str
    status: str
    generation: int
    revision: int
    fence: int
    correlation_id: str
    trace_id: str
    created_at: datetime
    expires_at: datetime
    lease_expires_at: datetime | None = None
    first_claimed_at: datetime | None = None
    finished_at: datetime | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    exit_code: int | None = None
    result: dict[str, Any] | None = None
    last_lines: list[str] | None = None
    progress: dict[str, Any] | None = None
    log_bytes: int = 0
    log_truncated: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return TaskState(self.status) in TASK.final

    @property
    def is_quiet(self) -> bool:
        """Whether it is a read that a person asked for: as other reads, it leaves no event and no audit row."""
        return self.type == LOG_READ and self.maker == SYSTEM_MAKER


def owner_name(allocation_id: str, label: str = "") -> str:
    """How tasks and receipts spell an owner: the allocation, or a label within it."""
    return f"{allocation_id}/{label}" if label else allocation_id
