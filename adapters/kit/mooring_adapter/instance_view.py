"""The view of one instance as the platform returns it: everything that a plan is made from.

`GET /api/v1/runtime/instances/{id}` returns these values. They are frozen, so that a plan is a pure function of them.
Unknown fields are ignored, missing ones have their defaults.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

OVER: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})
"""The final states of a task."""

STANDING: Final = frozenset({"ready", "degraded"})
"""The states in which a member works."""

GRACEFUL_SECONDS: Final = 60
"""How long an app may take to end if the manifest does not say."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """The digests of a version at the moment it was chosen."""

    version_id: str = ""
    version: str = ""
    manifest_digest: str = ""
    artifacts: dict[str, str] = {}


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str = ""
    app_slug: str = ""
    tenant_id: str = ""
    project_id: str = ""
    operating_mode: str = "tenant_dedicated"
    control_plane_scope: str = "project"
    status: str = "created"
    health: str = "unknown"
    health_detail: str | None = None
    pin: Pin = Pin()
    config: dict[str, Any] = {}
    topology: dict[str, int] = {}
    endpoints: list[dict[str, Any]] = []
    adapter_detail: dict[str, Any] = {}
    previous_pin: Pin | None = None
    correlation_id: str = ""
    trace_id: str = ""


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member runs; the platform chose it, and the adapter never asks for another."""

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
    id: str
    component_key: str
    name: str = ""
    ordinal: int = 0
    status: str = "requested"
    health: str = "unknown"
    health_detail: str | None = None
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
        """Whether it works: ready, or degraded."""
        return self.status in STANDING


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Another project's use of the instance, under an account name of its own."""

    id: str
    project_id: str = ""
    account_name: str = ""
    status: str = "requested"


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A step of an operation, as it was last reported."""

    name: str
    status: str
    detail: str | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One change that the adapter has to make."""

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
    blocker: str | None = None
    correlation_id: str = ""
    trace_id: str = ""
    target_pin: Pin | None = None
    requested_by: str | None = None

    @property
    def until(self) -> datetime | None:
        """The adapter's deadline: that of its phase, or of the whole operation."""
        return self.phase_deadline_at or self.deadline_at

    @property
    def is_begun(self) -> bool:
        """Whether an adapter has begun it; after a wait for capacity the status alone does not say so."""
        return self.status != "accepted" and self.begun is not False

    @property
    def changed_fields(self) -> frozenset[str]:
        """The fields of the configuration that a `configure` changes."""
        return frozenset(str(each).split("/")[1] for each in self.request.get("changed", ()))

    def is_done(self, step: str) -> bool:
        """Whether the step was reported as done."""
        return any(each.name == step and each.status in ("done", "skipped") for each in self.steps)

    @property
    def attachment(self) -> Attachment | None:
        """The attachment whose project asks for it, or that it creates or ends."""
        attachment = self.request.get("attachment")
        return None if attachment is None else msgspec.convert(attachment, Attachment, strict=False)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work on a node, and its result."""

    id: str
    operation_id: str | None = None  # None for a look, which belongs to no operation
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
        return self.status in OVER

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"

    @property
    def failed(self) -> bool:
        return self.is_over and not self.succeeded


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is recorded about an instance at one moment; `now` is the platform's clock, not ours."""

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
        return next((each for each in self.members if each.id == member_id), None)

    def of(self, component_key: str, *statuses: str) -> list[Member]:
        """The members of a component, in order; only those in one of `statuses` if any are given."""
        found = [each for each in self.members if each.component_key == component_key]
        chosen = [each for each in found if not statuses or each.status in statuses]
        return sorted(chosen, key=lambda each: (each.ordinal, each.id))

    def concerned(self, operation: Operation) -> list[Member]:
        """The members that an operation names, in the operation's order."""
        by_id = {each.id: each for each in self.members}
        return [by_id[each] for each in operation.member_ids if each in by_id]

    def quiet_until(self, operation: Operation) -> datetime | None:
        """By when the app's work must be finished; a teardown or a detach keeps some time to stop the app itself."""
        until = operation.until
        if until is None or operation.kind not in ("remove", "replace", "detach"):
            return until
        ending = self.manifest.get("lifecycle", {}).get("delete", {}).get("graceful_seconds", GRACEFUL_SECONDS)
        return until - timedelta(seconds=ending)

    def with_target_config(self, operation: Operation) -> "InstanceView":
        """The instance as a `configure` wants it; its own configuration is the old one until that has succeeded."""
        config = operation.request.get("input", {})
        return msgspec.structs.replace(self, instance=msgspec.structs.replace(self.instance, config=config))

    def tasks_of(self, operation: Operation) -> Mapping[str, Task]:
        return {each.step: each for each in self.tasks if each.operation_id == operation.id}

    def task(self, operation: Operation, step: str) -> Task | None:
        """The task of this step, if it was created."""
        return next((each for each in self.tasks if each.operation_id == operation.id and each.step == step), None)

    def series(self, operation: Operation, prefix: str) -> list[Task]:
        """The tasks `<prefix>/1`, `<prefix>/2` … in that order, for repeated observations."""
        tasks = self.tasks_of(operation)
        return list(_numbered(tasks, prefix))

    @property
    def looks(self) -> list[Task]:
        """The tasks of no operation, which observe the running instance."""
        return [each for each in self.tasks if not each.operation_id]

    def component(self, key: str) -> Mapping[str, Any]:
        """The manifest's entry of a component."""
        return next((each for each in self.manifest.get("components", ()) if each["key"] == key), {})


def _numbered(tasks: Mapping[str, Task], prefix: str) -> Iterator[Task]:
    number = 1
    while (task := tasks.get(f"{prefix}/{number}")) is not None:
        yield task
        number += 1


def read_view(plain: Mapping[str, Any], now: datetime) -> InstanceView:
    """Read a response; `now` is used if the platform does not send its time."""
    view = msgspec.convert(plain, InstanceView, strict=False)
    return view if view.now is not None else msgspec.structs.replace(view, now=now)


def failed_members(members: Sequence[Member]) -> list[Member]:
    """The members with the status `failed`."""
    return [each for each in members if each.status == "failed"]
