"""The audit trail, newest first.

The platform's own trail holds what belongs to no tenant and what its people did by break-glass; a tenant's holds all
that happened in it, entries by break-glass included.
"""

from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.audit import AuditRow
from mooring.storage.database import Acting, Database

_COLUMNS: Final = """id, occurred_at, outcome, action, noun, subject_id, tenant_id, project_id, actor_kind, actor_id,
       token_id, break_glass_id, correlation_id, trace_id, before, after, reason, route, remote_address"""
_FILTER: Final = """id < $1 AND ($2::text IS NULL OR correlation_id = $2) AND ($3::text IS NULL OR actor_id = $3)
   AND ($4::text IS NULL OR action = $4) AND ($5::text IS NULL OR outcome = $5)"""
_ORDER: Final = "ORDER BY id DESC LIMIT $6"

LIST_PLATFORM: Final = f"""
SELECT {_COLUMNS} FROM audit WHERE (tenant_id IS NULL OR break_glass_id IS NOT NULL OR action = 'break_glass.open')
   AND {_FILTER} {_ORDER}"""
LIST_TENANT: Final = f"SELECT {_COLUMNS} FROM audit WHERE tenant_id = $7 AND {_FILTER} {_ORDER}"
LIST_PROJECT: Final = f"SELECT {_COLUMNS} FROM audit WHERE project_id = $7 AND {_FILTER} {_ORDER}"


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows are wanted."""

    correlation_id: str | None = None
    actor_id: str | None = None
    action: str | None = None
    outcome: str | None = None


async def page(
    database: Database, acting: Acting, project_id: str | None, wanted: AuditFilter, place: tuple[str, int]
) -> list[AuditRow]:
    """The next older rows of a place; `place` is the id to begin below, and how many."""
    below, limit = place
    common = (below, wanted.correlation_id, wanted.actor_id, wanted.action, wanted.outcome, limit)
    if project_id is not None:
        rows = await database.fetch(acting, LIST_PROJECT, *common, project_id)
    elif acting.tenant_id is not None:
        rows = await database.fetch(acting, LIST_TENANT, *common, acting.tenant_id)
    else:
        rows = await database.fetch(acting, LIST_PLATFORM, *common)
    return [row_of(row) for row in rows]


def row_of(row: asyncpg.Record) -> AuditRow:
    """The audit row of a row."""
    return AuditRow(*row)
