"""Reads versions, with the artifacts, checks and holds that their promotion depends on.

Several owners may register the same digest. A version uses an artifact that everybody who sees its app may use; of
those, the most widely promoted one is read. An artifact of a single project is read only when there is no other, so
that the refusal can name it. A revocation is about the bytes: where one of them is revoked, that one is read.
"""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_promotion import Hold
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow


def columns_of(kind: type, alias: str) -> str:
    """The columns that are named like the fields of a dataclass."""
    return ", ".join(f"{alias}.{each.name}" for each in fields(kind))


COLUMNS: Final = columns_of(AppVersion, "v")
_HERE: Final = "v.tenant_id IS NOT DISTINCT FROM $1 AND v.app_id = $2"
FIND: Final = f"SELECT {COLUMNS} FROM app_version v WHERE {_HERE} AND v.id = $3"
LIST: Final = f"SELECT {COLUMNS} FROM app_version v WHERE {_HERE} AND v.id > $3 ORDER BY v.id LIMIT $4"
ARTIFACTS: Final = f"""
SELECT DISTINCT ON (a.digest) {columns_of(Artifact, "a")}
  FROM artifact a
 WHERE a.digest = ANY ($1::text[]) AND (a.tenant_id IS NULL OR a.tenant_id = $2)
 ORDER BY a.digest,
       (a.trust = 'revoked' AND (a.project_id IS NULL OR a.project_id = $3)) IS TRUE DESC, a.project_id IS NULL DESC,
       array_position(ARRAY['active', 'canary', 'staged', 'deprecated', 'draft', 'retired'], a.promotion),
       array_position(ARRAY['verified', 'unverified', 'rejected', 'revoked'], a.trust), a.id"""
HOLDS: Final = """
SELECT h.digest, h.holder_noun, h.holder_id, h.version_id FROM artifact_hold h WHERE h.version_id = $1
 ORDER BY h.id LIMIT 100"""
SMOKED: Final = """
SELECT DISTINCT ON (c.artifact_id) c.artifact_id, c.passed FROM artifact_check c
 WHERE c.artifact_id = ANY ($1::text[]) AND c.name = 'smoke' AND c.status IN ('succeeded', 'failed')
 ORDER BY c.artifact_id, c.id DESC"""
HISTORY: Final = """
SELECT DISTINCT ON (t.generation) t.generation, t.source, t.trigger, t.target, t.occurred_at, t.correlation_id,
       d.actor_kind, d.actor_id, d.reason
  FROM transition t
  LEFT JOIN audit d ON d.correlation_id = t.correlation_id AND d.subject_id = t.subject_id AND d.outcome = 'done'
                   AND d.occurred_at = t.occurred_at AND d.action IN ('app_version.create', 'app_version.promote')
 WHERE t.machine = 'promotion' AND t.subject_id = $1 ORDER BY t.generation"""


@dataclass(frozen=True, slots=True)
class VersionTransition:
    """One transition of a version, and who made it and why."""

    generation: int
    source: str
    trigger: str
    target: str
    occurred_at: datetime
    correlation_id: str
    actor_kind: str | None
    actor_id: str | None
    reason: str | None


async def find(database: Database, acting: Acting, app_id: str, version_id: str) -> AppVersion | None:
    """One version of an app of exactly this place."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, app_id, version_id)
    return None if row is None else version_of(row)


async def page(database: Database, acting: Acting, app_id: str, window: PageWindow) -> list[AppVersion]:
    """The versions of an app of exactly this place, in the order of their publication."""
    rows = await database.fetch(acting, LIST, acting.tenant_id, app_id, window.after, window.limit)
    return [version_of(row) for row in rows]


async def artifacts(
    database: Database, acting: Acting, digests: list[str], tenant_id: str | None, project_id: str | None = None
) -> dict[str, Artifact]:
    """The artifacts with these digests that the owner of a version sees, by digest; a revoked one where there is one.

    A project that uses the version also counts what it revoked itself.
    """
    rows = await database.fetch(acting, ARTIFACTS, digests, tenant_id, project_id)
    return {row["digest"]: Artifact(**row) for row in rows}


async def holds(database: Database, acting: Acting, version_id: str) -> list[Hold]:
    """The holds that use digests through this version."""
    return [Hold(*row) for row in await database.fetch(acting, HOLDS, version_id)]


async def smoked(database: Database, acting: Acting, artifact_ids: list[str]) -> dict[str, bool]:
    """Whether the last smoke check of each of these artifacts passed; artifacts without one are missing."""
    return {row["artifact_id"]: row["passed"] for row in await database.fetch(acting, SMOKED, artifact_ids)}


async def history(database: Database, acting: Acting, version_id: str) -> list[VersionTransition]:
    """Every transition of a version, oldest first."""
    return [VersionTransition(*row) for row in await database.fetch(acting, HISTORY, version_id)]


def version_of(row: asyncpg.Record) -> AppVersion:
    return AppVersion(**row)
