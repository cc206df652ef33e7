"""Artifact checks: reading all bytes of an artifact, and storing the result.

A check outlives the request that asked for it. It is created together with the change that needs it, a process with
free capacity starts it under a lease and reports its progress, and it ends with a result. When its holder dies, the
lease expires: the check is accepted again and another process starts it, a bounded number of times. Each start and
each loss is a transition, so the generation is the fencing token: a result names the generation of its start, and a
holder that lost its lease cannot write anything.

There are two kinds. `content` finds the bytes at their source, hashes them and collects signatures; registering a blob
and verifying need it. `smoke` also inspects the content; staging needs it. An artifact has at most one unfinished check
of each kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from mooring.core.catalog.artifact import Artifact
from mooring.core.kernel.decision import (
    Actor,
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    PrincipalKind,
    StateChange,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who

ATTEMPTS_MAX: Final = 5
UNDER_WAY_MAX: Final = 100  # of one tenant, or of the platform
DETAIL_LENGTH_MAX: Final = 1_000
PAUSE_SECONDS: Final = 1.0  # the pause before a lost check starts again; it doubles with each loss
SMOKE_COUNTS_FOR: Final = timedelta(hours=24)
"""How long a passed smoke check allows staging: the digest pins the bytes, but the source may lose them."""
CONCLUSIONS: Final = frozenset({Code.ARTIFACT_NOT_FOUND_AT_SOURCE, Code.DIGEST_MISMATCH, Code.SOURCE_DENIED})
"""Failures of a content check that are facts about the artifact: they are stored as evidence and affect its trust."""


class CheckName(StrEnum):
    """The kind of a check."""

    CONTENT = "content"
    SMOKE = "smoke"


class CheckState(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CheckTrigger(StrEnum):
    START = "start"
    LOSE_LEASE = "lose_lease"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"


S, T = CheckState, CheckTrigger

ARTIFACT_CHECK = Lifecycle(
    name="artifact_check",
    about="Reading an artifact's bytes: finding and hashing them (`content`), or inspecting them too (`smoke`). "
    "The generation of a start is the fencing token of the process that started it.",
    states=CheckState,
    triggers=CheckTrigger,
    initial=S.ACCEPTED,
    meaning={
        S.ACCEPTED: "stored and due; no process is reading",
        S.RUNNING: "a process reads under a lease and reports its progress",
        S.SUCCEEDED: "every byte was read and the digest matches",
        S.FAILED: "it ended without success; the failure code says why",
        S.CANCELLED: "it ended early because a caller cancelled it or the artifact was revoked",
    },
    edges=(
        Transition(S.ACCEPTED, T.START, S.RUNNING, Who.WORKER, "A process with free capacity takes the lease."),
        Transition(S.ACCEPTED, T.CANCEL, S.CANCELLED, Who.USER, "A caller cancels it, or the artifact is revoked."),
        Transition(S.RUNNING, T.LOSE_LEASE, S.ACCEPTED, Who.WORKER, "The lease expired or its holder stopped."),
        Transition(S.RUNNING, T.SUCCEED, S.SUCCEEDED, Who.WORKER, "Every byte was read and the digest matches."),
        Transition(
            S.RUNNING,
            T.FAIL,
            S.FAILED,
            Who.WORKER,
            "The bytes are wrong, the source does not deliver them, or too many holders were lost.",
        ),
        Transition(S.RUNNING, T.CANCEL, S.CANCELLED, Who.USER, "A caller cancels it, or the artifact is revoked."),
    ),
    requires={
        S.RUNNING: frozenset({"started_at", "lease_expires_at"}),
        S.SUCCEEDED: frozenset({"finished_at"}),
        S.FAILED: frozenset({"finished_at", "failure_code"}),
        S.CANCELLED: frozenset({"finished_at"}),
    },
)  # fmt: skip

UNDER_WAY: Final = frozenset({S.ACCEPTED, S.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactCheck:
    """One check of an artifact, unfinished or ended."""

    id: str
    tenant_id: str | None
    project_id: str | None
    artifact_id: str
    name: str
    subject: str  # the digest of what is checked
    status: str
    generation: int
    attempts: int
    bytes_done: int
    bytes_total: int | None  # as the source announces it, until everything is read
    due_at: datetime
    created_at: datetime
    correlation_id: str
    trace_id: str
    actor_kind: str
    actor_id: str
    token_id: str | None = None
    break_glass_id: str | None = None
    started_at: datetime | None = None
    progressed_at: datetime | None = None
    lease_expires_at: datetime | None = None
    finished_at: datetime | None = None
    passed: bool | None = None
    detail: str = ""
    failure_code: str | None = None
    failure_details: dict[str, Any] | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_under_way(self) -> bool:
        return self.status in UNDER_WAY

    @property
    def actor(self) -> Actor:
        """Who asked for the check; its conclusions are recorded in their name."""
        return Actor(PrincipalKind(self.actor_kind), self.actor_id, self.token_id, self.break_glass_id)

    def refusal(self) -> Refusal | None:
        """The refusal for callers that wait for this check; None when it succeeded, or has not ended."""
        if self.status == S.CANCELLED:
            return Refusal(Code.CHECK_CANCELLED, f"the check was cancelled: {self.detail}", {"check_id": self.id})
        if self.failure_code is None:
            return None
        details = {**(self.failure_details or {}), "check_id": self.id, "artifact_id": self.artifact_id}
        return Refusal(Code(self.failure_code), self.detail, details)


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of reading the bytes."""

    detail: str
    bytes_done: int
    failure: Refusal | None = None
    findings: Sequence[Mapping[str, object]] = ()


def running(check: ArtifactCheck) -> Refusal:
    """The refusal for a caller that needs the result of a check that has not ended."""
    return Refusal(
        Code.CHECK_RUNNING,
        f"the {check.name} check {check.id} has read {check.bytes_done} of {_total(check)} bytes",
        {
            "check_id": check.id,
            "artifact_id": check.artifact_id,
            "bytes_done": check.bytes_done,
            "bytes_total": check.bytes_total,
        },
    )


def require_room(under_way: int) -> None:
    """Refuse one more check when the owner has as many unfinished checks as allowed."""
    if under_way >= UNDER_WAY_MAX:
        raise Refusal(
            Code.LIMIT_REACHED,
            f"{under_way} checks are running or queued; try again when one of them has ended",
            {"limit": UNDER_WAY_MAX},
        )


def accept_check(
    context: DecisionContext, artifact: Artifact, name: CheckName, *, action: str, bytes_total: int | None = None
) -> Decision[ArtifactCheck]:
    """Create a check that is due immediately; `action` is the audited action that needs it."""
    check = ArtifactCheck(
        id=context.mint(Prefix.ARTIFACT_CHECK),
        tenant_id=artifact.tenant_id,
        project_id=artifact.project_id,
        artifact_id=artifact.id,
        name=name.value,
        subject=artifact.digest,
        status=ARTIFACT_CHECK.initial.value,
        generation=0,
        attempts=0,
        bytes_done=0,
        bytes_total=bytes_total or artifact.size_bytes or None,
        due_at=context.now,
        created_at=context.now,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        actor_kind=context.actor.kind.value,
        actor_id=context.actor.id,
        token_id=context.actor.token_id,
        break_glass_id=context.actor.break_glass_id,
    )
    data = {"check": name.value, "check_id": check.id, "digest": artifact.digest}
    place = (artifact.tenant_id, artifact.project_id)
    return Decision(
        result=check,
        writes=(Insert("artifact_check", asdict(check), born=(ARTIFACT_CHECK,)),),
        audits=(AuditRecord(action, "artifact", artifact.id, *place, after=data),),
    )


def start_check(context: DecisionContext, check: ArtifactCheck, lease_expires_at: datetime) -> Decision[ArtifactCheck]:
    """Take the lease. Reading starts at the first byte, because a hash cannot be resumed by another process."""
    changed: dict[str, object] = {
        "attempts": check.attempts + 1,
        "bytes_done": 0,
        "started_at": check.started_at or context.now,
        "progressed_at": context.now,
        "lease_expires_at": lease_expires_at,
    }
    return _moved(context, check, T.START, changed, "artifact_check.start")


def lose_check(context: DecisionContext, check: ArtifactCheck) -> Decision[ArtifactCheck]:
    """The holder is gone: the check is due again after a pause, or fails after too many losses."""
    if check.attempts >= ATTEMPTS_MAX:
        why = f"the process that read it was lost {check.attempts} times"
        outcome = CheckOutcome(why, check.bytes_done, Refusal(Code.TEMPORARILY_UNAVAILABLE, why))
        return end_check(context, check, outcome)
    pause = timedelta(seconds=PAUSE_SECONDS * 2 ** max(0, check.attempts - 1))
    changed: dict[str, object] = {"due_at": context.now + pause, "lease_expires_at": None}
    return _moved(context, check, T.LOSE_LEASE, changed, "artifact_check.lose_lease")


def hand_back_check(context: DecisionContext, check: ArtifactCheck) -> Decision[ArtifactCheck]:
    """The holder shuts down cleanly: the check is due again immediately, and the attempt does not count."""
    changed: dict[str, object] = {
        "due_at": context.now,
        "lease_expires_at": None,
        "attempts": max(0, check.attempts - 1),
    }
    return _moved(context, check, T.LOSE_LEASE, changed, "artifact_check.lose_lease")


def end_check(context: DecisionContext, check: ArtifactCheck, outcome: CheckOutcome) -> Decision[ArtifactCheck]:
    """Store the result, and publish it as an event."""
    failure = outcome.failure
    changed: dict[str, object] = {
        "passed": failure is None,
        "detail": outcome.detail[:DETAIL_LENGTH_MAX],
        "bytes_done": outcome.bytes_done,
        "bytes_total": outcome.bytes_done if failure is None else check.bytes_total,
        "failure_code": None if failure is None else failure.code.value,
        "failure_details": None if failure is None else dict(failure.details),
        "findings": [dict(each) for each in outcome.findings],
        "finished_at": context.now,
        "lease_expires_at": None,
    }
    trigger = T.SUCCEED if failure is None else T.FAIL
    return _moved(context, check, trigger, changed, "artifact_check.end")


def cancel_check(context: DecisionContext, check: ArtifactCheck, why: str) -> Decision[ArtifactCheck]:
    """End the check early. Its holder notices at its next progress report, and cannot write a result."""
    changed: dict[str, object] = {"detail": why, "finished_at": context.now, "lease_expires_at": None}
    return _moved(context, check, T.CANCEL, changed, "artifact_check.cancel")


def counts_for_staging(check: ArtifactCheck | None, now: datetime) -> bool:
    """Whether this smoke check allows staging now."""
    return (
        check is not None
        and check.status == S.SUCCEEDED
        and check.finished_at is not None
        and now - check.finished_at <= SMOKE_COUNTS_FOR
    )


def _moved(
    context: DecisionContext, check: ArtifactCheck, trigger: CheckTrigger, changed: dict[str, object], action: str
) -> Decision[ArtifactCheck]:
    edge = ARTIFACT_CHECK.step(S(check.status), trigger)
    moved: dict[str, Any] = {**changed, "status": edge.target.value, "generation": check.generation + 1}
    after = replace(check, **moved)
    data = {
        "artifact_id": check.artifact_id,
        "check": check.name,
        "status": after.status,
        "bytes_done": after.bytes_done,
        "failure_code": after.failure_code,
        "detail": after.detail,
    }
    place = (check.tenant_id, check.project_id)
    ended = EventRecord(EventType.ARTIFACT_CHECK_ENDED, "artifact_check", check.id, *place, data=data)
    before: dict[str, object] = {"status": check.status}
    now: dict[str, object] = {"status": after.status, "attempts": after.attempts, "failure_code": after.failure_code}
    return Decision(
        result=after,
        writes=(
            StateChange(
                "artifact_check", check.id, ARTIFACT_CHECK, edge, check.generation, check.tenant_id, set=changed
            ),
        ),
        events=() if edge.target in UNDER_WAY else (ended,),
        audits=(AuditRecord(action, "artifact_check", check.id, *place, before=before, after=now),),
    )


def _total(check: ArtifactCheck) -> str:
    return "an unknown number of" if check.bytes_total is None else str(check.bytes_total)
