"""Reads the audit trail, newest first.

The platform's trail has what belongs to no tenant and what its people did by break-glass. A tenant's trail has
everything that happened in the tenant, break-glass included.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.records.audit import AuditRow
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = """id, occurred_at, outcome, action, noun, subject_id, tenant_id, project_id, actor_kind, actor_id,
       token_id, break_glass_id, correlation_id, trace_id, before, after, reason, route, remote_address,
       app_instance_id, count"""
_FILTER: Final = """id < $1 AND ($2::text IS NULL OR actor_id = $2) AND ($3::text IS NULL OR action = $3)
   AND ($4::text IS NULL OR outcome = $4) AND ($5::text IS NULL OR actor_kind = $5)
   AND ($6::text IS NULL OR subject_id = $6) AND ($7::timestamptz IS NULL OR occurred_at >= $7)
   AND ($8::timestamptz IS NULL OR occurred_at < $8)"""
_ORDER: Final = "ORDER BY id DESC LIMIT $9"
_OF_PLATFORM: Final = "(tenant_id IS NULL OR break_glass_id IS NOT NULL OR action = 'break_glass.open')"

LIST_PLATFORM: Final = f"SELECT {COLUMNS} FROM audit WHERE {_OF_PLATFORM} AND {_FILTER} {_ORDER}"
LIST_TENANT: Final = f"SELECT {COLUMNS} FROM audit WHERE tenant_id = $10 AND {_FILTER} {_ORDER}"
LIST_PROJECT: Final = f"SELECT {COLUMNS} FROM audit WHERE project_id = $10 AND {_FILTER} {_ORDER}"
PLATFORM_CORRELATION: Final = (
    f"SELECT {COLUMNS} FROM audit WHERE {_OF_PLATFORM} AND correlation_id = $10 AND {_FILTER} {_ORDER}"
)
TENANT_CORRELATION: Final = (
    f"SELECT {COLUMNS} FROM audit WHERE tenant_id = $10 AND correlation_id = $11 AND {_FILTER} {_ORDER}"
)
PROJECT_CORRELATION: Final = (
    f"SELECT {COLUMNS} FROM audit WHERE project_id = $10 AND correlation_id = $11 AND {_FILTER} {_ORDER}"
)
"""Filters by correlation id have their own statements: an optional condition would prevent the use of the index."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which audit rows a list shows."""

    correlation_id: str | None = None
    actor_id: str | None = None
    action: str | None = None
    outcome: str | None = None
    actor_kind: str | None = None
    subject_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def page(
    database: Database, acting: Acting, project_id: str | None, wanted: AuditFilter, window: PageWindow
) -> list[AuditRow]:
    """The audit rows of a project, a tenant or the platform, newest first."""
    common = (
        window.after,
        wanted.actor_id,
        wanted.action,
        wanted.outcome,
        wanted.actor_kind,
        wanted.subject_id,
        wanted.since,
        wanted.until,
        window.limit,
    )
    by = () if wanted.correlation_id is None else (wanted.correlation_id,)
    if project_id is not None:
        rows = await database.fetch(acting, PROJECT_CORRELATION if by else LIST_PROJECT, *common, project_id, *by)
    elif acting.tenant_id is not None:
        rows = await database.fetch(acting, TENANT_CORRELATION if by else LIST_TENANT, *common, acting.tenant_id, *by)
    else:
        rows = await database.fetch(acting, PLATFORM_CORRELATION if by else LIST_PLATFORM, *common, *by)
    return [row_of(row) for row in rows]


def row_of(row: asyncpg.Record) -> AuditRow:
    return AuditRow(*row)
