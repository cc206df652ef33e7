"""The next actions of a plan: a pure function of the plan and the records.

Each step is pending, running, done, failed or skipped. A task's step has the state of the recorded task. Every other
step is done when the operation's step list says so, which is written in one report together with its effect. What is
due now is collected into the secrets and the usage, one report, the tasks, and the end, and performed in this order: a
step in the report of this round counts as done for the steps behind it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from mooring_adapter import failures
from mooring_adapter.instance_view import InstanceView, Member, Operation, Task
from mooring_adapter.steps import (
    Barrier,
    Blocked,
    Failure,
    Finish,
    MakeSecret,
    OnFailure,
    Plan,
    ReportEndpoint,
    ReportInstance,
    ReportMember,
    ReportUsage,
    RunTask,
    Step,
    Wait,
)

SHOWN_MAX: Final = 64
"""Plans up to this size show their tasks among the operation's steps; larger ones only what must be recorded."""
ENDPOINT_FIELDS: Final = (
    "name",
    "member_id",
    "port",
    "protocol",
    "path",
    "title",
    "task_id",
    "user",
    "directory",
    "environment",
)


class StepProgress(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LEFT_OUT = "skipped"


MAY_LOSE_MEMBERS: Final = frozenset({"drain", "remove", "decommission", "action"})
"""Operations that can succeed although a member failed."""
REACHED: Final[Mapping[str, frozenset[str]]] = {
    "joining": frozenset({"joining", "ready", "degraded", "draining", "drained", "removing", "removed"}),
    "ready": frozenset({"ready", "degraded", "draining", "drained", "removing", "removed"}),
}
"""The states of a new member that it can only have after it was joining, or ready."""
PAST: Final = frozenset({StepProgress.DONE, StepProgress.LEFT_OUT})


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task to create, under the name of its attempt."""

    name: str
    task: RunTask


@dataclass(slots=True)
class NextActions:
    """What to do now for one operation."""

    operation: Operation
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)  # the steps that are tasks, whose state is recorded with the task
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    instance: dict[str, Any] = field(default_factory=dict)
    secrets: list[MakeSecret] = field(default_factory=list)
    usage: list[ReportUsage] = field(default_factory=list)
    tasks: list[PendingTask] = field(default_factory=list)
    finish: Finish | None = None
    blocked: Blocked | None = None
    wake_at: datetime | None = None

    @property
    def begins(self) -> bool:
        """Whether the operation has not been begun yet."""
        return self.operation.status != "cancelling" and not self.operation.is_begun

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do before something changes."""
        return self.does_nothing and not self.report()

    @property
    def report_may_wait(self) -> bool:
        """Whether the report has only the progress of tasks: it is for people, and recorded with the tasks already."""
        return self.finish is None and self.shown >= self.steps.keys() and self.report().keys() == {"steps"}

    @property
    def does_nothing(self) -> bool:
        """Whether there is nothing to do except to report."""
        return not (self.secrets or self.usage or self.tasks or self.finish)

    def report(self) -> dict[str, Any]:
        """The body of the report, without its fence; empty if there is nothing to report."""
        body: dict[str, Any] = {}
        if self.begins:
            body["begin"] = True
        if self.blocked is not None:
            known, detail = self.operation, self.blocked.detail[:1_000]
            is_same = known.blocker_code in (None, self.blocked.code) and known.blocker in (None, detail)
            if known.status != "blocked" or not is_same:
                body["blocked"] = {"code": self.blocked.code, "detail": detail}
        elif self.operation.status == "blocked":
            body["blocked"] = None
        for name, values in (("steps", self.steps), ("members", self.members)):
            if values:
                body[name] = list(values.values())
        if self.instance:
            body["instance"] = self.instance
        return body


def next_actions(plan: Plan, view: InstanceView, operation: Operation) -> NextActions:
    """What to do now for an operation with this plan."""
    return _PlanWalk(plan, view, operation).read()


class _PlanWalk:
    def __init__(self, plan: Plan, view: InstanceView, operation: Operation) -> None:
        self.plan, self.view, self.operation = plan, view, operation
        self.tasks = view.tasks_of(operation)
        self.recorded = {each.name: each.status for each in operation.steps}
        self.members = {each.id: each for each in view.members}
        self.states: dict[str, StepProgress] = {}
        self.failed_members: set[str] = set()
        self.failure: Failure | None = None
        self.actions = NextActions(operation)
        self.shows_tasks = len(plan.steps) <= SHOWN_MAX

    def read(self) -> NextActions:
        behind: set[str] = set()  # the steps that a step without a member waits for
        last_of: dict[str | None, str] = {}
        barrier: str | None = None
        for step in self.plan.steps:
            member_id = step.of_member
            if step.after is not None:
                before: Iterable[str] = step.after
            elif member_id is None:
                before = behind
            else:
                before = [each for each in (last_of.get(member_id), barrier) if each is not None]
            if self.failure is None:
                self.states[step.step] = self._state(step, all(self.states.get(each) in PAST for each in before))
            behind.add(step.step)
            last_of[member_id] = step.step
            if member_id is None:
                barrier, behind = step.step, {step.step}
                last_of = {}
        if self.failure is not None:
            self._fail(self.failure)
        self._end_stale_steps()
        return self.actions

    def _end_stale_steps(self) -> None:
        """Show the end of tasks that the plan no longer has, such as an earlier check of the same thing."""
        for name, status in self.recorded.items():
            task = self.tasks.get(name)
            if status == StepProgress.RUNNING and name not in self.states and task is not None and task.is_over:
                self.actions.steps.setdefault(name, {"name": name, "status": StepProgress.DONE.value})
                self.actions.shown.add(name)

    def _state(self, step: Step, may_begin: bool) -> StepProgress:
        if isinstance(step, RunTask):
            return self._task_state(step, may_begin)
        if self.recorded.get(step.step) in ("done", "skipped") or self._is_reached(step):
            return StepProgress.DONE
        if step.of_member in self.failed_members:
            return StepProgress.LEFT_OUT
        if not may_begin or self.actions.blocked is not None:
            return StepProgress.PENDING
        return self._begin(step)

    def _task_state(self, step: RunTask, may_begin: bool) -> StepProgress:
        number, name, task = self._attempt(step)
        member = self.members.get(step.member_id)
        if task is not None and task.succeeded:
            return self._shown(step, StepProgress.DONE)
        if step.member_id in self.failed_members:
            return StepProgress.LEFT_OUT
        if task is not None and not task.is_over and not failures.is_lost(member):
            return self._shown(step, StepProgress.RUNNING)
        if task is None and not failures.is_lost(member):
            if not may_begin or self.actions.blocked is not None:
                return StepProgress.PENDING
            self.actions.tasks.append(PendingTask(name, step))
            return self._shown(step, StepProgress.RUNNING)
        failure = self._task_failure(step, task, member)
        if task is not None and number < step.attempts and failures.may_try_again(task) and failure.code != "node_lost":
            self.actions.tasks.append(PendingTask(f"{step.step}/{number + 1}", step))
            return self._shown(step, StepProgress.RUNNING)
        return self._failed(step, failure, member)

    def _attempt(self, step: RunTask) -> tuple[int, str, Task | None]:
        """The newest attempt: its number, its name, and its task if it was created."""
        number = 1
        while f"{step.step}/{number + 1}" in self.tasks and number < step.attempts:
            number += 1
        name = step.step if number == 1 else f"{step.step}/{number}"
        return number, name, self.tasks.get(name)

    def _task_failure(self, step: RunTask, task: Task | None, member: Member | None) -> Failure:
        if task is not None:
            return failures.of_task(task, member)
        name = step.member_id if member is None else member.name or member.id
        return Failure("node_lost", f"{step.step}: the node of {name} is lost")

    def _failed(self, step: RunTask, failure: Failure, member: Member | None) -> StepProgress:
        if step.on_failure is OnFailure.GO_ON:
            return self._shown(step, StepProgress.DONE)
        self._shown(step, StepProgress.FAILED, failure.detail)
        if member is not None and member.status in ("joining", "requested") and member.id not in self.actions.members:
            self.actions.members[member.id] = {"id": member.id, "status": "failed", "failure": failure.plain()}
        if step.on_failure is OnFailure.FAIL_MEMBER:
            self.failed_members.add(step.member_id)
            return StepProgress.LEFT_OUT
        self.failure = failure
        return StepProgress.FAILED

    def _begin(self, step: Step) -> StepProgress:
        match step:
            case ReportMember():
                return self._member(step)
            case ReportEndpoint():
                self._endpoint(step)
            case ReportInstance():
                body = {
                    "health": step.health,
                    "health_detail": step.health_detail,
                    "detail": step.detail,
                    "topology_mode": step.topology_mode,
                    "endpoints": None if step.endpoints is None else list(step.endpoints),
                }
                self.actions.instance.update({name: value for name, value in body.items() if value is not None})
            case MakeSecret():
                self.actions.secrets.append(step)
            case ReportUsage():
                self.actions.usage.append(step)
            case Wait():
                return self._wait(step)
            case Blocked():
                self.actions.blocked = step
                return StepProgress.PENDING
            case Finish():
                self.actions.finish = self._end(step)
                return StepProgress.RUNNING
            case Barrier():
                pass
        return self._recorded(step)

    def _is_reached(self, step: Step) -> bool:
        """Whether the member's own state shows that the step is done, so that nothing has to be recorded."""
        member = self.members.get(step.of_member or "")
        if not isinstance(step, ReportMember) or member is None:
            return False
        if step.version is not None:
            return member.version == step.version and step.status in (None, member.status)
        return self.operation.kind in ("deploy", "add") and member.status in REACHED.get(step.status or "", ())

    def _recorded(self, step: Step) -> StepProgress:
        if isinstance(step, ReportMember) and not self.shows_tasks and self._is_shown_by_state(step):
            return StepProgress.DONE
        self.actions.steps[step.step] = {"name": step.step, "status": "done"}
        return StepProgress.DONE

    def _end(self, step: Finish) -> Finish:
        """The planned end, or a failure if a member failed and the plan does not tolerate that."""
        if step.outcome != "succeeded" or step.tolerates_failures or self.operation.kind in MAY_LOSE_MEMBERS:
            return step
        for member_id in sorted(self.failed_members):
            member = self.members.get(member_id)
            reported = self.actions.members.get(member_id, {}).get("failure")
            if reported is not None:
                failure = Failure(reported["code"], reported["detail"], tuple(reported["last_lines"]))
            else:
                failure = (
                    Failure("runtime_error", f"{member_id} failed") if member is None else failures.of_member(member)
                )
            return Finish(step=step.step, outcome="failed", failure=failure, evidence=step.evidence)
        return step

    def _is_shown_by_state(self, step: ReportMember) -> bool:
        return step.version is not None or (self.operation.kind in ("deploy", "add") and step.status in REACHED)

    def _member(self, step: ReportMember) -> StepProgress:
        if failures.is_lost(self.members.get(step.member_id)):
            self.failed_members.add(step.member_id)
            return StepProgress.LEFT_OUT  # there is nothing to report about a lost node
        if step.member_id in self.actions.members:
            return StepProgress.PENDING  # a report has one state per member
        body = {
            "status": step.status,
            "health": step.health,
            "health_detail": step.health_detail,
            "detail": step.detail,
            "version": step.version,
            "holds": None if step.holds is None else list(step.holds),
            "failure": None if step.failure is None else step.failure.plain(),
        }
        self.actions.members[step.member_id] = {
            "id": step.member_id,
            **{name: value for name, value in body.items() if value is not None},
        }
        return self._recorded(step)

    def _endpoint(self, step: ReportEndpoint) -> None:
        opened = self.tasks.get(step.task) if step.task is not None else None
        endpoint = {
            "name": step.name,
            "member_id": step.member_id,
            "protocol": step.protocol,
            "port": step.port,
            "path": step.path,
            "title": step.title,
            "task_id": None if opened is None else opened.id,
            "user": step.user,
            "directory": step.directory,
            "environment": None if step.environment is None else dict(step.environment),
        }
        known = self.actions.instance.get("endpoints", [_plain_endpoint(each) for each in self.view.instance.endpoints])
        others = [each for each in known if each.get("name") != step.name]
        self.actions.instance["endpoints"] = [
            *others,
            {name: value for name, value in endpoint.items() if value is not None},
        ]

    def _wait(self, step: Wait) -> StepProgress:
        if self.view.now is not None and self.view.now >= step.until:
            return StepProgress.DONE  # time never goes back, so there is nothing to record
        self.actions.wake_at = step.until if self.actions.wake_at is None else min(self.actions.wake_at, step.until)
        return StepProgress.PENDING

    def _shown(self, step: RunTask, state: StepProgress, detail: str | None = None) -> StepProgress:
        """Show a task among the operation's steps, for people; only if its state is new."""
        if self.shows_tasks and self.recorded.get(step.step) != state.value:
            shown = {"name": step.step, "status": state.value}
            self.actions.steps[step.step] = shown if detail is None else {**shown, "detail": detail[:1_000]}
            self.actions.shown.add(step.step)
        return state

    def _fail(self, failure: Failure) -> None:
        """Fail the operation: nothing new begins, and steps that were not done are not reported as done."""
        for each in (*self.actions.secrets, *self.actions.usage):
            self.actions.steps.pop(each.step, None)
        self.actions.tasks, self.actions.secrets, self.actions.blocked, self.actions.wake_at = [], [], None, None
        self.actions.usage = []
        done = sorted(name for name, task in self.tasks.items() if task.succeeded)
        evidence = {"steps_done": done[:100]}
        self.actions.finish = Finish(outcome="failed", failure=failure, evidence=evidence)


def _plain_endpoint(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in ENDPOINT_FIELDS if known.get(name) is not None}


def cancelling(view: InstanceView, operation: Operation) -> Plan:
    """The kit's plan for an early end if the adapter has none: wait for running tasks, then end as cancelled."""
    running = [each for each in view.tasks_of(operation).values() if not each.is_over]
    if running:
        return Plan(())
    done = sorted(each.step for each in view.tasks_of(operation).values() if each.succeeded)
    return Plan((Finish(step="cancelled", outcome="cancelled", evidence={"steps_done": done[:100]}),))
