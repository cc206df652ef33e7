"""Reads uploaded blobs: their bytes, and how much a tenant keeps."""

from typing import Final

from mooring.core.catalog.artifact_upload import UploadUse
from mooring.storage.kernel.database import Acting, Database

USE: Final = """
SELECT count(*), coalesce(sum(length(content)), 0)::bigint,
       count(*) FILTER (WHERE project_id IS NOT DISTINCT FROM $2),
       coalesce(sum(length(content)) FILTER (WHERE project_id IS NOT DISTINCT FROM $2), 0)::bigint
  FROM artifact_upload WHERE tenant_id = $1"""
IS_KEPT: Final = "SELECT EXISTS (SELECT FROM artifact_upload WHERE location = $1)"
CONTENT: Final = "SELECT content FROM artifact_upload WHERE location = $1"


async def use(database: Database, acting: Acting, project_id: str | None) -> UploadUse:
    """What the tenant's uploads take, and this project's part of it; None for uploads without a project."""
    row = await database.fetchrow(acting, USE, acting.tenant_id, project_id)
    return UploadUse(*row) if row is not None else UploadUse(0, 0, 0, 0)


async def is_kept(database: Database, acting: Acting, location: str) -> bool:
    return bool(await database.fetchval(acting, IS_KEPT, location))


async def content(database: Database, acting: Acting, location: str) -> bytes | None:
    """The bytes of an upload; None if it was deleted, or never there."""
    found: bytes | None = await database.fetchval(acting, CONTENT, location)
    return found
