"""Tasks: found, listed, and looked at by those who move them.

How tasks are claimed stands in `storage/fleet/task_claim.py`, what an agent reports of them in
`storage/fleet/task_report.py`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mooring.core.fleet.task import Task
from mooring.core.fleet.task_transitions import AWAITED, AWAITED_FOR
from mooring.storage.kernel.database import PLATFORM, Acting, Database

NAMES: Final = tuple(Task.__slots__)
COLUMNS: Final = ", ".join(f"t.{name}" for name in NAMES)
FIND: Final = f"SELECT {COLUMNS} FROM task t WHERE t.project_id = $1 AND t.id = $2"
OF_OPERATION: Final = f"SELECT {COLUMNS} FROM task t WHERE t.operation_id = $1 AND t.step = $2"
OF_ALLOCATION: Final = f"""
SELECT {COLUMNS} FROM task t WHERE t.allocation_id = $1 AND t.step = $2 AND t.operation_id IS NULL"""
MANY_OF_OPERATION: Final = f"""
SELECT {COLUMNS} FROM unnest($2::text[]) named (step)
  JOIN task t ON t.operation_id = $1 AND t.step = named.step"""
MANY_OF_ALLOCATIONS: Final = f"""
SELECT {COLUMNS} FROM unnest($1::text[], $2::text[]) named (allocation_id, step)
  JOIN task t ON t.allocation_id = named.allocation_id AND t.step = named.step AND t.operation_id IS NULL"""
PAGE: Final = f"""
SELECT {COLUMNS} FROM task t
 WHERE t.project_id = $1 AND t.id < $2 AND ($4::text IS NULL OR t.status = $4)
   AND ($5::text IS NULL OR t.allocation_id = $5) AND ($6::text IS NULL OR t.instance_id = $6)
   AND NOT (t.type = 'log.read' AND t.maker = 'system')
 ORDER BY t.id DESC LIMIT $3"""
PAGE_OF_NODE: Final = f"""
SELECT {COLUMNS} FROM task t
 WHERE t.node_id = $1 AND t.id < $2 AND ($4::text IS NULL OR t.status = $4) ORDER BY t.id DESC LIMIT $3"""
FORSAKEN: Final = f"""
SELECT {COLUMNS} FROM task t WHERE t.node_id = $1 AND t.status = 'claimed' AND t.id <> ALL ($2::text[]) LIMIT $3"""
LAPSED: Final = f"""
(SELECT {COLUMNS} FROM task t WHERE t.status = 'claimed' AND t.lease_expires_at < $1
  ORDER BY t.lease_expires_at LIMIT $2)
UNION
(SELECT {COLUMNS} FROM task t WHERE t.status IN ('queued', 'claimed', 'cancelling') AND t.expires_at < $1
  ORDER BY t.expires_at LIMIT $2)
UNION
(SELECT {COLUMNS} FROM task t
  WHERE t.status = 'queued' AND t.type = ANY ($3::text[]) AND t.first_claimed_at IS NULL AND t.created_at < $4
  LIMIT $2)"""


async def find(database: Database, acting: Acting, project_id: str, task_id: str) -> Task | None:
    """One task of a project."""
    row = await database.fetchrow(acting, FIND, project_id, task_id)
    return None if row is None else Task(*row)


async def find_named(
    database: Database, acting: Acting, operation_id: str | None, allocation_id: str, step: str
) -> Task | None:
    """The task of this name, if it was made: by (operation, step), or without an operation by (allocation, step)."""
    statement, first = (OF_ALLOCATION, allocation_id) if operation_id is None else (OF_OPERATION, operation_id)
    row = await database.fetchrow(acting, statement, first, step)
    return None if row is None else Task(*row)


async def find_all_named(
    database: Database, acting: Acting, operation_id: str | None, names: Sequence[tuple[str, str]]
) -> list[Task]:
    """Those tasks of these names that were made; each name is an allocation and a step."""
    steps = [step for _, step in names]
    if operation_id is not None:
        return [Task(*row) for row in await database.fetch(acting, MANY_OF_OPERATION, operation_id, steps)]
    places = [allocation_id for allocation_id, _ in names]
    return [Task(*row) for row in await database.fetch(acting, MANY_OF_ALLOCATIONS, places, steps)]


async def page(
    database: Database,
    acting: Acting,
    project_id: str,
    place: tuple[str, int],
    wanted: tuple[str | None, str | None, str | None] = (None, None, None),
) -> list[Task]:
    """The next older tasks of a project; `wanted` is a status, an allocation and an instance, each optional."""
    return [Task(*row) for row in await database.fetch(acting, PAGE, project_id, *place, *wanted)]


async def page_of_node(database: Database, node_id: str, place: tuple[str, int], status: str | None) -> list[Task]:
    """The next older tasks of a node, whoever's they are."""
    return [Task(*row) for row in await database.fetch(PLATFORM, PAGE_OF_NODE, node_id, *place, status)]


async def forsaken(database: Database, node_id: str, held: Sequence[str], limit: int) -> Sequence[Task]:
    """Tasks that a node claimed and does not hold."""
    return [Task(*row) for row in await database.fetch(PLATFORM, FORSAKEN, node_id, list(held), limit)]


async def lapsed(database: Database, now: datetime, limit: int) -> Sequence[Task]:
    """Tasks whose lease is lost, or whose time is over, or that nobody came for in time."""
    rows = await database.fetch(PLATFORM, LAPSED, now, limit, sorted(AWAITED), now - AWAITED_FOR)
    return [Task(*row) for row in rows]
