"""Member: one part of an instance, bound to one allocation.

Only its adapter knows what a member does. Draining means *requested*, drained means *observed idle*; a member on an
unreachable node has unknown health, and unknown never counts as drained. A removed member is a tombstone that stays
readable.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who


class MemberState(StrEnum):
    REQUESTED = "requested"
    JOINING = "joining"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    DRAINED = "drained"
    FAILED = "failed"
    REMOVING = "removing"
    REMOVED = "removed"


class MemberTrigger(StrEnum):
    JOIN = "join"
    REPORT_READY = "report_ready"
    DEGRADE = "degrade"
    RECOVER = "recover"
    DRAIN = "drain"
    FINISH_DRAIN = "finish_drain"
    RESUME = "resume"
    FAIL = "fail"
    REPAIR = "repair"
    REMOVE = "remove"
    FINISH_TEARDOWN = "finish_teardown"


S, T = MemberState, MemberTrigger

MEMBER = Lifecycle(
    name="member",
    about="One part of an instance, bound to one allocation. Health is observed separately from the state.",
    states=MemberState,
    triggers=MemberTrigger,
    initial=S.REQUESTED,
    meaning={
        S.REQUESTED: "requested and bound to an allocation; its adapter has not started it yet",
        S.JOINING: "its adapter starts it and joins it to the others",
        S.READY: "it works",
        S.DEGRADED: "it works badly or only partly",
        S.DRAINING: "asked to finish its work and accept no more",
        S.DRAINED: "observed idle: it has no work and accepts none",
        S.FAILED: "it failed and does not work",
        S.REMOVING: "it is being torn down, and waits for its closing record",
        S.REMOVED: "it has its closing record; a tombstone that stays readable",
    },
    edges=(
        Transition(S.REQUESTED, T.JOIN, S.JOINING, Who.ADAPTER, "Its adapter starts it."),
        Transition(S.REQUESTED, T.FAIL, S.FAILED, Who.WORKER, "Nothing was started before the deadline."),
        Transition(S.REQUESTED, T.REMOVE, S.REMOVING, Who.USER, "A caller removes it before anything was started."),
        Transition(S.JOINING, T.REPORT_READY, S.READY, Who.ADAPTER, "Its adapter observed that it works."),
        Transition(S.JOINING, T.FAIL, S.FAILED, Who.ADAPTER, "It did not start, or could not join the others."),
        Transition(S.JOINING, T.REMOVE, S.REMOVING, Who.USER, "A caller removes it while it is being started."),
        Transition(S.READY, T.DEGRADE, S.DEGRADED, Who.ADAPTER, "Its adapter observed that it works badly."),
        Transition(S.READY, T.DRAIN, S.DRAINING, Who.USER, "A caller asks it to finish its work and accept no more."),
        Transition(S.READY, T.FAIL, S.FAILED, Who.ADAPTER, "It ended unexpectedly."),
        Transition(S.READY, T.REMOVE, S.REMOVING, Who.USER, "A caller removes it, or its instance is stopped."),
        Transition(S.DEGRADED, T.RECOVER, S.READY, Who.ADAPTER, "Its adapter observed that it works well again."),
        Transition(S.DEGRADED, T.DRAIN, S.DRAINING, Who.USER, "A caller asks it to finish what it still can."),
        Transition(S.DEGRADED, T.FAIL, S.FAILED, Who.ADAPTER, "The degraded member failed."),
        Transition(S.DEGRADED, T.REMOVE, S.REMOVING, Who.USER, "A caller removes it without waiting for its work."),
        Transition(
            S.DRAINING,
            T.FINISH_DRAIN,
            S.DRAINED,
            Who.ADAPTER,
            "Its adapter observed that it is idle; a silent node does not count.",
        ),
        Transition(S.DRAINING, T.RESUME, S.READY, Who.USER, "A caller cancels the drain before it is complete."),
        Transition(S.DRAINING, T.FAIL, S.FAILED, Who.ADAPTER, "It failed while it finished its work."),
        Transition(S.DRAINING, T.REMOVE, S.REMOVING, Who.USER, "A caller removes it without waiting for the drain."),
        Transition(S.DRAINED, T.RESUME, S.READY, Who.USER, "A caller puts it back to work."),
        Transition(S.DRAINED, T.FAIL, S.FAILED, Who.ADAPTER, "It failed while it was idle."),
        Transition(S.DRAINED, T.REMOVE, S.REMOVING, Who.USER, "It is idle, so removing it interrupts no work."),
        Transition(S.FAILED, T.REPAIR, S.JOINING, Who.USER, "A caller asks the adapter to rebuild it."),
        Transition(S.FAILED, T.REMOVE, S.REMOVING, Who.USER, "A caller gives it up; what is left of it is torn down."),
        Transition(
            S.REMOVING,
            T.FINISH_TEARDOWN,
            S.REMOVED,
            Who.WORKER,
            "Its closing record is stored: the end was observed, or an admin wrote it off; it is never assumed.",
        ),
    ),
    requires={
        S.JOINING: frozenset({"allocation_id"}),
        S.READY: frozenset({"allocation_id"}),
        S.DEGRADED: frozenset({"allocation_id"}),
        S.DRAINING: frozenset({"allocation_id"}),
        S.DRAINED: frozenset({"allocation_id"}),
        S.FAILED: frozenset({"failed_at", "failure_code"}),
        S.REMOVED: frozenset({"removed_at"}),
    },
    needs_closing_records=frozenset({S.REMOVED}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One part of an instance in one allocation; on the node, `<allocation>/<member id>` owns its resources."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    component_key: str
    ordinal: int
    name: str
    version_id: str
    version: str
    correlation_id: str
    trace_id: str
    status: str
    generation: int
    revision: int
    created_at: datetime
    allocation_id: str | None = None
    owns_allocation: bool = False  # the allocation was requested for it, and is released with it
    keep_allocation: bool = False
    shares: bool = False
    health: str = "unknown"
    health_detail: str | None = None
    health_at: datetime | None = None
    adapter_detail: dict[str, Any] = field(default_factory=dict)
    holds: list[dict[str, Any]] = field(default_factory=list)  # owner, reason, since
    replaces_id: str | None = None
    last_operation_id: str | None = None
    failed_at: datetime | None = None
    failure_code: str | None = None
    failure_detail: str | None = None
    last_lines: list[str] | None = None
    blocker: str | None = None
    teardown_task_id: str | None = None
    teardown_attempts: int = 0
    retry_at: datetime | None = None
    removed_at: datetime | None = None

    @property
    def place(self) -> tuple[str, str]:
        """(tenant id, project id)."""
        return self.tenant_id, self.project_id
