"""Reads the node program's answers from tasks: one line of JSON, or the reason why there is none."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mooring_adapter import Failure, InstanceView, Member, Operation, Task, failures

NAMED_MAX: Final = 20
"""The most jobs that a sentence names; the rest is counted."""

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
"""The operation's failure code for each error code of the program; any other is a `runtime_error`."""


ATTEMPTS: Final = 3
"""How often a task is created if a node's restart interrupts it."""


def newest(view: InstanceView, operation: Operation, step: str) -> Task | None:
    """The newest attempt of a step's task."""
    tasks = view.tasks_of(operation)
    names = (f"{step}/{number}" for number in range(ATTEMPTS, 1, -1))
    return next((tasks[name] for name in names if name in tasks), tasks.get(step))


def ended(view: InstanceView, operation: Operation, step: str) -> Task | None:
    """The task of a step when it is over and will not be attempted again."""
    task = newest(view, operation, step)
    if task is None or not task.is_over:
        return None
    again = failures.may_try_again(task) and task.step != f"{step}/{ATTEMPTS}"
    return None if again else task


def answered(view: InstanceView, operation: Operation, step: str) -> dict[str, Any]:
    """The answer of a step's task if it succeeded, otherwise an empty one."""
    task = ended(view, operation, step)
    return {} if task is None or not task.succeeded else answer_of(task) or {}


def answer_of(task: Task | None) -> dict[str, Any] | None:
    """The object that the program printed, for a success or a failure; None if it printed none."""
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
    """Why a task failed, with the program's own error if it printed one."""
    error = (answer_of(task) or {}).get("error")
    usual = failures.of_task(task, member)
    if not isinstance(error, dict) or usual.code == "node_lost":
        return usual
    code = CODES.get(str(error.get("code")), "runtime_error")
    return Failure(code, str(error.get("detail") or usual.detail), usual.last_lines)


def code_of(task: Task | None) -> str | None:
    """The program's error code, if it printed one."""
    error = (answer_of(task) or {}).get("error")
    return str(error.get("code")) if isinstance(error, dict) else None


def jobs_named(jobs: Sequence[Any]) -> str:
    """A comma-separated list of jobs for messages: id, name and user of the first 20, then how many more."""
    words = [_job(each) for each in jobs[:NAMED_MAX]]
    more = len(jobs) - len(words)
    return ", ".join([*words, f"{more} more"] if more > 0 else words)


def job_ids(jobs: Sequence[Any]) -> list[str]:
    return [str(each.get("id")) if isinstance(each, Mapping) else str(each) for each in jobs]


def _job(job: Any) -> str:
    if not isinstance(job, Mapping):
        return str(job)
    about = " of ".join(str(job[name]) for name in ("name", "user") if job.get(name))
    return f"{job.get('id')} ({about})" if about else str(job.get("id"))
