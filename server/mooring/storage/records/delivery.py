"""Reads deliveries for the API, and claims, ends and requeues them for the worker that sends them.

The worker's own writes are single statements. Each names the lease that it was made under, and changes nothing when
another worker has the delivery by now. Only a dead letter and a replay are decisions and go through the unit of work,
because people should know about them.

The worker claims for one webhook at a time, so that the backlog of one never delays another. A delivery is claimed only
when its event is behind the horizon of the stream (see `storage/kernel/event.py`): a receiver may follow the stream
from the cursor in a message, and would otherwise miss events of transactions that were still open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.kernel.event import Event, StreamPosition
from mooring.core.records.delivery import Delivery, DeliveryStatus
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.event import EVENT_COLUMNS, SETTLED
from mooring.storage.kernel.page_window import PageWindow

_NAMES: Final = (
    "id", "event_id", "webhook_id", "tenant_id", "project_id", "event_type", "correlation_id", "status", "attempts",
    "due_at", "lease_token", "leased_until", "last_error", "last_status", "revision", "created_at", "finished_at",
)  # fmt: skip
_COLUMNS: Final = ", ".join(f"d.{name}" for name in _NAMES)
_SCOPES: Final = {
    "platform": "d.tenant_id IS NULL AND d.project_id IS NULL AND $3::text IS NULL AND $4::text IS NULL",
    "tenant": "d.tenant_id = $3 AND d.project_id IS NULL AND $4::text IS NULL",
    "project": "d.tenant_id = $3 AND d.project_id = $4",
}
_STATUSES: Final[dict[str | None, str]] = {
    None: "true",
    **{each.value: f"d.status = '{each}'" for each in DeliveryStatus},
}
LISTS: Final = {
    (scope, status): f"""
SELECT {_COLUMNS} FROM delivery d
 WHERE {here} AND {condition} AND d.id < $1 AND ($5::text IS NULL OR d.webhook_id = $5)
 ORDER BY d.id DESC LIMIT $2"""
    for scope, here in _SCOPES.items()
    for status, condition in _STATUSES.items()
}
"""One statement for each kind of scope and status, so that each uses the index that fits it."""

DEAD: Final = {
    scope: f"""
SELECT {_COLUMNS} FROM delivery d
 WHERE {here} AND d.status = 'dead' AND d.id > $1
   AND EXISTS (SELECT FROM event e WHERE (e.epoch, e.tx, e.seq) = (d.epoch, d.tx, d.seq))
 ORDER BY d.id LIMIT $2"""
    for scope, here in _SCOPES.items()
}
FIND: Final = f"""
SELECT {_COLUMNS} FROM delivery d
 WHERE d.tenant_id IS NOT DISTINCT FROM $1 AND d.project_id IS NOT DISTINCT FROM $2 AND d.id = $3"""
EVENT_IS_KEPT: Final = """
SELECT EXISTS (
  SELECT FROM delivery d JOIN event e ON (e.epoch, e.tx, e.seq) = (d.epoch, d.tx, d.seq) WHERE d.id = $1)"""

WAITING: Final = """
WITH RECURSIVE waiting AS (
  (SELECT d.webhook_id, d.due_at FROM delivery d WHERE d.status = 'queued' ORDER BY d.webhook_id, d.due_at LIMIT 1)
  UNION ALL
  SELECT n.webhook_id, n.due_at FROM waiting w CROSS JOIN LATERAL (
    SELECT d.webhook_id, d.due_at FROM delivery d WHERE d.status = 'queued' AND d.webhook_id > w.webhook_id
     ORDER BY d.webhook_id, d.due_at LIMIT 1) n)
SELECT w.webhook_id, w.due_at FROM waiting w JOIN webhook k ON k.id = w.webhook_id AND k.enabled
 ORDER BY w.due_at LIMIT $1"""
CLAIM: Final = f"""
WITH due AS MATERIALIZED (
  SELECT e.event_id, e.webhook_id FROM delivery e
   WHERE e.webhook_id = $1 AND e.status = 'queued' AND e.due_at <= $2 AND {SETTLED}
   ORDER BY e.due_at LIMIT $4 FOR UPDATE SKIP LOCKED),
taken AS (
  UPDATE delivery d
     SET status = 'claimed', attempts = d.attempts + 1, lease_token = d.lease_token + 1, leased_until = $3,
         revision = d.revision + 1
    FROM due WHERE d.event_id = due.event_id AND d.webhook_id = due.webhook_id
  RETURNING d.*)
SELECT {_COLUMNS}, {EVENT_COLUMNS}
  FROM taken d LEFT JOIN event e ON (e.epoch, e.tx, e.seq) = (d.epoch, d.tx, d.seq)
 ORDER BY d.epoch, d.tx, d.seq"""
DELIVERED: Final = """
UPDATE delivery SET status = 'delivered', leased_until = NULL, finished_at = $3, last_status = $4, last_error = NULL,
       revision = revision + 1
 WHERE id = $1 AND lease_token = $2 AND status = 'claimed' RETURNING true"""
QUEUE_AGAIN: Final = """
UPDATE delivery SET status = 'queued', leased_until = NULL, due_at = $3, last_status = $4, last_error = $5,
       revision = revision + 1
 WHERE id = $1 AND lease_token = $2 AND status = 'claimed' RETURNING true"""
HAND_BACK: Final = """
UPDATE delivery d SET status = 'queued', leased_until = NULL, attempts = d.attempts - 1, revision = d.revision + 1
  FROM unnest($1::text[], $2::bigint[]) AS held (id, lease_token)
 WHERE d.id = held.id AND d.lease_token = held.lease_token AND d.status = 'claimed' RETURNING d.id"""
REAP: Final = """
UPDATE delivery SET status = 'queued', leased_until = NULL, due_at = $1, revision = revision + 1,
       last_error = 'the worker that sent it was lost', last_status = NULL
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM delivery WHERE status = 'claimed' AND leased_until < $1
                          ORDER BY leased_until LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id"""

COUNTS: Final = """
SELECT (SELECT count(*) FROM delivery WHERE status = 'queued') AS queued,
       (SELECT count(*) FROM delivery WHERE status = 'claimed') AS claimed,
       (SELECT count(*) FROM delivery WHERE status = 'dead') AS dead"""


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery under a lease; `event` is None when retention has deleted it."""

    delivery: Delivery
    event: Event | None


async def find(database: Database, acting: Acting, project_id: str | None, delivery_id: str) -> Delivery | None:
    """One delivery of exactly this scope."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, project_id, delivery_id)
    return None if row is None else Delivery(*row)


async def event_is_kept(database: Database, acting: Acting, delivery_id: str) -> bool:
    """Whether the event still exists: retention may have deleted it."""
    return bool(await database.fetchval(acting, EVENT_IS_KEPT, delivery_id))


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries a list shows."""

    status: str | None = None
    webhook_id: str | None = None


async def page(
    database: Database, acting: Acting, project_id: str | None, wanted: DeliveryFilter, window: PageWindow
) -> list[Delivery]:
    """The deliveries of exactly this scope, newest first."""
    statement = LISTS[_scope(acting, project_id), wanted.status]
    owner = (acting.tenant_id, project_id)
    rows = await database.fetch(acting, statement, window.after, window.limit, *owner, wanted.webhook_id)
    return [Delivery(*row) for row in rows]


async def dead(database: Database, acting: Acting, project_id: str | None, limit: int) -> list[Delivery]:
    """The oldest dead letters of exactly this scope whose event still exists."""
    rows = await database.fetch(acting, DEAD[_scope(acting, project_id)], "", limit, acting.tenant_id, project_id)
    return [Delivery(*row) for row in rows]


def _scope(acting: Acting, project_id: str | None) -> str:
    if acting.tenant_id is None:
        return "platform"
    return "tenant" if project_id is None else "project"


async def counts(database: Database) -> dict[tuple[str, ...], float]:
    """How many deliveries are queued, claimed and dead."""
    row = await database.fetchrow(PLATFORM, COUNTS)
    return {} if row is None else {(status,): float(count) for status, count in row.items()}


@dataclass(frozen=True, slots=True)
class WaitingWebhook:
    """A webhook with queued deliveries, and when the first of them is due."""

    webhook_id: str
    due_at: datetime


async def waiting(database: Database, limit: int) -> list[WaitingWebhook]:
    """The enabled webhooks with queued deliveries."""
    return [WaitingWebhook(*row) for row in await database.fetch(PLATFORM, WAITING, limit)]


async def claim(
    database: Database, webhook_id: str, now: datetime, leased_until: datetime, limit: int
) -> list[ClaimedDelivery]:
    """Claim the next due deliveries of a webhook under a lease."""
    rows = await database.fetch(PLATFORM, CLAIM, webhook_id, now, leased_until, limit)
    return [_claimed(row) for row in rows]


def _claimed(row: asyncpg.Record) -> ClaimedDelivery:
    values = tuple(row)
    size = len(_NAMES)
    epoch, tx, seq, *rest = values[size:]
    event = None if rest[0] is None else Event(StreamPosition(epoch, tx, seq), *rest)
    return ClaimedDelivery(Delivery(*values[:size]), event)


async def delivered(database: Database, delivery: Delivery, now: datetime, status: int | None) -> bool:
    """Mark it as delivered; False when the lease was lost meanwhile."""
    return bool(await database.fetchval(PLATFORM, DELIVERED, delivery.id, delivery.lease_token, now, status))


async def queue_again(database: Database, delivery: Delivery, due_at: datetime, status: int | None, error: str) -> bool:
    """Queue it again after a failure; False when the lease was lost meanwhile."""
    arguments = (delivery.id, delivery.lease_token, due_at, status, error)
    return bool(await database.fetchval(PLATFORM, QUEUE_AGAIN, *arguments))


async def hand_back(database: Database, held: Sequence[Delivery]) -> int:
    """Give leases back before they expire; the attempt does not count."""
    ids, tokens = [each.id for each in held], [each.lease_token for each in held]
    return len(await database.fetch(PLATFORM, HAND_BACK, ids, tokens))


async def reap(database: Database, now: datetime, limit: int) -> int:
    """Queue deliveries with expired leases again; the attempt counts, because the message may have arrived."""
    return len(await database.fetch(PLATFORM, REAP, now, limit))
