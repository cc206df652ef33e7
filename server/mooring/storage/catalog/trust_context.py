"""Reads everything that trust depends on in one place, in one statement: sources, signer keys and policy layers."""

from dataclasses import dataclass
from typing import Final

from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.catalog.artifact_trust import SignerKey
from mooring.core.catalog.policy_change import Policy
from mooring.storage.kernel.database import Acting, Database

MEASURES: Final = """
SELECT 'source', s.id, s.tenant_id, s.name, s.pattern, NULL, NULL::jsonb, NULL::text, s.revision, s.created_at,
       NULL::timestamptz, s.reaches_private
  FROM artifact_source s WHERE s.tenant_id IS NULL OR s.tenant_id = $1
UNION ALL
SELECT 'key', k.id, k.tenant_id, k.fingerprint, k.name, k.algorithm, NULL, k.public_key, k.revision, k.created_at,
       NULL, NULL
  FROM signer_key k WHERE (k.tenant_id IS NULL OR k.tenant_id = $1) AND k.removed_at IS NULL
UNION ALL
SELECT 'policy', p.id, p.tenant_id, p.project_id, NULL, NULL, p.rules, NULL, p.revision, p.created_at, p.updated_at,
       NULL
  FROM policy p WHERE p.tenant_id IS NULL OR (p.tenant_id = $1 AND (p.project_id IS NULL OR p.project_id = $2))"""


@dataclass(frozen=True, slots=True)
class TrustRows:
    """What applies in a place now; the length of each list is limited when it is written."""

    sources: list[ArtifactSource]
    keys: list[SignerKey]
    policies: list[Policy]


async def trust_rows(database: Database, acting: Acting, project_id: str | None) -> TrustRows:
    """Every source, every key that is not removed, and every policy layer that applies in this place."""
    found = TrustRows([], [], [])
    for row in await database.fetch(acting, MEASURES, acting.tenant_id, project_id):
        what, id, owner, first, second, third, rules, public_key, revision, created_at, updated_at, flag = row
        if what == "source":
            found.sources.append(ArtifactSource(id, owner, first, second, revision, created_at, flag))
        elif what == "key":
            key = SignerKey(
                id=id,
                tenant_id=owner,
                fingerprint=first,
                removed_at=None,
                name=second,
                algorithm=third,
                public_key=public_key,
                revision=revision,
                created_at=created_at,
            )
            found.keys.append(key)
        else:
            found.policies.append(Policy(id, owner, first, rules, revision, created_at, updated_at))
    found.sources.sort(key=lambda each: each.id)
    found.keys.sort(key=lambda each: each.id)
    return found
