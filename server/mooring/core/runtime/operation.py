"""Operation: any asynchronous change, with an identity, steps, a lease, a deadline and an outcome.

An attempt is not a state: when a holder dies, the operation stays where it was, and the next holder continues from what
was recorded. A blocked operation names its blocker and resumes automatically when the blocker is gone. Cancelling is a
request; an operation that is past the point of no return may still succeed or fail, and that is then its outcome.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who


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

OPERATION = Lifecycle(
    name="operation",
    about="Any asynchronous change: deploy, add, drain, remove, replace, upgrade, rollback, reconcile, "
    "repair, restart, configure, action, attach, detach, decommission. An attempt is not a state.",
    states=OperationState,
    triggers=OperationTrigger,
    initial=S.ACCEPTED,
    meaning={
        S.ACCEPTED: "stored and offered; no holder works on it yet",
        S.RUNNING: "a holder works on it under a lease",
        S.BLOCKED: "it waits for the named blocker, and resumes automatically when that is gone",
        S.CANCELLING: "asked to end early; the holder undoes or finishes what it started",
        S.SUCCEEDED: "the change is done, with evidence",
        S.FAILED: "it ended without the change; `failure_code` says why",
        S.CANCELLED: "it ended early because a caller asked, and no part of it continues",
    },
    edges=(
        Transition(S.ACCEPTED, T.START, S.RUNNING, Who.ADAPTER, "A holder claims the work and starts."),
        Transition(S.ACCEPTED, T.BLOCK, S.BLOCKED, Who.WORKER, "A named blocker stops it before it starts."),
        Transition(S.ACCEPTED, T.FAIL, S.FAILED, Who.WORKER, "The deadline passed before any holder started."),
        Transition(S.ACCEPTED, T.CANCEL, S.CANCELLING, Who.USER, "A caller cancels it, or a stop does."),
        Transition(S.RUNNING, T.BLOCK, S.BLOCKED, Who.ADAPTER, "A named blocker stops it."),
        Transition(S.RUNNING, T.SUCCEED, S.SUCCEEDED, Who.ADAPTER, "The holder observed that the change is done."),
        Transition(
            S.RUNNING,
            T.FAIL,
            S.FAILED,
            Who.ADAPTER,
            "The holder hit a non-retryable error, or the deadline passed.",
        ),
        Transition(S.RUNNING, T.CANCEL, S.CANCELLING, Who.USER, "A caller cancels it, or a stop does."),
        Transition(S.BLOCKED, T.UNBLOCK, S.RUNNING, Who.WORKER, "The blocker is gone, so it resumes."),
        Transition(S.BLOCKED, T.FAIL, S.FAILED, Who.WORKER, "The deadline passed while it was blocked."),
        Transition(S.BLOCKED, T.CANCEL, S.CANCELLING, Who.USER, "A caller cancels it, or a stop does."),
        Transition(
            S.CANCELLING,
            T.FINISH_CANCEL,
            S.CANCELLED,
            Who.ADAPTER,
            "No part of it continues; if no holder had started, the worker records it.",
        ),
        Transition(
            S.CANCELLING, T.SUCCEED, S.SUCCEEDED, Who.ADAPTER, "It was done before the holder saw the cancel request."
        ),
        Transition(S.CANCELLING, T.FAIL, S.FAILED, Who.ADAPTER, "It failed before the cancel took effect."),
    ),
    requires={
        S.BLOCKED: frozenset({"blocker"}),
        S.SUCCEEDED: frozenset({"finished_at"}),
        S.FAILED: frozenset({"finished_at", "failure_code"}),
        S.CANCELLED: frozenset({"finished_at"}),
    },
)


class OperationKind(StrEnum):
    """What the operation changes."""

    DEPLOY = "deploy"
    ADD = "add"
    DRAIN = "drain"
    REMOVE = "remove"
    REPLACE = "replace"
    UPGRADE = "upgrade"
    ROLLBACK = "rollback"
    RECONCILE = "reconcile"
    REPAIR = "repair"
    RESTART = "restart"
    CONFIGURE = "configure"
    ACTION = "action"
    ATTACH = "attach"
    DETACH = "detach"
    DECOMMISSION = "decommission"


WHOLE_KINDS: Final = frozenset(
    {
        OperationKind.DEPLOY, OperationKind.UPGRADE, OperationKind.ROLLBACK, OperationKind.RECONCILE,
        OperationKind.REPAIR, OperationKind.RESTART, OperationKind.CONFIGURE,
    }
)  # fmt: skip
"""Operations of the whole instance; only one of them is open at a time."""

MEMBER_KINDS: Final = frozenset({OperationKind.ADD, OperationKind.DRAIN, OperationKind.REMOVE, OperationKind.REPLACE})
"""Operations of members; only one of them is open per member."""

ATTACHMENT_KINDS: Final = frozenset({OperationKind.ATTACH, OperationKind.DETACH})
"""Operations of attachments; only one of them is open per attachment."""

TEARDOWN_KINDS: Final = frozenset({OperationKind.REMOVE, OperationKind.REPLACE, OperationKind.DECOMMISSION})
"""Operations with a platform phase: after the adapter, the platform tears down and verifies."""


class Phase(StrEnum):
    """Whose turn it is."""

    ADAPTER = "adapter"
    PLATFORM = "platform"


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class OperationFailure(StrEnum):
    """Why an operation failed, most specific first; adapters use the same codes."""

    BOOTSTRAP_TIMEOUT = "bootstrap_timeout"
    STEP_TIMEOUT = "step_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NO_CAPACITY = "no_capacity"
    IMAGE_PULL_FAILED = "image_pull_failed"
    ARTIFACT_REFUSED = "artifact_refused"
    PERMISSION_DENIED = "permission_denied"
    CONFIG_REFUSED = "config_refused"
    RUNTIME_ERROR = "runtime_error"
    UNHEALTHY = "unhealthy"
    ADAPTER_UNAVAILABLE = "adapter_unavailable"
    ADAPTER_ERROR = "adapter_error"
    NODE_LOST = "node_lost"
    BELOW_MINIMUM = "below_minimum"
    NOT_QUIET = "not_quiet"
    CIRCUIT_OPEN = "circuit_open"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One asynchronous change of an instance."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    kind: str
    request: dict[str, Any]
    deadline_at: datetime
    requested_by: str
    correlation_id: str
    trace_id: str
    status: str
    generation: int
    revision: int
    created_at: datetime
    phase: str = Phase.ADAPTER.value
    member_ids: list[str] = field(default_factory=list)
    target_pin: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)  # name, status, detail, attempts, started_at, ended_at
    progress: dict[str, Any] | None = None
    attempts: int = 0
    attempt_fence: int | None = None  # the fence under which the last attempt started
    phase_deadline_at: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    blocker: str | None = None
    blocker_code: str | None = None
    cancel_reason: str | None = None
    output: dict[str, Any] | None = None
    evidence: dict[str, Any] | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    last_lines: list[str] | None = None
    read_only: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """(tenant id, project id)."""
        return self.tenant_id, self.project_id

    @property
    def is_over(self) -> bool:
        return OperationState(self.status) in OPERATION.final

    @property
    def attachment(self) -> dict[str, Any] | None:
        """The attachment that it is for (id, project id, account name), or None."""
        return self.request.get("attachment")


F = OperationFailure

RETRYABLE: Final = frozenset(
    {F.NO_CAPACITY, F.NODE_LOST, F.IMAGE_PULL_FAILED, F.ADAPTER_UNAVAILABLE, F.CIRCUIT_OPEN, F.NOT_QUIET, F.CANCELLED}
)
"""Failures after which the same request may succeed unchanged."""

ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        F.BOOTSTRAP_TIMEOUT: "read the last lines; a version that takes longer needs a longer deadline",
        F.STEP_TIMEOUT: "read what the step waits for, then try again",
        F.DEADLINE_EXCEEDED: "read how far it got, then try again: finished steps stay done",
        F.NO_CAPACITY: "try again when there is room, or request less",
        F.IMAGE_PULL_FAILED: "try again; if it fails again, check that the node can reach the image's source",
        F.ARTIFACT_REFUSED: "ask an admin to check the artifact's trust and the policy",
        F.PERMISSION_DENIED: "ask an admin to check the actions of the operator account",
        F.CONFIG_REFUSED: "change the configuration",
        F.RUNTIME_ERROR: "read the last lines; the app itself failed",
        F.UNHEALTHY: "read the last lines; the app runs but does not answer as it should",
        F.ADAPTER_UNAVAILABLE: "start the adapter of this app with the operator account of this project, and try again",
        F.ADAPTER_ERROR: "ask the team that runs the adapter to read its log; search for the correlation id",
        F.NODE_LOST: "try again: another machine will be used",
        F.BELOW_MINIMUM: "launch it again: too few members are left",
        F.NOT_QUIET: "try again with a longer timeout, or remove it without waiting",
        F.CIRCUIT_OPEN: "wait until the circuit closes, or launch another version",
        F.CANCELLED: "request it again if it is still needed",
    }
)
"""What to do about each failure."""


def advice_of(code: str) -> dict[str, Any]:
    """Whether a retry may help, and what to do; an unknown code is the adapter's own."""
    return {"retryable": code in RETRYABLE, "next": ADVICE.get(code, ADVICE[F.ADAPTER_ERROR])}


if set(ADVICE) != set(OperationFailure):
    raise ValueError("every operation failure must have advice")
