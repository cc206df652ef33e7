"""Reads apps: those of exactly one place, and those that a tenant sees."""

from typing import Final

import asyncpg

from mooring.core.catalog.app import App
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = """a.id, a.tenant_id, a.slug, a.display_name, a.category, a.description, a.icon, a.revision,
       a.created_at, a.adapter_key, a.adapter_keys_before"""
_HERE: Final = "a.tenant_id IS NOT DISTINCT FROM $1"
FIND: Final = f"SELECT {COLUMNS} FROM app a WHERE {_HERE} AND a.id = $2"
FIND_IN_SIGHT: Final = f"SELECT {COLUMNS} FROM app a WHERE (a.tenant_id IS NULL OR a.tenant_id = $1) AND a.id = $2"
LIST: Final = f"SELECT {COLUMNS} FROM app a WHERE {_HERE} AND a.id > $2 ORDER BY a.id LIMIT $3"


async def find(database: Database, acting: Acting, app_id: str) -> App | None:
    """One app of exactly this place."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, app_id)
    return None if row is None else app_of(row)


async def find_in_sight(database: Database, acting: Acting, app_id: str) -> App | None:
    """One app that the tenant sees: its own, or the platform's."""
    row = await database.fetchrow(acting, FIND_IN_SIGHT, acting.tenant_id, app_id)
    return None if row is None else app_of(row)


async def page(database: Database, acting: Acting, window: PageWindow) -> list[App]:
    """The apps of exactly this place."""
    return [app_of(row) for row in await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)]


def app_of(row: asyncpg.Record) -> App:
    return App(*row)
