"""Claims tasks for many nodes at once, and renews leases.

A claim is one statement for all nodes whose agents wait: for each of them it takes queued tasks, as many as the agent
has room for, and writes the transitions too. Each task has a rank: its place among what its allocation, and then its
tenant, has on the node, with what the agent holds already in front. The lowest ranks are taken first, so tenants take
turns; an allocation or a tenant that holds as much as `core/fleet/task_room.py` allows gets nothing more. Tasks of one
allocation keep their order. What ends an owner is taken first, room or not.

Rows that another process is claiming are skipped. The statement is the whole transaction, as with a decision; but the
unit of work cannot compose it, because only the statement itself finds out how many tasks there are. It still takes its
states from the lifecycle's table, and the database checks every status against its transition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.fleet.task import TASK, Task, TaskState, TaskTrigger
from mooring.core.fleet.task_room import HELD_OF_ALLOCATION, HELD_OF_TENANT, Lane
from mooring.core.kernel.secret import Sealed
from mooring.storage.fleet.task import COLUMNS, NAMES, task_of
from mooring.storage.kernel.database import BROKEN, PLATFORM, WITH_KEPT_PLANS, Database, unavailable

_EDGE: Final = TASK.step(TaskState.QUEUED, TaskTrigger.CLAIM)

QUEUED: Final = """
WITH RECURSIVE waiting AS (
  (SELECT t.node_id FROM task t WHERE t.status = 'queued' ORDER BY t.node_id LIMIT 1)
  UNION ALL
  SELECT (SELECT t.node_id FROM task t WHERE t.status = 'queued' AND t.node_id > w.node_id ORDER BY t.node_id LIMIT 1)
    FROM waiting w WHERE w.node_id IS NOT NULL)
SELECT w.node_id, NULL::text AS task_id, NULL::bigint AS fence FROM waiting w WHERE w.node_id IS NOT NULL
UNION ALL
(SELECT t.node_id, t.id, t.fence FROM task t WHERE t.status = 'cancelling' ORDER BY t.node_id LIMIT $1)"""
_OF_ALLOCATION: Final = " ".join(f"WHEN {lane} THEN {most}" for lane, most in HELD_OF_ALLOCATION.items())
_OF_TENANT: Final = " ".join(f"WHEN {lane} THEN {most}" for lane, most in HELD_OF_TENANT.items())
_TURNS: Final = f"""(
  WITH RECURSIVE place AS (  -- the node's allocations and lanes that have something queued
    (SELECT t.allocation_id, task_lane(t.type) AS lane, t.tenant_id FROM task t
      WHERE t.node_id = w.node_id AND t.status = '{_EDGE.source}'
      ORDER BY t.allocation_id, task_lane(t.type) LIMIT 1)
    UNION ALL
    SELECT f.* FROM place p CROSS JOIN LATERAL (
      SELECT t.allocation_id, task_lane(t.type) AS lane, t.tenant_id FROM task t
       WHERE t.node_id = w.node_id AND t.status = '{_EDGE.source}'
         AND (t.allocation_id, task_lane(t.type)) > (p.allocation_id, p.lane)
       ORDER BY t.allocation_id, task_lane(t.type) LIMIT 1) f),
  held AS MATERIALIZED (
    SELECT t.tenant_id, t.allocation_id, task_lane(t.type) AS lane, count(*) AS number FROM task t
     WHERE t.node_id = w.node_id AND t.status IN ('claimed', 'cancelling') GROUP BY 1, 2, 3),
  room AS (
    SELECT p.*, CASE p.lane {_OF_ALLOCATION} END AS of_allocation, CASE p.lane {_OF_TENANT} END AS of_tenant,
           coalesce(h.in_allocation, 0)::bigint AS in_allocation, coalesce(h.in_tenant, 0)::bigint AS in_tenant
      FROM place p CROSS JOIN LATERAL (
        SELECT sum(h.number) FILTER (WHERE h.allocation_id = p.allocation_id) AS in_allocation,
               sum(h.number) AS in_tenant
          FROM held h WHERE h.tenant_id = p.tenant_id AND h.lane = p.lane) h),
  offered AS (  -- one more than there is room for, to know whether anything is left over
    SELECT r.*, q.id, r.in_allocation + q.number AS place_in_allocation
      FROM room r CROSS JOIN LATERAL (
        SELECT o.id, row_number() OVER (ORDER BY o.id) AS number FROM (
          SELECT t.id FROM task t
           WHERE t.node_id = w.node_id AND t.status = '{_EDGE.source}' AND t.allocation_id = r.allocation_id
             AND task_lane(t.type) = r.lane AND (t.expires_at > $3) IS TRUE  -- by no index but the one in their order
           ORDER BY t.id
           LIMIT CASE r.lane WHEN {Lane.TEARDOWN} THEN $5
                   ELSE greatest(0, least(w.free, r.of_allocation - r.in_allocation)) END + 1) o) q),
  ranked AS (
    SELECT o.*, count(*) OVER () AS offered,
           o.in_tenant + row_number() OVER (PARTITION BY o.tenant_id, o.lane ORDER BY o.place_in_allocation, o.id)
             AS place_in_tenant
      FROM offered o),
  turn AS (
    SELECT r.id, r.allocation_id, r.lane, r.offered,
           row_number() OVER (ORDER BY r.lane <> {Lane.TEARDOWN}, r.place_in_tenant, r.id) AS place
      FROM ranked r
     WHERE r.lane = {Lane.TEARDOWN}
        OR (r.place_in_allocation <= r.of_allocation AND r.place_in_tenant <= r.of_tenant))
  SELECT u.* FROM turn u WHERE u.place <= CASE u.lane WHEN {Lane.TEARDOWN} THEN $5 ELSE w.free END)"""
CLAIM: Final = f"""
WITH due AS MATERIALIZED (
  SELECT q.id, u.offered, n.sealing_key
    FROM unnest($1::text[], $2::integer[]) AS w (node_id, free)
   CROSS JOIN LATERAL (
     SELECT n.sealing_key FROM node n WHERE n.id = w.node_id AND n.status NOT IN ('pending', 'retired') OFFSET 0) n
   CROSS JOIN LATERAL {_TURNS} u
   CROSS JOIN LATERAL (
     SELECT t.id FROM task t
      WHERE t.node_id = w.node_id AND t.allocation_id = u.allocation_id AND task_lane(t.type) = u.lane AND t.id = u.id
        AND t.status = '{_EDGE.source}' FOR UPDATE SKIP LOCKED) q),
taken AS (
  UPDATE task t
     SET status = '{_EDGE.target}', generation = t.generation + 1, fence = t.fence + 1, lease_expires_at = $4,
         first_claimed_at = coalesce(t.first_claimed_at, $3)
   WHERE t.id = ANY (ARRAY (SELECT d.id FROM due d)) RETURNING {COLUMNS}),
moved AS (
  INSERT INTO transition
    (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
  SELECT '{TASK.name}', t.id, t.generation, t.tenant_id, '{_EDGE.source}', '{_EDGE.trigger}', '{_EDGE.target}', $3,
         t.correlation_id FROM taken t)
SELECT {COLUMNS}, d.sealing_key, d.offered > count(*) OVER (PARTITION BY t.node_id) AS more
  FROM taken t JOIN due d ON d.id = t.id ORDER BY t.node_id, t.id"""
"""It runs with a generic plan, so every step names its index: by lateral subqueries for each node, and by ids."""
_SOURCE: Final = ", ".join(f"a.{name}" for name in ArtifactSource.__slots__)
GRANTS: Final = f"""
SELECT g.task_id, g.name, g.purpose, g.repository, {_SOURCE},
       s.id, s.tenant_id, s.purpose AS kept_for, s.master_key_id, s.wrapped_key, s.ciphertext
  FROM secret_grant g
  LEFT JOIN runtime_secret r ON r.id = g.runtime_secret_id
  LEFT JOIN project_secret p ON p.id = g.project_secret_id
  LEFT JOIN artifact_source a ON a.id = g.source_id
  LEFT JOIN secret s ON s.id = coalesce(r.secret_id, p.secret_id)
 WHERE g.task_id = ANY ($1) AND g.expires_at > $2 AND (g.repository IS NOT NULL OR s.id IS NOT NULL)
 ORDER BY g.task_id, g.name"""
RENEW: Final = """
WITH held AS (SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]) AS h (node_id, task_id, fence)),
renewed AS (
  UPDATE task t SET lease_expires_at = $5
    FROM held h
   WHERE t.id = h.task_id AND t.node_id = h.node_id AND t.fence = h.fence AND t.status IN ('claimed', 'cancelling')
     AND t.lease_expires_at < $4)
SELECT h.node_id, h.task_id, h.fence, t.status
  FROM held h
  LEFT JOIN task t ON t.id = h.task_id AND t.node_id = h.node_id AND t.fence = h.fence
                  AND t.status IN ('claimed', 'cancelling')"""

CANCELLING_MAX: Final = 10_000
TEARDOWNS_MAX: Final = 64
"""The most tasks that end an owner in one claim of a node; they are taken in front of its room, and over it."""


@dataclass(frozen=True, slots=True)
class FencedTask:
    task_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node, and how many more tasks its agent can run."""

    node_id: str
    free: int


@dataclass(frozen=True, slots=True)
class TaskLease:
    """A claim on a task, and the node that says it holds it."""

    node_id: str
    claim: FencedTask


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The nodes with queued tasks, and the tasks that their agents are asked to stop."""

    queued: frozenset[str]
    cancelling: Mapping[str, tuple[FencedTask, ...]]


@dataclass(frozen=True, slots=True)
class SecretGrant:
    """A secret for a task: a stored one, still sealed, or a token for a repository."""

    name: str
    purpose: str
    repository: str | None
    sealed: Sealed | None
    source: ArtifactSource | None = None  # the private registry of a tenant that the repository is in
    value: bytes | None = field(default=None, repr=False)  # its token, once the registry has issued it


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that was just claimed for its node, and the key that its secrets are sealed to."""

    task: Task
    sealing_key: bytes
    more: bool = False  # whether its node has queued tasks that were left over


async def read_queue(database: Database) -> QueueSnapshot:
    """Everything that waits for agents; the cost grows with the number of nodes that have queued tasks."""
    queued: set[str] = set()
    cancelling: dict[str, list[FencedTask]] = {}
    for node_id, task_id, fence in await database.fetch(PLATFORM, QUEUED, CANCELLING_MAX):
        if task_id is None:
            queued.add(node_id)
        else:
            cancelling.setdefault(node_id, []).append(FencedTask(task_id, fence))
    return QueueSnapshot(frozenset(queued), {node_id: tuple(tasks) for node_id, tasks in cancelling.items()})


async def claim(
    database: Database, wanted: Sequence[NodeRoom], now: datetime, leased_until: datetime
) -> list[ClaimedTask]:
    """Claim queued tasks for these nodes, for each as many as it has room for, and everything that ends an owner."""
    node_ids, free = [each.node_id for each in wanted], [each.free for each in wanted]
    try:
        async with database.connection(WITH_KEPT_PLANS) as connection:
            rows = await connection.fetch(CLAIM, node_ids, free, now, leased_until, TEARDOWNS_MAX)
    except BROKEN as error:  # not retried: nobody knows whether it was done, and a lost lease is offered again anyway
        raise unavailable("the database went away while tasks were claimed") from error
    size = len(NAMES)
    return [ClaimedTask(task_of(tuple(row)[:size]), row["sealing_key"], row["more"]) for row in rows]


async def grants(database: Database, task_ids: Sequence[str], now: datetime) -> dict[str, list[SecretGrant]]:
    """The unexpired secret grants of these tasks, by task."""
    found: dict[str, list[SecretGrant]] = {}
    for row in await database.fetch(PLATFORM, GRANTS, list(task_ids), now):
        task_id, name, purpose, repository, *rest = tuple(row)
        width = len(ArtifactSource.__slots__)
        source, sealed = rest[:width], rest[width:]
        stored = None if sealed[0] is None else Sealed(*sealed)
        private = None if source[0] is None else ArtifactSource(*source)
        found.setdefault(task_id, []).append(SecretGrant(name, purpose, repository, stored, private))
    return found


async def renew(
    database: Database, held: Sequence[TaskLease], stale_before: datetime, leased_until: datetime
) -> list[tuple[str, FencedTask, str | None]]:
    """Renew these leases of these nodes; returns each with its status, or None when the node lost it.

    A lease that ends after `stale_before` is not written, so that polls in quick succession cost no writes.
    """
    nodes, tasks = [each.node_id for each in held], [each.claim.task_id for each in held]
    fences = [each.claim.fence for each in held]
    rows = await database.fetch(PLATFORM, RENEW, nodes, tasks, fences, stale_before, leased_until)
    return [(row[0], FencedTask(row[1], row[2]), row[3]) for row in rows]
