"""Views for tests of plans: a cluster in the records, operations, and the answers of tasks."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from mooring_adapter import (
    Allocation,
    Finish,
    Instance,
    InstanceView,
    Member,
    Operation,
    Pin,
    Plan,
    RunTask,
    Task,
    next_actions,
)
from mooring_slurm.catalog import manifest_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HEAD, FIRST, SECOND = "head", "one", "two"


def member(identity: str, status: str = "ready", *, place: str | None = None, **more: Any) -> Member:
    component = more.pop("component_key", "controller" if identity == HEAD else "worker")
    place = place or identity
    allocation = Allocation(
        id=f"alc-{place}",
        name=f"host-{place}",
        address="10.0.0.2",
        gpu_count=2,
        slots=[{"index": 2}, {"index": 3}],
        facts={"cpus": 8, "memory_gib": 16, "gpu_count": 4},
        node_reachable=more.pop("node_reachable", True),
    )
    return Member(
        id=identity, name=f"c-{identity}", component_key=component, status=status, allocation=allocation, **more
    )


def view(
    *members: Member, tasks: tuple[Task, ...] = (), config: dict[str, Any] | None = None, **more: Any
) -> InstanceView:
    instance = Instance(id="ins", status="running", pin=Pin(version="1.0.0"), config=config or {}, **more)
    return InstanceView(instance=instance, manifest=manifest_of(), members=list(members), tasks=list(tasks), now=NOW)


def operation(kind: str, *ids: str, **more: Any) -> Operation:
    more.setdefault("deadline_at", NOW + timedelta(minutes=5))
    return Operation(id="op", kind=kind, status="running", begun=True, member_ids=list(ids), **more)


def task(step: str, answer: Any = None, status: str = "succeeded", **more: Any) -> Task:
    result = None if answer is None else {"exit_code": 0, "output": f"{json.dumps(answer)}\n"}
    return Task(id=step, operation_id="op", step=step, status=status, result=result, finished_at=NOW, **more)


def begun(found: Plan, here: InstanceView, under: Operation) -> list[str]:
    return [each.name for each in next_actions(found, here, under).tasks]


def end_of(found: Plan) -> Finish:
    last = found.steps[-1]
    assert isinstance(last, Finish), found
    return last


def named(found: Plan, step: str) -> RunTask:
    return next(each for each in found.steps if isinstance(each, RunTask) and each.step == step)


BUSY = {
    "quiet": False,
    "node": {"name": "c-one", "state": ["MIXED", "DRAIN"]},
    "jobs": [{"id": "42", "name": "train", "user": "ada"}],
}
QUIET = {"quiet": True, "node": {"name": "c-one", "state": ["IDLE", "DRAIN"]}}
UNHEARD = task("why/one", status="failed")
