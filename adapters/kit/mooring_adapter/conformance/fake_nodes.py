"""Simulated nodes: they complete every task at once and in memory, unless a scenario makes them misbehave.

Nothing runs. The services that a task would start are recorded by member, so that a second start, a stop of something
that does not run and a probe of nothing are detected.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mooring_adapter.conformance.fake_program import FakeOutcome, FakeProgram, FakeProgramFailed
from mooring_adapter.conformance.fake_records import OPENING, FakeMember, FakeTask

OBSERVING: Final = frozenset({"probe.tcp", "probe.http", "probe.exec", "process.run", "service.inspect", "log.read"})
"""Tasks by which an adapter can observe whether a member is quiet."""


def is_observing(task: FakeTask) -> bool:
    """Whether a task only observes."""
    inspects = task.type == "container.control" and task.arguments.get("action") == "inspect"
    return inspects or task.type in OBSERVING


def is_stopping(task: FakeTask) -> bool:
    """Whether a task stops a program of the app."""
    stops = task.type == "container.control" and task.arguments.get("action") == "stop"
    return stops or task.type in ("service.stop", "container.remove")


Behaviour = Callable[[FakeTask, FakeMember], FakeOutcome | None]
"""Decides a task's outcome, or None for the usual one."""


@dataclass(slots=True)
class FakeNodes:
    """All simulated nodes of a platform."""

    running: dict[str, set[str]] = field(default_factory=dict)  # by member: the names of its running services
    started_twice: list[str] = field(default_factory=list)
    holding: Callable[[FakeTask], bool] = lambda task: False
    behaviour: Behaviour = lambda task, member: None
    fake_program: FakeProgram | None = None
    never_quiet: bool = False
    stopped_together: dict[str, int] = field(
        default_factory=dict
    )  # by component: the most that were down at the same time

    def do(self, task: FakeTask, member: FakeMember, instance_id: str) -> FakeOutcome:
        odd = self.behaviour(task, member)
        if odd is not None:
            return odd
        if self.never_quiet and member.status == "draining" and is_observing(task):
            return FakeOutcome(failure_code="probe_failed", failure_detail="simulated: it still has work", exit_code=1)
        answer = self._ask_program(task, member, instance_id)
        if answer is not None and answer.failure_code is not None:
            return answer
        usual = self._done(task, member)
        return usual if answer is None else answer

    def _ask_program(self, task: FakeTask, member: FakeMember, instance_id: str) -> FakeOutcome | None:
        """The fake program's answer; if the program failed, the task fails and the platform records it."""
        if self.fake_program is None:
            return None
        try:
            return self.fake_program.ask(task, member, instance_id)
        except FakeProgramFailed as failed:
            return FakeOutcome(
                failure_code="host_error", failure_detail=f"simulated: {failed}", last_lines=(str(failed),)
            )

    def _done(self, task: FakeTask, member: FakeMember) -> FakeOutcome:
        """Record what the task starts and stops, and return the usual outcome."""
        name = str(task.arguments.get("name", ""))
        running = self.running.setdefault(member.id, set())
        if task.type in OPENING:
            if name in running:
                self.started_twice.append(f"{task.step}: {name} of {member.id} is already running")
            running.add(name)
        elif task.type == "service.stop" or (
            task.type == "container.control" and task.arguments.get("action") == "stop"
        ):
            was_running = name in running
            running.discard(name)
            if task.arguments.get("kill") == "owner":
                running.clear()
            return FakeOutcome(
                {"stopped": True, "was_running": was_running} if task.type == "service.stop" else {"state": "exited"}
            )
        elif task.type == "container.control" and task.arguments.get("action") in ("start", "restart"):
            running.add(name)
        elif task.type == "container.remove":
            running.discard(name)
        return self._usual(task, name in running)

    def _usual(self, task: FakeTask, runs: bool) -> FakeOutcome:
        state = "running" if runs else "absent"
        match task.type:
            case "files.write":
                return FakeOutcome({"written": len(task.arguments.get("files", ()))})
            case "process.run":
                argv = task.arguments.get("argv") or [""]
                return FakeOutcome({"exit_code": 0}, exit_code=0, last_lines=(str(argv[-1]),))
            case "service.start":
                return FakeOutcome({"state": "running", "pid": 4242, "started_at": 1})
            case "service.inspect":
                return FakeOutcome({"state": state, "restarts": 0, "last_lines": []})
            case "log.read":
                at = {"offset": 0, "next_offset": 0, "size": 0}
                return FakeOutcome({"content_base64": "", "truncated_before": False, **at})
            case "container.launch":
                return FakeOutcome({"container_id": f"simulated{task.number}", "state": "running"})
            case "container.control":
                return FakeOutcome({"state": state})
            case "container.remove":
                return FakeOutcome({"removed": True})
            case "artifact.fetch":
                return FakeOutcome({"bytes": 1, "from_cache": False})
            case _:
                return FakeOutcome({"latency_milliseconds": 1, "attempts": 1, "observed": "simulated"})

    def forget(self, member_id: str) -> None:
        """Forget everything about a member."""
        self.running.pop(member_id, None)
