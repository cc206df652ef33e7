"""Stores what agents report while a task runs: progress and output, each one statement guarded by the claim's fence.

How a task ended is a decision and goes through the unit of work.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from mooring.core.fleet.task import Task
from mooring.core.fleet.task_report import LogAppend
from mooring.storage.fleet.task import COLUMNS, task_of
from mooring.storage.fleet.task_claim import FencedTask
from mooring.storage.kernel.database import BROKEN, PLATFORM, Acting, Database, unavailable

OF_NODE: Final = f"""
SELECT {COLUMNS} FROM task t
 WHERE t.id = ANY ($1::text[])
   AND (t.node_id = $2 OR t.node_id = (SELECT n.previous_node_id FROM node n WHERE n.id = $2))"""
PROGRESS: Final = """
UPDATE task SET progress = $3, lease_expires_at = greatest(lease_expires_at, $4), revision = revision + 1
 WHERE id = $1 AND fence = $2 AND status IN ('claimed', 'cancelling') RETURNING true"""
APPEND: Final = """
WITH grown AS (
  UPDATE task
     SET log_bytes = log_bytes + length($4::bytea), log_truncated = log_truncated OR $5,
         lease_expires_at = greatest(lease_expires_at, $6), revision = revision + 1
   WHERE id = $1 AND fence = $2 AND log_bytes = $3 AND status IN ('claimed', 'cancelling')
  RETURNING id, tenant_id, project_id),
added AS (
  INSERT INTO task_log (task_id, "offset", tenant_id, project_id, chunk, received_at)
  SELECT g.id, $3, g.tenant_id, g.project_id, $4, $7 FROM grown g WHERE length($4) > 0)
SELECT count(*) FROM grown"""
READ_LOG: Final = """
SELECT l."offset", l.chunk FROM task_log l
 WHERE l.task_id = $1 AND l."offset" > coalesce(
         (SELECT max(f."offset") FROM task_log f WHERE f.task_id = $1 AND f."offset" <= $2), -1) - 1
 ORDER BY l."offset" LIMIT $3"""


async def of_node(database: Database, node_id: str, task_ids: Sequence[str]) -> dict[str, Task]:
    """The tasks of this node, or of the node that the machine was before, by id."""
    rows = await database.fetch(PLATFORM, OF_NODE, list(task_ids), node_id)
    return {row["id"]: task_of(row) for row in rows}


async def progress(database: Database, held: FencedTask, reported: Mapping[str, Any], leased_until: datetime) -> bool:
    """Store the progress of a task; False when its lease was lost."""
    return bool(await _write(database, PROGRESS, held.task_id, held.fence, dict(reported), leased_until))


async def append(database: Database, held: FencedTask, added: LogAppend, leased_until: datetime, now: datetime) -> bool:
    """Store more of a task's output; False when the lease was lost, or another report was faster."""
    chunk = (added.offset, added.chunk, added.truncated)
    return bool(await _write(database, APPEND, held.task_id, held.fence, *chunk, leased_until, now))


async def read_log(
    database: Database, acting: Acting, task_id: str, offset: int, chunks: int
) -> list[tuple[int, bytes]]:
    """The next chunks of a task's output, from the one that contains the offset; each with its own offset."""
    rows = await database.fetch(acting, READ_LOG, task_id, offset, chunks)
    return [(row[0], row[1]) for row in rows]


async def _write(database: Database, statement: str, *arguments: object) -> Any:
    """Write without a retry: an agent that got no answer repeats its report."""
    try:
        async with database.connection(PLATFORM) as connection:
            return await connection.fetchval(statement, *arguments)
    except BROKEN as error:
        raise unavailable("the database connection broke; report it again") from error
