"""Instance: one launched app in a project.

The state says how far the launch or its end has come. Health is observed beside it, and what happens to a
running instance (upgrade, rollback, reconcile, repair, restart) is an operation, not a state. Stop and
decommission are one act. `failed` is not final: what is left is torn down while the state stays `failed`,
and a later stop finds the closing records and passes through `stopping` to `stopped`.
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
        S.CREATED: "accepted and stored; its adapter has not begun",
        S.STARTING: "its adapter builds the members",
        S.RUNNING: "the adapter reported that the app is ready; health is observed beside it",
        S.STOPPING: "it is torn down, and waits for a closing record of each member",
        S.STOPPED: "each member has a closing record; `teardown_proof` says of which kind",
        S.FAILED: "it ended with an error; the failure and the last logs stay readable",
    },
    edges=(
        Transition(S.CREATED, T.START, S.STARTING, Who.ADAPTER, "Its adapter claims it and begins to deploy."),
        Transition(S.CREATED, T.FAIL, S.FAILED, Who.WORKER, "No adapter began before the deadline."),
        Transition(S.CREATED, T.STOP, S.STOPPING, Who.USER, "A caller gives it up before anything was begun."),
        Transition(S.STARTING, T.REPORT_READY, S.RUNNING, Who.ADAPTER, "Its adapter observed that it is ready."),
        Transition(
            S.STARTING,
            T.FAIL,
            S.FAILED,
            Who.ADAPTER,
            "The deployment came to an error, or the worker saw its deadline pass.",
        ),
        Transition(S.STARTING, T.STOP, S.STOPPING, Who.USER, "A caller gives it up while it is being built."),
        Transition(S.RUNNING, T.FAIL, S.FAILED, Who.ADAPTER, "The app ended by itself, and not as it should."),
        Transition(S.RUNNING, T.STOP, S.STOPPING, Who.USER, "A caller stops it, or its allocation is released."),
        Transition(
            S.STOPPING,
            T.FINISH_TEARDOWN,
            S.STOPPED,
            Who.WORKER,
            "Each member has a closing record: the end is observed or answered for, not assumed.",
        ),
        Transition(S.FAILED, T.STOP, S.STOPPING, Who.USER, "A caller has seen the failure and closes it."),
    ),
    requires={
        S.STOPPED: frozenset({"stopped_at", "teardown_proof"}),
        S.FAILED: frozenset({"failed_at", "failure_code"}),
    },
    needs_closing_records=frozenset({S.STOPPED}),
)


class InstanceHealth(StrEnum):
    """What was observed, beside the state."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class VersionPin:
    """What a version was when it was chosen: by digests, so that going back leads to the same bytes."""

    version_id: str
    version: str
    manifest_digest: str
    artifacts: Mapping[str, str]  # role → digest

    def plain(self) -> dict[str, Any]:
        """The pin as it is stored."""
        return {
            "version_id": self.version_id,
            "version": self.version,
            "manifest_digest": self.manifest_digest,
            "artifacts": dict(self.artifacts),
        }


def pin_of(plain: Mapping[str, Any]) -> VersionPin:
    """A stored pin."""
    return VersionPin(plain["version_id"], plain["version"], plain["manifest_digest"], dict(plain["artifacts"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One launched app."""

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
    config_hidden: list[str] = field(default_factory=list)  # where in the config secrets stand: no view shows them
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

    @property
    def place(self) -> tuple[str, str]:
        """The tenant and the project."""
        return self.tenant_id, self.project_id

    @property
    def is_shared(self) -> bool:
        """Whether other projects of the tenant may be attached to it."""
        return self.control_plane_scope == ControlPlaneScope.TENANT
