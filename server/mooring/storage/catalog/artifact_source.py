"""Reads allowed sources: those of one place, and those that apply there together with the platform's."""

from typing import Final

import asyncpg

from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = ", ".join(f"s.{name}" for name in ArtifactSource.__slots__)
_SEEN: Final = "(s.tenant_id IS NULL OR s.tenant_id = $1)"
FIND: Final = f"SELECT {_COLUMNS} FROM artifact_source s WHERE s.tenant_id IS NOT DISTINCT FROM $1 AND s.id = $2"
LIST: Final = f"SELECT {_COLUMNS} FROM artifact_source s WHERE {_SEEN} AND s.id > $2 ORDER BY s.id LIMIT $3"
COUNT: Final = "SELECT count(*) FROM artifact_source s WHERE s.tenant_id IS NOT DISTINCT FROM $1"


async def find(database: Database, acting: Acting, source_id: str) -> ArtifactSource | None:
    """One source of this place's own list."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, source_id)
    return None if row is None else source_of(row)


async def page(database: Database, acting: Acting, window: PageWindow) -> list[ArtifactSource]:
    """The sources that apply in this place: the platform's and the tenant's own."""
    return [source_of(row) for row in await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)]


async def count(database: Database, acting: Acting) -> int:
    return int(await database.fetchval(acting, COUNT, acting.tenant_id))


def source_of(row: asyncpg.Record) -> ArtifactSource:
    return ArtifactSource(*row)
