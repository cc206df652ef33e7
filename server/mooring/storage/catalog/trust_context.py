"""Reads everything that trust depends on, of one place or of many, in one statement: sources, keys, policy layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.catalog.artifact_trust import SignerKey
from mooring.core.catalog.policy_change import Policy
from mooring.storage.kernel.database import Acting, Database

MEASURES: Final = """
SELECT 'source', s.id, s.tenant_id, s.name, s.pattern, s.username, NULL::jsonb, s.project_secret_id, s.revision,
       s.created_at, NULL::timestamptz, s.reaches_private, s.token_host
  FROM artifact_source s WHERE s.tenant_id IS NULL OR s.tenant_id = ANY ($1::text[])
UNION ALL
SELECT 'key', k.id, k.tenant_id, k.fingerprint, k.name, k.algorithm, NULL, k.public_key, k.revision, k.created_at,
       NULL, NULL, NULL
  FROM signer_key k WHERE (k.tenant_id IS NULL OR k.tenant_id = ANY ($1::text[])) AND k.removed_at IS NULL
UNION ALL
SELECT 'policy', p.id, p.tenant_id, p.project_id, NULL, NULL, p.rules, NULL, p.revision, p.created_at, p.updated_at,
       NULL, NULL
  FROM policy p
 WHERE p.tenant_id IS NULL
    OR (p.tenant_id = ANY ($1::text[]) AND (p.project_id IS NULL OR p.project_id = ANY ($2::text[])))"""


@dataclass(frozen=True, slots=True)
class TrustRows:
    """What applies in a place now; the length of each list is limited when it is written."""

    sources: list[ArtifactSource]
    keys: list[SignerKey]
    policies: list[Policy]

    def at(self, tenant_id: str | None, project_id: str | None) -> "TrustRows":
        """Those of these rows that apply in one place."""
        owners = {None, tenant_id}
        return TrustRows(
            [each for each in self.sources if each.tenant_id in owners],
            [each for each in self.keys if each.tenant_id in owners],
            [
                each
                for each in self.policies
                if each.tenant_id is None or (each.tenant_id == tenant_id and each.project_id in (None, project_id))
            ],
        )


async def trust_rows(database: Database, acting: Acting, project_id: str | None) -> TrustRows:
    """Every source, every key that is not removed, and every policy layer that applies in this place."""
    tenant_ids = [] if acting.tenant_id is None else [acting.tenant_id]
    return await trust_rows_of(database, acting, tenant_ids, [] if project_id is None else [project_id])


async def trust_rows_of(
    database: Database, acting: Acting, tenant_ids: Sequence[str], project_ids: Sequence[str]
) -> TrustRows:
    """What applies in any of these places; `TrustRows.at` chooses what applies in one of them."""
    found = TrustRows([], [], [])
    for row in await database.fetch(acting, MEASURES, list(tenant_ids), list(project_ids)):
        what, id, owner, first, second, third, rules, public_key, revision, created_at, updated_at, flag, host = row
        if what == "source":
            found.sources.append(
                ArtifactSource(id, owner, first, second, revision, created_at, flag, third, public_key, host)
            )
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
