"""Reads entitlements, and the actions that the newest offered version of an app requires."""

from typing import Final

import asyncpg

from mooring.core.catalog.entitlement import Entitlement
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = """e.id, e.tenant_id, e.project_id, e.app_id, e.app_slug, e.enabled, e.versions, e.rules,
       e.agreed_actions, e.revision, e.created_at, e.updated_at, e.service_account_id"""
FIND: Final = f"SELECT {COLUMNS} FROM entitlement e WHERE e.project_id = $1 AND e.id = $2"
LIST: Final = f"SELECT {COLUMNS} FROM entitlement e WHERE e.project_id = $1 AND e.id > $2 ORDER BY e.id LIMIT $3"
OF_APPS: Final = f"SELECT {COLUMNS} FROM entitlement e WHERE e.project_id = $1 AND e.app_id = ANY ($2::text[])"
REQUIRED: Final = """
SELECT DISTINCT ON (v.app_id) v.app_id, coalesce(v.manifest -> 'required_actions', '[]'::jsonb) AS required,
       v.manifest ->> 'artifact_kind' AS kind
  FROM app_version v
 WHERE v.app_id = ANY ($1::text[]) AND v.promotion IN ('canary', 'active')
 ORDER BY v.app_id, v.version_order DESC"""


async def find(database: Database, acting: Acting, project_id: str, entitlement_id: str) -> Entitlement | None:
    row = await database.fetchrow(acting, FIND, project_id, entitlement_id)
    return None if row is None else entitlement_of(row)


async def page(database: Database, acting: Acting, project_id: str, window: PageWindow) -> list[Entitlement]:
    return [entitlement_of(row) for row in await database.fetch(acting, LIST, project_id, window.after, window.limit)]


async def of_apps(database: Database, acting: Acting, project_id: str, app_ids: list[str]) -> dict[str, Entitlement]:
    """The entitlements of this project to these apps, by app id."""
    rows = await database.fetch(acting, OF_APPS, project_id, app_ids)
    return {row["app_id"]: entitlement_of(row) for row in rows}


async def required_actions(database: Database, acting: Acting, app_ids: list[str]) -> dict[str, list[str]]:
    """The action keys that the newest offered version of each app requires, by app id."""
    return {row["app_id"]: row["required"] for row in await database.fetch(acting, REQUIRED, app_ids)}


async def offered_kind(database: Database, acting: Acting, app_id: str) -> str | None:
    """The kind of the newest offered version of an app; None without one."""
    row = await database.fetchrow(acting, REQUIRED, [app_id])
    return None if row is None else row["kind"]


def entitlement_of(row: asyncpg.Record) -> Entitlement:
    return Entitlement(*row)
