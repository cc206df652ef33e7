"""Statements: what a tenant owes for a month in one currency.

A statement has no lines of its own: its lines are the rated usage that counts in its month. When the close begins, the
month is frozen: the database lets nothing more into it, and what is booked later counts in the month of its booking.
Then the totals and the digest over the lines are computed, which may take long, and the statement is closed. Each names
the digest of the one before it, so that nobody can replace one unnoticed.

A worker may die between any two steps: the next one finds the statement where it stands, and goes on.
"""

import hashlib
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Final

from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    RowGuard,
    StateChange,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who
from mooring.core.money.charge import HOUR

CLOSE_AFTER: Final = timedelta(hours=24)
"""How long after its last hour was charged a month is closed: until then corrections still count in it."""


class StatementState(StrEnum):
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class StatementTrigger(StrEnum):
    FREEZE = "freeze"
    CLOSE = "close"


S, T = StatementState, StatementTrigger

STATEMENT = Lifecycle(
    name="statement",
    about="What a tenant owes for a month in one currency.",
    states=StatementState,
    triggers=StatementTrigger,
    initial=S.OPEN,
    meaning={
        S.OPEN: "a preview: charges and corrections still come in",
        S.CLOSING: "nothing comes in any more; totals and digest are computed",
        S.CLOSED: "it has its totals and its digest, and never changes",
    },
    edges=(
        Transition(
            S.OPEN,
            T.FREEZE,
            S.CLOSING,
            Who.WORKER,
            "The last hour of the month was charged a day ago, or a platform admin closes it by hand.",
        ),
        Transition(
            S.CLOSING,
            T.CLOSE,
            S.CLOSED,
            Who.WORKER,
            "All lines were read; the totals, the digest and the digest of the statement before are stored.",
        ),
    ),
    requires={
        S.CLOSING: frozenset({"closing_at"}),
        S.CLOSED: frozenset({"closing_at", "closed_at", "digest"}),
    },
)


@dataclass(frozen=True, slots=True)
class StatementKey:
    """There is one statement for each of these."""

    tenant_id: str
    currency: str
    period: date  # the first day of the month


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    id: str
    tenant_id: str
    period: date
    currency: str
    correlation_id: str
    created_at: datetime
    status: str = StatementState.OPEN.value
    generation: int = 0
    revision: int = 0
    line_count: int | None = None
    amount: int | None = None  # of 10⁻⁶ minor unit
    shadow_amount: int | None = None  # what covered usage would have cost
    lines_digest: str | None = None
    digest: str | None = None
    previous_digest: str | None = None
    closing_at: datetime | None = None
    closed_at: datetime | None = None

    @property
    def month(self) -> str:
        return f"{self.period:%Y-%m}"

    @property
    def started_at(self) -> datetime:
        return datetime(self.period.year, self.period.month, 1, tzinfo=UTC)

    @property
    def ended_at(self) -> datetime:
        return _next_month(self.started_at)


@dataclass(frozen=True, slots=True)
class LineTotals:
    """The sums over all lines of a statement, and the digest over them in the order of their ids."""

    line_count: int
    amount: int
    shadow_amount: int
    lines_digest: str


@dataclass(frozen=True, slots=True)
class Charged:
    """The last hour that was charged, and when its charging ended."""

    hour: datetime
    closed_at: datetime


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


def digest_of(statement: Statement, totals: LineTotals, previous_digest: str | None) -> str:
    """The digest that a statement is closed with; the next one names it."""
    parts = (
        statement.tenant_id,
        statement.currency,
        statement.period.isoformat(),
        str(totals.line_count),
        str(totals.amount),
        str(totals.shadow_amount),
        totals.lines_digest,
        previous_digest or "",
    )
    return "sha256:" + hashlib.sha256("|".join(parts).encode()).hexdigest()


def is_charged(statement: Statement, charged: Charged | None) -> bool:
    """Whether every hour of the month was charged."""
    return charged is not None and charged.hour + HOUR >= statement.ended_at


def is_due(statement: Statement, charged: Charged | None, now: datetime) -> bool:
    """Whether the worker begins to close it."""
    return charged is not None and is_charged(statement, charged) and charged.closed_at + CLOSE_AFTER <= now


def open_statement(context: DecisionContext, key: StatementKey) -> Decision[Statement]:
    """The statement of a month in which the first charge was booked."""
    statement = Statement(
        id=context.mint(Prefix.STATEMENT),
        tenant_id=key.tenant_id,
        period=key.period,
        currency=key.currency,
        correlation_id=context.correlation_id,
        created_at=context.now,
    )
    row = {name: value for name, value in asdict(statement).items() if name not in ("status", "generation")}
    audit = AuditRecord("billing.statement.open", "statement", statement.id, key.tenant_id, after=_shown(statement))
    return Decision(statement, (Insert("statement", row, (STATEMENT,)),), (), (audit,))


def freeze(
    context: DecisionContext, statement: Statement, charged: Charged | None, before: Statement | None
) -> Decision[Statement]:
    """Begin the close: from now on nothing counts in this month any more. `before` is the statement before it."""
    edge = STATEMENT.step(STATEMENT.parse_state(statement.status), T.FREEZE)
    if not is_charged(statement, charged):
        details = {"month": statement.month, "charged_until": None if charged is None else charged.hour.isoformat()}
        raise Refusal(Code.CONFLICT, f"the last hour of {statement.month} is not charged yet", details)
    if before is not None and before.status == S.OPEN:
        details = {"statement_id": before.id, "month": before.month}
        raise Refusal(Code.CONFLICT, f"the statement of {before.month} is still open; close it first", details)
    changed = {"closing_at": context.now}
    change = StateChange(
        "statement", statement.id, STATEMENT, edge, statement.generation, statement.tenant_id, set=changed
    )
    audit = AuditRecord(
        "billing.statement.close", "statement", statement.id, statement.tenant_id, after=_shown(statement)
    )
    event = EventRecord(
        EventType.STATEMENT_CLOSING, "statement", statement.id, statement.tenant_id, data=_shown(statement)
    )
    return Decision(_with(statement, edge.target, **changed), (change,), (event,), (audit,))


def close(
    context: DecisionContext, statement: Statement, totals: LineTotals, before: Statement | None
) -> Decision[Statement]:
    """Close a frozen statement with the sums over its lines; `before` is the closed one before it, if there is one."""
    edge = STATEMENT.step(STATEMENT.parse_state(statement.status), T.CLOSE)
    previous = None if before is None else before.digest
    changed = asdict(totals) | {
        "digest": digest_of(statement, totals, previous),
        "previous_digest": previous,
        "closed_at": context.now,
    }
    change = StateChange(
        "statement", statement.id, STATEMENT, edge, statement.generation, statement.tenant_id, set=changed
    )
    closed = _with(statement, edge.target, **changed)
    shown = _shown(closed) | {"amount_micro": totals.amount, "lines": totals.line_count, "digest": closed.digest}
    guards = () if before is None else (RowGuard("statement", {"id": before.id, "digest": before.digest}),)
    event = EventRecord(EventType.STATEMENT_CLOSED, "statement", statement.id, statement.tenant_id, data=shown)
    audit = AuditRecord("billing.statement.close", "statement", statement.id, statement.tenant_id, after=shown)
    return Decision(closed, (*guards, change), (event,), (audit,))


def _shown(statement: Statement) -> dict[str, object]:
    return {"month": statement.month, "currency": statement.currency}


def _with(statement: Statement, status: StatementState, **changed: object) -> Statement:
    values = asdict(statement) | changed | {"status": status.value, "generation": statement.generation + 1}
    return Statement(**values)
