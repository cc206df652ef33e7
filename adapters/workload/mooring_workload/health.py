"""The health of a member by its tasks: how far its start is, and why it failed.

A start is observed in rounds: the port is probed for some seconds, and if it does not answer, the program itself is
inspected. So a program that has ended is reported at once, with its exit code and its last lines, and not after the
whole start-up time of a slow one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring_adapter import failures
from mooring_adapter.instance_view import Member, Task
from mooring_adapter.steps import Failure

RUNNING: Final = frozenset({"running", "backing_off", "created", "initialized"})
"""States of a container or a service that can still become ready."""

AT_THE_START: Final[Mapping[str, str]] = {"not_found": "image_pull_failed", "capacity": "config_refused"}
"""The meaning of some failures at a fetch or a start: the artifact is missing, or it requests too much."""


@dataclass(frozen=True, slots=True)
class StartProgress:
    """The progress of a start: its round, and whether it serves or has failed."""

    round: int
    is_up: bool = False
    failure: Failure | None = None


def failure_of(task: Task, member: Member) -> Failure:
    """Why a task failed, with the last lines of its program."""
    found = failures.of_task(task, member)
    meaning = AT_THE_START.get(task.failure_code or "")
    if meaning is not None and task.type in ("container.launch", "artifact.fetch"):
        return replace(found, code=meaning)
    return found


def ended_because(inspected: Task, member: Member) -> Failure | None:
    """Why the program does not run, by an inspection; None if it runs."""
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
    """The progress of a start, by its probes and inspections, each by the number of its round."""
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
            detail = f"it runs but does not serve: {probe.failure_detail or 'no answer'}"
            return StartProgress(number, failure=Failure("bootstrap_timeout", detail, _lines_of(look.result or {})))
        number += 1
    return StartProgress(number)


def _lines_of(result: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(each) for each in result.get("last_lines", ()))
