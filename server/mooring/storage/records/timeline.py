"""Reads timelines: events and audit rows in one order, behind the horizon.

Both tables are read from the same position, each with its own index, and merged; so the cost of a page depends only on
its length. The timeline of an instance includes the events of the allocations that it requested: those events name no
instance, but have the correlation id of the operation that requested the allocation.
"""

from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.kernel.event import StreamPosition
from mooring.core.records.timeline import TimelineRow
from mooring.storage.kernel.database import Acting, Database

_HORIZON: Final = "(pg_snapshot_xmin(pg_current_snapshot())::text)::bigint"
_SETTLED: Final = f"(x.tx < {_HORIZON} OR x.epoch < (SELECT current FROM event_epoch))"
_AFTER: Final = f"(x.epoch, x.tx, x.seq) > ($1, $2, $3) AND {_SETTLED} AND x.project_id = $5"
_ORDER: Final = "ORDER BY x.epoch, x.tx, x.seq LIMIT $4"
_EVENT: Final = """SELECT x.epoch, x.tx, x.seq, x.id, x.noun AS kind, x.type, x.noun, x.subject_id, x.app_instance_id,
       x.actor_kind, x.actor_id, x.correlation_id, x.trace_id, x.occurred_at, x.data FROM event x"""
_AUDIT: Final = """SELECT x.epoch, x.tx, x.seq, x.id, 'audit' AS kind, x.action AS type, x.noun, x.subject_id,
       x.app_instance_id, x.actor_kind, x.actor_id, x.correlation_id, x.trace_id, x.occurred_at,
       jsonb_strip_nulls(jsonb_build_object('outcome', x.outcome, 'reason', x.reason, 'route', x.route,
                                            'before', x.before, 'after', x.after)) AS data FROM audit x"""
_CAPACITY: Final = """x.app_instance_id IS NULL AND x.noun IN ('allocation', 'task')
   AND x.correlation_id IN (SELECT o.correlation_id FROM operation o WHERE o.instance_id = $6
                             AND o.kind IN ('deploy', 'add', 'replace'))
   AND EXISTS (SELECT FROM member m WHERE m.instance_id = $6 AND m.owns_allocation
                AND (m.allocation_id = x.subject_id OR m.allocation_id = x.data ->> 'owner'))"""


def _merged(*parts: str) -> str:
    every = " UNION ALL ".join(f"({part} {_ORDER})" for part in parts)
    return f"SELECT x.* FROM ({every}) x {_ORDER}"


_BY_INSTANCE: Final = f"WHERE {_AFTER} AND x.app_instance_id = $6"
_BY_CORRELATION: Final = f"WHERE {_AFTER} AND x.correlation_id = $6"
_BY_BOTH: Final = f"{_BY_INSTANCE} AND x.correlation_id = $7"
OF_INSTANCE: Final = _merged(
    f"{_EVENT} {_BY_INSTANCE}", f"{_EVENT} WHERE {_AFTER} AND {_CAPACITY}", f"{_AUDIT} {_BY_INSTANCE}"
)
OF_INSTANCE_WITHOUT_AUDIT: Final = _merged(f"{_EVENT} {_BY_INSTANCE}", f"{_EVENT} WHERE {_AFTER} AND {_CAPACITY}")
OF_CORRELATION: Final = _merged(f"{_EVENT} {_BY_CORRELATION}", f"{_AUDIT} {_BY_CORRELATION}")
OF_CORRELATION_WITHOUT_AUDIT: Final = _merged(f"{_EVENT} {_BY_CORRELATION}")
OF_BOTH: Final = _merged(f"{_EVENT} {_BY_BOTH}", f"{_AUDIT} {_BY_BOTH}")
OF_BOTH_WITHOUT_AUDIT: Final = _merged(f"{_EVENT} {_BY_BOTH}")


@dataclass(frozen=True, slots=True)
class TimelineSelection:
    """Which timeline of a project: of one instance, of one correlation id, or of both."""

    project_id: str
    app_instance_id: str | None = None
    correlation_id: str | None = None
    audit: bool = True

    def statement(self) -> tuple[str, tuple[str, ...]]:
        """The statement, and its arguments after the position and the limit."""
        if self.app_instance_id is not None and self.correlation_id is not None:
            both = (self.project_id, self.app_instance_id, self.correlation_id)
            return (OF_BOTH if self.audit else OF_BOTH_WITHOUT_AUDIT), both
        if self.app_instance_id is not None:
            return (OF_INSTANCE if self.audit else OF_INSTANCE_WITHOUT_AUDIT), (self.project_id, self.app_instance_id)
        if self.correlation_id is None:
            raise ValueError("a timeline needs an instance or a correlation id")
        found = OF_CORRELATION if self.audit else OF_CORRELATION_WITHOUT_AUDIT
        return found, (self.project_id, self.correlation_id)


async def read(
    database: Database, acting: Acting, selection: TimelineSelection, after: StreamPosition, limit: int
) -> list[TimelineRow]:
    """The next entries after a position, in order."""
    statement, further = selection.statement()
    return [_entry(row) for row in await database.fetch(acting, statement, *after, limit, *further)]


def _entry(row: asyncpg.Record) -> TimelineRow:
    epoch, tx, seq, *rest = row
    return TimelineRow(StreamPosition(epoch, tx, seq), *rest)
