"""Reads tenants. The platform sees all of them, a tenant only itself."""

from typing import Final

import asyncpg

from mooring.core.identity.tenant import Tenant
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = "id, slug, display_name, revision, created_at, source_networks"
FIND: Final = f"SELECT {_COLUMNS} FROM tenant WHERE id = $1"
BY_SLUG: Final = f"SELECT {_COLUMNS} FROM tenant WHERE slug = $1"
LIST: Final = f"SELECT {_COLUMNS} FROM tenant WHERE id > $1 ORDER BY id LIMIT $2"


async def find(database: Database, acting: Acting, tenant_id: str) -> Tenant | None:
    row = await database.fetchrow(acting, FIND, tenant_id)
    return None if row is None else tenant_of(row)


async def by_slug(database: Database, slug: str) -> Tenant | None:
    """The tenant whom a sign-in names, read as the platform because nobody is authenticated yet."""
    row = await database.fetchrow(PLATFORM, BY_SLUG, slug)
    return None if row is None else tenant_of(row)


async def page(database: Database, acting: Acting, window: PageWindow) -> list[Tenant]:
    return [tenant_of(row) for row in await database.fetch(acting, LIST, window.after, window.limit)]


def tenant_of(row: asyncpg.Record) -> Tenant:
    fields = dict(row)
    return Tenant(**fields | {"source_networks": tuple(fields["source_networks"])})
