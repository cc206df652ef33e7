"""Reads the queue of late usage."""

from typing import Final

from mooring.core.money.late_usage import LateUsage
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = ", ".join(f"l.{name}" for name in LateUsage.__slots__)
FIND: Final = f"SELECT {COLUMNS} FROM late_usage l WHERE l.project_id = $1 AND l.id = $2"
LIST: Final = f"SELECT {COLUMNS} FROM late_usage l WHERE l.project_id = $1 AND l.id > $2 ORDER BY l.id LIMIT $3"
LIST_BY_STATUS: Final = f"""
SELECT {COLUMNS} FROM late_usage l
 WHERE l.project_id = $1 AND l.id > $2 AND l.status = $4 ORDER BY l.id LIMIT $3"""
OPEN: Final = "SELECT count(*) FROM late_usage l WHERE l.tenant_id = $1 AND l.status = 'open'"


async def find(reader: RowReader, acting: Acting, project_id: str, id: str) -> LateUsage | None:
    row = await reader.fetchrow(acting, FIND, project_id, id)
    return None if row is None else LateUsage(*row)


async def page(
    reader: RowReader, acting: Acting, project_id: str, window: PageWindow, status: str | None
) -> list[LateUsage]:
    place = (project_id, window.after, window.limit)
    if status is None:
        rows = await reader.fetch(acting, LIST, *place)
    else:
        rows = await reader.fetch(acting, LIST_BY_STATUS, *place, status)
    return [LateUsage(*row) for row in rows]


async def open_count(reader: RowReader, acting: Acting, tenant_id: str) -> int:
    """How many late events of the tenant wait to be resolved."""
    row = await reader.fetchrow(acting, OPEN, tenant_id)
    return 0 if row is None else int(row[0])
