"""Reads artifacts that a place sees, with their evidence and their uses.

A place sees the artifacts of the platform, of its tenant and of its own project. An artifact can only be changed in the
place that it belongs to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_evidence import ArtifactTransition
from mooring.core.catalog.artifact_hold import ArtifactHold
from mooring.core.catalog.artifact_promotion import CheckResult, Hold, VersionUse
from mooring.core.catalog.artifact_trust import Evidence, EvidenceKind, SignatureFault
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

EVIDENCE_MAX: Final = 200  # how many of the newest pieces of evidence are read for each artifact
HOLDS_MAX: Final = 1_000
HISTORY_MAX: Final = 1_000
VERSIONS_MAX: Final = 1_000

_COLUMNS: Final = """a.id, a.tenant_id, a.project_id, a.visibility, a.kind, a.source_type, a.location, a.digest,
       a.algorithm, a.size_bytes, a.media_type, a.labels, a.promotion, a.promotion_generation, a.trust,
       a.trust_generation, a.revision, a.created_at, a.deprecated_at, a.retired_at, a.superseded_by,
       a.deprecation_reason, a.rejection_reason, a.revoked_at, a.revocation_reason"""
_SEEN: Final = "(a.tenant_id IS NULL OR (a.tenant_id = $1 AND (a.project_id IS NULL OR a.project_id = $2)))"
_OWN: Final = "a.tenant_id IS NOT DISTINCT FROM $1 AND a.project_id IS NOT DISTINCT FROM $2"
FIND: Final = f"SELECT {_COLUMNS} FROM artifact a WHERE {_SEEN} AND a.id = $3"
FIND_OWN: Final = f"SELECT {_COLUMNS} FROM artifact a WHERE {_OWN} AND a.id = $3"
FIND_AT: Final = f"SELECT {_COLUMNS} FROM artifact a WHERE {_OWN} AND a.location = $3 AND a.digest = $4"
FIND_MANY: Final = f"""
SELECT {_COLUMNS} FROM artifact a WHERE {_SEEN} AND a.digest = ANY ($3::text[]) ORDER BY a.digest, a.id"""
FIND_IN_PLACES: Final = f"""
SELECT {_COLUMNS} FROM artifact a
 WHERE a.digest = ANY ($1::text[]) AND (a.tenant_id IS NULL OR a.tenant_id = ANY ($2::text[]))
   AND (a.project_id IS NULL OR a.project_id = ANY ($3::text[]))
 ORDER BY a.digest, a.id"""
LIST: Final = f"""
SELECT {_COLUMNS} FROM artifact a
 WHERE {_SEEN} AND a.id > $3 AND ($5::text IS NULL OR a.digest = $5) AND ($6::text IS NULL OR a.promotion = $6)
   AND ($7::text IS NULL OR a.kind = $7)
 ORDER BY a.id LIMIT $4"""
EVIDENCE: Final = """
SELECT e.id, e.artifact_id, e.kind, e.digest, e.observed_at, e.present, e.size_bytes, e.repository,
       e.key_fingerprint, e.fault
  FROM unnest($1::text[]) wanted(id)
 CROSS JOIN LATERAL (SELECT * FROM artifact_evidence WHERE artifact_id = wanted.id ORDER BY id DESC LIMIT $2) e
 ORDER BY e.id"""
SIGNATURES: Final = """
SELECT key_fingerprint, fault, found_in, digest, repository FROM artifact_evidence
 WHERE artifact_id = $1 AND kind = 'signature'"""
CHECKS: Final = """
SELECT name, subject, passed, detail FROM artifact_check
 WHERE artifact_id = $1 AND status IN ('succeeded', 'failed') ORDER BY id DESC LIMIT 50"""
HOLDS: Final = """
SELECT h.digest, h.holder_noun, h.holder_id, h.version_id FROM artifact_hold h
 WHERE h.digest = $1
   AND ($2::text IS NULL OR (h.tenant_id = $2 AND ($3::text IS NULL OR h.project_id = $3)))
 ORDER BY h.id LIMIT $4"""
HOLDS_OF: Final = """
SELECT id, tenant_id, project_id, digest, holder_noun, holder_id, version_id, revision, created_at
  FROM artifact_hold WHERE holder_noun = $1 AND holder_id = $2 AND ($3::text[] IS NULL OR digest = ANY ($3))
 ORDER BY id"""
VERSIONS: Final = """
SELECT v.id, v.app_slug, v.version, v.promotion
  FROM app_version_artifact l JOIN app_version v ON v.id = l.version_id
 WHERE l.digest = $1 AND ($2::text IS NULL OR v.tenant_id = $2)
   AND NOT EXISTS (
     SELECT FROM artifact o
      WHERE o.digest = $1 AND o.id <> $3 AND o.project_id IS NULL AND o.promotion = 'active'
        AND (o.tenant_id IS NULL OR o.tenant_id = v.tenant_id))
 ORDER BY v.id LIMIT $4"""
HISTORY: Final = """
SELECT t.machine, t.generation, t.source, t.trigger, t.target, t.occurred_at, t.correlation_id,
       d.actor_kind, d.actor_id, d.reason
  FROM transition t
  LEFT JOIN LATERAL (
    SELECT actor_kind, actor_id, reason FROM audit
     WHERE correlation_id = t.correlation_id AND subject_id = t.subject_id AND outcome = 'done'
       AND (action = CASE WHEN t.generation = 0 THEN 'artifact.create'
                          WHEN t.machine = 'promotion' THEN 'artifact.promote' ELSE action END)
       AND (t.generation = 0 OR after ->> t.machine = t.target)
     ORDER BY id DESC LIMIT 1) d ON true
 WHERE t.subject_id = $1 AND t.machine IN ('promotion', 'trust')
 ORDER BY t.occurred_at, t.machine, t.generation LIMIT $2"""


@dataclass(frozen=True, slots=True)
class ArtifactFilter:
    """What a list of artifacts shows; a field that is None does not filter."""

    digest: str | None = None
    promotion: str | None = None
    kind: str | None = None


async def find(database: Database, acting: Acting, project_id: str | None, artifact_id: str) -> Artifact | None:
    """One artifact that this place sees."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, project_id, artifact_id)
    return None if row is None else artifact_of(row)


async def find_own(database: Database, acting: Acting, project_id: str | None, artifact_id: str) -> Artifact | None:
    """One artifact of exactly this place."""
    row = await database.fetchrow(acting, FIND_OWN, acting.tenant_id, project_id, artifact_id)
    return None if row is None else artifact_of(row)


async def find_at(
    database: Database, acting: Acting, project_id: str | None, *, location: str, digest: str
) -> Artifact | None:
    """The artifact of exactly this place with this location and digest."""
    row = await database.fetchrow(acting, FIND_AT, acting.tenant_id, project_id, location, digest)
    return None if row is None else artifact_of(row)


async def find_many(
    database: Database, acting: Acting, digests: Sequence[str], project_id: str | None = None
) -> list[Artifact]:
    """All artifacts with these digests that this place sees; several owners may have registered the same digest."""
    rows = await database.fetch(acting, FIND_MANY, acting.tenant_id, project_id, list(digests))
    return [artifact_of(row) for row in rows]


async def find_in_places(
    database: Database,
    acting: Acting,
    digests: Sequence[str],
    *,
    tenant_ids: Sequence[str],
    project_ids: Sequence[str],
) -> list[Artifact]:
    """All artifacts with these digests that any of these places may see; `is_visible` says which of them one sees."""
    rows = await database.fetch(acting, FIND_IN_PLACES, list(digests), list(tenant_ids), list(project_ids))
    return [artifact_of(row) for row in rows]


async def page(
    database: Database,
    acting: Acting,
    project_id: str | None,
    wanted: ArtifactFilter,
    window: PageWindow,
) -> list[Artifact]:
    """The artifacts that this place sees."""
    filters = (wanted.digest, wanted.promotion, wanted.kind)
    rows = await database.fetch(acting, LIST, acting.tenant_id, project_id, window.after, window.limit, *filters)
    return [artifact_of(row) for row in rows]


async def evidence(database: Database, acting: Acting, artifact_ids: Sequence[str]) -> dict[str, list[Evidence]]:
    """The newest evidence of each of these artifacts, oldest first."""
    found: dict[str, list[Evidence]] = {each: [] for each in artifact_ids}
    for row in await database.fetch(acting, EVIDENCE, list(artifact_ids), EVIDENCE_MAX):
        fields = dict(row.items())
        fields["kind"] = EvidenceKind(fields["kind"])
        fields["fault"] = None if fields["fault"] is None else SignatureFault(fields["fault"])
        found[row["artifact_id"]].append(Evidence(**fields))
    return found


async def signatures(database: Database, acting: Acting, artifact_id: str) -> set[tuple[str | None, ...]]:
    """The stored signatures as tuples of key fingerprint, fault, place, digest and repository."""
    return {tuple(row) for row in await database.fetch(acting, SIGNATURES, artifact_id)}


async def checks(database: Database, acting: Acting, artifact_id: str) -> list[CheckResult]:
    """The checks that ended with a result, oldest first."""
    rows = await database.fetch(acting, CHECKS, artifact_id)
    return [CheckResult(*row) for row in reversed(rows)]


async def holds(database: Database, artifact: Artifact) -> list[Hold]:
    """The holds on an artifact's digest by everybody who sees the artifact; read as the platform, for all tenants."""
    owner = (artifact.tenant_id, artifact.project_id)
    return [Hold(*row) for row in await database.fetch(PLATFORM, HOLDS, artifact.digest, *owner, HOLDS_MAX)]


async def holds_of(
    database: Database, acting: Acting, holder_noun: str, holder_id: str, digests: Sequence[str] | None = None
) -> list[ArtifactHold]:
    """The holds of one holder, all or only those on some digests."""
    wanted = None if digests is None else list(digests)
    rows = await database.fetch(acting, HOLDS_OF, holder_noun, holder_id, wanted)
    return [ArtifactHold(**dict(row.items())) for row in rows]


async def versions(database: Database, artifact: Artifact) -> list[VersionUse]:
    """The versions that need this artifact: no other active artifact with its digest can serve them."""
    rows = await database.fetch(PLATFORM, VERSIONS, artifact.digest, artifact.tenant_id, artifact.id, VERSIONS_MAX)
    return [VersionUse(row[0], row[1], row[2], PromotionState(row[3])) for row in rows]


async def history(database: Database, acting: Acting, artifact: Artifact) -> list[ArtifactTransition]:
    """Every transition of an artifact, with who made it and why if this place may know."""
    owner = Acting(artifact.tenant_id)
    rows = await database.fetch(owner, HISTORY, artifact.id, HISTORY_MAX)
    steps = [ArtifactTransition(*row) for row in rows]
    if acting.tenant_id == artifact.tenant_id:
        return steps
    return [
        ArtifactTransition(each.machine, each.generation, each.source, each.trigger, each.target, each.occurred_at, "")
        for each in steps
    ]


def artifact_of(row: asyncpg.Record) -> Artifact:
    return Artifact(**dict(row.items()))
