"""Reads runtime secrets, without their values."""

from typing import Final

from mooring.core.fleet.runtime_secret import RuntimeSecret
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = ", ".join(f"s.{name}" for name in RuntimeSecret.__slots__)
OF_OWNER: Final = f"""
SELECT {_COLUMNS} FROM runtime_secret s
 WHERE s.project_id = $1 AND coalesce(s.instance_id, s.allocation_id) = $2 AND s.destroyed_at IS NULL ORDER BY s.id"""
LIST: Final = f"""
SELECT {_COLUMNS} FROM runtime_secret s
 WHERE s.project_id = $1 AND s.instance_id = $2 AND s.destroyed_at IS NULL AND s.id > $3 ORDER BY s.id LIMIT $4"""
FIND: Final = f"SELECT {_COLUMNS} FROM runtime_secret s WHERE s.project_id = $1 AND s.id = $2"


async def of_owner(database: Database, acting: Acting, project_id: str, owner_id: str) -> list[RuntimeSecret]:
    """The secrets of an instance or an allocation, without the destroyed ones."""
    return [RuntimeSecret(*row) for row in await database.fetch(acting, OF_OWNER, project_id, owner_id)]


async def page(
    database: Database, acting: Acting, project_id: str, instance_id: str, window: PageWindow
) -> list[RuntimeSecret]:
    """A page of the secrets of an instance, without the destroyed ones."""
    rows = await database.fetch(acting, LIST, project_id, instance_id, window.after, window.limit)
    return [RuntimeSecret(*row) for row in rows]


async def find(database: Database, acting: Acting, project_id: str, secret_id: str) -> RuntimeSecret | None:
    """One secret of a project; a destroyed one is found too."""
    row = await database.fetchrow(acting, FIND, project_id, secret_id)
    return None if row is None else RuntimeSecret(*row)
