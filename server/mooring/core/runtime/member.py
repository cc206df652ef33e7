"""Member: one realized part of an instance, bound to one allocation.

What a member's part is, only its adapter knows. Draining means *asked*, drained means *observed quiet*; a
member whose node is unreachable has unknown health, and unknown is never taken for drained. A removed
member is a tombstone that stays readable.
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
    about="One realized part of an instance, bound to one allocation. Health is observed beside the state.",
    states=MemberState,
    triggers=MemberTrigger,
    initial=S.REQUESTED,
    meaning={
        S.REQUESTED: "wanted and bound to an allocation; its adapter has not begun",
        S.JOINING: "its adapter starts it and joins it to the others",
        S.READY: "it does its part",
        S.DEGRADED: "it does its part badly, or only some of it",
        S.DRAINING: "asked to take no new work and to finish what it has",
        S.DRAINED: "observed quiet: it has no work and takes none",
        S.FAILED: "it came to an error and does not do its part",
        S.REMOVING: "it is torn down, and waits for its closing record",
        S.REMOVED: "it has its closing record; a tombstone that stays readable",
    },
    edges=(
        Transition(S.REQUESTED, T.JOIN, S.JOINING, Who.ADAPTER, "Its adapter begins to start it."),
        Transition(S.REQUESTED, T.FAIL, S.FAILED, Who.WORKER, "Nothing was begun before the deadline."),
        Transition(S.REQUESTED, T.REMOVE, S.REMOVING, Who.USER, "A caller gives it up before anything was begun."),
        Transition(S.JOINING, T.REPORT_READY, S.READY, Who.ADAPTER, "Its adapter observed that it does its part."),
        Transition(S.JOINING, T.FAIL, S.FAILED, Who.ADAPTER, "It did not start, or the others did not take it."),
        Transition(S.JOINING, T.REMOVE, S.REMOVING, Who.USER, "A caller gives it up while it is being built."),
        Transition(S.READY, T.DEGRADE, S.DEGRADED, Who.ADAPTER, "Its adapter observed that it does badly."),
        Transition(S.READY, T.DRAIN, S.DRAINING, Who.USER, "A caller asks it to finish its work and take no more."),
        Transition(S.READY, T.FAIL, S.FAILED, Who.ADAPTER, "It ended by itself, and not as it should."),
        Transition(S.READY, T.REMOVE, S.REMOVING, Who.USER, "A caller takes it out, or its instance is stopped."),
        Transition(S.DEGRADED, T.RECOVER, S.READY, Who.ADAPTER, "Its adapter observed that it does well again."),
        Transition(S.DEGRADED, T.DRAIN, S.DRAINING, Who.USER, "It shall finish what it still can before it goes."),
        Transition(S.DEGRADED, T.FAIL, S.FAILED, Who.ADAPTER, "What was bad became an error."),
        Transition(S.DEGRADED, T.REMOVE, S.REMOVING, Who.USER, "It is not worth waiting for."),
        Transition(
            S.DRAINING,
            T.FINISH_DRAIN,
            S.DRAINED,
            Who.ADAPTER,
            "Its adapter observed that it is quiet; silence is no observation.",
        ),
        Transition(S.DRAINING, T.RESUME, S.READY, Who.USER, "A caller takes the drain back before it is through."),
        Transition(S.DRAINING, T.FAIL, S.FAILED, Who.ADAPTER, "It came to an error while it finished its work."),
        Transition(S.DRAINING, T.REMOVE, S.REMOVING, Who.USER, "A caller does not wait for the work to finish."),
        Transition(S.DRAINED, T.RESUME, S.READY, Who.USER, "A caller puts it back to work."),
        Transition(S.DRAINED, T.FAIL, S.FAILED, Who.ADAPTER, "It came to an error while it stood idle."),
        Transition(S.DRAINED, T.REMOVE, S.REMOVING, Who.USER, "It is quiet, so taking it out disturbs nobody."),
        Transition(S.FAILED, T.REPAIR, S.JOINING, Who.USER, "A caller lets the adapter build it once more."),
        Transition(S.FAILED, T.REMOVE, S.REMOVING, Who.USER, "It is given up; what is left of it is torn down."),
        Transition(
            S.REMOVING,
            T.FINISH_TEARDOWN,
            S.REMOVED,
            Who.WORKER,
            "Its closing record is stored: the end is observed or answered for, not assumed.",
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
    """One part of an instance, in one allocation; what it has on the node is owned by `<allocation>/<member id>`."""

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
    owns_allocation: bool = False  # the allocation was asked for with it, and goes with it
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
        """The tenant and the project."""
        return self.tenant_id, self.project_id
