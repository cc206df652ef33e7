"""Request and response bodies of the endpoints that agents claim and report tasks through."""

import binascii
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict
from mooring.commands.live.task_dispatcher import SignedRootKey, TaskPoll, TaskPollAnswer
from mooring.core.fleet.receipt import SignedReceipt
from mooring.core.fleet.slot_metric import (
    GPU_INDEX_MAX,
    MEMORY_BYTES_MAX,
    SAMPLE_AGE_MAX,
    SAMPLES_MAX,
    SlotSample,
)
from mooring.core.fleet.task_envelope import TaskEnvelope, decode
from mooring.core.fleet.task_family import RefusalReason
from mooring.core.fleet.task_report import (
    CHUNK_BYTES_MAX,
    REPORTS_MAX,
    STRAYS_MAX,
    MalformedReport,
    Report,
    TaskLogReport,
    TaskProgressReport,
    TaskRejected,
    TaskReportVerdict,
    TaskResultReport,
    TaskStrayReport,
)
from mooring.core.fleet.task_schema import LAST_LINES_MAX, LINE_LENGTH_MAX, NO_NUL_PATTERN
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome
from mooring.core.identity.platform_key import PlatformKey, encoded
from mooring.storage.fleet.task_claim import FencedTask

RUNNING_MAX: Final = 2_000
FREE_MAX: Final = 1_000
WAIT_SECONDS_MAX: Final = 60

Id = Annotated[str, Meta(max_length=64, pattern="^[a-z0-9_]+$")]
Fence = Annotated[int, Meta(ge=0, le=2**62)]
Line = Annotated[str, Meta(max_length=LINE_LENGTH_MAX, pattern=NO_NUL_PATTERN)]
Word = Annotated[str, Meta(max_length=200, pattern=NO_NUL_PATTERN)]
Base64 = Annotated[str, Meta(max_length=CHUNK_BYTES_MAX * 4 // 3 + 4, pattern="^[A-Za-z0-9_-]*$")]
Count = Annotated[int, Meta(ge=0, le=2**62)]


class HeldTask(Strict):
    """A task that the agent holds, under the fence of its claim."""

    task_id: Id
    fence: Fence


class GpuSample(Strict):
    """What one GPU did at one moment; a value that the model does not report is null."""

    index: Annotated[int, Meta(ge=0, le=GPU_INDEX_MAX)]
    age_seconds: Annotated[float, Meta(ge=0, le=SAMPLE_AGE_MAX, description="How long ago it was taken.")] = 0.0
    utilisation_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    memory_used_bytes: Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)] | None = None
    memory_total_bytes: Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)] | None = None
    power_milliwatts: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None
    temperature_celsius: Annotated[int, Meta(ge=-100, le=300)] | None = None
    ecc_errors: (
        Annotated[int, Meta(ge=0, le=2**53, description="Uncorrected errors since the driver began.")] | None
    ) = None
    xid: Annotated[int, Meta(ge=0, le=100_000, description="The last critical error of the driver.")] | None = None
    simulated: Annotated[bool, Meta(description="Ignored: the inventory says which GPUs are simulated.")] = False


class ClaimTasks(Strict):
    """A poll: what the agent has room for, what it holds, and its health."""

    free: Annotated[int, Meta(ge=0, le=FREE_MAX, description="How many tasks it has room for.")]
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX, description="How long to wait for one.")] = 0.0
    running: Annotated[
        list[HeldTask],
        Meta(max_length=RUNNING_MAX, description="Every task that it holds; their leases are renewed."),
    ] = msgspec.field(default_factory=list)
    session: Annotated[
        str,
        Meta(
            max_length=64,
            pattern="^[A-Za-z0-9_-]*$",
            description="New at each start of the agent; it then holds only the tasks in `running`.",
        ),
    ] = ""
    health: Annotated[
        dict[Annotated[str, Meta(max_length=64)], Any],
        Meta(max_length=50, description="The health of the agent itself."),
    ] = msgspec.field(default_factory=dict)
    samples: Annotated[
        list[GpuSample],
        Meta(max_length=SAMPLES_MAX, description="What its GPUs did since the last poll."),
    ] = msgspec.field(default_factory=list)


class SignedTask(Shown):
    """A task with the platform's signature over its payload."""

    payload: str
    key_id: str
    signature: str


class AnnouncedKey(Shown):
    """A key that signs tasks, announced by the key before it."""

    key_id: str
    public_key: str
    signed_by: str | None
    signature: str | None
    epoch: int | None
    root_signature: str | None


class AnnouncedRootKey(Shown):
    """The public half of the operator's root key, signed by the key that signs tasks."""

    public_key: str
    signed_by: str
    signature: str


class ClaimedTasks(Shown):
    """The answer to a poll: new tasks, tasks to stop, tasks that the node lost, and announced keys."""

    tasks: list[SignedTask]
    cancel: list[HeldTask]
    lost: list[HeldTask]
    keys: list[AnnouncedKey]
    root_key: AnnouncedRootKey | None
    heartbeat_seconds: float
    lease_seconds: float
    sample_seconds: Annotated[float, Meta(description="How often the GPUs are sampled; 0: not at all.")] = 0.0


class NodeAllocations(Shown):
    """The allocations that are or may be on a node."""

    allocations: list[str]


class ReportTasks(Strict):
    """Reports, each of which is answered on its own; docs/node-plane.md has their forms."""

    reports: Annotated[list[dict[str, Any]], Meta(max_length=REPORTS_MAX)]


class ReportVerdict(Shown):
    """The platform's answer to one report."""

    accepted: bool
    code: str | None
    detail: str | None


class ReportedTasks(Shown):
    """The answers, in the order of the reports."""

    results: list[ReportVerdict]


class _ReportBody(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """A report of an agent; `kind` says which."""


class _Progress(Strict):
    stage: Word
    done: Count
    total: Count | None = None
    unit: Word = ""


class ProgressReport(_ReportBody, tag="progress", kw_only=True):
    """The progress of a running task."""

    task_id: Id
    fence: Fence
    progress: _Progress


class LogReport(_ReportBody, tag="log", kw_only=True):
    """More of a task's output."""

    task_id: Id
    fence: Fence
    offset: Count
    text: Base64


class _Failure(Strict):
    code: Word
    detail: Annotated[str, Meta(max_length=4_000, pattern=NO_NUL_PATTERN)] = ""
    exit_code: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None


class _SignedReceipt(Strict):
    body: Annotated[str, Meta(max_length=1_400_000, pattern="^[A-Za-z0-9_-]*$")]
    signature: Annotated[str, Meta(max_length=100, pattern="^[A-Za-z0-9_-]*$")]


class ResultReport(_ReportBody, tag="result", kw_only=True):
    """How a task ended."""

    task_id: Id
    fence: Fence
    outcome: TaskOutcome
    failure: _Failure | None = None
    result: dict[str, Any] = msgspec.field(default_factory=dict)
    last_lines: Annotated[list[Line], Meta(max_length=LAST_LINES_MAX)] = msgspec.field(default_factory=list)
    receipt: _SignedReceipt | None = None


class RefusedReport(_ReportBody, tag="refused", kw_only=True):
    """A task that the agent rejected."""

    reason: RefusalReason
    task_id: Id | None = None
    detail: Line = ""


class _Stray(Strict):
    kind: Word
    name: Word
    verdict: Literal["adopted", "reaped", "foreign"]
    allocation_id: Id | None = None


class StrayReport(_ReportBody, tag="stray", kw_only=True):
    """The end of a sweep, with what it found that the platform does not know."""

    what: Annotated[list[_Stray], Meta(max_length=STRAYS_MAX)]


AnyReport = ProgressReport | LogReport | ResultReport | RefusedReport | StrayReport


def poll_of(node_id: str, body: ClaimTasks, wait_seconds_max: float) -> TaskPoll:
    running = frozenset(FencedTask(each.task_id, each.fence) for each in body.running)
    return TaskPoll(node_id, body.free, min(body.wait_seconds, wait_seconds_max), running)


def slot_sample(sample: GpuSample, now: datetime) -> SlotSample:
    return SlotSample(
        sample.index,
        now - timedelta(seconds=sample.age_seconds),
        sample.utilisation_percent,
        sample.memory_used_bytes,
        sample.memory_total_bytes,
        sample.power_milliwatts,
        sample.temperature_celsius,
        sample.ecc_errors,
        sample.xid,
    )


def claimed_tasks(
    answer: TaskPollAnswer, heartbeat_seconds: float, lease_seconds: float, sample_seconds: float
) -> ClaimedTasks:
    return ClaimedTasks(
        tasks=[_signed(each) for each in answer.tasks],
        cancel=[HeldTask(task_id=each.task_id, fence=each.fence) for each in answer.cancel],
        lost=[HeldTask(task_id=each.task_id, fence=each.fence) for each in answer.lost],
        keys=[_announced(each) for each in answer.keys],
        root_key=None if answer.root is None else _announced_root(answer.root),
        heartbeat_seconds=heartbeat_seconds,
        lease_seconds=lease_seconds,
        sample_seconds=sample_seconds,
    )


def _signed(envelope: TaskEnvelope) -> SignedTask:
    return SignedTask(payload=envelope.payload, key_id=envelope.key_id, signature=envelope.signature)


def _announced(key: PlatformKey) -> AnnouncedKey:
    return AnnouncedKey(
        key_id=key.id,
        public_key=encoded(key.public_key),
        signed_by=key.signed_by,
        signature=None if key.signature is None else encoded(key.signature),
        epoch=key.epoch,
        root_signature=None if key.root_signature is None else encoded(key.root_signature),
    )


def _announced_root(root: SignedRootKey) -> AnnouncedRootKey:
    return AnnouncedRootKey(
        public_key=encoded(root.public_key), signed_by=root.signed_by, signature=encoded(root.signature)
    )


def read_report(document: dict[str, Any]) -> Report:
    """Parse one report; a malformed one gets its own answer and does not affect the others."""
    try:
        report: AnyReport = msgspec.convert(document, AnyReport)
        return _report(report)
    except (msgspec.ValidationError, ValueError, binascii.Error) as error:
        return MalformedReport(str(error)[:500])


def _report(report: AnyReport) -> Report:
    if isinstance(report, ProgressReport):
        return TaskProgressReport(report.task_id, report.fence, msgspec.to_builtins(report.progress))
    if isinstance(report, LogReport):
        return TaskLogReport(report.task_id, report.fence, report.offset, decode(report.text))
    if isinstance(report, RefusedReport):
        return TaskRejected(report.task_id, report.reason, report.detail)
    if isinstance(report, StrayReport):
        return TaskStrayReport(tuple(msgspec.to_builtins(each) for each in report.what))
    failure = report.failure
    ended = TaskEnd(
        outcome=report.outcome,
        failure_code=None if failure is None else failure.code,
        failure_detail=None if failure is None else failure.detail,
        exit_code=None if failure is None else failure.exit_code,
        result=report.result,
        last_lines=tuple(report.last_lines),
    )
    receipt = report.receipt
    signed = None if receipt is None else SignedReceipt(decode(receipt.body), decode(receipt.signature))
    return TaskResultReport(report.task_id, report.fence, ended, signed)


def report_verdict(verdict: TaskReportVerdict) -> ReportVerdict:
    return ReportVerdict(
        accepted=verdict.accepted, code=None if verdict.code is None else verdict.code.value, detail=verdict.detail
    )
