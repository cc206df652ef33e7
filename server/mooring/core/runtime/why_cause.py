"""The links of a chain of causes: what one thing says about itself. `core/runtime/why.py` joins them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.task import Task, TaskState
from mooring.core.runtime.instance_loss import SYSTEM
from mooring.core.runtime.instance_snapshot import MemberSnapshot
from mooring.core.runtime.member import MemberState
from mooring.core.runtime.operation import Operation

LINES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class WhyCause:
    """One link of the chain: what it is, its status, and the explanation."""

    noun: str
    id: str
    name: str
    status: str
    text: str
    code: str | None = None
    since: datetime | None = None
    last_lines: tuple[str, ...] = ()


def operation_cause(operation: Operation) -> WhyCause:
    text = operation.failure_detail or operation.blocker or operation.cancel_reason or _how_far(operation)
    if operation.requested_by == SYSTEM and (reason := operation.request.get("reason")):
        text = f"{reason}; {text}"
    code = operation.failure_code or operation.blocker_code
    since = operation.finished_at or operation.started_at or operation.created_at
    lines = lines_of(operation.last_lines)
    return WhyCause("operation", operation.id, operation.kind, operation.status, text, code, since, lines)


def _how_far(operation: Operation) -> str:
    done = sum(1 for each in operation.steps if each.get("status") in ("done", "skipped"))
    running = [str(each.get("name")) for each in operation.steps if each.get("status") == "running"]
    text = f"{done} of {len(operation.steps)} steps are done" if operation.steps else "no step is reported yet"
    return text + (f", under way: {', '.join(running[:5])}" if running else "")


def member_cause(each: MemberSnapshot) -> tuple[WhyCause, ...]:
    member = each.member
    held = "; ".join(
        f"held by {one.get('owner')}: {one.get('reason') or 'no reason given'}" for one in member.holds[:5]
    )
    if member.status in (MemberState.DRAINING, MemberState.DRAINED):  # a hold is why it gets no work
        text = member.failure_detail or member.blocker or held or member.health_detail
    else:
        text = member.failure_detail or member.blocker or member.health_detail or held
    return (
        WhyCause(
            "member",
            member.id,
            member.name,
            member.status,
            text or f"it is {member.status}",
            member.failure_code,
            member.failed_at or member.health_at or member.created_at,
            lines_of(member.last_lines),
        ),
    )


def allocation_cause(allocation: Allocation) -> WhyCause:
    text = allocation.failure_detail or allocation.blocker or f"it is {allocation.status}"
    return WhyCause(
        "allocation",
        allocation.id,
        allocation.name,
        allocation.status,
        text,
        allocation.failure_code,
        allocation.failed_at or allocation.created_at,
    )


def node_cause(each: MemberSnapshot) -> WhyCause:
    node = each.node
    if node is None:
        raise ValueError("a member without a node cannot be explained by one")
    if node.is_gone:
        return WhyCause("node", node.id, node.id, node.status, "it is gone for good", "node_lost")
    since = node.unreachable_since
    text = "it answers" if since is None else f"its agent has been silent since {timestamp(since)}"
    return WhyCause("node", node.id, node.id, node.status, text, "node_unreachable" if since else None, since)


def failed_task_cause(task: Task) -> WhyCause:
    code = f" (exit code {task.exit_code})" if task.exit_code is not None else ""
    text = (task.failure_detail or f"it {task.status}") + code
    return WhyCause(
        "task", task.id, task.type, task.status, text, task.failure_code, task.finished_at, lines_of(task.last_lines)
    )


def open_task_cause(task: Task) -> WhyCause:
    waits = task.status == TaskState.QUEUED
    text = f"it waits for the agent of node {task.node_id}" if waits else f"node {task.node_id} is running it"
    if task.progress:
        text += f": {_progress(task.progress)}"
    return WhyCause("task", task.id, task.type, task.status, text, None, task.first_claimed_at or task.created_at)


def _progress(progress: Mapping[str, Any]) -> str:
    whole = f" of {progress['total']}" if progress.get("total") else ""
    return f"{progress.get('stage') or 'at'} {progress.get('done', 0)}{whole} {progress.get('unit') or ''}".strip()


def lines_of(lines: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(lines or ())[-LINES_MAX:]


def timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
