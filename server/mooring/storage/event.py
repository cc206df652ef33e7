"""Events, read in the order (epoch, tx, seq) and only behind the horizon.

A transaction that is still open may hold a lower transaction id than one that was committed already. Whoever reads
past it loses its events for ever. So a read stops at the oldest open transaction: `tx < xmin` of the reader's
snapshot. Events of an earlier epoch, from before a restore into a new cluster, are all behind that horizon.
"""

from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.event import BEGINNING, Event, Position
from mooring.storage.database import PLATFORM, Acting, Database

EVENT_COLUMNS: Final = """e.epoch, e.tx, e.seq, e.id, e.type, e.noun, e.subject_id, e.generation, e.tenant_id,
       e.project_id, e.app_slug, e.app_instance_id, e.actor_kind, e.actor_id, e.correlation_id, e.trace_id,
       e.occurred_at, e.data"""
SETTLED: Final = """(e.tx < (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint
        OR e.epoch < (SELECT current FROM event_epoch))"""
_SEEN: Final = f"(e.epoch, e.tx, e.seq) > ($1, $2, $3) AND {SETTLED}"
_ORDER: Final = "ORDER BY e.epoch, e.tx, e.seq LIMIT $4"

READ_ALL: Final = f"SELECT {EVENT_COLUMNS} FROM event e WHERE {_SEEN} {_ORDER}"
READ_TENANT: Final = f"SELECT {EVENT_COLUMNS} FROM event e WHERE {_SEEN} AND e.tenant_id = $5 {_ORDER}"
READ_PROJECT: Final = f"SELECT {EVENT_COLUMNS} FROM event e WHERE {_SEEN} AND e.project_id = $5 {_ORDER}"
READ_CORRELATION: Final = f"SELECT {EVENT_COLUMNS} FROM event e WHERE {_SEEN} AND e.correlation_id = $5 {_ORDER}"
READ_TENANT_CORRELATION: Final = (
    f"SELECT {EVENT_COLUMNS} FROM event e WHERE {_SEEN} AND e.tenant_id = $5 AND e.correlation_id = $6 {_ORDER}"
)
READ_PROJECT_CORRELATION: Final = (
    f"SELECT {EVENT_COLUMNS} FROM event e WHERE {_SEEN} AND e.project_id = $5 AND e.correlation_id = $6 {_ORDER}"
)
HEAD: Final = f"""
SELECT e.epoch, e.tx, e.seq FROM event e
 WHERE {SETTLED}
 ORDER BY e.epoch DESC, e.tx DESC, e.seq DESC LIMIT 1"""
UNSETTLED: Final = """
SELECT EXISTS (SELECT FROM event e JOIN event_epoch p ON e.epoch = p.current
                WHERE e.tx >= (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint)"""
FORGOTTEN: Final = "SELECT epoch, tx, seq FROM event_horizon"


@dataclass(frozen=True, slots=True)
class Selection:
    """Whose events: a project's, a tenant's, or all of the platform's; optionally of one correlation id."""

    tenant_id: str | None = None
    project_id: str | None = None
    correlation_id: str | None = None

    def statement(self) -> tuple[str, tuple[str, ...]]:
        """The read that selects them, and its further arguments."""
        correlation = (self.correlation_id,) if self.correlation_id else ()
        if self.project_id is not None:
            return (READ_PROJECT_CORRELATION if correlation else READ_PROJECT), (
                self.project_id,
                *correlation,
            )
        if self.tenant_id is not None:
            return (READ_TENANT_CORRELATION if correlation else READ_TENANT), (self.tenant_id, *correlation)
        return (READ_CORRELATION, correlation) if correlation else (READ_ALL, ())

    def takes(self, event: Event) -> bool:
        """Whether the event is one of them."""
        return (
            (self.project_id is None or event.project_id == self.project_id)
            and (self.tenant_id is None or event.tenant_id == self.tenant_id)
            and (self.correlation_id is None or event.correlation_id == self.correlation_id)
        )


async def read(database: Database, acting: Acting, selection: Selection, after: Position, limit: int) -> list[Event]:
    """The next events after a place, in order."""
    statement, further = selection.statement()
    return [event_of(row) for row in await database.fetch(acting, statement, *after, limit, *further)]


async def head(database: Database) -> Position:
    """The newest place that may be relied on."""
    row = await database.fetchrow(PLATFORM, HEAD)
    return BEGINNING if row is None else Position(*row)


async def unsettled(database: Database) -> bool:
    """Whether there are committed events that a transaction still open keeps back."""
    return bool(await database.fetchval(PLATFORM, UNSETTLED))


async def forgotten(database: Database) -> Position:
    """The place up to which events were deleted by retention."""
    row = await database.fetchrow(PLATFORM, FORGOTTEN)
    return BEGINNING if row is None else Position(*row)


def event_of(row: asyncpg.Record) -> Event:
    """The event of a row with the columns above."""
    epoch, tx, seq, *rest = row
    return Event(Position(epoch, tx, seq), *rest)
