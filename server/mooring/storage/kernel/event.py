"""Reads the event stream, in the order (epoch, tx, seq), and only up to the settled horizon.

A transaction that is still open may have a lower transaction id than one that is already committed. A reader that
passed it would miss its events for ever. So a read stops at the oldest open transaction: `tx < xmin` of the reader's
snapshot. Events of an earlier epoch, from before a restore into a new cluster, are all settled.
"""

from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.kernel.event import BEGINNING, Event, StreamPosition
from mooring.storage.kernel.database import PLATFORM, Acting, Database

EVENT_COLUMNS: Final = """e.epoch, e.tx, e.seq, e.id, e.type, e.noun, e.subject_id, e.generation, e.tenant_id,
       e.project_id, e.app_slug, e.app_instance_id, e.actor_kind, e.actor_id, e.correlation_id, e.trace_id,
       e.occurred_at, e.data"""
SETTLED: Final = """(e.tx < (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint
        OR e.epoch < (SELECT current FROM event_epoch))"""
_SEEN: Final = f"(e.epoch, e.tx, e.seq) > ($1, $2, $3) AND {SETTLED}"
_ORDER: Final = "ORDER BY e.epoch, e.tx, e.seq LIMIT $4"
_NEWEST: Final = "ORDER BY e.epoch DESC, e.tx DESC, e.seq DESC LIMIT $4"

_WHOSE: Final = {"all": "", "tenant": "e.tenant_id", "project": "e.project_id"}
_WHICH: Final = ("e.correlation_id", "e.app_instance_id")


def _statement(*equal: str, order: str) -> str:
    """A read of the events whose `equal` columns have the values from $5 on."""
    wanted = "".join(f" AND {column} = ${number}" for number, column in enumerate(equal, 5))
    return f"SELECT {EVENT_COLUMNS} FROM event e WHERE {_SEEN}{wanted} {order}"


READS: Final = {
    (order, columns): _statement(*columns, order=order)
    for order in (_ORDER, _NEWEST)
    for whose in _WHOSE.values()
    for columns in (tuple(filter(None, (whose, *which))) for which in ((), (_WHICH[0],), (_WHICH[1],), _WHICH))
}
"""Every read, by its order and the columns that it compares.

One statement with optional conditions would not use the indexes.
"""
HEAD: Final = f"""
SELECT e.epoch, e.tx, e.seq FROM event e
 WHERE {SETTLED}
 ORDER BY e.epoch DESC, e.tx DESC, e.seq DESC LIMIT 1"""
UNSETTLED: Final = """
SELECT EXISTS (SELECT FROM event e JOIN event_epoch p ON e.epoch = p.current
                WHERE e.tx >= (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint)"""
FORGOTTEN: Final = "SELECT epoch, tx, seq FROM event_horizon"


@dataclass(frozen=True, slots=True)
class EventSelection:
    """Which events to read: a project's, a tenant's, or all; optionally only of one correlation or instance."""

    tenant_id: str | None = None
    project_id: str | None = None
    correlation_id: str | None = None
    app_instance_id: str | None = None

    def statement(self, order: str = _ORDER) -> tuple[str, tuple[str, ...]]:
        """The SQL that selects these events, and its additional arguments."""
        whose = ("e.project_id", self.project_id) if self.project_id is not None else ("e.tenant_id", self.tenant_id)
        compared = (whose, (_WHICH[0], self.correlation_id), (_WHICH[1], self.app_instance_id))
        given = [(column, value) for column, value in compared if value is not None]
        return READS[order, tuple(column for column, _ in given)], tuple(value for _, value in given)

    def matches(self, event: Event) -> bool:
        return (
            (self.project_id is None or event.project_id == self.project_id)
            and (self.tenant_id is None or event.tenant_id == self.tenant_id)
            and (self.correlation_id is None or event.correlation_id == self.correlation_id)
            and (self.app_instance_id is None or event.app_instance_id == self.app_instance_id)
        )


async def read(
    database: Database, acting: Acting, selection: EventSelection, after: StreamPosition, limit: int
) -> list[Event]:
    """The next events after a position, in order."""
    statement, further = selection.statement()
    return [event_of(row) for row in await database.fetch(acting, statement, *after, limit, *further)]


async def newest(database: Database, acting: Acting, selection: EventSelection, limit: int) -> list[Event]:
    """The last events that are settled, in order."""
    statement, further = selection.statement(_NEWEST)
    rows = await database.fetch(acting, statement, *BEGINNING, limit, *further)
    return [event_of(row) for row in reversed(rows)]


async def head(database: Database) -> StreamPosition:
    """The newest settled position: no event can appear before it any more."""
    row = await database.fetchrow(PLATFORM, HEAD)
    return BEGINNING if row is None else StreamPosition(*row)


async def unsettled(database: Database) -> bool:
    """Whether an open transaction holds back events that are already committed."""
    return bool(await database.fetchval(PLATFORM, UNSETTLED))


async def forgotten(database: Database) -> StreamPosition:
    """The position up to which retention has deleted the events."""
    row = await database.fetchrow(PLATFORM, FORGOTTEN)
    return BEGINNING if row is None else StreamPosition(*row)


def event_of(row: asyncpg.Record) -> Event:
    epoch, tx, seq, *rest = row
    return Event(StreamPosition(epoch, tx, seq), *rest)
