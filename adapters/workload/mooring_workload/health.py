"""What came of a member's tasks, in the platform's words: where it stands on its way up, and why it failed.

A start is observed in rounds: for some seconds its port is asked, and when it does not answer the program itself is
looked at, so that one that has ended is told at once, with its exit code and its last lines, and not after the whole
time that a slow one may take.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring_adapter import failures
from mooring_adapter.instance_view import Member, Task
from mooring_adapter.steps import Failure

RUNNING: Final = frozenset({"running", "backing_off", "created", "initialized"})
"""States of a container or a service in which it may still come up."""

AT_THE_START: Final[Mapping[str, str]] = {"not_found": "image_pull_failed", "capacity": "config_refused"}
"""What some failures mean where something is fetched or started: the artifact is not there; it asks for too much."""


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How far a start has come: the round it is in, and whether it is up or has failed."""

    round: int
    is_up: bool = False
    failure: Failure | None = None


def failure_of(task: Task, member: Member) -> Failure:
    """Why a task failed, with what its program said last."""
    found = failures.of_task(task, member)
    meaning = AT_THE_START.get(task.failure_code or "")
    if meaning is not None and task.type in ("container.launch", "artifact.fetch"):
        return replace(found, code=meaning)
    return found


def ended_because(inspected: Task, member: Member) -> Failure | None:
    """Why the program does not run, by a look at it; None where it runs."""
    if inspected.failed:
        return failures.of_task(inspected, member)
    result = inspected.result or {}
    state = str(result.get("state", "absent"))
    if state in RUNNING:
        return None
    code = result.get("exit_code")
    how = f"it has ended ({state})" if code is None else f"it ended with exit code {code}"
    return Failure("runtime_error", how, _lines_of(result))


def start_progress(member: Member, probes: Mapping[int, Task], looks: Mapping[int, Task], rounds: int) -> StartProgress:
    """How far a start has come, by its probes and looks, each with the number of its round."""
    number = 1
    while (probe := probes.get(number)) is not None and probe.is_over:
        if probe.succeeded:
            return StartProgress(number, is_up=True)
        look = looks.get(number)
        if look is None or not look.is_over:
            return StartProgress(number)
        if (failure := ended_because(look, member)) is not None:
            return StartProgress(number, failure=failure)
        if number >= rounds:
            detail = f"it runs, and does not serve: {probe.failure_detail or 'no answer'}"
            return StartProgress(number, failure=Failure("bootstrap_timeout", detail, _lines_of(look.result or {})))
        number += 1
    return StartProgress(number)


def _lines_of(result: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(each) for each in result.get("last_lines", ()))
