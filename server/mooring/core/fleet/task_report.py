"""The reports of agents about their tasks, and the verdicts on them.

Each report gets its own verdict. A report under an old fence gets `lease_lost` and changes nothing; a repeated result
is accepted again and has no second effect. The code tells the agent what to do next: it drops a refused report, and a
task that is still needed is offered again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from mooring.core.fleet.receipt import ReceiptFault, SignedReceipt
from mooring.core.fleet.task import Task, TaskState
from mooring.core.fleet.task_family import CLOSING, DEPTH_MAX, FAMILIES, FailureCode, RefusalReason, result_findings
from mooring.core.fleet.task_log_read import CONTENT, LOG_READ
from mooring.core.fleet.task_schema import LOG_BYTES_MAX, RESULT_BYTES_MAX
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome
from mooring.core.kernel.json_schema import depth_exceeds

CHUNK_BYTES_MAX: Final = 262_144
REPORTS_MAX: Final = 100
STRAYS_MAX: Final = 100


class ReportCode(StrEnum):
    LEASE_LOST = "lease_lost"
    NOT_FOUND = "not_found"
    VALIDATION_FAILED = "validation_failed"
    LOG_GAP = "log_gap"
    LOG_FULL = "log_full"
    CONFLICT = "conflict"
    RECEIPT_MISSING = ReceiptFault.MISSING.value
    RECEIPT_INVALID = ReceiptFault.INVALID.value
    RECEIPT_SIGNATURE = ReceiptFault.SIGNATURE.value
    RECEIPT_OTHER_TASK = ReceiptFault.OTHER_TASK.value
    RECEIPT_GAP = ReceiptFault.GAP.value
    RECEIPT_FORK = ReceiptFault.FORK.value


@dataclass(frozen=True, slots=True)
class TaskReportVerdict:
    """The platform's answer to one report."""

    accepted: bool
    code: ReportCode | None = None
    detail: str | None = None


ACCEPTED: Final = TaskReportVerdict(True)


@dataclass(frozen=True, slots=True)
class TaskProgressReport:
    task_id: str
    fence: int
    progress: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaskLogReport:
    """Bytes of a task's output, from an offset."""

    task_id: str
    fence: int
    offset: int
    chunk: bytes


@dataclass(frozen=True, slots=True)
class TaskResultReport:
    """How a task ended, with its receipt if it has one."""

    task_id: str
    fence: int
    ended: TaskEnd
    receipt: SignedReceipt | None = None


@dataclass(frozen=True, slots=True)
class TaskRejected:
    task_id: str | None
    reason: RefusalReason
    detail: str


@dataclass(frozen=True, slots=True)
class TaskStrayReport:
    """What a sweep found on the node that the platform does not know."""

    what: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class MalformedReport:
    detail: str


Report = TaskProgressReport | TaskLogReport | TaskResultReport | TaskRejected | TaskStrayReport | MalformedReport


def refused(code: ReportCode, detail: str) -> TaskReportVerdict:
    return TaskReportVerdict(False, code, detail)


def why_not_held(task: Task, fence: int) -> TaskReportVerdict | None:
    """Why this fence does not hold the task now; None when it does."""
    if fence != task.fence or task.status == TaskState.QUEUED:
        return refused(ReportCode.LEASE_LOST, f"fence {fence} no longer holds the task")
    return None


def why_no_result(task: Task, report: TaskResultReport) -> TaskReportVerdict | None:
    """What is wrong with a result, checked before any of it is used; None when it is valid."""
    ended = report.ended
    if ended.outcome is TaskOutcome.FAILED and ended.failure_code not in tuple(FailureCode):
        return refused(ReportCode.VALIDATION_FAILED, f"failure.code is one of {', '.join(FailureCode)}")
    if depth_exceeds(ended.result, DEPTH_MAX) or _has_zero(ended.result):
        return refused(ReportCode.VALIDATION_FAILED, "the result is nested too deeply, or contains U+0000")
    if wrong := _why_no_output(task, ended.result or {}) or _why_no_content(task, ended.result or {}):
        return wrong
    family = FAMILIES.get(task.type)
    if ended.outcome is TaskOutcome.SUCCEEDED and family is not None:
        findings = result_findings(family, ended.result or {})
        if findings:
            return refused(ReportCode.VALIDATION_FAILED, f"result{findings[0].pointer}: {findings[0].reason}")
        if task.type in CLOSING and report.receipt is None:
            return refused(ReportCode.RECEIPT_MISSING, f"{task.type} succeeds only with its receipt")
    if report.receipt is not None and task.type not in CLOSING:
        return refused(ReportCode.RECEIPT_INVALID, f"{task.type} has no receipt")
    return None


def _why_no_output(task: Task, result: Mapping[str, Any]) -> TaskReportVerdict | None:
    """Refuse more output of the program than the task asks for, however the task ended."""
    if "output" not in result:
        return None
    limit, output = task.arguments.get("output_bytes", 0), result["output"]
    if not isinstance(output, str) or len(output.encode(errors="replace")) > limit:
        return refused(ReportCode.VALIDATION_FAILED, f"the task asks for an output of at most {limit} bytes")
    return None


def _why_no_content(task: Task, result: Mapping[str, Any]) -> TaskReportVerdict | None:
    """Refuse more log content than the read asks for, and any in the result of another task."""
    if CONTENT not in result:
        return None
    limit, content = int(task.arguments.get("max_bytes", LOG_BYTES_MAX)), result[CONTENT]
    if task.type != LOG_READ or not isinstance(content, str) or len(content) > limit // 3 * 4 + 4:
        return refused(ReportCode.VALIDATION_FAILED, f"the task asks for at most {limit} bytes of a log")
    return None


def counted(result: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The part of a result that its size limit applies to: output and log content have limits of their own."""
    return {name: value for name, value in (result or {}).items() if name not in ("output", CONTENT)}


def why_too_large(size: int) -> TaskReportVerdict | None:
    """Refuse a result that is larger than what is stored."""
    if size > RESULT_BYTES_MAX:
        return refused(ReportCode.VALIDATION_FAILED, f"the result is larger than {RESULT_BYTES_MAX} bytes")
    return None


@dataclass(frozen=True, slots=True)
class LogAppend:
    """The new part of a chunk, its offset, and whether some of it exceeded the limit."""

    offset: int
    chunk: bytes
    truncated: bool


def fit_chunk(log_bytes: int, report: TaskLogReport, limit: int) -> LogAppend | TaskReportVerdict:
    """The part of a chunk to store: after what is stored already, and within the limit."""
    if report.offset > log_bytes:
        return refused(ReportCode.LOG_GAP, f"the stored output ends at {log_bytes}")
    fresh = report.chunk[log_bytes - report.offset :]
    room = max(0, limit - log_bytes)
    return LogAppend(log_bytes, fresh[:room], truncated=len(fresh) > room)


def _has_zero(value: Any) -> bool:
    """Whether any text in it contains NUL, which PostgreSQL cannot store."""
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, Mapping):
        return any(_has_zero(each) for pair in value.items() for each in pair)
    return isinstance(value, list) and any(_has_zero(each) for each in value)
