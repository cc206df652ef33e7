"""Instance: one launched app in a project.

The state says how far the launch or the stop has come. Health is observed separately, and changes of a running instance
(upgrade, rollback, reconcile, repair, restart) are operations, not states. Stopping and decommissioning are the same
act. `failed` is not final: leftovers are torn down while the state stays `failed`, and a later stop finds the closing
records and passes through `stopping` to `stopped`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from mooring.core.catalog.operating_mode import ControlPlaneScope
from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who


class InstanceState(StrEnum):
    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class InstanceTrigger(StrEnum):
    START = "start"
    REPORT_READY = "report_ready"
    FAIL = "fail"
    STOP = "stop"
    FINISH_TEARDOWN = "finish_teardown"


S, T = InstanceState, InstanceTrigger

INSTANCE = Lifecycle(
    name="instance",
    about="One launched app in a project, bound to allocations through its members.",
    states=InstanceState,
    triggers=InstanceTrigger,
    initial=S.CREATED,
    meaning={
        S.CREATED: "accepted and stored; its adapter has not started yet",
        S.STARTING: "its adapter starts the members",
        S.RUNNING: "the adapter reported that the app is ready; health is observed separately",
        S.STOPPING: "it is being torn down, and waits for a closing record of each member",
        S.STOPPED: "each member has a closing record; `teardown_proof` says how strong the proof is",
        S.FAILED: "it ended with an error; the failure and the last log lines stay readable",
    },
    edges=(
        Transition(S.CREATED, T.START, S.STARTING, Who.ADAPTER, "Its adapter claims it and starts to deploy."),
        Transition(S.CREATED, T.FAIL, S.FAILED, Who.WORKER, "No adapter started it before the deadline."),
        Transition(S.CREATED, T.STOP, S.STOPPING, Who.USER, "A caller stops it before anything was started."),
        Transition(S.STARTING, T.REPORT_READY, S.RUNNING, Who.ADAPTER, "Its adapter observed that the app is ready."),
        Transition(
            S.STARTING,
            T.FAIL,
            S.FAILED,
            Who.ADAPTER,
            "The deployment failed, or the worker saw its deadline pass.",
        ),
        Transition(S.STARTING, T.STOP, S.STOPPING, Who.USER, "A caller stops it while it is being deployed."),
        Transition(S.RUNNING, T.FAIL, S.FAILED, Who.ADAPTER, "The app ended unexpectedly."),
        Transition(
            S.RUNNING,
            T.STOP,
            S.STOPPING,
            Who.USER,
            "A caller stops it, its allocation is released, or the policy stops what is not trusted.",
        ),
        Transition(
            S.STOPPING,
            T.FINISH_TEARDOWN,
            S.STOPPED,
            Who.WORKER,
            "Each member has a closing record: the end was observed, or an admin wrote it off; it is never assumed.",
        ),
        Transition(S.FAILED, T.STOP, S.STOPPING, Who.USER, "A caller has read the failure and closes the instance."),
    ),
    requires={
        S.STOPPED: frozenset({"stopped_at", "teardown_proof"}),
        S.FAILED: frozenset({"failed_at", "failure_code"}),
    },
    needs_closing_records=frozenset({S.STOPPED}),
)


class InstanceHealth(StrEnum):
    """The observed health, which is independent of the state."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class VersionPin:
    """A version by its digests at the time it was chosen, so that a rollback leads to the same bytes."""

    version_id: str
    version: str
    manifest_digest: str
    artifacts: Mapping[str, str]  # role → digest

    def plain(self) -> dict[str, Any]:
        return {
            "version_id": self.version_id,
            "version": self.version,
            "manifest_digest": self.manifest_digest,
            "artifacts": dict(self.artifacts),
        }


def pin_of(plain: Mapping[str, Any]) -> VersionPin:
    return VersionPin(plain["version_id"], plain["version"], plain["manifest_digest"], dict(plain["artifacts"]))


@dataclass(frozen=True, slots=True)
class InstanceRef:
    """An instance by its project and its id, as a URL names it."""

    project_id: str
    instance_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One launched app in a project."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    app_id: str
    app_slug: str
    app_category: str
    version_id: str
    version: str
    channel: str | None
    pin: dict[str, Any]
    config: dict[str, Any]
    topology: dict[str, int]
    placement: dict[str, Any]
    operating_mode: str
    control_plane_scope: str
    runtime_backend: str
    service_account_id: str
    requested_by: str
    correlation_id: str
    trace_id: str
    status: str
    generation: int
    revision: int
    created_at: datetime
    config_hidden: list[str] = field(default_factory=list)  # JSON pointers to secrets in the config, which views hide
    config_secrets: dict[str, Any] | None = None  # as stored: the values at those places, which are sealed
    secrets: dict[str, str] = field(default_factory=dict)  # variable → name of a secret of the project
    previous_pin: dict[str, Any] | None = None
    bound_capacity_shape: str | None = None
    topology_mode: str | None = None
    health: str = InstanceHealth.UNKNOWN.value
    health_detail: str | None = None
    health_at: datetime | None = None
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    adapter_detail: dict[str, Any] = field(default_factory=dict)
    failed_at: datetime | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    last_lines: list[str] | None = None
    stop_requested_at: datetime | None = None
    stopped_at: datetime | None = None
    teardown_proof: str | None = None
    distrust: dict[str, Any] | None = None  # why its artifacts are not trusted, see `instance_trust`

    @property
    def place(self) -> tuple[str, str]:
        """(tenant id, project id)."""
        return self.tenant_id, self.project_id

    @property
    def is_shared(self) -> bool:
        """Whether other projects of the tenant may attach to it."""
        return self.control_plane_scope == ControlPlaneScope.TENANT
