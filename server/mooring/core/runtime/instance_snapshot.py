"""The snapshot of an instance from which `core/runtime/instance_reconcile.py` decides the next step.

It holds the instance, its members that are not removed, its open operations, its holder, and the tasks and nodes on
which its end depends. A few statements read it for many instances, not one transaction: each decision is guarded by
what its snapshot saw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.core.catalog.artifact_hold import ArtifactHold
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.allocation_reconcile import TaskFacts
from mooring.core.fleet.node import NodeState
from mooring.core.fleet.runtime_secret import RuntimeSecret
from mooring.core.fleet.task import Task
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.launch_history import CircuitFacts
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.operation import Operation, OperationKind

GRACEFUL: Final = timedelta(seconds=60)
LIVE: Final = frozenset(
    {
        MemberState.REQUESTED, MemberState.JOINING, MemberState.READY, MemberState.DEGRADED, MemberState.DRAINING,
        MemberState.DRAINED,
    }
)  # fmt: skip
"""Members that work, or will."""

COMING: Final = frozenset({MemberState.REQUESTED, MemberState.JOINING})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How long an operation, a step, a claim, a cancel and a lease may take."""

    operation: timedelta
    step: timedelta
    claim: timedelta
    cancel: timedelta
    lease: timedelta


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """The facts about a member's node on which its end depends."""

    id: str
    status: str
    unreachable_since: datetime | None = None
    retirement_reason: str | None = None
    may_be_left: str | None = None

    @property
    def is_gone(self) -> bool:
        return self.status == NodeState.RETIRED


@dataclass(frozen=True, slots=True)
class ClaimWatch:
    """Who holds the instance, and when an adapter last used its operator account."""

    holder: str | None = None
    expires_at: datetime | None = None
    adapter_seen_at: datetime | None = None

    def is_held(self, now: datetime) -> bool:
        return self.holder is not None and self.expires_at is not None and self.expires_at > now

    def is_forsaken(self, now: datetime, lease: timedelta) -> bool:
        """Whether nobody holds it and nobody is about to: longer than a restart of its adapter takes."""
        if self.is_held(now):
            return False
        lapsed = self.expires_at is not None and self.expires_at + lease <= now
        return lapsed or self.adapter_seen_at is None or self.adapter_seen_at + 2 * lease <= now

    def last_seen(self) -> str:
        """When an adapter was last seen, as text."""
        if self.adapter_seen_at is None:
            return "never"
        return self.adapter_seen_at.isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member that is not removed, with everything on which its end depends."""

    member: Member
    allocation: Allocation | None = None
    node: NodeStanding | None = None
    shared: bool = False  # members of another instance use the same allocation
    inherited: bool = False  # the member that the allocation was requested for is gone, and this one took it over
    started: bool = False  # an agent claimed a task of it
    task: TaskFacts | None = None  # the teardown task that it waits for
    receipt_id: str | None = None  # of that task
    clean_receipt_id: str | None = None  # a node searched for leftovers of it or its allocation and found none
    queued: tuple[Task, ...] = ()  # tasks that no agent has claimed
    teardowns: int = 0  # how many there were so far; used in the name of the next
    ended: tuple[str, str] | None = None  # of a joining member: code and detail of the failure of its operation


@dataclass(frozen=True, slots=True)
class ClosedMember:
    """A member that has its closing record."""

    member_id: str
    kind: str
    receipt_id: str | None
    gpu_count: int = 0
    held_from: datetime | None = None
    held_until: datetime | None = None
    allocation_id: str | None = None


@dataclass(frozen=True, slots=True)
class AttachmentSnapshot:
    """A live attachment and its latest operation."""

    attachment: Attachment
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """An instance and everything that decides its next step."""

    instance: Instance
    members: tuple[MemberSnapshot, ...] = ()
    operations: tuple[Operation, ...] = ()
    ended: Operation | None = None  # the latest deploy that has ended
    closed: tuple[ClosedMember, ...] = ()
    watch: ClaimWatch = field(default_factory=ClaimWatch)
    minimum: Mapping[str, int] = field(default_factory=dict)  # component → minimum number of members
    graceful: timedelta = GRACEFUL
    holds: tuple[ArtifactHold, ...] = ()
    secrets: tuple[RuntimeSecret, ...] = ()
    last_lines: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # operation → last log lines of its last failed task
    attachments: tuple[AttachmentSnapshot, ...] = ()  # live ones
    circuit: CircuitFacts | None = None  # only while its launch waits: how other launches of the version ended

    def open_of(self, *kinds: OperationKind) -> tuple[Operation, ...]:
        return tuple(each for each in self.operations if each.kind in kinds)

    def concerned(self, operation: Operation) -> tuple[MemberSnapshot, ...]:
        """The members that an operation names and that are not removed."""
        named = set(operation.member_ids)
        return tuple(each for each in self.members if each.member.id in named)

    def torn_down_by(self, operation: Operation) -> tuple[MemberSnapshot, ...]:
        """The members that this operation tears down and that are not removed yet."""
        if operation.kind == OperationKind.DECOMMISSION:
            return self.members
        named = self.concerned(operation)
        if operation.kind != OperationKind.REPLACE:
            return named
        replaced = {each.member.replaces_id for each in self.members}
        return tuple(each for each in named if each.member.id in replaced)


def idle_holds(
    instance: Instance, members: Iterable[Member], operations: Iterable[Operation], holds: Sequence[ArtifactHold]
) -> tuple[ArtifactHold, ...]:
    """The holds that neither a pin, nor an open operation, nor a member's version needs."""
    pins: list[Mapping[str, Any] | None] = [instance.pin, instance.previous_pin]
    pins += [each.target_pin for each in operations if not each.is_over]
    digests = {digest for pin in pins if pin is not None for digest in pin["artifacts"].values()}
    digests |= {str(pin["manifest_digest"]) for pin in pins if pin is not None}
    versions = {each.version_id for each in members}
    return tuple(each for each in holds if each.digest not in digests and each.version_id not in versions)
