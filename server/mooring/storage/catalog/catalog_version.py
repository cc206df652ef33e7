"""Reads the versions of an app as a project sees them: those that are or were offered, and those that it runs."""

from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.catalog.app_version import AppVersion
from mooring.storage.catalog.app_version import COLUMNS
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_USED: Final = """
  FROM app_version v
 CROSS JOIN LATERAL (SELECT count(*)::int AS instances FROM instance i
                      WHERE i.project_id = $1 AND i.version_id = v.id AND i.status <> 'stopped') used
 WHERE v.app_id = $2 AND (v.promotion IN ('canary', 'active', 'deprecated') OR used.instances > 0)"""
FIND: Final = f"SELECT {COLUMNS}, used.instances {_USED} AND v.id = $3"
LIST: Final = f"SELECT {COLUMNS}, used.instances {_USED} AND v.id > $3 ORDER BY v.id LIMIT $4"


@dataclass(frozen=True, slots=True)
class CatalogVersionRow:
    """A version, and how many instances of the project that are not stopped run it."""

    version: AppVersion
    instances: int

    @property
    def id(self) -> str:
        return self.version.id


async def find(
    database: Database, acting: Acting, project_id: str, app_id: str, version_id: str
) -> CatalogVersionRow | None:
    row = await database.fetchrow(acting, FIND, project_id, app_id, version_id)
    return None if row is None else _row(row)


async def page(
    database: Database, acting: Acting, project_id: str, app_id: str, window: PageWindow
) -> list[CatalogVersionRow]:
    """In the order of their publication."""
    rows = await database.fetch(acting, LIST, project_id, app_id, window.after, window.limit)
    return [_row(row) for row in rows]


def _row(row: asyncpg.Record) -> CatalogVersionRow:
    columns = dict(row)
    instances = columns.pop("instances")
    return CatalogVersionRow(AppVersion(**columns), instances)
