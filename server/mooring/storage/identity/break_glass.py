"""Reads break-glass entries. The platform sees all of them, a tenant only its own."""

from typing import Final

import asyncpg

from mooring.core.identity.break_glass import BreakGlass
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = "id, tenant_id, user_id, role, reason, expires_at, created_at"
LIST: Final = f"""
SELECT {_COLUMNS} FROM break_glass WHERE ($1::text IS NULL OR tenant_id = $1) AND id > $2 ORDER BY id LIMIT $3"""


async def page(database: Database, acting: Acting, window: PageWindow) -> list[BreakGlass]:
    rows = await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)
    return [entry_of(row) for row in rows]


def entry_of(row: asyncpg.Record) -> BreakGlass:
    return BreakGlass(*row)
