"""What the platform knows of a member's programs, and how many log reads are open."""

from typing import Final

from mooring.core.fleet.task import Task
from mooring.core.fleet.task_log_read import LOG_READ
from mooring.storage.fleet.task import COLUMNS, task_of
from mooring.storage.kernel.database import PLATFORM, Acting, Database

STARTS_MAX: Final = 200
INSPECTIONS_MAX: Final = 20
"""Older inspections of a member say nothing new."""

CONCERNING: Final = f"""
(SELECT {COLUMNS} FROM task t
  WHERE t.member_id = $1 AND t.type IN ('service.start', 'container.launch', 'container.remove')
  ORDER BY t.id DESC LIMIT $2)
UNION ALL
(SELECT {COLUMNS} FROM task t
  WHERE t.member_id = $1 AND t.type IN ('service.inspect', 'container.control') ORDER BY t.id DESC LIMIT $3)"""
OPEN_READS: Final = f"""
SELECT count(*) FILTER (WHERE t.owner = $2)::int, count(*) FILTER (WHERE t.project_id = $3)::int, count(*)::int
  FROM task t
 WHERE t.node_id = $1 AND t.type = '{LOG_READ}' AND t.status IN ('queued', 'claimed', 'cancelling')"""


async def concerning(database: Database, acting: Acting, member_id: str) -> list[Task]:
    """The latest tasks that started, removed or inspected a program of a member."""
    return [task_of(row) for row in await database.fetch(acting, CONCERNING, member_id, STARTS_MAX, INSPECTIONS_MAX)]


async def open_reads(database: Database, node_id: str, owner: str, project_id: str) -> tuple[int, int, int]:
    """Open log reads of this owner, of its project on the node, and of the whole node."""
    row = await database.fetchrow(PLATFORM, OPEN_READS, node_id, owner, project_id)
    return (0, 0, 0) if row is None else (row[0], row[1], row[2])
