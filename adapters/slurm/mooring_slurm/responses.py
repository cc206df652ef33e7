"""What the program on the node answered, out of a task: one line of JSON, or why there is none."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mooring_adapter import Failure, InstanceView, Member, Operation, Task, failures

NAMED_MAX: Final = 20
"""So many jobs are named in a sentence; the rest is counted."""

CODES: Final[Mapping[str, str]] = {
    "busy": "not_quiet",
    "not_quiet": "not_quiet",
    "no_output": "config_refused",
    "array": "config_refused",
    "key_reused": "config_refused",
    "no_user": "config_refused",
    "user_differs": "config_refused",
    "not_found": "config_refused",
    "job_refused": "config_refused",
    "account_refused": "config_refused",
    "partition_refused": "config_refused",
    "closed": "config_refused",
    "usage": "config_refused",
    "permission_denied": "permission_denied",
    "timed_out": "step_timeout",
    "controller_down": "unhealthy",
    "munge_down": "unhealthy",
    "partition_down": "unhealthy",
    "not_registered": "unhealthy",
    "not_ready": "unhealthy",
}
"""What the program calls its failures, in the words of operations; everything else is a `runtime_error`."""


ATTEMPTS: Final = 3
"""How often a task is made that a restarted node cut off."""


def newest(view: InstanceView, operation: Operation, step: str) -> Task | None:
    """The task under a step: its newest attempt."""
    tasks = view.tasks_of(operation)
    names = (f"{step}/{number}" for number in range(ATTEMPTS, 1, -1))
    return next((tasks[name] for name in names if name in tasks), tasks.get(step))


def ended(view: InstanceView, operation: Operation, step: str) -> Task | None:
    """The task under a step once nothing more comes of it, another attempt included."""
    task = newest(view, operation, step)
    if task is None or not task.is_over:
        return None
    again = failures.may_try_again(task) and task.step != f"{step}/{ATTEMPTS}"
    return None if again else task


def answered(view: InstanceView, operation: Operation, step: str) -> dict[str, Any]:
    """What a step's task answered when it succeeded; empty before, and where it failed."""
    task = ended(view, operation, step)
    return {} if task is None or not task.succeeded else answer_of(task) or {}


def answer_of(task: Task | None) -> dict[str, Any] | None:
    """The object that the program printed, whether it was content or not; none where it never came to that."""
    if task is None or not task.is_over:
        return None
    output = (task.result or {}).get("output")
    lines = output.splitlines() if isinstance(output, str) else (task.last_lines or [])
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def failure_of(task: Task, member: Member | None) -> Failure:
    """Why the program did not do it: in its own words where it had any."""
    error = (answer_of(task) or {}).get("error")
    usual = failures.of_task(task, member)
    if not isinstance(error, dict) or usual.code == "node_lost":
        return usual
    code = CODES.get(str(error.get("code")), "runtime_error")
    return Failure(code, str(error.get("detail") or usual.detail), usual.last_lines)


def code_of(task: Task | None) -> str | None:
    """What the program called its failure, if it had a word for it."""
    error = (answer_of(task) or {}).get("error")
    return str(error.get("code")) if isinstance(error, dict) else None


def jobs_named(jobs: Sequence[Any]) -> str:
    """Jobs in a sentence: their numbers, with what they are called and whose they are."""
    words = [_job(each) for each in jobs[:NAMED_MAX]]
    more = len(jobs) - len(words)
    return ", ".join([*words, f"{more} more"] if more > 0 else words)


def job_ids(jobs: Sequence[Any]) -> list[str]:
    """The numbers of jobs."""
    return [str(each.get("id")) if isinstance(each, Mapping) else str(each) for each in jobs]


def _job(job: Any) -> str:
    if not isinstance(job, Mapping):
        return str(job)
    about = " of ".join(str(job[name]) for name in ("name", "user") if job.get(name))
    return f"{job.get('id')} ({about})" if about else str(job.get("id"))
