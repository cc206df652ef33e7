"""The only module that writes decisions: it applies a decision in one transaction or not at all.

A decision becomes a single SQL statement. Its data-modifying CTEs write the rows, the transitions, the events (from
which triggers fill the outbox), the audit rows and the idempotency record. Its final SELECT counts the guarded rows
and raises an error when one did not match, which rolls the whole statement back. One statement is one round trip and
one transaction. It writes nothing before it has locked the guarded row, and the decision was made on a snapshot read
earlier; so the transaction id, and with it the event's position in the stream, is always later than that of the
generation before it.

Statements of the same shape have the same text, so PostgreSQL plans them once.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import asyncpg

from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    InsertMany,
    Remove,
    RowGuard,
    StateChange,
    Update,
    Write,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.storage.kernel.constraints import DECIDE_AGAIN, REFUSALS
from mooring.storage.kernel.database import BROKEN, Acting, Database, unavailable
from mooring.storage.kernel.sealed_document import seal_writes

STALE_WRITE: Final = "MR001"
UNSTORABLE: Final = frozenset({"22021", "22P05"})
"""SQLSTATEs for text with a NUL or an invalid character; validation normally refuses it before, with its place."""
PLATFORM_OWNER: Final = "platform"
BIRTH: Final = "birth"
STATUS_COLUMNS: Final = {
    "promotion": ("promotion", "promotion_generation"),
    "trust": ("trust", "trust_generation"),
}
"""The columns of a lifecycle when its noun has several lifecycles; other nouns use `status` and `generation`."""

TRANSITION_COLUMNS: Final = (
    "machine", "subject_id", "generation", "tenant_id", "source", "trigger", "target", "occurred_at", "correlation_id",
)  # fmt: skip
EVENT_COLUMNS: Final = (
    "id", "type", "noun", "subject_id", "generation", "tenant_id", "project_id", "app_slug", "app_instance_id",
    "actor_kind", "actor_id", "correlation_id", "trace_id", "occurred_at", "data",
)  # fmt: skip
AUDIT_COLUMNS: Final = (
    "id", "occurred_at", "outcome", "action", "noun", "subject_id", "tenant_id", "project_id", "actor_kind", "actor_id",
    "token_id", "break_glass_id", "correlation_id", "trace_id", "before", "after", "reason", "route", "remote_address",
    "app_instance_id",
)  # fmt: skip
IDEMPOTENCY_COLUMNS: Final = (
    "principal_id", "route", "key", "tenant_id", "fingerprint", "status", "body", "secret_id", "correlation_id",
    "created_at",
)  # fmt: skip

BULK_TYPES: Final = {
    "at": "timestamptz", "covered_by_allocation": "boolean", "created_at": "timestamptz", "ended_at": "timestamptz",
    "epoch": "bigint", "previous_seq": "bigint", "previous_value": "numeric", "quantity": "numeric", "seq": "bigint",
    "started_at": "timestamptz", "value": "numeric",
}  # fmt: skip
"""The types of columns that are written in bulk; the others are text."""

Shape = tuple[tuple[Any, ...], ...]


class StaleWrite(Exception):
    """A guarded row changed after it was read: load again and decide again."""


class AlreadyAnswered(Exception):
    """Another request used this idempotency key in the meantime: look up its answer."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from, for the audit trail."""

    route: str | None = None
    remote_address: str | None = None


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What is stored under an idempotency key: the answer, or the id of the secret in which it is sealed."""

    principal_id: str
    route: str
    key: str
    tenant_id: str | None
    fingerprint: bytes
    status: int
    body: bytes
    secret_id: str | None = None


async def apply(
    database: Database,
    acting: Acting,
    context: DecisionContext,
    decision: Decision[Any],
    *,
    origin: Origin | None = None,
    answer: StoredAnswer | None = None,
) -> None:
    """Write the whole decision, or raise and write nothing."""
    if database.documents is not None:
        decision = seal_writes(database.documents, decision)
    statement, arguments = compose(context, decision, origin or Origin(), answer)
    try:
        async with database.connection(acting) as connection:
            await connection.fetchval(statement, *arguments)
    except asyncpg.PostgresError as error:
        raise _meaning(error) from error
    except BROKEN as error:
        raise unavailable("the database connection broke; it is unknown whether the change was made") from error


def compose(
    context: DecisionContext, decision: Decision[Any], origin: Origin, answer: StoredAnswer | None
) -> tuple[str, list[object]]:
    """The statement that writes the whole decision, and its arguments."""
    if decision.writes and not decision.audits and not decision.traceless:
        raise ValueError("a decision with writes needs an audit row")
    rows = tuple(_rows(context, decision, origin, answer))
    statement = _statement(tuple(shape for shape, _ in rows))
    return statement, [argument for _, arguments in rows for argument in arguments]


def _meaning(error: asyncpg.PostgresError) -> Exception:
    constraint = str(getattr(error, "constraint_name", ""))
    if error.sqlstate == STALE_WRITE or isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError):
        return StaleWrite()
    if constraint in DECIDE_AGAIN:
        return StaleWrite()
    if error.sqlstate in UNSTORABLE:
        return Refusal(Code.VALIDATION_FAILED, "a text contains a NUL or an invalid character and cannot be stored")
    if constraint == "idempotency_pkey":
        return AlreadyAnswered()
    if constraint in REFUSALS:
        code, detail = REFUSALS[constraint]
        return Refusal(code, detail)
    if isinstance(error, (*BROKEN, asyncpg.QueryCanceledError)):
        return unavailable("the database connection broke; it is unknown whether the change was made")
    return error


def _rows(
    context: DecisionContext, decision: Decision[Any], origin: Origin, answer: StoredAnswer | None
) -> Iterator[tuple[tuple[Any, ...], tuple[object, ...]]]:
    """Each part of the statement: its shape, which determines the SQL text, and its arguments."""
    generations: dict[str, int] = {}
    for born, run in itertools.groupby(decision.writes, _is_born):
        parts = [part for write in run for part in _write(context, write, generations)]
        # Consecutive inserts with a lifecycle are sorted by table, so that many rows become one INSERT.
        yield from sorted(parts, key=lambda part: _is_row(part[0])) if born else parts
    for event in decision.events:
        yield ("insert", "event", EVENT_COLUMNS), _event(context, event, generations)
    for audited in decision.audits:
        yield ("insert", "audit", AUDIT_COLUMNS), audit_row(context, audited, "done", origin)
    if answer is not None:
        yield (
            ("insert", "idempotency", IDEMPOTENCY_COLUMNS),
            (
                answer.principal_id,
                answer.route,
                answer.key,
                answer.tenant_id,
                answer.fingerprint,
                answer.status,
                answer.body,
                answer.secret_id,
                context.correlation_id,
                context.now,
            ),
        )


def _is_born(write: Write) -> str | None:
    """The noun of an insert that enters a lifecycle, None for other writes: the key by which inserts are grouped."""
    return write.noun if isinstance(write, Insert) and write.born else None


def _is_row(shape: tuple[Any, ...]) -> bool:
    return bool(shape[1] != "transition")


def _write(
    context: DecisionContext, write: Write, generations: dict[str, int]
) -> Iterator[tuple[tuple[Any, ...], tuple[object, ...]]]:
    if isinstance(write, Insert):
        row = dict(write.row)
        for machine in write.born:
            status, generation = STATUS_COLUMNS.get(machine.name, ("status", "generation"))
            row |= {status: machine.initial.value, generation: 0}
            generations[str(row["id"])] = 0
            yield (
                ("insert", "transition", TRANSITION_COLUMNS),
                _transition(
                    context,
                    machine.name,
                    str(row["id"]),
                    row.get("tenant_id"),
                    generation=0,
                    source="",
                    trigger=BIRTH,
                    target=machine.initial.value,
                ),
            )
        yield ("insert", write.noun, tuple(row)), tuple(row.values())
    elif isinstance(write, InsertMany):
        yield (
            ("insert_many", write.noun, tuple(write.same), tuple(write.columns)),
            (*write.same.values(), *write.columns.values()),
        )
    elif isinstance(write, StateChange):
        status, generation = STATUS_COLUMNS.get(write.machine.name, ("status", "generation"))
        edge, after = write.edge, write.generation_expected + 1
        generations[write.id] = after
        yield (
            ("update", write.noun, (status, generation, *write.set), ("id", generation)),
            (edge.target.value, after, *write.set.values(), write.id, write.generation_expected),
        )
        yield (
            ("insert", "transition", TRANSITION_COLUMNS),
            _transition(
                context,
                write.machine.name,
                write.id,
                write.tenant_id,
                generation=after,
                source=edge.source.value,
                trigger=edge.trigger.value,
                target=edge.target.value,
            ),
        )
    elif isinstance(write, Update):
        guards: tuple[str, ...] = ("id", "revision")
        expected: tuple[object, ...] = (write.id, write.revision_expected)
        if write.generation_expected is not None:
            guards, expected = (*guards, "generation"), (*expected, write.generation_expected)
        yield (
            ("update", write.noun, ("revision", *write.set), guards),
            (write.revision_expected + 1, *write.set.values(), *expected),
        )
    elif isinstance(write, Remove):
        yield ("delete", write.noun, ("id", "revision")), (write.id, write.revision_expected)
    elif isinstance(write, RowGuard):
        yield ("guard", write.noun, tuple(write.seen)), tuple(write.seen.values())


def _transition(
    context: DecisionContext,
    machine: str,
    subject_id: str,
    tenant_id: object,
    *,
    generation: int,
    source: str,
    trigger: str,
    target: str,
) -> tuple[object, ...]:
    return (
        machine,
        subject_id,
        generation,
        tenant_id or PLATFORM_OWNER,
        source,
        trigger,
        target,
        context.now,
        context.correlation_id,
    )


def _event(context: DecisionContext, event: EventRecord, generations: dict[str, int]) -> tuple[object, ...]:
    return (
        context.mint(Prefix.EVENT),
        event.type.value,
        event.noun,
        event.subject_id,
        generations.get(event.subject_id),
        event.tenant_id,
        event.project_id,
        event.app_slug,
        event.app_instance_id,
        context.actor.kind.value,
        context.actor.id,
        *(event.under or (context.correlation_id, context.trace_id)),
        context.now,
        dict(event.data),
    )


def audit_row(context: DecisionContext, audited: AuditRecord, outcome: str, origin: Origin) -> tuple[object, ...]:
    """The values of one audit row, in the order of AUDIT_COLUMNS."""
    actor = context.actor
    return (
        context.mint(Prefix.AUDIT),
        context.now,
        outcome,
        audited.action,
        audited.noun,
        audited.subject_id,
        audited.tenant_id,
        audited.project_id,
        actor.kind.value,
        actor.id,
        actor.token_id,
        actor.break_glass_id,
        *(audited.under or (context.correlation_id, context.trace_id)),
        audited.before,
        audited.after,
        audited.reason,
        origin.route,
        origin.remote_address,
        audited.app_instance_id,
    )


@lru_cache(maxsize=1000)
def _statement(shapes: Shape) -> str:
    """The SQL text for this shape; the final SELECT counts the guarded rows.

    Consecutive rows of one table become one INSERT, which keeps their order: the stream has the events of a decision
    in the order in which the decision lists them.
    """
    numbers = iter(range(1, 1 << 16))
    parts, guarded = [], []
    for index, ((verb, noun, columns, *rest), group) in enumerate(itertools.groupby(shapes)):
        name = f"w{index}"
        if verb == "insert":
            listed = ", ".join(f'"{column}"' for column in columns)
            rows = ", ".join(f"({', '.join(f'${next(numbers)}' for _ in columns)})" for _ in group)
            parts.append(f'{name} AS (INSERT INTO "{noun}" ({listed}) VALUES {rows})')
            continue
        for count, _ in enumerate(group):
            one = f"{name}_{count}"
            if verb == "insert_many":
                listed = ", ".join(f'"{column}"' for column in (*columns, *rest[0]))
                same = "".join(f"${next(numbers)}::{_type(column)}, " for column in columns)
                arrays = ", ".join(f"${next(numbers)}::{_type(column)}[]" for column in rest[0])
                parts.append(f'{one} AS (INSERT INTO "{noun}" ({listed}) SELECT {same}u.* FROM unnest({arrays}) u)')
                continue
            guarded.append(one)
            if verb == "update":
                sets = ", ".join(f'"{column}" = ${next(numbers)}' for column in columns)
                where = " AND ".join(f'"{column}" = ${next(numbers)}' for column in rest[0])
                parts.append(f'{one} AS (UPDATE "{noun}" SET {sets} WHERE {where} RETURNING 1)')
            elif verb == "guard":
                where = " AND ".join(f'"{column}" = ${next(numbers)}' for column in columns)
                parts.append(f'{one} AS MATERIALIZED (SELECT 1 FROM "{noun}" WHERE {where} FOR SHARE)')
            else:
                where = " AND ".join(f'"{column}" = ${next(numbers)}' for column in columns)
                parts.append(f'{one} AS (DELETE FROM "{noun}" WHERE {where} RETURNING 1)')
    matched = " AND ".join(f"(SELECT count(*) FROM {name}) = 1" for name in guarded) or "true"
    return f"WITH {', '.join(parts)} SELECT CASE WHEN {matched} THEN 1 ELSE stale_write() END"


def _type(column: str) -> str:
    return BULK_TYPES.get(column, "text")


async def record_refusal(
    database: Database,
    context: DecisionContext,
    audited: AuditRecord,
    outcome: str,
    origin: Origin,
    *,
    count: int = 1,
) -> None:
    """Write the audit row of a refused request, or of `count` equal ones; it has no other effect."""
    statement = _statement((("insert", "audit", (*AUDIT_COLUMNS, "count")),))
    try:
        async with database.connection(Acting()) as connection:
            await connection.fetchval(statement, *audit_row(context, audited, outcome, origin), count)
    except BROKEN as error:
        raise unavailable("the audit row could not be written") from error


async def record_read(database: Database, context: DecisionContext, audited: AuditRecord, origin: Origin) -> None:
    """Write the audit row of a read that leaves one, before it is answered; it has no other effect."""
    await record_refusal(database, context, audited, "done", origin)
