"""The records of the simulated platform: instances, members, operations, tasks and claims, in memory."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

OVER: Final = frozenset({"succeeded", "failed", "cancelled"})
TASK_OVER: Final = frozenset({"succeeded", "failed", "cancelled", "expired"})
TEARDOWN: Final = frozenset({"remove", "replace", "decommission"})
WHOLE: Final = frozenset({"deploy", "upgrade", "rollback", "reconcile", "repair", "restart", "configure"})
OPENING: Final = frozenset({"service.start", "container.launch"})
"""Tasks that start a named service."""
OPERATING: Final = frozenset(
    {"runtime.claim", "runtime.report", "secret.create", "secret.grant", "task.create", "usage.report"}
)
"""Every action that the routes of adapters ask for."""


@dataclass(slots=True)
class FakeMember:
    id: str
    name: str
    component_key: str
    ordinal: int
    version: str
    node_id: str
    status: str = "requested"
    health: str = "unknown"
    health_detail: str | None = None
    adapter_detail: dict[str, Any] = field(default_factory=dict)
    holds: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, Any] | None = None
    replaces_id: str | None = None
    last_operation_id: str | None = None
    reachable: bool = True
    draining_since: int = 0  # the number of tasks when its drain began

    def plain(self) -> dict[str, Any]:
        failure = self.failure or {}
        return {
            "id": self.id,
            "name": self.name,
            "component_key": self.component_key,
            "ordinal": self.ordinal,
            "status": self.status,
            "health": self.health,
            "health_detail": self.health_detail,
            "version": self.version,
            "holds": [dict(each) for each in self.holds],
            "adapter_detail": dict(self.adapter_detail),
            "failure_code": failure.get("code"),
            "failure_detail": failure.get("detail") or None,
            "last_lines": list(failure.get("last_lines") or ()),
            "replaces_id": self.replaces_id,
            "last_operation_id": self.last_operation_id,
            "allocation": {
                "id": f"alc_{self.id}",
                "name": f"simulated-{self.name}",
                "status": "active",
                "shape": "gpu_slice",
                "host": "simulated",
                "address": f"10.99.0.{self.ordinal % 250 + 2}",
                "region": "simulated",
                "gpu_count": 0,
                "slots": [],
                "facts": {"simulated": True},
                "node_id": self.node_id,
                "node_reachable": self.reachable,
            },
        }


@dataclass(slots=True)
class FakeOperation:
    id: str
    kind: str
    request: dict[str, Any]
    member_ids: list[str]
    deadline_at: datetime
    correlation_id: str
    trace_id: str
    status: str = "accepted"
    phase: str = "adapter"
    started_at: datetime | None = None
    phase_deadline_at: datetime | None = None
    cancelling_until: datetime | None = None
    target_pin: dict[str, Any] | None = None
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    progress: dict[str, Any] | None = None
    blocker: dict[str, Any] | None = None
    cancel_reason: str | None = None
    attempts: int = 0
    attempt_fence: int | None = None  # of the newest attempt
    outcome: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def is_offered(self) -> bool:
        return not self.is_over and self.phase == "adapter"

    def plain(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "status": self.status,
            "request": dict(self.request),
            "member_ids": list(self.member_ids),
            "steps": [dict(each) for each in self.steps.values()],
            "progress": self.progress,
            "attempts": self.attempts,
            "begun": self.started_at is not None,
            "deadline_at": _time(self.deadline_at),
            "phase_deadline_at": _time(self.phase_deadline_at),
            "correlation_id": self.correlation_id,
            "trace_id": self.trace_id,
            "target_pin": self.target_pin,
            "blocker": None if self.blocker is None else self.blocker["detail"],
            "blocker_code": None if self.blocker is None else self.blocker["code"],
            "cancel_reason": self.cancel_reason,
            "requested_by": "usr_simulated",
        }


@dataclass(slots=True)
class FakeTask:
    id: str
    number: int
    operation_id: str | None
    step: str
    type: str
    member_id: str
    arguments: dict[str, Any]
    correlation_id: str
    created_at: datetime
    expires_at: datetime | None = None
    status: str = "queued"
    result: dict[str, Any] | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    exit_code: int | None = None
    last_lines: list[str] = field(default_factory=list)
    finished_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.status in TASK_OVER

    def plain(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "operation_id": self.operation_id,
            "step": self.step,
            "type": self.type,
            "member_id": self.member_id,
            "status": self.status,
            "result": self.result,
            "failure_code": self.failure_code,
            "failure_detail": self.failure_detail,
            "exit_code": self.exit_code,
            "last_lines": list(self.last_lines),
            "progress": None,
            "created_at": _time(self.created_at),
            "expires_at": _time(self.expires_at),
            "finished_at": _time(self.finished_at),
            "etag": f"{int(self.is_over)}.0",
        }


@dataclass(slots=True)
class FakeClaim:
    """Who holds the claim on an instance, and until when."""

    fence: int = 0
    holder: str | None = None
    until: datetime | None = None


@dataclass(slots=True)
class FakeInstance:
    """A simulated instance with everything that belongs to it."""

    id: str
    name: str
    account_id: str
    project_id: str
    manifest: dict[str, Any]
    pin: dict[str, Any]
    config: dict[str, Any]
    topology: dict[str, int]
    correlation_id: str
    trace_id: str
    created_at: datetime
    status: str = "created"
    health: str = "unknown"
    health_detail: str | None = None
    topology_mode: str | None = None
    previous: tuple[dict[str, Any], dict[str, Any]] | None = None  # the pin before, and its manifest
    target_manifest: dict[str, Any] | None = None
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    adapter_detail: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    members: dict[str, FakeMember] = field(default_factory=dict)
    operations: dict[str, FakeOperation] = field(default_factory=dict)
    tasks: dict[str, FakeTask] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)
    readings: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # the last one of each epoch
    attachments: dict[str, dict[str, Any]] = field(default_factory=dict)
    control_plane_scope: str = "project"
    claim: FakeClaim = field(default_factory=FakeClaim)
    changed: int = 0  # the number of the newest event about it

    @property
    def open_operations(self) -> list[FakeOperation]:
        return [each for each in self.operations.values() if not each.is_over]

    @property
    def is_offered(self) -> bool:
        """Whether an adapter is offered the claim on it."""
        return self.status == "running" or any(each.is_offered for each in self.operations.values())

    def _shown_tasks(self, operation_ids: set[str]) -> list[FakeTask]:
        """The tasks of these operations, and the newest look at each member that is not removed."""
        looks = {each.member_id: each for each in self.tasks.values() if each.operation_id is None}
        seen = [each for each in looks.values() if self.members[each.member_id].status != "removed"]
        return [*(each for each in self.tasks.values() if each.operation_id in operation_ids), *seen]

    def plain(self, now: datetime) -> dict[str, Any]:
        """The response of `GET /runtime/instances/{id}`."""
        offered = [each for each in self.operations.values() if each.is_offered]
        ids = {each.id for each in offered}
        return {
            "instance": {
                "id": self.id,
                "name": self.name,
                "app_slug": self.manifest["app"],
                "tenant_id": "ten_simulated",
                "project_id": self.project_id,
                "status": self.status,
                "health": self.health,
                "health_detail": self.health_detail,
                "version": self.pin["version"],
                "pin": self.pin,
                "previous_pin": None if self.previous is None else self.previous[0],
                "config": self.config,
                "topology": self.topology,
                "endpoints": list(self.endpoints),
                "adapter_detail": dict(self.adapter_detail),
                "correlation_id": self.correlation_id,
                "trace_id": self.trace_id,
                "operating_mode": "tenant_dedicated",
                "control_plane_scope": self.control_plane_scope,
                "runtime_backend": str(self.manifest.get("runtime_backend") or "container"),
                "topology_mode": self.topology_mode,
                "distrust": None,
            },
            "manifest": self.manifest,
            "target_manifest": self.target_manifest,
            "members": [each.plain() for each in self.members.values() if each.status != "removed"],
            "operations": [each.plain() for each in offered],
            "tasks": [each.plain() for each in self._shown_tasks(ids)],
            "attachments": [
                dict(each) for each in self.attachments.values() if each["status"] not in ("detached", "refused")
            ],
            "now": now.isoformat(),
            "etag": str(self.changed),
        }


@dataclass(frozen=True, slots=True)
class FakeAccount:
    """A service account of a simulated project; `key` is its public key in base64url."""

    id: str
    project_id: str
    key_id: str
    key: str
    apps: tuple[str, ...]
    actions: frozenset[str] = OPERATING


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def later(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)
