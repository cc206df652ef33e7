"""Views for tests: an instance with members, an operation and tasks, in a few words."""

from datetime import UTC, datetime
from typing import Any

from mooring_adapter import Instance, InstanceView, Member, Operation, Pin, Task

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def member(name: str, status: str = "requested", **more: Any) -> Member:
    return Member(id=name, name=name, component_key=more.pop("component_key", "worker"), status=status, **more)


def operation(kind: str = "deploy", status: str = "running", **more: Any) -> Operation:
    return Operation(id="op", kind=kind, status=status, begun=more.pop("begun", status != "accepted"), **more)


def task(step: str, status: str = "succeeded", **more: Any) -> Task:
    return Task(id=f"task-{step}", operation_id="op", step=step, status=status, **more)


def view(*members: Member, tasks: tuple[Task, ...] = (), under: Operation | None = None, **more: Any) -> InstanceView:
    instance = Instance(id="instance", app_slug="app", pin=Pin(version="1.0.0"), status="starting")
    return InstanceView(
        instance=more.pop("instance", instance),
        members=list(members),
        tasks=list(tasks),
        now=NOW,
        operations=[] if under is None else [under],
        **more,
    )
