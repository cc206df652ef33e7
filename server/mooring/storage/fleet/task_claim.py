"""Claiming tasks, for many nodes at once, and renewing the leases of those that are held.

A claim is one statement for all nodes whose agents wait: it takes what is queued for each of them, in order, up to what
its agent has room for, and writes the transitions with it. Rows that another process is just taking are skipped. The
statement is the claim's whole transaction, as a decision's is; it is not put together by the unit of work, because how
many tasks there are is known only inside of it. What it may do is read from the lifecycle's table all the same, and the
database holds every status to its transition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from mooring.core.fleet.task import TASK, Task, TaskState, TaskTrigger
from mooring.core.kernel.secret import Sealed
from mooring.storage.fleet.task import COLUMNS, NAMES
from mooring.storage.kernel.database import BROKEN, PLATFORM, Database, unavailable

_EDGE: Final = TASK.step(TaskState.QUEUED, TaskTrigger.CLAIM)

LOOK: Final = """
WITH RECURSIVE waiting AS (
  (SELECT t.node_id FROM task t WHERE t.status = 'queued' ORDER BY t.node_id LIMIT 1)
  UNION ALL
  SELECT (SELECT t.node_id FROM task t WHERE t.status = 'queued' AND t.node_id > w.node_id ORDER BY t.node_id LIMIT 1)
    FROM waiting w WHERE w.node_id IS NOT NULL)
SELECT w.node_id, NULL::text AS task_id, NULL::bigint AS fence FROM waiting w WHERE w.node_id IS NOT NULL
UNION ALL
(SELECT t.node_id, t.id, t.fence FROM task t WHERE t.status = 'cancelling' ORDER BY t.node_id LIMIT $1)"""
CLAIM: Final = f"""
WITH wanted AS (SELECT * FROM unnest($1::text[], $2::integer[]) AS w (node_id, free)),
due AS MATERIALIZED (
  SELECT q.id FROM wanted w CROSS JOIN LATERAL (
    SELECT t.id FROM task t
     WHERE t.node_id = w.node_id AND t.status = '{_EDGE.source}' AND t.expires_at > $3
     ORDER BY t.id LIMIT w.free FOR UPDATE SKIP LOCKED) q
   WHERE EXISTS (SELECT FROM node n WHERE n.id = w.node_id AND n.status <> 'retired')),
taken AS (
  UPDATE task t
     SET status = '{_EDGE.target}', generation = t.generation + 1, fence = t.fence + 1, lease_expires_at = $4,
         first_claimed_at = coalesce(t.first_claimed_at, $3)
    FROM due WHERE t.id = due.id RETURNING {COLUMNS}),
moved AS (
  INSERT INTO transition
    (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
  SELECT '{TASK.name}', t.id, t.generation, t.tenant_id, '{_EDGE.source}', '{_EDGE.trigger}', '{_EDGE.target}', $3,
         t.correlation_id FROM taken t)
SELECT {COLUMNS}, n.sealing_key FROM taken t JOIN node n ON n.id = t.node_id ORDER BY t.node_id, t.id"""
GRANTS: Final = """
SELECT g.task_id, g.name, g.purpose, g.repository,
       s.id, s.tenant_id, s.purpose AS kept_for, s.master_key_id, s.wrapped_key, s.ciphertext
  FROM secret_grant g
  LEFT JOIN runtime_secret r ON r.id = g.runtime_secret_id
  LEFT JOIN secret s ON s.id = r.secret_id
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


@dataclass(frozen=True, slots=True)
class FencedTask:
    """A task under the fence of a claim."""

    task_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What there is to hand out: the nodes that have something queued, and what their agents are asked to end."""

    queued: frozenset[str]
    cancelling: Mapping[str, tuple[FencedTask, ...]]


@dataclass(frozen=True, slots=True)
class SecretGrant:
    """A secret that a task gets: a stored one, sealed at rest, or a token for a repository."""

    name: str
    purpose: str
    repository: str | None
    sealed: Sealed | None


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task that was just taken for its node, and the key that its secrets are sealed to."""

    task: Task
    sealing_key: bytes
    grants: tuple[SecretGrant, ...] = field(default=())


async def look(database: Database) -> QueueSnapshot:
    """One look at everything that waits for agents; it costs as much as there are nodes with something queued."""
    queued: set[str] = set()
    cancelling: dict[str, list[FencedTask]] = {}
    for node_id, task_id, fence in await database.fetch(PLATFORM, LOOK, CANCELLING_MAX):
        if task_id is None:
            queued.add(node_id)
        else:
            cancelling.setdefault(node_id, []).append(FencedTask(task_id, fence))
    return QueueSnapshot(frozenset(queued), {node_id: tuple(held) for node_id, held in cancelling.items()})


async def claim(
    database: Database, wanted: Sequence[tuple[str, int]], now: datetime, leased_until: datetime
) -> list[ClaimedTask]:
    """Take what is queued for these nodes, for each up to what its agent has room for."""
    node_ids, free = [node_id for node_id, _ in wanted], [room for _, room in wanted]
    try:
        async with database.connection(PLATFORM) as connection:
            rows = await connection.fetch(CLAIM, node_ids, free, now, leased_until)
    except BROKEN as error:  # never tried again: nobody knows whether it was done, and a lease that is lost comes back
        raise unavailable("the database went away while tasks were claimed") from error
    size = len(NAMES)
    return [ClaimedTask(Task(*tuple(row)[:size]), row["sealing_key"]) for row in rows]


async def grants(database: Database, task_ids: Sequence[str], now: datetime) -> dict[str, list[SecretGrant]]:
    """The secrets that these tasks were granted, and that still count, by task."""
    found: dict[str, list[SecretGrant]] = {}
    for row in await database.fetch(PLATFORM, GRANTS, list(task_ids), now):
        task_id, name, purpose, repository, *sealed = tuple(row)
        kept = None if sealed[0] is None else Sealed(*sealed)
        found.setdefault(task_id, []).append(SecretGrant(name, purpose, repository, kept))
    return found


async def renew(
    database: Database, held: Sequence[tuple[str, FencedTask]], stale_before: datetime, leased_until: datetime
) -> list[tuple[str, FencedTask, str | None]]:
    """Renew these leases of these nodes; each with its status, or none where it is no longer theirs.

    A lease that ends only after `stale_before` is left as it is: polls that follow each other quickly write nothing.
    """
    columns = ([node for node, _ in held], [each.task_id for _, each in held], [each.fence for _, each in held])
    rows = await database.fetch(PLATFORM, RENEW, *columns, stale_before, leased_until)
    return [(row[0], FencedTask(row[1], row[2]), row[3]) for row in rows]
