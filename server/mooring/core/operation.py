"""Operation: any asynchronous change, with an identity, steps, a lease, a deadline and an outcome.

An attempt is not a state: a holder that dies leaves the operation where it was, and the next one goes on
from what was recorded. A blocked operation names its blocker and resumes by itself when the blocker is
gone. Cancelling asks; what was already past stopping may still succeed or fail, and then that is its
outcome.
"""

from enum import StrEnum

from mooring.core.machine import Edge, Machine, Who


class OperationState(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    BLOCKED = "blocked"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class OperationTrigger(StrEnum):
    START = "start"
    BLOCK = "block"
    UNBLOCK = "unblock"
    CANCEL = "cancel"
    FINISH_CANCEL = "finish_cancel"
    SUCCEED = "succeed"
    FAIL = "fail"


S, T = OperationState, OperationTrigger

OPERATION = Machine(
    name="operation",
    about="Any asynchronous change: deploy, add, drain, remove, replace, upgrade, rollback, reconcile, "
    "repair, restart, action, decommission. An attempt is not a state.",
    states=OperationState,
    triggers=OperationTrigger,
    initial=S.ACCEPTED,
    meaning={
        S.ACCEPTED: "stored and offered; nobody works on it yet",
        S.RUNNING: "a holder works on it under a lease",
        S.BLOCKED: "it waits for something that has a name, and goes on by itself when that is gone",
        S.CANCELLING: "asked to end early; the holder undoes or finishes what it began",
        S.SUCCEEDED: "what was asked for is done, with evidence",
        S.FAILED: "it ended without what was asked for, and says why",
        S.CANCELLED: "it ended early because somebody asked, and nothing of it goes on",
    },
    edges=(
        Edge(S.ACCEPTED, T.START, S.RUNNING, Who.ADAPTER, "A holder claims the work and begins."),
        Edge(S.ACCEPTED, T.BLOCK, S.BLOCKED, Who.WORKER, "Something with a name stands in its way."),
        Edge(S.ACCEPTED, T.FAIL, S.FAILED, Who.WORKER, "The deadline passed before anybody began."),
        Edge(S.ACCEPTED, T.CANCEL, S.CANCELLING, Who.USER, "A caller no longer wants it, or a stop does."),
        Edge(S.RUNNING, T.BLOCK, S.BLOCKED, Who.ADAPTER, "Something with a name came in its way."),
        Edge(S.RUNNING, T.SUCCEED, S.SUCCEEDED, Who.ADAPTER, "The holder observed what was asked for."),
        Edge(
            S.RUNNING,
            T.FAIL,
            S.FAILED,
            Who.ADAPTER,
            "The holder came to an error that trying again does not mend, or the deadline passed.",
        ),
        Edge(S.RUNNING, T.CANCEL, S.CANCELLING, Who.USER, "A caller asks it to end early, or a stop does."),
        Edge(S.BLOCKED, T.UNBLOCK, S.RUNNING, Who.WORKER, "The blocker is gone, so it goes on by itself."),
        Edge(S.BLOCKED, T.FAIL, S.FAILED, Who.WORKER, "The deadline passed while the blocker stayed."),
        Edge(S.BLOCKED, T.CANCEL, S.CANCELLING, Who.USER, "A caller does not wait longer, or a stop does."),
        Edge(
            S.CANCELLING,
            T.FINISH_CANCEL,
            S.CANCELLED,
            Who.ADAPTER,
            "Nothing of it goes on; where nobody had begun, the worker says so.",
        ),
        Edge(S.CANCELLING, T.SUCCEED, S.SUCCEEDED, Who.ADAPTER, "It was done before the holder heard of it."),
        Edge(S.CANCELLING, T.FAIL, S.FAILED, Who.ADAPTER, "It came to an error before it had ended early."),
    ),
    requires={
        S.BLOCKED: frozenset({"blocker"}),
        S.SUCCEEDED: frozenset({"finished_at"}),
        S.FAILED: frozenset({"finished_at", "failure_code"}),
        S.CANCELLED: frozenset({"finished_at"}),
    },
)
