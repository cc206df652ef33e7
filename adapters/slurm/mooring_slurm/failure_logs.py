"""What a daemon wrote before it ended is part of why its member does not come up.

The program on the node knows that nobody registered, or that no job ran; why, only the daemon knew. So before a member
is called failed, its daemon's last lines are read, where its node can be asked.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mooring_adapter import Failure, Finish, InstanceView, Member, Operation, Plan, ReportMember, Step, failures
from mooring_slurm.daemons import BEGINS
from mooring_slurm.members import inspect, is_reached, main_service
from mooring_slurm.responses import ended

WAITED: Final = ("gate", "node", "prove")
"""Steps that wait for a daemon: they tell what is missing, and it tells why."""
TELLING: Final = ("fatal:", "error:")
"""The words that tell why, the better first."""
LINE_MAX: Final = 300


def with_failure_logs(found: Plan, view: InstanceView, operation: Operation) -> Plan:
    """The plan, in which no member is given up before its daemon was heard; and then in the daemon's words."""
    steps: list[Step] = []
    unheard = False
    for step in found.steps:
        member = view.member(step.member_id) if isinstance(step, ReportMember) and step.failure is not None else None
        if member is None or not isinstance(step, ReportMember) or not _waited_in_vain(view, operation, member):
            steps.append(step)
            continue
        asked = inspect(member, f"why/{member.id}", main_service(member), after=())
        if ended(view, operation, asked.step) is None:
            unheard = True
            steps.append(asked)
        else:
            steps.append(replace(step, failure=_heard(view, operation, member, step.failure)))
    if unheard:
        return Plan(tuple(each for each in steps if not isinstance(each, Finish)))
    return Plan(tuple(_end(each, view, operation) for each in steps))


def _waited_in_vain(view: InstanceView, operation: Operation, member: Member) -> bool:
    """Whether something that waits for its daemon failed, and its node can be asked for it."""
    if failures.is_lost(member) or not is_reached(member):
        return False
    tasks = (ended(view, operation, f"{verb}/{member.id}") for verb in WAITED)
    return any(task is not None and task.failed for task in tasks)


def _end(step: Step, view: InstanceView, operation: Operation) -> Step:
    """The end of an operation that failed, with what was heard of the first member that did not come up."""
    if not isinstance(step, Finish) or step.failure is None:
        return step
    member = next((each for each in view.members if _words(view, operation, each)), None)
    return step if member is None else replace(step, failure=_heard(view, operation, member, step.failure))


def _heard(view: InstanceView, operation: Operation, member: Member, failure: Failure | None) -> Failure | None:
    lines = _words(view, operation, member)
    if failure is None or not lines:
        return failure
    said = next((line for word in TELLING for line in reversed(_last_run(view, operation, member)) if word in line), "")
    detail = f"{failure.detail}; {said.strip()[:LINE_MAX]}" if said else failure.detail
    return Failure(failure.code, detail, lines)


def _last_run(view: InstanceView, operation: Operation, member: Member) -> Sequence[str]:
    """What the daemon said that ended last: one that is started again and again may be heard in the middle."""
    lines, task = _words(view, operation, member), ended(view, operation, f"why/{member.id}")
    begun = [number for number, line in enumerate(lines) if line == BEGINS]
    if task is None or not begun or (task.result or {}).get("state") != "running":
        return lines
    return lines[: begun[-1]] or lines


def _words(view: InstanceView, operation: Operation, member: Member) -> tuple[str, ...]:
    task = ended(view, operation, f"why/{member.id}")
    lines = (task.result or {}).get("last_lines") if task is not None and task.succeeded else None
    return tuple(str(line) for line in lines) if isinstance(lines, list) else ()
