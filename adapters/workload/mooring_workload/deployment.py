"""One operation of one instance, and the two ways that all plans are made of: a member comes up, a member goes down.

A member comes up by the same steps whatever asked for it: what it needs is put there, it is started, and it is probed
until it serves. The list of steps grows with what is known: a round of probing is named when the one before has failed.
What failed is kept by member, for the plan to say what it means.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mooring_adapter import failures
from mooring_adapter.instance_view import InstanceView, Member, Operation, Task
from mooring_adapter.steps import Failure, MakeSecret, OnFailure, ReportInstance, ReportMember, RunTask, Step
from mooring_workload.health import ended_because, failure_of, start_progress
from mooring_workload.placement import NotPlaced, placement_of
from mooring_workload.profile import RuntimeProfile
from mooring_workload.render import NotRenderable, Rendered, TaskTemplate, render, secret_needs

ATTEMPTS: Final = 3
"""How often a task is made that a restarted node cut off."""

ENDPOINT_FIELDS: Final = ("name", "member_id", "port", "protocol", "path", "title", "task_id")
QUIET: Final = "quiet"
"""What is kept of a member whose program was stopped by a drain, until it comes up anew."""
SERVES: Final = "it answers its probe"
RUNS: Final = "it runs; the manifest has no probe that says more"
GONE: Final = frozenset({"removing", "removed"})
NEVER_STARTED: Final = frozenset({"requested", *GONE})


class OperationFailed(Exception):
    """The operation ends here, as failed."""

    def __init__(self, code: str, detail: str, last_lines: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.failure = Failure(code, detail, last_lines)


@dataclass(frozen=True, slots=True)
class Deployment:
    """An operation, with the profile that its members are to run."""

    view: InstanceView
    operation: Operation
    profile: RuntimeProfile
    tasks: Mapping[str, Task]
    failed: dict[str, Failure] = field(default_factory=dict)
    opened: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def members(self) -> list[Member]:
        """Those that the operation is about: the named ones, or all that are there."""
        named = self.view.concerned(self.operation) or self.view.members
        return [each for each in named if each.status not in GONE]

    def rendered(self, member: Member) -> Rendered:
        """The member's tasks; the operation ends where there can be none."""
        if failures.is_lost(member):
            raise OperationFailed(
                "node_lost", f"the node of {member.name or member.id} is lost; remove or replace the member"
            )
        refuse_crowd(self.view, member, self.profile)
        try:
            return render(self.profile, self.view.instance.config, placement_of(member))
        except NotRenderable as refused:
            raise OperationFailed(refused.code, str(refused)) from refused
        except NotPlaced as gone:
            raise OperationFailed("node_lost", str(gone)) from gone

    def over(self, name: str, member: Member) -> Task | None:
        """A member's task once nothing more comes of it, the next attempt included."""
        step = f"{name}/{member.id}"
        number = 1
        while number < ATTEMPTS and f"{step}/{number + 1}" in self.tasks:
            number += 1
        task = self.tasks.get(step if number == 1 else f"{step}/{number}")
        if task is None or not task.is_over or (number < ATTEMPTS and failures.may_try_again(task)):
            return None
        return task

    def run(self, work: TaskTemplate, member: Member, name: str | None = None) -> RunTask:
        """A task of a member's, as a step; what its failure means is said by the plan, which sees it."""
        return RunTask(
            step=f"{name or work.name}/{member.id}",
            member_id=member.id,
            type=work.type,
            arguments=work.arguments,
            grants=work.grants,
            on_failure=OnFailure.GO_ON,
            attempts=ATTEMPTS,
        )

    # Coming up

    def secrets(self) -> Iterator[Step]:
        """What the members need to know, made once for the instance."""
        for need in secret_needs(self.profile, self.view.instance.config):
            made = 32 if need.value is None else None
            yield MakeSecret(
                step=f"secret/{need.name}", name=need.name, purpose=need.purpose, generate_bytes=made, value=need.value
            )

    def up(self, member: Member) -> Iterator[Step]:
        """From nothing to a member that serves; where that fails it is reported, and kept in `failed`."""
        if failures.is_lost(member):
            self.failed[member.id] = failures.of_member(member)
            return
        rendered = self.rendered(member)
        for work in (*rendered.prepare, rendered.start):
            yield self.run(work, member)
            task = self.over(work.name, member)
            if task is None:
                return
            if task.failed:
                yield self.fail(member, failure_of(task, member))
                return
        yield from self.serving(member, rendered)

    def serving(self, member: Member, rendered: Rendered) -> Iterator[Step]:
        """Probe it in rounds until it serves."""
        if rendered.probe is None:
            yield self.run(rendered.inspect, member)
            look = self.over("inspect", member)
            if look is None:
                return
            failure = ended_because(look, member)
        else:
            numbers = range(1, rendered.rounds + 1)
            probes = {n: task for n in numbers if (task := self.over(f"probe/{n}", member)) is not None}
            looks = {n: task for n in numbers if (task := self.over(f"inspect/{n}", member)) is not None}
            state = start_progress(member, probes, looks, rendered.rounds)
            for number in range(1, state.round + 1):
                yield self.run(rendered.probe, member, f"probe/{number}")
                if number in probes and probes[number].failed:
                    yield self.run(rendered.inspect, member, f"inspect/{number}")
            if not state.is_up and state.failure is None:
                return
            failure = state.failure
        if failure is not None:
            yield self.fail(member, failure)
            return
        yield self.ready(member, rendered)

    def ready(self, member: Member, rendered: Rendered) -> Step:
        """It serves; where it is reached is told when all are there."""
        opened = self.over("start", member)
        if opened is not None:
            self.opened[member.id] = _opened(member, rendered, opened)
        return ReportMember(
            step=f"ready/{member.id}",
            member_id=member.id,
            status="ready",
            health="healthy",
            health_detail=SERVES if rendered.probe is not None else RUNS,
            detail={"runs_as": rendered.runs_as, "ports": dict(rendered.ports), **self._since()},
            version=self.profile.version,
        )

    def _since(self) -> dict[str, str]:
        """Since when it is as it is: what was seen before then says nothing about it."""
        return {} if self.view.now is None else {"since": self.view.now.isoformat()}

    def fail(self, member: Member, failure: Failure) -> Step:
        """It does not come up."""
        self.failed[member.id] = failure
        return ReportMember(step=f"failed/{member.id}", member_id=member.id, status="failed", failure=failure)

    def endpoints(self, *leaving: Member) -> Iterator[Step]:
        """Where the instance is reached now: by what was opened, and by what was there and stays.

        The first member that is reached has the endpoint's own name; of the others the number is in it.
        """
        gone = {each.id for each in self.view.members if each.status in GONE} | {each.id for each in leaving}
        known = self.view.instance.endpoints
        stays = [each for each in known if each.get("member_id") not in gone | set(self.opened)]
        told = [{name: each[name] for name in ENDPOINT_FIELDS if each.get(name) is not None} for each in stays]
        for member in sorted(self.view.members, key=lambda each: (each.component_key, each.ordinal)):
            for each in () if member.id in gone else self.opened.get(member.id, ()):
                name = each["name"]
                if any(other["name"] == name for other in told):
                    name = f"{name}-{member.ordinal}"
                told.append({**each, "name": name})
        if self.opened or len(stays) < len(known):
            yield ReportInstance(step="endpoints", endpoints=tuple(told))

    def refuse_failed(self) -> None:
        """The operation fails with the first of its members that did."""
        for member in self.members:
            if (failure := self.failed.get(member.id)) is not None:
                raise OperationFailed(failure.code, f"{member.name or member.id}: {failure.detail}", failure.last_lines)

    # Going down

    def down(self, member: Member) -> Iterator[Step]:
        """Let it end by itself; what is left, and a node that does not answer, is the platform's to see to."""
        if member.status in NEVER_STARTED or member.allocation is None or not member.allocation.node_reachable:
            return
        try:
            rendered = render(self.profile, self.view.instance.config, placement_of(member))
        except NotRenderable:
            return  # then it was never started
        yield self.run(rendered.stop, member)

    def anew(self, member: Member, because: str) -> Iterator[Step]:
        """A member that stood gives way to itself: ended, taken away, started."""
        rendered = self.rendered(member)
        if member.status in ("failed", "joining"):
            yield ReportMember(step=f"join/{member.id}", member_id=member.id, status="joining")
        else:
            yield ReportMember(step=f"busy/{member.id}", member_id=member.id, status="degraded", health_detail=because)
        yield self.run(rendered.stop, member)
        if rendered.remove is not None:
            yield self.run(rendered.remove, member)
            removed = self.over("remove", member)
            if removed is not None and removed.failed:
                raise OperationFailed(
                    "runtime_error", f"the old container cannot be taken away: {removed.failure_detail}"
                )
        if self.over("stop", member) is not None and (rendered.remove is None or removed is not None):
            yield from self.up(member)


def refuse_crowd(view: InstanceView, member: Member, profile: RuntimeProfile) -> None:
    """Members of one sandbox share its network, so that only one of them can listen on a port."""
    allocation = member.allocation
    if allocation is None or not profile.ports or allocation.host == "process":
        return
    beside = [
        each
        for each in view.members
        if each.id != member.id and each.status not in (*GONE, "failed") and each.allocation is not None
    ]
    crowd = [each.name or each.id for each in (member, *beside) if _stands_in(each, allocation.id)]
    if len(crowd) > 1:
        detail = f"{', '.join(crowd)} stand in one allocation and would listen on the same ports"
        raise OperationFailed("config_refused", f"{detail}; give each an allocation of its own")


def _stands_in(member: Member, allocation_id: str) -> bool:
    return member.allocation is not None and member.allocation.id == allocation_id


def _opened(member: Member, rendered: Rendered, task: Task) -> list[dict[str, Any]]:
    """Where a member is reached, by the task that opened it."""
    return [{**told, "member_id": member.id, "task_id": task.id} for told in rendered.endpoints]
