"""Reads receipts, and the end of a node's chain."""

from typing import Final

from mooring.core.fleet.receipt import Receipt, ReceiptChainLink
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = ", ".join(f"r.{name}" for name in Receipt.__slots__)
FIND: Final = f"SELECT {_COLUMNS} FROM receipt r WHERE r.project_id = $1 AND r.id = $2"
OF_TASK: Final = f"SELECT {_COLUMNS} FROM receipt r WHERE r.task_id = $1"
PAGE: Final = f"""
SELECT {_COLUMNS} FROM receipt r
 WHERE r.project_id = $1 AND r.id < $2 AND ($4::text IS NULL OR r.allocation_id = $4) ORDER BY r.id DESC LIMIT $3"""
LAST: Final = "SELECT sequence, digest FROM receipt WHERE node_id = $1 ORDER BY sequence DESC LIMIT 1"
CHAIN: Final = (
    "SELECT sequence, digest FROM receipt WHERE node_id = $1 AND sequence BETWEEN $2 AND $3 ORDER BY sequence"
)
OWN_IN_CHAIN: Final = f"""
SELECT {_COLUMNS} FROM receipt r
 WHERE r.node_id = $1 AND r.sequence BETWEEN $2 AND $3 AND r.project_id = $4 ORDER BY r.sequence"""


async def find(database: Database, acting: Acting, project_id: str, receipt_id: str) -> Receipt | None:
    row = await database.fetchrow(acting, FIND, project_id, receipt_id)
    return None if row is None else Receipt(*row)


async def of_task(database: Database, acting: Acting, task_id: str) -> Receipt | None:
    """The receipt of a task, if it has one."""
    row = await database.fetchrow(acting, OF_TASK, task_id)
    return None if row is None else Receipt(*row)


async def page(
    database: Database, acting: Acting, project_id: str, window: PageWindow, allocation_id: str | None
) -> list[Receipt]:
    """The receipts of a project, newest first."""
    rows = await database.fetch(acting, PAGE, project_id, window.after, window.limit, allocation_id)
    return [Receipt(*row) for row in rows]


async def last_link(database: Database, node_id: str) -> ReceiptChainLink | None:
    """The end of a node's chain; None before its first receipt."""
    row = await database.fetchrow(PLATFORM, LAST, node_id)
    return None if row is None else ReceiptChainLink(*row)


async def chain(database: Database, node_id: str, first: int, last: int) -> list[ReceiptChainLink]:
    """The hashes of a part of a node's chain, across all tenants."""
    return [ReceiptChainLink(*row) for row in await database.fetch(PLATFORM, CHAIN, node_id, first, last)]


async def own_in_chain(
    database: Database, acting: Acting, node_id: str, project_id: str, *, first: int, last: int
) -> list[Receipt]:
    return [Receipt(*row) for row in await database.fetch(acting, OWN_IN_CHAIN, node_id, first, last, project_id)]
