"""Adds a daemon's last log lines to the failure of its member.

The program on the node knows that a node did not register or that no job ran; only the daemon's log says why. So the
log is read before a member is reported as failed, if its node is reachable.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mooring_adapter import Failure, Finish, InstanceView, Member, Operation, Plan, ReportMember, Step, failures
from mooring_slurm.daemons import BEGINS
from mooring_slurm.members import inspect, is_reached, main_service
from mooring_slurm.responses import ended

WAITED: Final = ("gate", "node", "prove")
"""Steps that wait for a daemon: they say what is missing, and the daemon's log says why."""
ERROR_MARKS: Final = ("fatal:", "error:")
"""What marks the lines with the reason, the best first."""
LINE_MAX: Final = 300


def with_failure_logs(found: Plan, view: InstanceView, operation: Operation) -> Plan:
    """The plan with the daemons' logs: they are read before a member fails, and are then part of its failure."""
    steps: list[Step] = []
    is_unread = False
    for step in found.steps:
        member = view.member(step.member_id) if isinstance(step, ReportMember) and step.failure is not None else None
        if member is None or not isinstance(step, ReportMember) or not _waited_in_vain(view, operation, member):
            steps.append(step)
            continue
        asked = inspect(member, f"why/{member.id}", main_service(member), after=())
        if ended(view, operation, asked.step) is None:
            is_unread = True
            steps.append(asked)
        else:
            steps.append(replace(step, failure=_with_log(view, operation, member, step.failure)))
    if is_unread:
        return Plan(tuple(each for each in steps if not isinstance(each, Finish)))
    return Plan(tuple(_end(each, view, operation) for each in steps))


def _waited_in_vain(view: InstanceView, operation: Operation, member: Member) -> bool:
    """Whether a step that waits for its daemon failed, and its node is reachable."""
    if failures.is_lost(member) or not is_reached(member):
        return False
    tasks = (ended(view, operation, f"{verb}/{member.id}") for verb in WAITED)
    return any(task is not None and task.failed for task in tasks)


def _end(step: Step, view: InstanceView, operation: Operation) -> Step:
    """The end of a failed operation, with the log of the first member that failed to start."""
    if not isinstance(step, Finish) or step.failure is None:
        return step
    member = next((each for each in view.members if _log_lines(view, operation, each)), None)
    return step if member is None else replace(step, failure=_with_log(view, operation, member, step.failure))


def _with_log(view: InstanceView, operation: Operation, member: Member, failure: Failure | None) -> Failure | None:
    lines = _log_lines(view, operation, member)
    if failure is None or not lines:
        return failure
    reason = next(
        (line for mark in ERROR_MARKS for line in reversed(_last_run(view, operation, member)) if mark in line), ""
    )
    detail = f"{failure.detail}; {reason.strip()[:LINE_MAX]}" if reason else failure.detail
    return Failure(failure.code, detail, lines)


def _last_run(view: InstanceView, operation: Operation, member: Member) -> Sequence[str]:
    """The output of the daemon's last completed run: a daemon that restarts may be running again."""
    lines, task = _log_lines(view, operation, member), ended(view, operation, f"why/{member.id}")
    begun = [number for number, line in enumerate(lines) if line == BEGINS]
    if task is None or not begun or (task.result or {}).get("state") != "running":
        return lines
    return lines[: begun[-1]] or lines


def _log_lines(view: InstanceView, operation: Operation, member: Member) -> tuple[str, ...]:
    task = ended(view, operation, f"why/{member.id}")
    lines = (task.result or {}).get("last_lines") if task is not None and task.succeeded else None
    return tuple(str(line) for line in lines) if isinstance(lines, list) else ()
