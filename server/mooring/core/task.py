"""Task: one typed, signed, expiring piece of work for a node agent.

A claim is a lease. Losing it puts the task back, and the next claim has a higher fencing token. A task that
nobody has claimed is cancelled at once; a claimed one is asked, and its agent may have been faster. After
an expired claim nobody knows what the node did, so the owner is verified before anything else is done to
it.
"""

from enum import StrEnum

from mooring.core.machine import Edge, Machine, Who


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

TASK = Machine(
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
        Edge(S.QUEUED, T.CLAIM, S.CLAIMED, Who.AGENT, "The node's agent takes it under a lease."),
        Edge(S.QUEUED, T.CANCEL, S.CANCELLED, Who.SYSTEM, "What wanted it has ended, and nobody has begun it."),
        Edge(S.QUEUED, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its time is over before any agent came for it."),
        Edge(S.CLAIMED, T.SUCCEED, S.SUCCEEDED, Who.AGENT, "The receipt shows that it is done."),
        Edge(S.CLAIMED, T.FAIL, S.FAILED, Who.AGENT, "The receipt shows that it could not be done."),
        Edge(S.CLAIMED, T.LOSE_LEASE, S.QUEUED, Who.WORKER, "The agent fell silent, so it is offered again."),
        Edge(S.CLAIMED, T.CANCEL, S.CANCELLING, Who.SYSTEM, "What wanted it has ended, but it is begun."),
        Edge(S.CLAIMED, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its time is over; nobody knows what was done."),
        Edge(S.CANCELLING, T.FINISH_CANCEL, S.CANCELLED, Who.AGENT, "The receipt shows that it ended early."),
        Edge(S.CANCELLING, T.SUCCEED, S.SUCCEEDED, Who.AGENT, "It was done before the agent heard of it."),
        Edge(S.CANCELLING, T.FAIL, S.FAILED, Who.AGENT, "It came to an error before it had ended early."),
        Edge(S.CANCELLING, T.EXPIRE, S.EXPIRED, Who.WORKER, "Its time is over, and the agent is silent."),
    ),
    requires={
        S.CLAIMED: frozenset({"lease_expires_at"}),
        S.CANCELLING: frozenset({"lease_expires_at"}),
        S.SUCCEEDED: frozenset({"finished_at"}),
        S.FAILED: frozenset({"finished_at"}),
        S.CANCELLED: frozenset({"finished_at"}),
        S.EXPIRED: frozenset({"finished_at"}),
    },
)
