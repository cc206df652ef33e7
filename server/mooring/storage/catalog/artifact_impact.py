"""Reads whom a revocation would affect: the versions that need a digest, and the instances that hold or run it.

A tenant sees the names of what is its own. The platform sees how many there are and not whose: a platform role gives no
access to a tenant's data.
"""

from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_promotion import VersionUse
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.storage.kernel.database import Acting, Database

NAMED_MAX: Final = 1_000

RUN_DIGESTS: Final = """ARRAY(
         SELECT pinned.value FROM jsonb_each_text(i.pin -> 'artifacts') pinned
          UNION
         SELECT l.digest FROM member m JOIN app_version_artifact l ON l.version_id = m.version_id
          WHERE m.instance_id = i.id AND m.status <> 'removed' AND m.version_id <> i.version_id)"""
"""The digests that the instance `i` runs: of its own pin, and of its members' versions, which differ in the middle of
an upgrade. What it holds only for a rollback does not run."""
LIVE: Final = "('created', 'starting', 'running')"
_SEEN: Final = "($2::text IS NULL OR (h.tenant_id = $2 AND ($3::text IS NULL OR h.project_id = $3)))"
_HELD: Final = f"""FROM artifact_hold h JOIN instance i ON h.holder_noun = 'instance' AND i.id = h.holder_id
 WHERE h.digest = $1 AND {_SEEN}"""
VERSIONS: Final = """
SELECT v.id, v.app_slug, v.version, v.promotion, v.tenant_id IS NULL OR v.tenant_id = $3 AS named
  FROM app_version_artifact l JOIN app_version v ON v.id = l.version_id
 WHERE l.digest = $1 AND v.promotion <> 'retired' AND ($2::text IS NULL OR v.tenant_id = $2)
 ORDER BY v.id"""
INSTANCES: Final = f"""
SELECT i.id, i.tenant_id, i.project_id, i.status, i.name, i.app_slug, i.version
  {_HELD} GROUP BY i.id ORDER BY i.id LIMIT $4"""
MEMBERS: Final = """
SELECT m.id, m.tenant_id, m.project_id, m.instance_id, m.status, m.name, m.component_key, m.version FROM member m
 WHERE m.instance_id = ANY ($1::text[]) AND m.status <> 'removed' ORDER BY m.id LIMIT $2"""
GROUPS: Final = f"""
SELECT i.tenant_id, i.project_id, e.rules, count(*)::int,
       (count(*) FILTER (WHERE i.status IN {LIVE} AND $1 = ANY ({RUN_DIGESTS})))::int,
       coalesce(sum((SELECT count(*) FROM member m WHERE m.instance_id = i.id AND m.status <> 'removed')), 0)::int
  FROM (SELECT DISTINCT h.holder_id FROM artifact_hold h
         WHERE h.digest = $1 AND h.holder_noun = 'instance' AND {_SEEN}) held
  JOIN instance i ON i.id = held.holder_id
  LEFT JOIN entitlement e ON e.project_id = i.project_id AND e.app_id = i.app_id
 GROUP BY 1, 2, 3"""
HOLDS: Final = f"SELECT count(*)::int FROM artifact_hold h WHERE h.digest = $1 AND {_SEEN}"


@dataclass(frozen=True, slots=True)
class ImpactGroup:
    """How many instances under the same policy hold a digest, how many of them run it, and their members."""

    tenant_id: str
    project_id: str
    entitlement_rules: dict[str, Any] | None
    instances: int
    running: int
    members: int

    @property
    def place(self) -> tuple[str, str]:
        return self.tenant_id, self.project_id


@dataclass(frozen=True, slots=True)
class HeldNames:
    """The instances and members that use a digest, as far as this place may see their names."""

    instances: list[asyncpg.Record]
    members: list[asyncpg.Record]


@dataclass(frozen=True, slots=True)
class VersionUses:
    """The versions that need a digest: their number, and those whose names this place may see."""

    count: int
    named: list[VersionUse]


async def versions(database: Database, acting: Acting, artifact: Artifact) -> VersionUses:
    rows = await database.fetch(acting, VERSIONS, artifact.digest, artifact.tenant_id, acting.tenant_id)
    named = [VersionUse(row[0], row[1], row[2], PromotionState(row[3])) for row in rows if row["named"]]
    return VersionUses(len(rows), named[:NAMED_MAX])


async def groups(database: Database, acting: Acting, artifact: Artifact, project_id: str | None) -> list[ImpactGroup]:
    """The instances that hold the digest, counted by project and entitlement."""
    rows = await database.fetch(acting, GROUPS, artifact.digest, acting.tenant_id, project_id)
    return [ImpactGroup(*row) for row in rows]


async def names(database: Database, acting: Acting, artifact: Artifact, project_id: str | None) -> HeldNames:
    """The instances that hold the digest, and their members; empty for the platform, which sees only counts."""
    if acting.tenant_id is None:
        return HeldNames([], [])
    instances = await database.fetch(acting, INSTANCES, artifact.digest, acting.tenant_id, project_id, NAMED_MAX)
    members = await database.fetch(acting, MEMBERS, [row["id"] for row in instances], NAMED_MAX)
    return HeldNames(list(instances), list(members))


async def holds_count(database: Database, acting: Acting, artifact: Artifact, project_id: str | None) -> int:
    count: int = await database.fetchval(acting, HOLDS, artifact.digest, acting.tenant_id, project_id)
    return count
