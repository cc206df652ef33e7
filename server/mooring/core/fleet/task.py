"""Task: one typed, signed, expiring piece of work for a node agent.

A claim is a lease. When it is lost, the task goes back to the queue, and the next claim has a higher fencing token. A
task that no agent has claimed is cancelled at once; for a claimed one the agent is asked to stop, and may have finished
first. After a claimed task expired nobody knows what the node did, so the platform verifies the owner before it does
anything else to it.
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
        S.QUEUED: "waiting for its node's agent",
        S.CLAIMED: "the agent holds it under a lease",
        S.CANCELLING: "its agent is asked to stop early",
        S.SUCCEEDED: "done; the receipt says what was observed",
        S.FAILED: "not done; the receipt says why",
        S.CANCELLED: "stopped early, or never started, on request",
        S.EXPIRED: "past its deadline; if it was claimed, the owner is verified before anything else",
    },
    edges=(
        Transition(S.QUEUED, T.CLAIM, S.CLAIMED, Who.AGENT, "The node's agent claims it under a lease."),
        Transition(S.QUEUED, T.CANCEL, S.CANCELLED, Who.SYSTEM, "It is no longer needed, and no agent has started it."),
        Transition(S.QUEUED, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its deadline passed before an agent claimed it."),
        Transition(S.CLAIMED, T.SUCCEED, S.SUCCEEDED, Who.AGENT, "The receipt shows that it is done."),
        Transition(S.CLAIMED, T.FAIL, S.FAILED, Who.AGENT, "The receipt shows that it could not be done."),
        Transition(
            S.CLAIMED,
            T.LOSE_LEASE,
            S.QUEUED,
            Who.WORKER,
            "The agent stopped renewing its lease, so the task is offered again.",
        ),
        Transition(
            S.CLAIMED, T.CANCEL, S.CANCELLING, Who.SYSTEM, "It is no longer needed, but an agent has started it."
        ),
        Transition(S.CLAIMED, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its deadline passed; nobody knows what was done."),
        Transition(S.CANCELLING, T.FINISH_CANCEL, S.CANCELLED, Who.AGENT, "The receipt shows that it stopped early."),
        Transition(
            S.CANCELLING, T.SUCCEED, S.SUCCEEDED, Who.AGENT, "It was done before the agent got the request to stop."
        ),
        Transition(S.CANCELLING, T.FAIL, S.FAILED, Who.AGENT, "It failed before it had stopped."),
        Transition(S.CANCELLING, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its deadline passed without a report of the agent."),
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
"""The maker of the platform's own tasks; every other maker is a service account."""


@dataclass(frozen=True, slots=True)
class Task:
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
    routine: bool = False  # a look that an adapter takes again and again
    cause_id: str | None = None  # the launch's correlation id, for tasks of an adapter that belong to no operation

    @property
    def is_over(self) -> bool:
        """Whether it is in a final state."""
        return TaskState(self.status) in TASK.final

    @property
    def is_quiet(self) -> bool:
        """Whether it leaves no event and no audit row: a routine look, or a log read for a person."""
        return self.routine or (self.type == LOG_READ and self.maker == SYSTEM_MAKER)


def owner_name(allocation_id: str, label: str = "") -> str:
    """The owner of tasks and receipts: an allocation, or a label within it."""
    return f"{allocation_id}/{label}" if label else allocation_id
