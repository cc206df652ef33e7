"""The view of one instance, as the platform tells it: all that a plan is made from.

`GET /api/v1/runtime/instances/{id}` answers with these values. They are frozen, so that a plan is a pure function of
them; a field that the platform adds later is passed over, and one that it leaves out has its default.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

OVER: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})
"""The states in which nothing more comes of a task."""

STANDING: Final = frozenset({"ready", "degraded"})
"""The states in which a member does its part."""

GRACEFUL_SECONDS: Final = 60
"""What an app has for its end where the manifest says nothing."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What a version was when it was chosen, by digests."""

    version_id: str = ""
    version: str = ""
    manifest_digest: str = ""
    artifacts: dict[str, str] = {}


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One launched app."""

    id: str
    name: str = ""
    app_slug: str = ""
    tenant_id: str = ""
    project_id: str = ""
    operating_mode: str = "tenant_dedicated"
    control_plane_scope: str = "project"
    status: str = "created"
    health: str = "unknown"
    pin: Pin = Pin()
    config: dict[str, Any] = {}
    topology: dict[str, int] = {}
    endpoints: list[dict[str, Any]] = []
    adapter_detail: dict[str, Any] = {}
    previous_pin: Pin | None = None
    correlation_id: str = ""
    trace_id: str = ""


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member stands; the platform has bound it, and the adapter never asks for another."""

    id: str
    name: str = ""
    status: str = "active"
    shape: str = ""
    host: str | None = None
    address: str | None = None
    region: str | None = None
    gpu_count: int = 0
    slots: list[Any] = []
    facts: dict[str, Any] = {}
    node_id: str | None = None
    node_reachable: bool = True


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the instance."""

    id: str
    component_key: str
    name: str = ""
    ordinal: int = 0
    status: str = "requested"
    health: str = "unknown"
    version: str = ""
    holds: list[dict[str, Any]] = []
    adapter_detail: dict[str, Any] = {}
    failure_code: str | None = None
    failure_detail: str | None = None
    last_lines: list[str] | None = None
    replaces_id: str | None = None
    last_operation_id: str | None = None
    allocation: Allocation | None = None

    @property
    def stands(self) -> bool:
        """Whether it does its part."""
        return self.status in STANDING


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Another project's use of the instance, under an account name of its own; no more of that project is told."""

    id: str
    project_id: str = ""
    account_name: str = ""
    status: str = "requested"


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A step of an operation, as it was reported last."""

    name: str
    status: str
    detail: str | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One change that the adapter is asked for."""

    id: str
    kind: str
    status: str = "accepted"
    request: dict[str, Any] = {}
    member_ids: list[str] = []
    steps: list[StepRecord] = []
    attempts: int = 0
    begun: bool | msgspec.UnsetType = msgspec.UNSET
    deadline_at: datetime | None = None
    phase_deadline_at: datetime | None = None
    blocker_code: str | None = None
    correlation_id: str = ""
    trace_id: str = ""
    target_pin: Pin | None = None
    requested_by: str | None = None

    @property
    def until(self) -> datetime | None:
        """The end of the adapter's time: that of its phase, or of the whole operation."""
        return self.phase_deadline_at or self.deadline_at

    @property
    def is_begun(self) -> bool:
        """Whether an adapter has begun with it; the status alone does not say so, after a wait for capacity."""
        return self.status != "accepted" and self.begun is not False

    def is_done(self, step: str) -> bool:
        """Whether a step was reported as done."""
        return any(each.name == step and each.status in ("done", "skipped") for each in self.steps)

    @property
    def attachment(self) -> Attachment | None:
        """Who asks for it, where that is an attached project, or which attachment it makes or ends."""
        told = self.request.get("attachment")
        return None if told is None else msgspec.convert(told, Attachment, strict=False)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work on a node, and what came of it."""

    id: str
    operation_id: str | None = None  # none: a look, which belongs to no operation
    step: str
    type: str = ""
    member_id: str | None = None
    status: str = "queued"
    result: dict[str, Any] | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    exit_code: int | None = None
    last_lines: list[str] | None = None
    progress: dict[str, Any] | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status in OVER

    @property
    def succeeded(self) -> bool:
        """Whether it did what it was asked for."""
        return self.status == "succeeded"

    @property
    def failed(self) -> bool:
        """Whether it is over without that."""
        return self.is_over and not self.succeeded


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is recorded of an instance, at one moment; `now` is the platform's clock, not ours."""

    instance: Instance
    manifest: dict[str, Any] = {}
    target_manifest: dict[str, Any] | None = None
    members: list[Member] = []
    operations: list[Operation] = []
    tasks: list[Task] = []
    attachments: list[Attachment] = []
    now: datetime | None = None
    etag: str = ""

    def member(self, member_id: str) -> Member | None:
        """One member, by its id."""
        return next((each for each in self.members if each.id == member_id), None)

    def of(self, component_key: str, *statuses: str) -> list[Member]:
        """The members of a component, in order; of some states where any are named."""
        found = [each for each in self.members if each.component_key == component_key]
        chosen = [each for each in found if not statuses or each.status in statuses]
        return sorted(chosen, key=lambda each: (each.ordinal, each.id))

    def concerned(self, operation: Operation) -> list[Member]:
        """The members that an operation names, in its order."""
        by_id = {each.id: each for each in self.members}
        return [by_id[each] for each in operation.member_ids if each in by_id]

    def quiet_until(self, operation: Operation) -> datetime | None:
        """Until when work has to be finished: the time of a teardown, or of a detach, has the app's end behind it."""
        until = operation.until
        if until is None or operation.kind not in ("remove", "replace", "detach"):
            return until
        ending = self.manifest.get("lifecycle", {}).get("delete", {}).get("graceful_seconds", GRACEFUL_SECONDS)
        return until - timedelta(seconds=ending)

    def tasks_of(self, operation: Operation) -> Mapping[str, Task]:
        """The tasks of an operation, by their step."""
        return {each.step: each for each in self.tasks if each.operation_id == operation.id}

    def task(self, operation: Operation, step: str) -> Task | None:
        """The task under this step, if it was made."""
        return next((each for each in self.tasks if each.operation_id == operation.id and each.step == step), None)

    def series(self, operation: Operation, prefix: str) -> list[Task]:
        """The tasks `<prefix>/1`, `<prefix>/2` …, in that order: what is looked at again and again."""
        tasks = self.tasks_of(operation)
        return list(_while_there(tasks, prefix))

    @property
    def looks(self) -> list[Task]:
        """The tasks of no operation: what was looked at while the instance runs."""
        return [each for each in self.tasks if not each.operation_id]

    def component(self, key: str) -> Mapping[str, Any]:
        """What the manifest says of a component."""
        return next((each for each in self.manifest.get("components", ()) if each["key"] == key), {})


def _while_there(tasks: Mapping[str, Task], prefix: str) -> Iterator[Task]:
    number = 1
    while (task := tasks.get(f"{prefix}/{number}")) is not None:
        yield task
        number += 1


def read_view(plain: Mapping[str, Any], now: datetime) -> InstanceView:
    """The view out of an answer; `now` stands in where the platform does not say what time it is."""
    view = msgspec.convert(plain, InstanceView, strict=False)
    return view if view.now is not None else msgspec.structs.replace(view, now=now)


def failed_members(members: Sequence[Member]) -> list[Member]:
    """Those that came to an error."""
    return [each for each in members if each.status == "failed"]
