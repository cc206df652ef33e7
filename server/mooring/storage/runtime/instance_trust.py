"""Reads what instances run as far as trust depends on it, and which of them wait for a reaction.

Everything is read for many instances at once. What is not trusted is the exception: those reads start from indexes that
have only the untrusted ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring.core.fleet.task import Task
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.trust_reaction import UntrustedInstance
from mooring.storage.catalog.artifact_impact import LIVE, RUN_DIGESTS
from mooring.storage.fleet.task import COLUMNS as TASK_COLUMNS
from mooring.storage.fleet.task import task_of
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.runtime.instance import INSTANCE_COLUMNS, instance_of

CANDIDATES_MAX: Final = 500
QUEUED_MAX: Final = 200
SIGNED_MAX: Final = 20_000
_OVER: Final = "('succeeded', 'failed', 'cancelled')"
_USE: Final = f"i.id, i.tenant_id, i.project_id, e.rules, {RUN_DIGESTS}, i.distrust"
_ENTITLED: Final = "LEFT JOIN entitlement e ON e.project_id = i.project_id AND e.app_id = i.app_id"
USES: Final = f"SELECT {_USE} FROM instance i {_ENTITLED} WHERE i.id = ANY ($1::text[])"
LIVE_USES: Final = f"""
SELECT {_USE} FROM instance i {_ENTITLED} WHERE i.status IN {LIVE} AND i.id > $1 ORDER BY i.id LIMIT $2"""
INSTANCES: Final = f"SELECT {INSTANCE_COLUMNS} FROM instance i WHERE i.id = ANY ($1::text[]) ORDER BY i.id"
SIGNED_BY: Final = f"""
SELECT DISTINCT i.id FROM artifact_evidence e JOIN artifact a ON a.id = e.artifact_id
  JOIN artifact_hold h ON h.digest = a.digest AND h.holder_noun = 'instance'
  JOIN instance i ON i.id = h.holder_id
 WHERE e.kind = 'signature' AND e.key_fingerprint = $1 AND i.status IN {LIVE} ORDER BY i.id LIMIT $2"""
"""Instances that hold something of which this key made a signature."""
UNDER_WAY: Final = f"""
SELECT DISTINCT i.id, i.tenant_id, i.app_id FROM operation o JOIN instance i ON i.id = o.instance_id
 WHERE o.request ? 'untrusted' AND o.status NOT IN {_OVER}"""
CANDIDATES: Final = f"""
WITH untrusted AS (
  SELECT i.id, i.tenant_id, i.app_id, i.distrust ->> 'since' AS since
    FROM instance i
   WHERE i.distrust IS NOT NULL AND i.status <> 'stopped' AND i.status IN {LIVE}
     AND NOT EXISTS (SELECT FROM operation o WHERE o.instance_id = i.id AND o.status NOT IN {_OVER}
                        AND o.kind IN ('upgrade', 'rollback', 'decommission'))
     AND (i.distrust ->> 'reaction' = 'stop'
          OR (i.distrust ->> 'reaction' = 'drain' AND i.status = 'running' AND EXISTS (
                SELECT FROM member m WHERE m.instance_id = i.id AND m.status IN ('ready', 'degraded')
                   AND NOT EXISTS (
                     SELECT FROM operation o WHERE o.instance_id = i.id AND o.status NOT IN {_OVER}
                        AND o.kind IN ('add', 'drain', 'remove', 'replace') AND m.id = ANY (o.member_ids))))))
SELECT n.id, n.tenant_id, n.app_id FROM (
  SELECT u.*, row_number() OVER (PARTITION BY u.tenant_id ORDER BY u.since, u.id) AS in_tenant,
         row_number() OVER (PARTITION BY u.app_id ORDER BY u.since, u.id) AS in_app FROM untrusted u) n
 WHERE n.in_tenant <= $1 ORDER BY n.in_app, n.since, n.id LIMIT $2"""
"""Instances that are to be drained or stopped: a few of each tenant, those of all apps in turn."""
HELD: Final = f"""
SELECT m.instance_id, array_agg(m.id ORDER BY m.id) FROM member m JOIN instance i ON i.id = m.instance_id
 WHERE m.holds @> '[{{"owner": "trust"}}]' AND m.status IN ('draining', 'drained') AND i.status IN {LIVE}
   AND (i.distrust IS NULL OR i.distrust ->> 'reaction' IN ('notify', 'refuse'))
 GROUP BY 1 ORDER BY 1 LIMIT $1"""
"""Members that were drained for lack of trust, of instances that need that no longer."""
QUEUED: Final = f"""
SELECT {TASK_COLUMNS} FROM instance i JOIN task t ON t.instance_id = i.id
 WHERE i.distrust IS NOT NULL AND i.status <> 'stopped' AND t.status = 'queued'
   AND t.type IN ('container.launch', 'artifact.fetch') AND t.created_at < (i.distrust ->> 'since')::timestamptz
 ORDER BY t.id LIMIT $1"""
"""Tasks that fetch or start an artifact, were evaluated before their instance lost its trust, and have not begun."""


@dataclass(frozen=True, slots=True)
class ArtifactUse:
    """The digests that an instance runs, and the rules of its entitlement, which narrow the project's policy."""

    instance_id: str
    tenant_id: str
    project_id: str
    entitlement_rules: dict[str, Any] | None
    digests: list[str]
    distrust: dict[str, Any] | None = None  # the stored conclusion

    @property
    def place(self) -> tuple[str, str]:
        return self.tenant_id, self.project_id


async def uses(database: Database, acting: Acting, instance_ids: Sequence[str]) -> list[ArtifactUse]:
    """What each of these instances runs."""
    return [ArtifactUse(*row) for row in await database.fetch(acting, USES, list(instance_ids))]


async def live_uses(database: Database, after: str, limit: int) -> list[ArtifactUse]:
    """What the next instances run that start or run, in the order of their ids."""
    return [ArtifactUse(*row) for row in await database.fetch(PLATFORM, LIVE_USES, after, limit)]


async def instances(database: Database, instance_ids: Sequence[str], acting: Acting = PLATFORM) -> list[Instance]:
    return [instance_of(row) for row in await database.fetch(acting, INSTANCES, list(instance_ids))]


async def signed_by(database: Database, acting: Acting, fingerprint: str) -> list[str]:
    """The ids of instances of this tenant, or of all, whose artifacts this key signed."""
    return [row[0] for row in await database.fetch(acting, SIGNED_BY, fingerprint, SIGNED_MAX)]


async def under_way(database: Database) -> list[UntrustedInstance]:
    """The instances that are being drained or stopped because they are not trusted."""
    return [UntrustedInstance(*row) for row in await database.fetch(PLATFORM, UNDER_WAY)]


async def candidates(database: Database, per_tenant: int) -> list[UntrustedInstance]:
    """Instances that wait to be drained or stopped, never more of a tenant than may be under way at once."""
    rows = await database.fetch(PLATFORM, CANDIDATES, per_tenant, CANDIDATES_MAX)
    return [UntrustedInstance(*row) for row in rows]


async def held_for_nothing(database: Database, limit: int) -> dict[str, list[str]]:
    """Instance id → its members that were drained for lack of trust and may work again."""
    return {row[0]: list(row[1]) for row in await database.fetch(PLATFORM, HELD, limit)}


async def queued_before(database: Database) -> list[Task]:
    """Tasks of untrusted instances that would fetch or start artifacts, and that no agent has claimed."""
    return [task_of(row) for row in await database.fetch(PLATFORM, QUEUED, QUEUED_MAX)]
