"""Drives plans in tests: it records what is reported, and tasks end as a test wants.

It does not check the platform's rules; the conformance suite does. It shows which steps a plan takes, and how it reacts
to their results.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from mooring_adapter.instance_view import Allocation, Instance, InstanceView, Member, Operation, StepRecord, Task
from mooring_adapter.next_actions import NextActions, next_actions
from mooring_adapter.steps import RunTask
from mooring_workload.catalog import manifest_of
from mooring_workload.plans import plan

ROUNDS_MAX = 200
Outcome = dict[str, Any]
Node = Callable[[str, RunTask], Outcome]


def well(step: str, task: RunTask) -> Outcome:
    """A node on which every task succeeds."""
    state = "exited" if "stop" in step or (step.startswith("inspect") and "drain" in step) else "running"
    return {"status": "succeeded", "result": {"state": state}}


def member(number: int, *, host: str = "namespace", status: str = "requested", **more: Any) -> Member:
    """A member in its own allocation."""
    facts = {"architecture": "x86_64", **({"podman": "4.3.1"} if host == "namespace" else {})}
    place = Allocation(id=f"alc_{number}", host=host, facts=facts, node_id=f"nod_{number}")
    fields: dict[str, Any] = {"component_key": "web", "name": f"web-{number}", "ordinal": number, "version": "1.0.0"}
    return Member(id=f"mem_{number}", status=status, **{**fields, "allocation": place, **more})


class PlanDriver:
    """One instance, one operation, and everything reported so far."""

    def __init__(self, kind: str, members: list[Member], app: str = "hello", **more: Any) -> None:
        self.manifest = more.pop("manifest", None) or manifest_of(app)
        self.target = more.pop("target", None)
        self.config = more.pop("config", {})
        endpoints = more.pop("endpoints", [])
        self.members = {each.id: each for each in members}
        fields = {"id": "opr_1", "kind": kind, "member_ids": list(self.members), **more}
        self.operation = Operation(**fields)
        self.tasks: dict[str, Task] = {}
        self.arguments: dict[str, RunTask] = {}
        self.reported: list[dict[str, Any]] = []
        self.endpoints: list[dict[str, Any]] = endpoints
        self.secrets: dict[str, str] = {}
        self.finished: Any = None
        self.crashed = False

    @property
    def view(self) -> InstanceView:
        instance = Instance(id="ins_1", app_slug=self.manifest["app"], config=self.config, endpoints=self.endpoints)
        return InstanceView(
            instance=instance,
            manifest=self.manifest,
            target_manifest=self.target,
            members=list(self.members.values()),
            operations=[self.operation],
            tasks=list(self.tasks.values()),
        )

    def run(self, node: Node = well, *, crash_round: int | None = None, kept: str = "") -> "PlanDriver":
        """Run until the operation is finished or nothing is due; a crash in one round keeps only its `kept` part."""
        for number in range(ROUNDS_MAX):
            view = self.view
            found = next_actions(plan(view, self.operation), view, self.operation)
            if found.is_empty or self.finished is not None:
                break
            if crash_round == number:
                self.crashed = True
                if kept == "report":
                    found.tasks, found.finish = [], None
                else:
                    found = replace(found, steps={}, members={}, instance={}, secrets=[], finish=None)
            self.take(found)
            for step, task in self.tasks.items():
                if not task.is_over:
                    self.tasks[step] = msgspec.structs.replace(task, **node(step, self.arguments[step]))
        return self

    def take(self, found: NextActions) -> None:
        """Record what is reported, and create the tasks."""
        recorded = {each.name: each for each in self.operation.steps}
        for each in found.steps.values():
            recorded[each["name"]] = StepRecord(name=each["name"], status=each["status"])
        for secret in found.secrets:
            self.secrets[secret.name] = secret.purpose
            recorded[secret.step] = StepRecord(name=secret.step, status="done")
        self.operation = msgspec.structs.replace(self.operation, status="running", steps=list(recorded.values()))
        for report in found.members.values():
            self.reported.append(report)
            known = self.members[report["id"]]
            changes: dict[str, Any] = {name: report[name] for name in ("status", "health", "version") if name in report}
            if "failure" in report:
                changes["failure_code"] = report["failure"]["code"]
            self.members[report["id"]] = msgspec.structs.replace(known, **changes)
        self.endpoints = found.instance.get("endpoints", self.endpoints)
        for wanted in found.tasks:
            self.arguments[wanted.name] = wanted.task
            self.tasks[wanted.name] = Task(
                id=f"tsk_{len(self.tasks)}",
                operation_id=self.operation.id,
                step=wanted.name,
                type=wanted.task.type,
                member_id=wanted.task.member_id,
            )
        if found.finish is not None:
            self.finished = found.finish

    @property
    def steps(self) -> list[str]:
        """The created tasks, in order."""
        return list(self.tasks)
