"""What becomes of a task: it is cancelled, its lease is lost, its time is over, or its agent tells how it ended.

Claiming stands in `storage/fleet/task_claim.py`, one statement for many nodes. Everything here is decided one task at
a time and guarded by the generation that was seen.
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

Told = TypeVar("Told", EventRecord, AuditRecord)
DETAIL_LENGTH_MAX: Final = 2_000
AWAITED: Final = frozenset({"tunnel.open"})
"""Tasks at whose other end somebody waits: what nobody came for in time is over."""
AWAITED_FOR: Final = timedelta(seconds=120)
ENDS_THE_TASK: Final = frozenset(
    {
        RefusalReason.EXPIRED,
        RefusalReason.UNKNOWN_TYPE,
        RefusalReason.BAD_ARGUMENTS,
        RefusalReason.OWNER_CLOSED,
    }
)
"""Refusals after the signature was believed: such a task cannot be under way on its node, and never will be.

The others say that somebody showed the node something that is not its task; they must not end the real one.
"""


class TaskOutcome(StrEnum):
    """How a task ended, as its agent says."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """What an agent tells of a task that is over."""

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
    """The task is over; with its receipt, where there is one."""
    trigger = _TRIGGER[ended.outcome]
    if ended.outcome is TaskOutcome.CANCELLED and task.status == TaskState.CLAIMED:
        trigger = TaskTrigger.FAIL  # nobody asked the platform for it: the agent ended it for a reason of its own
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
        events=_heard(task, _of_maker(event, task)),
        audits=_heard(task, _of_maker(_audited("agent.report", task, after, receipt), task)),
        traceless=task.is_quiet,
    )


def refuse(context: DecisionContext, task: Task, reason: RefusalReason, detail: str) -> Decision[Task]:
    """The node did not take the task, and will not: it failed without an effect."""
    columns = {
        "finished_at": context.now,
        "lease_expires_at": None,
        "failure_code": FailureCode.REFUSED.value,
        "failure_detail": _cut(f"{reason}: {detail}"),
    }
    writes, event, after = _end(context, task, TaskTrigger.FAIL, columns, None)
    audit = _of_maker(_audited("agent.report", task, after, None), task)
    told = _heard(task, _of_maker(event, task))
    return Decision(after, writes, told, _heard(task, audit), traceless=task.is_quiet)


def cancel(context: DecisionContext, task: Task) -> Decision[Task]:
    """Ask for the early end of a task: at once where nobody has begun it, else its agent is asked."""
    if task.status == TaskState.CANCELLING:
        return Decision(task)
    edge = TASK.step(TaskState(task.status), TaskTrigger.CANCEL)
    if edge.target is TaskState.CANCELLED:
        writes, event, after = _end(context, task, TaskTrigger.CANCEL, {"finished_at": context.now}, None)
        audits = _heard(task, _audited("task.cancel", task, after, None))
        return Decision(after, writes, _heard(task, event), audits, traceless=task.is_quiet)
    after = replace(task, status=edge.target.value, generation=task.generation + 1)
    told = EventRecord(
        EventType.TASK_CANCELLING,
        "task",
        task.id,
        task.tenant_id,
        task.project_id,
        {"type": task.type, "owner": task.owner},
        app_instance_id=task.instance_id,
    )
    audits = _heard(task, _audited("task.cancel", task, after, None))
    writes = (_move(task, TaskTrigger.CANCEL, {}),)
    return Decision(after, writes, _heard(task, told), audits, traceless=task.is_quiet)


def cancel_all(context: DecisionContext, tasks: Iterable[Task]) -> tuple[tuple[Write, ...], tuple[EventRecord, ...]]:
    """What cancels those of the tasks that are not over, to be put into the decision that ends what wanted them."""
    writes: list[Write] = []
    events: list[EventRecord] = []
    for task in tasks:
        if not task.is_over:
            decided = cancel(context, task)
            writes += decided.writes
            events += decided.events
    return tuple(writes), tuple(events)


def last_claim_at(task: Task) -> datetime:
    """When the task is over if nobody has begun it: somebody who waits at the other end does not wait for a day."""
    if task.type not in AWAITED or task.status != TaskState.QUEUED or task.first_claimed_at is not None:
        return task.expires_at
    return min(task.expires_at, task.created_at + AWAITED_FOR)


def lapse(context: DecisionContext, tasks: Iterable[Task], *, forsaken: bool = False) -> Decision[tuple[Task, ...]]:
    """Tasks whose time is over end; those whose lease is lost are offered again, under a higher fence.

    `forsaken` ones have a lease that nobody holds: their agent began anew and does not know of them.
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
        elif task.lease_expires_at is not None and (forsaken or task.lease_expires_at <= context.now):
            writes.append(_move(task, TaskTrigger.LOSE_LEASE, {"lease_expires_at": None}))
            now = replace(task, status=TaskState.QUEUED.value, generation=task.generation + 1, lease_expires_at=None)
            event = queued(now)
        else:
            continue
        after.append(now)
        events += _heard(task, _of_maker(event, task))
        audits += _heard(task, _of_maker(_audited("task.lapse", task, now, None), task))
    quiet = all(task.is_quiet for task in after)
    return Decision(tuple(after), tuple(writes), tuple(events), tuple(audits), traceless=quiet)


def add_receipt(context: DecisionContext, task: Task, receipt: Receipt) -> Decision[Receipt]:
    """A receipt that came when its task had been given up: it is added to the record, and changes nothing else."""
    told = {"receipt_id": receipt.id, "clean": receipt.clean, "task_id": task.id, "owner": task.owner}
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
                told,
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
                after=told,
                app_instance_id=task.instance_id,
                under=(task.correlation_id, task.trace_id),
            ),
        ),
    )


def _exit_code(ended: TaskEnd) -> int | None:
    """How the program ended: a failure says it, and so does the result of one that succeeded."""
    told = None if ended.result is None else ended.result.get("exit_code")
    return told if ended.exit_code is None and isinstance(told, int) else ended.exit_code


def may_renew(task: Task, now: datetime) -> bool:
    """Whether somebody holds the task under a lease now."""
    return task.status in (TaskState.CLAIMED, TaskState.CANCELLING) and not task.expires_at <= now


def _end(
    context: DecisionContext, task: Task, trigger: TaskTrigger, columns: Mapping[str, Any], receipt: Receipt | None
) -> tuple[tuple[Write, ...], EventRecord, Task]:
    move = _move(task, trigger, columns)
    after = replace(task, status=move.edge.target.value, generation=task.generation + 1, **dict(columns))
    told: dict[str, object] = {
        "status": after.status,
        "type": task.type,
        "owner": task.owner,
        "step": task.step,
        "failure_code": after.failure_code,
    }
    if receipt is not None:
        told |= {"receipt_id": receipt.id, "clean": receipt.clean}
    event = EventRecord(
        EventType.TASK_FINISHED,
        "task",
        task.id,
        task.tenant_id,
        task.project_id,
        told,
        app_instance_id=task.instance_id,
    )
    return (move,), event, after


def _move(task: Task, trigger: TaskTrigger, columns: Mapping[str, Any]) -> StateChange:
    edge = TASK.step(TaskState(task.status), trigger)
    return StateChange("task", task.id, TASK, edge, task.generation, task.tenant_id, set=dict(columns))


def _audited(action: str, before: Task, after: Task, receipt: Receipt | None) -> AuditRecord:
    told: dict[str, object] = {"status": after.status, "fence": after.fence, "failure_code": after.failure_code}
    if receipt is not None:
        told |= {"receipt_id": receipt.id, "clean": receipt.clean}
    return AuditRecord(
        action,
        "task",
        before.id,
        before.tenant_id,
        before.project_id,
        before={"status": before.status},
        after=told,
        app_instance_id=before.instance_id,
    )


def _heard(task: Task, told: Told) -> tuple[Told, ...]:
    """What is told of a task, unless it is a quiet one."""
    return () if task.is_quiet else (told,)


def _of_maker(told: Told, task: Task) -> Told:
    """What agents and the passing of time do to a task stands under the correlation of whoever asked for the task."""
    return replace(told, under=(task.correlation_id, task.trace_id))


def _cut(text: str | None) -> str | None:
    return None if text is None else text.replace("\x00", "")[:DETAIL_LENGTH_MAX]
