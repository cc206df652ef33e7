"""The steps of one operation that all plans are made of: starting, restarting and stopping a member.

A member always starts by the same steps: prepare its files, start it, and probe it until it serves. The list of steps
grows with what is known: the next round of probing is added when the last one has failed. Failures are collected by
member, and the plan decides what they mean.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mooring_adapter import failures
from mooring_adapter.instance_view import InstanceView, Member, Operation, Task
from mooring_adapter.steps import Failure, MakeSecret, OnFailure, ReportInstance, ReportMember, RunTask, Step
from mooring_workload.health import ended_because, failure_of, start_progress
from mooring_workload.placement import NotPlaced, placement_of
from mooring_workload.profile import WorkloadProfile
from mooring_workload.render import NotRenderable, Rendered, TaskTemplate, render, secret_needs

ATTEMPTS: Final = 3
"""How often a task is created if a node's restart interrupts it."""

ENDPOINT_FIELDS: Final = ("name", "member_id", "port", "protocol", "path", "title", "task_id")
QUIET: Final = "quiet"
"""The detail of a member whose program a drain has stopped, until it starts again."""
CONFIG: Final = "config"
"""The detail of a member with the digest of the configuration that it was started with."""
SERVES: Final = "it answers its probe"
RUNS: Final = "it runs; the manifest has no probe that says more"
GONE: Final = frozenset({"removing", "removed"})
NEVER_STARTED: Final = frozenset({"requested", *GONE})


class OperationFailed(Exception):
    """The operation fails here."""

    def __init__(self, code: str, detail: str, last_lines: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.failure = Failure(code, detail, last_lines)


@dataclass(frozen=True, slots=True)
class Deployment:
    """An operation, with the target profile of its members."""

    view: InstanceView
    operation: Operation
    profile: WorkloadProfile
    tasks: Mapping[str, Task]
    failed: dict[str, Failure] = field(default_factory=dict)
    opened: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def members(self) -> list[Member]:
        """The members of the operation: the named ones, or all."""
        named = self.view.concerned(self.operation) or self.view.members
        return [each for each in named if each.status not in GONE]

    def rendered(self, member: Member) -> Rendered:
        """The member's tasks; fails the operation if it cannot run."""
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
        """A member's task when it is over and will not be attempted again."""
        step = f"{name}/{member.id}"
        number = 1
        while number < ATTEMPTS and f"{step}/{number + 1}" in self.tasks:
            number += 1
        task = self.tasks.get(step if number == 1 else f"{step}/{number}")
        if task is None or not task.is_over or (number < ATTEMPTS and failures.may_try_again(task)):
            return None
        return task

    def run(self, work: TaskTemplate, member: Member, name: str | None = None) -> RunTask:
        """A member's task as a step; the plan examines its failure itself."""
        return RunTask(
            step=f"{name or work.name}/{member.id}",
            member_id=member.id,
            type=work.type,
            arguments=work.arguments,
            grants=work.grants,
            on_failure=OnFailure.GO_ON,
            attempts=ATTEMPTS,
        )

    # Starting

    def secrets(self) -> Iterator[Step]:
        """The secrets of the members, created once for the instance."""
        for need in secret_needs(self.profile, self.view.instance.config):
            made = 32 if need.value is None else None
            yield MakeSecret(
                step=f"secret/{need.name}", name=need.name, purpose=need.purpose, generate_bytes=made, value=need.value
            )

    def up(self, member: Member) -> Iterator[Step]:
        """Start a member until it serves; a failure is reported and stored in `failed`."""
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
        """Probe a member in rounds until it serves."""
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
        """Report a member as ready; its endpoints are reported when all members are done."""
        opened = self.over("start", member)
        if opened is not None:
            self.opened[member.id] = _opened(member, rendered, opened)
        return ReportMember(
            step=f"ready/{member.id}",
            member_id=member.id,
            status="ready",
            health="healthy",
            health_detail=SERVES if rendered.probe is not None else RUNS,
            detail={
                "runs_as": rendered.runs_as,
                "ports": dict(rendered.ports),
                CONFIG: self._config_digest(),
                **self._since(),
            },
            version=self.profile.version,
        )

    def has_wanted_config(self, member: Member) -> bool:
        """Whether it was started with the instance's configuration; a failed change may have left it with another."""
        return member.adapter_detail.get(CONFIG) in (None, self._config_digest())

    def _config_digest(self) -> str:
        """A digest of what the program reads, without secrets: nobody can guess them by it."""
        config = self.view.instance.config
        names = {each.from_config for each in self.profile.environment if each.from_config and not each.hidden}
        read = {name: config.get(name) for name in sorted(names)}
        return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()[:16]

    def _since(self) -> dict[str, str]:
        """When the member became ready: earlier observations do not count."""
        return {} if self.view.now is None else {"since": self.view.now.isoformat()}

    def fail(self, member: Member, failure: Failure) -> Step:
        """Report a member as failed."""
        self.failed[member.id] = failure
        return ReportMember(step=f"failed/{member.id}", member_id=member.id, status="failed", failure=failure)

    def endpoints(self, *leaving: Member) -> Iterator[Step]:
        """Report the endpoints of the instance: the new ones, and the existing ones of members that stay.

        The first member's endpoint has the plain name; the names of the others contain the member's number.
        """
        gone = {each.id for each in self.view.members if each.status in GONE} | {each.id for each in leaving}
        known = self.view.instance.endpoints
        stays = [each for each in known if each.get("member_id") not in gone | set(self.opened)]
        reported = [{name: each[name] for name in ENDPOINT_FIELDS if each.get(name) is not None} for each in stays]
        for member in sorted(self.view.members, key=lambda each: (each.component_key, each.ordinal)):
            for each in () if member.id in gone else self.opened.get(member.id, ()):
                name = each["name"]
                if any(other["name"] == name for other in reported):
                    name = f"{name}-{member.ordinal}"
                reported.append({**each, "name": name})
        if self.opened or len(stays) < len(known):
            yield ReportInstance(step="endpoints", endpoints=tuple(reported))

    def refuse_failed(self) -> None:
        """Fail the operation with the first failed member's failure."""
        for member in self.members:
            if (failure := self.failed.get(member.id)) is not None:
                raise OperationFailed(failure.code, f"{member.name or member.id}: {failure.detail}", failure.last_lines)

    # Stopping

    def down(self, member: Member) -> Iterator[Step]:
        """Stop a member gracefully; the platform handles unreachable nodes and what is left."""
        if member.status in NEVER_STARTED or member.allocation is None or not member.allocation.node_reachable:
            return
        try:
            rendered = render(self.profile, self.view.instance.config, placement_of(member))
        except NotRenderable:
            return  # it cannot have been started
        yield self.run(rendered.stop, member)

    def rebuild(self, member: Member, because: str) -> Iterator[Step]:
        """Stop an existing member, remove its container, and start it again."""
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
                raise OperationFailed("runtime_error", f"cannot remove the old container: {removed.failure_detail}")
        if self.over("stop", member) is not None and (rendered.remove is None or removed is not None):
            yield from self.up(member)


def refuse_crowd(view: InstanceView, member: Member, profile: WorkloadProfile) -> None:
    """Refuse members that share a sandbox: only one of them can listen on a port."""
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
        detail = f"{', '.join(crowd)} are in one allocation and would listen on the same ports"
        raise OperationFailed("config_refused", f"{detail}; give each its own allocation")


def _stands_in(member: Member, allocation_id: str) -> bool:
    return member.allocation is not None and member.allocation.id == allocation_id


def _opened(member: Member, rendered: Rendered, task: Task) -> list[dict[str, Any]]:
    """The endpoints of a member, with the task that opened them."""
    return [{**each, "member_id": member.id, "task_id": task.id} for each in rendered.endpoints]
