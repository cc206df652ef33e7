"""Claims of instances: one statement takes and renews them; and what adapters read under a claim.

One index holds what may be offered to an account, in the order in which leases end, so a claim costs the same for any
number of instances. A row is in it because an adapter once had something to do there (`wanted`). If the statement reads
such a row and finds nothing to do, it removes the row from the index, unless the row became wanted again since the read
began. Rows that another process is taking at the moment are skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from mooring.core.catalog.artifact_hold import ArtifactHold
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.inventory import facts_from
from mooring.core.fleet.task import Task
from mooring.core.runtime.claim import FencedInstance, InstanceClaim
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member
from mooring.storage.fleet.allocation import COLUMNS as ALLOCATION_COLUMNS
from mooring.storage.fleet.task import COLUMNS as TASK_COLUMNS
from mooring.storage.fleet.task import task_of
from mooring.storage.kernel.database import BROKEN, PLATFORM, WITH_KEPT_PLANS, Acting, Database, RowReader, unavailable
from mooring.storage.runtime.instance import INSTANCE_COLUMNS, INSTANCE_NAMES, MEMBER_COLUMNS, instance_of, member_of

SCAN_MAX: Final = 200
"""How many rows one statement reads in each part of the index."""
TASKS_MAX: Final = 2_000

_MAY: Final = "SELECT c.instance_id, c.wanted_count FROM instance_claim c WHERE c.service_account_id = $1 AND c.wanted"


def _claim(scan: int) -> str:
    """The statement that renews and takes claims, reading at most `scan` rows in each part of the index.

    Except for the beginning of an index, every row is looked up by its id (`OFFSET 0`, `LIMIT 1`): whatever the planner
    estimates, it cannot read a whole table for a few rows.
    """
    return f"""
WITH held AS MATERIALIZED (
  SELECT h.instance_id, h.fence, own.expires_at
    FROM unnest($3::text[], $4::bigint[]) AS h (instance_id, fence)
    LEFT JOIN LATERAL (
      SELECT c.expires_at FROM instance_claim c
       WHERE c.instance_id = h.instance_id AND c.service_account_id = $1 AND c.holder = $2 AND c.fence = h.fence
      OFFSET 0) own ON true),
scanned AS MATERIALIZED (
  (SELECT own.instance_id, own.wanted_count
     FROM (SELECT c.instance_id, c.wanted_count, c.expires_at FROM instance_claim c
            WHERE c.service_account_id = $1 AND c.holder = $2 OFFSET 0) own
    WHERE own.expires_at > $5 AND own.instance_id NOT IN (SELECT h.instance_id FROM held h)
    ORDER BY own.instance_id LIMIT {scan})
  UNION ALL
  ({_MAY} AND c.expires_at IS NULL ORDER BY c.instance_id LIMIT {scan})
  UNION ALL
  ({_MAY} AND c.expires_at IS NOT NULL AND c.expires_at <= $5
    AND NOT (c.holder = $2 AND c.instance_id IN (SELECT h.instance_id FROM held h))
    ORDER BY c.expires_at, c.instance_id LIMIT {scan})),
checked AS MATERIALIZED (
  SELECT l.instance_id, l.wanted_count, i.status = 'running' OR coalesce((
           SELECT true FROM operation o
            WHERE o.instance_id = l.instance_id AND o.status NOT IN ('succeeded', 'failed', 'cancelled')
              AND o.phase = 'adapter' AND o.dispatched_at IS NOT NULL LIMIT 1), false) AS offered
    FROM scanned l CROSS JOIN LATERAL (SELECT i.status FROM instance i WHERE i.id = l.instance_id OFFSET 0) i),
due AS MATERIALIZED (
  SELECT c.instance_id, j.offered FROM checked j JOIN instance_claim c ON c.instance_id = j.instance_id
   WHERE (j.offered OR c.wanted_count = j.wanted_count)
     AND (c.holder IS NULL OR c.expires_at <= $5 OR c.holder = $2)
   FOR UPDATE OF c SKIP LOCKED),
taken AS (
  UPDATE instance_claim c
     SET holder = $2, fence = CASE WHEN c.holder = $2 THEN c.fence ELSE c.fence + 1 END, expires_at = $7,
         claimed_at = CASE WHEN c.holder = $2 THEN c.claimed_at ELSE $5 END
    FROM (SELECT d.instance_id FROM due d WHERE d.offered LIMIT $8) d
   WHERE c.instance_id = d.instance_id RETURNING c.instance_id, c.fence),
cleared AS (
  UPDATE instance_claim c SET wanted = false FROM due d WHERE NOT d.offered AND c.instance_id = d.instance_id),
renewed AS (
  UPDATE instance_claim c SET expires_at = $7
    FROM held h
   WHERE h.expires_at < $6 AND c.instance_id = h.instance_id AND c.service_account_id = $1 AND c.holder = $2
     AND c.fence = h.fence)
SELECT 'claim' AS what, t.instance_id, t.fence, NULL::timestamptz AS at FROM taken t
UNION ALL
SELECT 'lost', h.instance_id, h.fence, NULL FROM held h WHERE h.expires_at IS NULL
UNION ALL
SELECT 'scanned', '', count(*), NULL FROM scanned
UNION ALL
SELECT 'next', '', 0, coalesce(min(n.expires_at) FILTER (WHERE n.holder <> $2),
                               CASE WHEN count(*) = {SCAN_MAX} THEN max(n.expires_at) END)
  FROM (SELECT c.expires_at, c.holder FROM instance_claim c
         WHERE (c.service_account_id, c.expires_at) > ($1, $5) AND c.service_account_id <= $1
           AND c.wanted AND c.expires_at IS NOT NULL
         ORDER BY c.service_account_id, c.expires_at LIMIT {scan}) n"""


CLAIM: Final = _claim(SCAN_MAX)
RENEW: Final = _claim(0)
"""For a poll that takes nothing: it only renews, and learns which claims were lost."""
RELEASE: Final = """
UPDATE instance_claim c SET holder = NULL, claimed_at = NULL, expires_at = NULL, fence = c.fence + 1,
       wanted = true, wanted_count = c.wanted_count + 1
  FROM unnest($3::text[], $4::bigint[]) AS h (instance_id, fence)
 WHERE c.instance_id = h.instance_id AND c.service_account_id = $1 AND c.holder = $2 AND c.fence = h.fence
RETURNING c.instance_id"""
RECORD_PRESENCE: Final = """
INSERT INTO adapter_presence (service_account_id, tenant_id, project_id, holder, seen_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (service_account_id) DO UPDATE SET holder = EXCLUDED.holder, seen_at = EXCLUDED.seen_at
 WHERE adapter_presence.seen_at < $6"""
SEEN_AT: Final = "SELECT seen_at FROM adapter_presence WHERE service_account_id = $1"
FIND: Final = f"""
SELECT {INSTANCE_COLUMNS}, c.holder, c.fence FROM instance i JOIN instance_claim c ON c.instance_id = i.id
 WHERE i.project_id = $1 AND i.id = $2 AND c.service_account_id = $3"""
FIND_TASK: Final = f"SELECT {TASK_COLUMNS} FROM task t WHERE t.project_id = $1 AND t.instance_id = $2 AND t.id = $3"
MANIFESTS: Final = "SELECT v.id, v.manifest FROM app_version v WHERE v.id = ANY ($1::text[])"
NODES: Final = """
SELECT n.id, n.host, n.region, n.inventory, n.unreachable_since IS NULL AS reachable
  FROM node n WHERE n.id = ANY ($1::text[])"""
ALLOCATIONS: Final = f"SELECT {ALLOCATION_COLUMNS} FROM allocation a WHERE a.id = ANY ($1::text[])"
SILENT: Final = """
SELECT a.id FROM allocation a JOIN node n ON n.id = a.node_id
 WHERE a.id = ANY ($1::text[]) AND n.unreachable_since IS NOT NULL"""
MEMBERS: Final = f"""
SELECT {MEMBER_COLUMNS} FROM member m WHERE m.instance_id = $1 AND m.id = ANY ($2::text[]) ORDER BY m.id"""
TASKS: Final = f"""
WITH made AS (
  SELECT {TASK_COLUMNS} FROM task t WHERE t.operation_id = ANY ($1::text[]) ORDER BY t.id DESC LIMIT $2),
looks AS (
  SELECT {TASK_COLUMNS} FROM member m CROSS JOIN LATERAL (
    SELECT t.* FROM task t WHERE t.member_id = m.id AND t.operation_id IS NULL AND t.maker <> 'system'
     ORDER BY t.id DESC LIMIT 1) t
   WHERE m.instance_id = $3 AND m.status <> 'removed')
SELECT * FROM made UNION ALL SELECT * FROM looks"""
HOLDS: Final = """
SELECT id, tenant_id, project_id, digest, holder_noun, holder_id, version_id, revision, created_at
  FROM artifact_hold WHERE holder_noun = 'instance' AND holder_id = $1 ORDER BY id"""


@dataclass(frozen=True, slots=True)
class ClaimRequester:
    """Who asks for instances: the account and its holder process."""

    service_account_id: str
    tenant_id: str
    project_id: str
    holder: str


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """The current time, the expiry before which leases are renewed, and their new expiry."""

    now: datetime
    stale_before: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """New claims, claims that the holder has lost, how many rows were read, and when to try again."""

    claims: tuple[FencedInstance, ...]
    lost: tuple[FencedInstance, ...]
    scanned: int
    next_at: datetime | None  # when the next lease of another holder ends


async def claim(
    database: Database, requester: ClaimRequester, held: Sequence[FencedInstance], free: int, lease: LeaseRenewal
) -> ClaimResult:
    """Renew what is held, and take up to `free` of what is offered."""
    columns = ([each.instance_id for each in held], [each.fence for each in held])
    moments = (lease.now, lease.stale_before, lease.until)
    statement = CLAIM if free else RENEW
    try:
        async with database.connection(WITH_KEPT_PLANS) as connection:
            rows = await connection.fetch(
                statement, requester.service_account_id, requester.holder, *columns, *moments, free
            )
    except BROKEN as error:  # not retried: the same holder gets what was taken with its next poll
        raise unavailable("the database connection broke while instances were claimed") from error
    except (
        asyncpg.DeadlockDetectedError
    ) as error:  # one holder polled twice at once, with the same instances in another order
        raise unavailable("two polls of one holder collided; try again") from error
    claims, lost, scanned, next_at = [], [], 0, None
    for kind, instance_id, fence, expires_at in rows:
        if kind == "claim":
            claims.append(FencedInstance(instance_id, fence))
        elif kind == "lost":
            lost.append(FencedInstance(instance_id, fence))
        elif kind == "scanned":
            scanned = fence
        else:
            next_at = expires_at
    return ClaimResult(tuple(claims), tuple(lost), scanned, next_at)


async def release(database: Database, requester: ClaimRequester, held: Sequence[FencedInstance]) -> list[str]:
    """Release these claims; returns those that were really the holder's."""
    columns = ([each.instance_id for each in held], [each.fence for each in held])
    rows = await database.fetch(PLATFORM, RELEASE, requester.service_account_id, requester.holder, *columns)
    return [row[0] for row in rows]


async def record_presence(database: Database, requester: ClaimRequester, now: datetime, stale_before: datetime) -> None:
    """Record that an adapter asked for work under this account."""
    identity = (requester.service_account_id, requester.tenant_id, requester.project_id, requester.holder)
    await database.fetch(PLATFORM, RECORD_PRESENCE, *identity, now, stale_before)


async def seen_at(database: Database, service_account_id: str) -> datetime | None:
    """When an adapter last asked for work under this account."""
    moment: datetime | None = await database.fetchval(PLATFORM, SEEN_AT, service_account_id)
    return moment


async def find(
    database: RowReader, acting: Acting, project_id: str, account_id: str, instance_id: str
) -> tuple[InstanceClaim, Instance] | None:
    """An instance of this account with its claim."""
    row = await database.fetchrow(acting, FIND, project_id, instance_id, account_id)
    if row is None:
        return None
    holder, fence = row[len(INSTANCE_NAMES) :]
    return InstanceClaim(instance_id, account_id, holder, fence), instance_of(row)


async def tasks(database: RowReader, acting: Acting, instance_id: str, operation_ids: Sequence[str]) -> list[Task]:
    """The tasks of these operations, newest first, then the latest inspection task of each member.

    Inspection tasks are those of the adapter that belong to no operation.
    """
    rows = await database.fetch(acting, TASKS, list(operation_ids), TASKS_MAX, instance_id)
    return [task_of(row) for row in rows]


async def find_task(database: Database, acting: Acting, project_id: str, instance_id: str, task_id: str) -> Task | None:
    row = await database.fetchrow(acting, FIND_TASK, project_id, instance_id, task_id)
    return None if row is None else task_of(row)


async def manifests(database: RowReader, acting: Acting, version_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Version id → manifest."""
    return {row[0]: row[1] for row in await database.fetch(acting, MANIFESTS, list(version_ids))}


@dataclass(frozen=True, slots=True)
class MemberNodeView:
    """What an adapter sees of a member's node."""

    reachable: bool
    facts: dict[str, Any]


async def nodes(database: Database, node_ids: Sequence[str]) -> dict[str, MemberNodeView]:
    """Node id → reachability and facts."""
    if not node_ids:
        return {}
    rows = await database.fetch(PLATFORM, NODES, list(node_ids))
    return {
        node_id: MemberNodeView(reachable, dict(facts_from(host, region, inventory)))
        for node_id, host, region, inventory, reachable in rows
    }


async def allocations(database: RowReader, acting: Acting, ids: Sequence[str]) -> dict[str, Allocation]:
    """Allocation id → allocation."""
    return {row["id"]: Allocation(*row) for row in await database.fetch(acting, ALLOCATIONS, list(ids))}


async def silent_allocations(database: Database, ids: Sequence[str]) -> set[str]:
    """The ids of those allocations whose node does not answer."""
    if not ids:
        return set()
    return {row[0] for row in await database.fetch(PLATFORM, SILENT, list(ids))}


async def members(database: Database, acting: Acting, instance_id: str, ids: Sequence[str]) -> list[Member]:
    """These members of an instance, including removed ones."""
    if not ids:
        return []
    return [member_of(row) for row in await database.fetch(acting, MEMBERS, instance_id, list(ids))]


async def holds(database: Database, acting: Acting, instance_id: str) -> list[ArtifactHold]:
    return [ArtifactHold(**dict(row)) for row in await database.fetch(acting, HOLDS, instance_id)]
