"""What the runtime worker sees of an instance: one snapshot, from which `core/runtime/instance_reconcile.py` decides
the next step.

A snapshot has the instance, its members that are not removed, its operations that are not over, who holds it, and what
became of the tasks and nodes that an end depends on. It is read in a few statements for many instances, and not in one
transaction: what is decided on it is guarded by what it saw.
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
from mooring.core.runtime.circuit_breaker import CircuitFacts
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.operation import Operation, OperationKind

GRACEFUL: Final = timedelta(seconds=60)
LIVE: Final = frozenset(
    {
        MemberState.REQUESTED, MemberState.JOINING, MemberState.READY, MemberState.DEGRADED, MemberState.DRAINING,
        MemberState.DRAINED,
    }
)  # fmt: skip
"""Members that do their part, or are on the way to it."""

COMING: Final = frozenset({MemberState.REQUESTED, MemberState.JOINING})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """How long things may take."""

    operation: timedelta
    step: timedelta
    claim: timedelta
    cancel: timedelta
    lease: timedelta


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """What of a member's node matters to its end."""

    id: str
    status: str
    unreachable_since: datetime | None = None
    retirement_reason: str | None = None
    may_be_left: str | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it is gone for ever."""
        return self.status == NodeState.RETIRED


@dataclass(frozen=True, slots=True)
class ClaimWatch:
    """Who holds the instance, and when an adapter was last heard of under its account."""

    holder: str | None = None
    expires_at: datetime | None = None
    adapter_seen_at: datetime | None = None

    def is_held(self, now: datetime) -> bool:
        """Whether somebody holds it under a lease now."""
        return self.holder is not None and self.expires_at is not None and self.expires_at > now

    def is_forsaken(self, now: datetime, lease: timedelta) -> bool:
        """Whether nobody holds it, and nobody is about to: a restart of its adapter takes less than this."""
        if self.is_held(now):
            return False
        lapsed = self.expires_at is not None and self.expires_at + lease <= now
        return lapsed or self.adapter_seen_at is None or self.adapter_seen_at + 2 * lease <= now

    def last_seen(self) -> str:
        """When an adapter was last heard of, in words."""
        if self.adapter_seen_at is None:
            return "never"
        return self.adapter_seen_at.isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member that is not removed, with all that its end depends on."""

    member: Member
    allocation: Allocation | None = None
    node: NodeStanding | None = None
    shared: bool = False  # members of another instance have the same allocation
    inherited: bool = False  # the member that the allocation was asked for with is gone, and left it to this one
    started: bool = False  # an agent took some task of it
    task: TaskFacts | None = None  # the teardown that it waits for
    receipt_id: str | None = None  # of that task
    clean_receipt_id: str | None = None  # a node looked for all of it, or of its allocation, and found nothing
    queued: tuple[Task, ...] = ()  # what no agent has taken
    teardowns: int = 0  # how many there were, for the name of the next
    ended: tuple[str, str] | None = None  # of one to come: how the operation that made it failed


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
    """An attachment that is not over, and the last operation of it."""

    attachment: Attachment
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """An instance and everything that decides what comes next."""

    instance: Instance
    members: tuple[MemberSnapshot, ...] = ()
    operations: tuple[Operation, ...] = ()
    ended: Operation | None = None  # the last deploy that is over
    closed: tuple[ClosedMember, ...] = ()
    watch: ClaimWatch = field(default_factory=ClaimWatch)
    minimum: Mapping[str, int] = field(default_factory=dict)  # component → the fewest members that it needs
    graceful: timedelta = GRACEFUL
    holds: tuple[ArtifactHold, ...] = ()
    secrets: tuple[RuntimeSecret, ...] = ()
    last_lines: Mapping[str, Sequence[str]] = field(default_factory=dict)  # operation → what its last failed task said
    attachments: tuple[AttachmentSnapshot, ...] = ()  # those that are not over
    circuit: CircuitFacts | None = None  # of one that waits for its launch: how others of the version went

    def open_of(self, *kinds: OperationKind) -> tuple[Operation, ...]:
        """The operations of these kinds that are not over."""
        return tuple(each for each in self.operations if each.kind in kinds)

    def concerned(self, operation: Operation) -> tuple[MemberSnapshot, ...]:
        """The members that an operation names and that are not removed."""
        named = set(operation.member_ids)
        return tuple(each for each in self.members if each.member.id in named)

    def torn_down_by(self, operation: Operation) -> tuple[MemberSnapshot, ...]:
        """The members that end with this operation and have not ended yet."""
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
    """The holds that nothing needs any more: neither a pin, nor what is under way, nor a member's own version."""
    pins: list[Mapping[str, Any] | None] = [instance.pin, instance.previous_pin]
    pins += [each.target_pin for each in operations if not each.is_over]
    digests = {digest for pin in pins if pin is not None for digest in pin["artifacts"].values()}
    digests |= {str(pin["manifest_digest"]) for pin in pins if pin is not None}
    versions = {each.version_id for each in members}
    return tuple(each for each in holds if each.digest not in digests and each.version_id not in versions)
