"""What must become true together: the one thing that the core hands to the storage.

A command loads a snapshot, a pure function of the core looks at it and returns a `Decision`, and
`storage/kernel/unit_of_work.py` applies it in one transaction or not at all. A decision names every row it writes, and
each change of a row names what it saw: a transition the `generation`, every other change the `revision`. The writer
that saw something older loses and decides again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Minter
from mooring.core.kernel.lifecycle import Lifecycle, Transition

Result = TypeVar("Result", covariant=True)
Row = Mapping[str, object]


class PrincipalKind(StrEnum):
    """Who acts."""

    USER = "user"
    SERVICE_ACCOUNT = "service_account"
    NODE = "node"
    SYSTEM = "system"
    ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, by which token, and under which break-glass entry, if any."""

    kind: PrincipalKind
    id: str
    token_id: str | None = None
    break_glass_id: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """What every decision takes from the edge: who, when, under which correlation, and where ids come from."""

    actor: Actor
    now: datetime
    correlation_id: str
    trace_id: str
    mint: Minter


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row. With `born` the row enters that lifecycle in its first state."""

    noun: str
    row: Row
    born: tuple[Lifecycle[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """A change that is no transition, guarded by the revision that was seen (and the generation, where it mattered)."""

    noun: str
    id: str
    revision_expected: int
    set: Row
    generation_expected: int | None = None


@dataclass(frozen=True, slots=True)
class StateChange:
    """A transition along one edge of a lifecycle, guarded by the generation that was seen."""

    noun: str
    id: str
    machine: Lifecycle[Any, Any]
    edge: Transition[Any, Any]
    generation_expected: int
    tenant_id: str | None
    set: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remove:
    """A row that goes, guarded by the revision that was seen."""

    noun: str
    id: str
    revision_expected: int


@dataclass(frozen=True, slots=True)
class RowGuard:
    """A row that is not changed and must still be so, to the end of the statement, for the rest to become true."""

    noun: str
    seen: Row


Write = Insert | Update | StateChange | Remove | RowGuard


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event to be written: what became true, of what, and for whom."""

    type: EventType
    noun: str
    subject_id: str
    tenant_id: str | None
    project_id: str | None = None
    data: Row = field(default_factory=dict)
    app_slug: str | None = None
    app_instance_id: str | None = None
    under: tuple[str, str] | None = None
    """The correlation and the trace of what it belongs to, where whoever tells of it has others: an agent, a worker."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An audit row to be written: the action, its subject, and what it changed."""

    action: str
    noun: str
    subject_id: str | None
    tenant_id: str | None
    project_id: str | None = None
    before: Row | None = None
    after: Row | None = None
    reason: str | None = None
    app_instance_id: str | None = None
    under: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[Result]):
    """Everything that becomes true together, and what the caller is told."""

    result: Result
    writes: tuple[Write, ...] = ()
    events: tuple[EventRecord, ...] = ()
    audits: tuple[AuditRecord, ...] = ()
    """One row for each privileged effect; a decision with writes has at least one."""
    traceless: bool = False
    """It only reads, as some app actions do: its rows leave no audit row and no event, and are soon deleted."""
