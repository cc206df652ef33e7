"""Reads tasks: one by id or name, lists, and those that a worker has to change.

Claiming is in `storage/fleet/task_claim.py`, the reports of agents in `storage/fleet/task_report.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mooring.core.fleet.task import Task
from mooring.core.fleet.task_transitions import AWAITED, AWAITED_FOR
from mooring.core.kernel.sealed_document import SEALED, TASK_ARGUMENTS
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.kernel.sealed_document import open_document

NAMES: Final = tuple(Task.__slots__)
_ARGUMENTS: Final = NAMES.index("arguments")
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
ABANDONED: Final = f"""
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
    row = await database.fetchrow(acting, FIND, project_id, task_id)
    return None if row is None else task_of(row)


async def count_open(database: Database, acting: Acting, project_id: str, limit: int) -> int:
    """How many tasks of a project are open, at most `limit`; those that begin and end its allocations do not count."""
    return int(await database.fetchval(acting, COUNT_OPEN, project_id, limit))


async def find_named(
    database: Database, acting: Acting, operation_id: str | None, allocation_id: str, step: str
) -> Task | None:
    """The task of this name, or None: by (operation, step), or without an operation by (allocation, step)."""
    statement, first = (OF_ALLOCATION, allocation_id) if operation_id is None else (OF_OPERATION, operation_id)
    row = await database.fetchrow(acting, statement, first, step)
    return None if row is None else task_of(row)


async def find_all_named(
    database: Database, acting: Acting, operation_id: str | None, names: Sequence[tuple[str, str]]
) -> list[Task]:
    """The tasks of these names that exist; each name is an allocation and a step."""
    steps = [step for _, step in names]
    if operation_id is not None:
        return [task_of(row) for row in await database.fetch(acting, MANY_OF_OPERATION, operation_id, steps)]
    allocation_ids = [allocation_id for allocation_id, _ in names]
    return [task_of(row) for row in await database.fetch(acting, MANY_OF_ALLOCATIONS, allocation_ids, steps)]


COUNT_OPEN: Final = """
SELECT count(*) FROM (
  SELECT FROM task t WHERE t.project_id = $1 AND t.status IN ('queued', 'claimed', 'cancelling')
     AND t.type NOT IN ('sandbox.create', 'sandbox.destroy', 'teardown.verify') LIMIT $2) open_tasks"""


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks of a project a list shows."""

    status: str | None = None
    allocation_id: str | None = None
    instance_id: str | None = None


async def page(
    database: Database, acting: Acting, project_id: str, wanted: TaskFilter, window: PageWindow
) -> list[Task]:
    """The tasks of a project, newest first."""
    filters = (wanted.status, wanted.allocation_id, wanted.instance_id)
    rows = await database.fetch(acting, PAGE, project_id, window.after, window.limit, *filters)
    return [task_of(row) for row in rows]


async def page_of_node(database: Database, node_id: str, window: PageWindow, status: str | None) -> list[Task]:
    """The tasks of a node, of all tenants, newest first."""
    rows = await database.fetch(PLATFORM, PAGE_OF_NODE, node_id, window.after, window.limit, status)
    return [task_of(row) for row in rows]


async def abandoned(database: Database, node_id: str, held: Sequence[str], limit: int) -> Sequence[Task]:
    """Tasks that a node has claimed and that are not in `held`."""
    return [task_of(row) for row in await database.fetch(PLATFORM, ABANDONED, node_id, list(held), limit)]


async def lapsed(database: Database, now: datetime, limit: int) -> Sequence[Task]:
    """Tasks that lost their lease, are past their deadline, or were not claimed in time by anyone."""
    rows = await database.fetch(PLATFORM, LAPSED, now, limit, sorted(AWAITED), now - AWAITED_FOR)
    return [task_of(row) for row in rows]


def task_of(row: Iterable[Any]) -> Task:
    """The task in a row of COLUMNS, with its arguments opened."""
    values = list(row)
    if SEALED in values[_ARGUMENTS]:
        values[_ARGUMENTS] = open_document(values[_ARGUMENTS], TASK_ARGUMENTS, values[1], values[0])
    return Task(*values)
