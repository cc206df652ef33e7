"""Reads projects, and counts what a project still contains."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from mooring.core.identity.project import Project, ProjectContents
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = "id, tenant_id, slug, display_name, revision, created_at, deleted_at"
FIND: Final = f"SELECT {_COLUMNS} FROM project WHERE id = $1 AND deleted_at IS NULL"
WAS_THERE: Final = "SELECT EXISTS (SELECT FROM project WHERE id = $1)"
HOME: Final = "SELECT tenant_id FROM project WHERE id = $1 AND (deleted_at IS NULL OR $2)"
LIST: Final = f"""
SELECT {_COLUMNS} FROM project WHERE tenant_id = $1 AND deleted_at IS NULL AND id > $2 ORDER BY id LIMIT $3"""
LIST_SOME: Final = f"""
SELECT {_COLUMNS} FROM project WHERE id = ANY ($1::text[]) AND deleted_at IS NULL AND id > $2 ORDER BY id LIMIT $3"""
CONTENTS: Final = """
SELECT (SELECT count(*) FROM service_account WHERE project_id = $1 AND status <> 'deleted') AS service_account,
       (SELECT count(*) FROM project_secret WHERE project_id = $1) AS project_secret,
       (SELECT count(*) FROM webhook WHERE project_id = $1) AS webhook,
       (SELECT count(*) FROM artifact WHERE project_id = $1 AND promotion <> 'retired') AS artifact,
       (SELECT count(*) FROM allocation WHERE project_id = $1 AND status <> 'released') AS allocation,
       (SELECT count(*) FROM instance WHERE project_id = $1 AND status <> 'stopped') AS instance,
       (SELECT count(*) FROM attachment WHERE project_id = $1 AND status NOT IN ('detached', 'refused'))
         AS attachment"""


async def find(database: Database, acting: Acting, project_id: str) -> Project | None:
    """One project; None when there is none, or when it is deleted."""
    row = await database.fetchrow(acting, FIND, project_id)
    return None if row is None else project_of(row)


async def was_there(database: Database, acting: Acting, project_id: str) -> bool:
    """Whether the project exists, or existed until it was deleted."""
    return bool(await database.fetchval(acting, WAS_THERE, project_id))


async def home_of(database: Database, project_id: str, *, deleted_too: bool = False) -> str | None:
    """The tenant id of a project, read as the platform, because the tenant to act for is not known yet."""
    tenant_id: str | None = await database.fetchval(PLATFORM, HOME, project_id, deleted_too)
    return tenant_id


async def page(database: Database, acting: Acting, window: PageWindow) -> list[Project]:
    return [project_of(row) for row in await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)]


async def page_of(database: Database, acting: Acting, project_ids: Sequence[str], window: PageWindow) -> list[Project]:
    """A page of the projects with these ids."""
    rows = await database.fetch(acting, LIST_SOME, list(project_ids), window.after, window.limit)
    return [project_of(row) for row in rows]


async def contents(database: Database, acting: Acting, project_id: str) -> ProjectContents:
    """How many resources a project still contains, by noun."""
    row = await database.fetchrow(acting, CONTENTS, project_id)
    return ProjectContents(tuple(row.items()) if row is not None else ())


def project_of(row: asyncpg.Record) -> Project:
    return Project(*row)
