"""Reads artifact checks, and the progress reports of their holders.

A progress report is bookkeeping: one statement that is guarded by the generation of the holder's own start, and changes
nothing when the check has another generation by now. Every change of the status is a decision and goes through the unit
of work.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.catalog.artifact_check import ArtifactCheck
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

CHECKS_READ_MAX: Final = 100
TURNS: Final = 8  # how many checks of one owner are read, so that a long queue does not block other owners

_COLUMNS: Final = """c.id, c.tenant_id, c.project_id, c.artifact_id, c.name, c.subject, c.status, c.generation,
       c.attempts, c.bytes_done, c.bytes_total, c.due_at, c.created_at, c.correlation_id, c.trace_id, c.actor_kind,
       c.actor_id, c.token_id, c.break_glass_id, c.started_at, c.progressed_at, c.lease_expires_at, c.finished_at,
       c.passed, c.detail, c.failure_code, c.failure_details, c.findings"""
FIND: Final = f"SELECT {_COLUMNS} FROM artifact_check c WHERE c.artifact_id = $1 AND c.id = $2"
FIND_BY_ID: Final = f"SELECT {_COLUMNS} FROM artifact_check c WHERE c.id = $1"
LIST: Final = f"""
SELECT {_COLUMNS} FROM artifact_check c WHERE c.artifact_id = $1 AND c.id < $2 ORDER BY c.id DESC LIMIT $3"""
NEWEST: Final = f"""
SELECT {_COLUMNS} FROM unnest($1::text[]) wanted(id)
 CROSS JOIN LATERAL (SELECT * FROM artifact_check WHERE artifact_id = wanted.id ORDER BY id DESC LIMIT 1) c"""
LAST: Final = f"""
SELECT {_COLUMNS} FROM artifact_check c WHERE c.artifact_id = $1 AND c.name = $2 ORDER BY c.id DESC LIMIT 1"""
UNDER_WAY: Final = f"""
SELECT {_COLUMNS} FROM artifact_check c WHERE c.artifact_id = $1 AND c.status IN ('accepted', 'running')
 ORDER BY c.id"""
DUE: Final = f"""
SELECT {_COLUMNS} FROM (
  SELECT *, row_number() OVER (PARTITION BY tenant_id ORDER BY due_at, id) AS turn
    FROM artifact_check WHERE status = 'accepted' AND due_at <= $1) c
 WHERE c.turn <= {TURNS} ORDER BY c.turn, c.due_at LIMIT $2"""
COUNT_UNDER_WAY: Final = """
SELECT count(*) FROM artifact_check WHERE tenant_id IS NOT DISTINCT FROM $1 AND status IN ('accepted', 'running')"""
LOST: Final = f"""
SELECT {_COLUMNS} FROM artifact_check c WHERE c.status = 'running' AND c.lease_expires_at < $1
 ORDER BY c.lease_expires_at LIMIT $2"""
BEAT: Final = """
UPDATE artifact_check
   SET lease_expires_at = $4, progressed_at = CASE WHEN bytes_done < $3 THEN $5 ELSE progressed_at END, bytes_done = $3
 WHERE id = $1 AND generation = $2 AND status = 'running' RETURNING true"""


async def find(database: Database, acting: Acting, artifact_id: str, check_id: str) -> ArtifactCheck | None:
    row = await database.fetchrow(acting, FIND, artifact_id, check_id)
    return None if row is None else check_of(row)


async def find_by_id(database: Database, check_id: str) -> ArtifactCheck | None:
    """One check by its id, read as the platform."""
    row = await database.fetchrow(PLATFORM, FIND_BY_ID, check_id)
    return None if row is None else check_of(row)


async def page(database: Database, acting: Acting, artifact_id: str, window: PageWindow) -> list[ArtifactCheck]:
    """The checks of an artifact, newest first; `window.after` is the oldest one of the previous page."""
    return [check_of(row) for row in await database.fetch(acting, LIST, artifact_id, window.after, window.limit)]


async def newest(database: Database, acting: Acting, artifact_ids: Sequence[str]) -> dict[str, ArtifactCheck]:
    """The newest check of each of these artifacts; artifacts without one are missing."""
    rows = await database.fetch(acting, NEWEST, list(artifact_ids))
    return {row["artifact_id"]: check_of(row) for row in rows}


async def last(database: Database, acting: Acting, artifact_id: str, name: str) -> ArtifactCheck | None:
    """The newest check of this kind."""
    row = await database.fetchrow(acting, LAST, artifact_id, name)
    return None if row is None else check_of(row)


async def under_way(database: Database, acting: Acting, artifact_id: str) -> list[ArtifactCheck]:
    """The checks of an artifact that have not ended."""
    return [check_of(row) for row in await database.fetch(acting, UNDER_WAY, artifact_id)]


async def count_under_way(database: Database, acting: Acting) -> int:
    """How many checks of this owner have not ended."""
    return int(await database.fetchval(acting, COUNT_UNDER_WAY, acting.tenant_id))


async def due(database: Database, now: datetime, limit: int = CHECKS_READ_MAX) -> list[ArtifactCheck]:
    """The checks that are due to start: owners take turns, and the longest due comes first."""
    return [check_of(row) for row in await database.fetch(PLATFORM, DUE, now, limit)]


async def lost(database: Database, now: datetime, limit: int = CHECKS_READ_MAX) -> list[ArtifactCheck]:
    """The running checks whose leases have expired."""
    return [check_of(row) for row in await database.fetch(PLATFORM, LOST, now, limit)]


async def beat(database: Database, check: ArtifactCheck, bytes_done: int, now: datetime, until: datetime) -> bool:
    """Store the progress and renew the lease; False when this start no longer holds the check."""
    arguments = (check.id, check.generation, bytes_done, until, now)
    return bool(await database.fetchval(PLATFORM, BEAT, *arguments))


def check_of(row: asyncpg.Record) -> ArtifactCheck:
    return ArtifactCheck(**dict(row.items()))
