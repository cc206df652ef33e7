"""Transitions of a task: it is cancelled, loses its lease, expires, or its agent reports how it ended.

Claiming is in `storage/fleet/task_claim.py`, one statement for many nodes. Everything here is decided one task at a
time and guarded by the generation of the snapshot.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from mooring.core.fleet.receipt import Receipt
from mooring.core.fleet.task import TASK, Task, TaskState, TaskTrigger
from mooring.core.fleet.task_creation import queued
from mooring.core.fleet.task_family import FailureCode, RefusalReason
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, StateChange, Write
from mooring.core.kernel.event_types import EventType

Record = TypeVar("Record", EventRecord, AuditRecord)
DETAIL_LENGTH_MAX: Final = 2_000
AWAITED: Final = frozenset({"tunnel.open"})
"""Types that a user is waiting for: a task that no agent claims in time expires."""
AWAITED_FOR: Final = timedelta(seconds=120)
ENDS_THE_TASK: Final = frozenset(
    {
        RefusalReason.EXPIRED,
        RefusalReason.UNKNOWN_TYPE,
        RefusalReason.BAD_ARGUMENTS,
        RefusalReason.OWNER_CLOSED,
    }
)
"""Rejections after the signature was verified: such a task is not running on its node, and never will be.

The other reasons mean that the node received something that is not its task; they must not end the real one.
"""


class TaskOutcome(StrEnum):
    """How a task ended, as its agent reports."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """An agent's report of a task that ended."""

    outcome: TaskOutcome
    failure_code: str | None = None
    failure_detail: str | None = None
    exit_code: int | None = None
    result: Mapping[str, Any] | None = None
    last_lines: tuple[str, ...] = ()


_TRIGGER: Final = {
    TaskOutcome.SUCCEEDED: TaskTrigger.SUCCEED,
    TaskOutcome.FAILED: TaskTrigger.FAIL,
    TaskOutcome.CANCELLED: TaskTrigger.FINISH_CANCEL,
}


def finish(context: DecisionContext, task: Task, ended: TaskEnd, receipt: Receipt | None = None) -> Decision[Task]:
    """End the task as its agent reports, and store its receipt if it has one."""
    trigger = _TRIGGER[ended.outcome]
    if ended.outcome is TaskOutcome.CANCELLED and task.status == TaskState.CLAIMED:
        trigger = TaskTrigger.FAIL  # nobody cancelled it: the agent stopped it for a reason of its own
    failed = trigger is not TaskTrigger.SUCCEED
    columns = {
        "finished_at": context.now,
        "lease_expires_at": None,
        "result": None if ended.result is None else dict(ended.result),
        "last_lines": list(ended.last_lines),
        "failure_code": (ended.failure_code or FailureCode.HOST_ERROR.value) if failed else None,
        "failure_detail": _cut(ended.failure_detail) if failed else None,
        "exit_code": _exit_code(ended),
    }
    writes, event, after = _end(context, task, trigger, columns, receipt)
    return Decision(
        result=after,
        writes=(*writes, *(() if receipt is None else (receipt.insert(),))),
        events=_unless_quiet(task, _of_maker(event, task)),
        audits=_unless_quiet(task, _of_maker(_audited("agent.report", task, after, receipt), task)),
        traceless=task.is_quiet,
    )


def refuse(context: DecisionContext, task: Task, reason: RefusalReason, detail: str) -> Decision[Task]:
    """Fail a task that its node rejected for good; it had no effect."""
    columns = {
        "finished_at": context.now,
        "lease_expires_at": None,
        "failure_code": FailureCode.REFUSED.value,
        "failure_detail": _cut(f"{reason}: {detail}"),
    }
    writes, event, after = _end(context, task, TaskTrigger.FAIL, columns, None)
    audit = _of_maker(_audited("agent.report", task, after, None), task)
    events = _unless_quiet(task, _of_maker(event, task))
    return Decision(after, writes, events, _unless_quiet(task, audit), traceless=task.is_quiet)


def cancel(context: DecisionContext, task: Task) -> Decision[Task]:
    """Cancel a task: at once if no agent has claimed it, otherwise its agent is asked to stop."""
    if task.status == TaskState.CANCELLING:
        return Decision(task)
    edge = TASK.step(TaskState(task.status), TaskTrigger.CANCEL)
    if edge.target is TaskState.CANCELLED:
        writes, event, after = _end(context, task, TaskTrigger.CANCEL, {"finished_at": context.now}, None)
        audits = _unless_quiet(task, _audited("task.cancel", task, after, None))
        return Decision(after, writes, _unless_quiet(task, event), audits, traceless=task.is_quiet)
    after = replace(task, status=edge.target.value, generation=task.generation + 1)
    event = EventRecord(
        EventType.TASK_CANCELLING,
        "task",
        task.id,
        task.tenant_id,
        task.project_id,
        {"type": task.type, "owner": task.owner},
        app_instance_id=task.instance_id,
    )
    audits = _unless_quiet(task, _audited("task.cancel", task, after, None))
    writes = (_move(task, TaskTrigger.CANCEL, {}),)
    return Decision(after, writes, _unless_quiet(task, event), audits, traceless=task.is_quiet)


def cancel_all(context: DecisionContext, tasks: Iterable[Task]) -> tuple[tuple[Write, ...], tuple[EventRecord, ...]]:
    """Writes and events that cancel the unfinished tasks, for the decision that ends what needed them."""
    writes: list[Write] = []
    events: list[EventRecord] = []
    for task in tasks:
        if not task.is_over:
            decided = cancel(context, task)
            writes += decided.writes
            events += decided.events
    return tuple(writes), tuple(events)


def last_claim_at(task: Task) -> datetime:
    """When the task expires if no agent claims it: early for types that a user waits for."""
    if task.type not in AWAITED or task.status != TaskState.QUEUED or task.first_claimed_at is not None:
        return task.expires_at
    return min(task.expires_at, task.created_at + AWAITED_FOR)


def lapse(context: DecisionContext, tasks: Iterable[Task], *, abandoned: bool = False) -> Decision[tuple[Task, ...]]:
    """End tasks that are past their deadline; offer those that lost their lease again, under a higher fence.

    With `abandoned` the leases count as lost: the agent was restarted and does not know these tasks.
    """
    after: list[Task] = []
    writes: list[Write] = []
    events: list[EventRecord] = []
    audits: list[AuditRecord] = []
    for task in tasks:
        if last_claim_at(task) <= context.now:
            columns = {"finished_at": context.now, "lease_expires_at": None}
            ended, event, now = _end(context, task, TaskTrigger.EXPIRE, columns, None)
            writes += ended
        elif task.lease_expires_at is not None and (abandoned or task.lease_expires_at <= context.now):
            writes.append(_move(task, TaskTrigger.LOSE_LEASE, {"lease_expires_at": None}))
            now = replace(task, status=TaskState.QUEUED.value, generation=task.generation + 1, lease_expires_at=None)
            event = queued(now)
        else:
            continue
        after.append(now)
        events += _unless_quiet(task, _of_maker(event, task))
        audits += _unless_quiet(task, _of_maker(_audited("task.lapse", task, now, None), task))
    quiet = all(task.is_quiet for task in after)
    return Decision(tuple(after), tuple(writes), tuple(events), tuple(audits), traceless=quiet)


def add_receipt(context: DecisionContext, task: Task, receipt: Receipt) -> Decision[Receipt]:
    """Store a receipt whose task was given up before: it completes the record and changes nothing else."""
    summary = {"receipt_id": receipt.id, "clean": receipt.clean, "task_id": task.id, "owner": task.owner}
    return Decision(
        result=receipt,
        writes=(receipt.insert(),),
        events=(
            EventRecord(
                EventType.RECEIPT_ADDED,
                "receipt",
                receipt.id,
                task.tenant_id,
                task.project_id,
                summary,
                app_instance_id=task.instance_id,
                under=(task.correlation_id, task.trace_id),
            ),
        ),
        audits=(
            AuditRecord(
                "agent.report",
                "receipt",
                receipt.id,
                task.tenant_id,
                task.project_id,
                after=summary,
                app_instance_id=task.instance_id,
                under=(task.correlation_id, task.trace_id),
            ),
        ),
    )


def _exit_code(ended: TaskEnd) -> int | None:
    """The exit code of the program, from the failure or from the result."""
    of_result = None if ended.result is None else ended.result.get("exit_code")
    return of_result if ended.exit_code is None and isinstance(of_result, int) else ended.exit_code


def may_renew(task: Task, now: datetime) -> bool:
    """Whether an agent may renew its lease of the task now."""
    return task.status in (TaskState.CLAIMED, TaskState.CANCELLING) and not task.expires_at <= now


def _end(
    context: DecisionContext, task: Task, trigger: TaskTrigger, columns: Mapping[str, Any], receipt: Receipt | None
) -> tuple[tuple[Write, ...], EventRecord, Task]:
    move = _move(task, trigger, columns)
    after = replace(task, status=move.edge.target.value, generation=task.generation + 1, **dict(columns))
    summary: dict[str, object] = {
        "status": after.status,
        "type": task.type,
        "owner": task.owner,
        "step": task.step,
        "failure_code": after.failure_code,
    }
    if receipt is not None:
        summary |= {"receipt_id": receipt.id, "clean": receipt.clean}
    event = EventRecord(
        EventType.TASK_FINISHED,
        "task",
        task.id,
        task.tenant_id,
        task.project_id,
        summary,
        app_instance_id=task.instance_id,
    )
    return (move,), event, after


def _move(task: Task, trigger: TaskTrigger, columns: Mapping[str, Any]) -> StateChange:
    edge = TASK.step(TaskState(task.status), trigger)
    return StateChange("task", task.id, TASK, edge, task.generation, task.tenant_id, set=dict(columns))


def _audited(action: str, before: Task, after: Task, receipt: Receipt | None) -> AuditRecord:
    summary: dict[str, object] = {"status": after.status, "fence": after.fence, "failure_code": after.failure_code}
    if receipt is not None:
        summary |= {"receipt_id": receipt.id, "clean": receipt.clean}
    return AuditRecord(
        action,
        "task",
        before.id,
        before.tenant_id,
        before.project_id,
        before={"status": before.status},
        after=summary,
        app_instance_id=before.instance_id,
    )


def _unless_quiet(task: Task, record: Record) -> tuple[Record, ...]:
    return () if task.is_quiet else (record,)


def _of_maker(record: Record, task: Task) -> Record:
    """Agents and the platform change a task under the correlation id of the request that created it."""
    return replace(record, under=(task.correlation_id, task.trace_id))


def _cut(text: str | None) -> str | None:
    return None if text is None else text.replace("\x00", "")[:DETAIL_LENGTH_MAX]
