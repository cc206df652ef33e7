"""What an agent reports of its tasks, and what it is answered.

Each report is answered on its own. One under an old fence is answered `lease_lost` and changes nothing; a result that
comes again is accepted again and has no second effect. Which code an agent meets says what it does next: it drops what
was not taken, and a task that is still wanted comes to it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from mooring.core.fleet.receipt import ReceiptFault
from mooring.core.fleet.task import Task, TaskState
from mooring.core.fleet.task_family import CLOSING, DEPTH_MAX, FAMILIES, FailureCode, RefusalReason, result_findings
from mooring.core.fleet.task_log_read import CONTENT, LOG_READ
from mooring.core.fleet.task_schema import LOG_BYTES_MAX, RESULT_BYTES_MAX
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome
from mooring.core.kernel.finding import Finding
from mooring.core.kernel.json_schema import depth_exceeds

CHUNK_BYTES_MAX: Final = 262_144
REPORTS_MAX: Final = 100
STRAYS_MAX: Final = 100


class ReportCode(StrEnum):
    """Why a report is not taken."""

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
    """What the platform says to one report."""

    accepted: bool
    code: ReportCode | None = None
    detail: str | None = None


ACCEPTED: Final = TaskReportVerdict(True)


@dataclass(frozen=True, slots=True)
class TaskProgressReport:
    """How far a task is."""

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
    """How a task ended; with the body and the signature of a receipt, where there is one."""

    task_id: str
    fence: int
    ended: TaskEnd
    receipt: tuple[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True)
class TaskRejected:
    """A task that the agent did not take."""

    task_id: str | None
    reason: RefusalReason
    detail: str


@dataclass(frozen=True, slots=True)
class TaskStrayReport:
    """What a sweep found on the node that the platform does not know of."""

    what: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class MalformedReport:
    """A report that is none."""

    detail: str


Report = TaskProgressReport | TaskLogReport | TaskResultReport | TaskRejected | TaskStrayReport | MalformedReport


def refused(code: ReportCode, detail: str) -> TaskReportVerdict:
    """The answer to a report that is not taken."""
    return TaskReportVerdict(False, code, detail)


def why_not_held(task: Task, fence: int) -> TaskReportVerdict | None:
    """Why this fence does not hold the task now; none where it does."""
    if fence != task.fence or task.status == TaskState.QUEUED:
        return refused(ReportCode.LEASE_LOST, f"fence {fence} does not hold the task any more")
    return None


def why_no_result(task: Task, resulted: TaskResultReport) -> TaskReportVerdict | None:
    """What is wrong with a result, before anything of it is believed."""
    ended = resulted.ended
    if ended.outcome is TaskOutcome.FAILED and ended.failure_code not in tuple(FailureCode):
        return refused(ReportCode.VALIDATION_FAILED, f"failure.code is one of {', '.join(FailureCode)}")
    if depth_exceeds(ended.result, DEPTH_MAX) or _has_zero(ended.result):
        return refused(ReportCode.VALIDATION_FAILED, "the result is nested too deeply, or holds U+0000")
    if wrong := _why_no_output(task, ended.result or {}) or _why_no_content(task, ended.result or {}):
        return wrong
    family = FAMILIES.get(task.type)
    if ended.outcome is TaskOutcome.SUCCEEDED and family is not None:
        findings = result_findings(family, ended.result or {})
        if findings:
            return refused(ReportCode.VALIDATION_FAILED, _told(findings[0]))
        if task.type in CLOSING and resulted.receipt is None:
            return refused(ReportCode.RECEIPT_MISSING, f"{task.type} succeeds only with its receipt")
    if resulted.receipt is not None and task.type not in CLOSING:
        return refused(ReportCode.RECEIPT_INVALID, f"{task.type} has no receipt")
    return None


def _why_no_output(task: Task, result: Mapping[str, Any]) -> TaskReportVerdict | None:
    """A program's output is in a result as far as the task asked for it, however the task ended."""
    if "output" not in result:
        return None
    asked, output = task.arguments.get("output_bytes", 0), result["output"]
    if not isinstance(output, str) or len(output.encode(errors="replace")) > asked:
        return refused(ReportCode.VALIDATION_FAILED, f"the task asks for an output of at most {asked} bytes")
    return None


def _why_no_content(task: Task, result: Mapping[str, Any]) -> TaskReportVerdict | None:
    """What was read of a log is in the result of a read that succeeded, as far as it was asked for."""
    if CONTENT not in result:
        return None
    asked, content = int(task.arguments.get("max_bytes", LOG_BYTES_MAX)), result[CONTENT]
    if task.type != LOG_READ or not isinstance(content, str) or len(content) > asked // 3 * 4 + 4:
        return refused(ReportCode.VALIDATION_FAILED, f"the task asks for at most {asked} bytes of a log")
    return None


def counted(result: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What of a result counts against its size: all but output and what was read, which have bounds of their own."""
    return {name: value for name, value in (result or {}).items() if name not in ("output", CONTENT)}


def why_too_large(size: int) -> TaskReportVerdict | None:
    """Whether a result's document is larger than what is kept."""
    if size > RESULT_BYTES_MAX:
        return refused(ReportCode.VALIDATION_FAILED, f"the result is larger than {RESULT_BYTES_MAX} bytes")
    return None


@dataclass(frozen=True, slots=True)
class LogAppend:
    """What of a chunk is new, where it goes, and whether something had to be left out."""

    offset: int
    chunk: bytes
    truncated: bool


def fit_chunk(log_bytes: int, logged: TaskLogReport, limit: int) -> LogAppend | TaskReportVerdict:
    """What of a chunk is to be kept, after what is there already and within the limit."""
    if logged.offset > log_bytes:
        return refused(ReportCode.LOG_GAP, f"the output is known up to {log_bytes}")
    fresh = logged.chunk[log_bytes - logged.offset :]
    room = max(0, limit - log_bytes)
    return LogAppend(log_bytes, fresh[:room], truncated=len(fresh) > room)


def _has_zero(value: Any) -> bool:
    """Whether a text within holds what no database keeps."""
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, Mapping):
        return any(_has_zero(each) for pair in value.items() for each in pair)
    return isinstance(value, list) and any(_has_zero(each) for each in value)


def _told(finding: Finding) -> str:
    return f"result{finding.pointer}: {finding.reason}"
