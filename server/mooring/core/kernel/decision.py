"""The decision: a set of writes, events and audit rows that the storage applies in one transaction.

A command loads a snapshot, a pure function of the core turns it into a `Decision`, and
`storage/kernel/unit_of_work.py` applies that decision completely or not at all. A decision lists every row it writes.
Each change names the version of the row that it was decided on: a transition names the `generation`, every other
change the `revision`. When the row has changed since, the write fails and the command decides again on fresh rows.
"""

from collections.abc import Mapping, Sequence
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
    """The kind of principal that acts."""

    USER = "user"
    SERVICE_ACCOUNT = "service_account"
    NODE = "node"
    SYSTEM = "system"
    ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, with which token, and under which break-glass entry, if any."""

    kind: PrincipalKind
    id: str
    token_id: str | None = None
    break_glass_id: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """What every decision needs from outside: the actor, the time, the correlation, and a source of ids."""

    actor: Actor
    now: datetime
    correlation_id: str
    trace_id: str
    mint: Minter


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row. For each lifecycle in `born`, the row starts in that lifecycle's initial state."""

    noun: str
    row: Row
    born: tuple[Lifecycle[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class InsertMany:
    """Many new rows of one table, by column; `same` has the values that all rows share. They enter no lifecycle."""

    noun: str
    same: Row
    columns: Mapping[str, Sequence[object]]


@dataclass(frozen=True, slots=True)
class Update:
    """A change that is not a transition, guarded by the revision that was read (and the generation, where needed)."""

    noun: str
    id: str
    revision_expected: int
    set: Row
    generation_expected: int | None = None
    tenant_id: str | None = None  # of a row with sealed documents: they are bound to it


@dataclass(frozen=True, slots=True)
class StateChange:
    """A transition along one edge of a lifecycle, guarded by the generation that was read."""

    noun: str
    id: str
    machine: Lifecycle[Any, Any]
    edge: Transition[Any, Any]
    generation_expected: int
    tenant_id: str | None
    set: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remove:
    """The deletion of a row, guarded by the revision that was read."""

    noun: str
    id: str
    revision_expected: int


@dataclass(frozen=True, slots=True)
class RowGuard:
    """A row that the decision does not change but relies on: it must still have these values when it is applied."""

    noun: str
    seen: Row


Write = Insert | InsertMany | Update | StateChange | Remove | RowGuard


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event to write: what became true, about which subject, and for which tenant."""

    type: EventType
    noun: str
    subject_id: str
    tenant_id: str | None
    project_id: str | None = None
    data: Row = field(default_factory=dict)
    app_slug: str | None = None
    app_instance_id: str | None = None
    under: tuple[str, str] | None = None
    """The correlation id and trace id of the work it belongs to, where the reporter (an agent, a worker) has others."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An audit row to write: the action, its subject, and what it changed."""

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
    """Everything that becomes true together, and the result for the caller."""

    result: Result
    writes: tuple[Write, ...] = ()
    events: tuple[EventRecord, ...] = ()
    audits: tuple[AuditRecord, ...] = ()
    """One row for each privileged effect; a decision with writes has at least one."""
    traceless: bool = False
    """True where no audit row is due: for what only reads, as some app actions and routine looks do, and for new
    figures of an app."""
