"""Webhooks, as they are read: those of exactly one place."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.kernel.secret import Sealed
from mooring.core.records.webhook import Webhook
from mooring.storage.kernel.database import PLATFORM, Acting, Database

_COLUMNS: Final = """w.id, w.tenant_id, w.project_id, w.url, w.description, w.event_types, w.enabled, w.secret_id,
       w.previous_secret_id, w.revision, w.created_at"""
_HERE: Final = "w.tenant_id IS NOT DISTINCT FROM $1 AND w.project_id IS NOT DISTINCT FROM $2"
FIND: Final = f"SELECT {_COLUMNS} FROM webhook w WHERE {_HERE} AND w.id = $3"
LIST: Final = f"SELECT {_COLUMNS} FROM webhook w WHERE {_HERE} AND w.id > $3 ORDER BY w.id LIMIT $4"
COUNT: Final = f"SELECT count(*) FROM webhook w WHERE {_HERE}"
KEYS: Final = """
SELECT s.id, s.tenant_id, s.purpose, s.master_key_id, s.wrapped_key, s.ciphertext
  FROM webhook w JOIN secret s ON s.id IN (w.secret_id, w.previous_secret_id)
                              AND s.tenant_id IS NOT DISTINCT FROM w.tenant_id
 WHERE w.id = $1 AND (s.expires_at IS NULL OR s.expires_at > $2)
 ORDER BY s.id = w.secret_id DESC"""
RECEIVER: Final = "SELECT w.url, w.tenant_id FROM webhook w WHERE w.id = $1 AND w.enabled"


@dataclass(frozen=True, slots=True)
class WebhookReceiver:
    """Where a webhook's messages go, and what they are signed with: the present key first."""

    url: str
    tenant_id: str | None
    keys: tuple[Sealed, ...]


async def find(database: Database, acting: Acting, project_id: str | None, webhook_id: str) -> Webhook | None:
    """One webhook of exactly this place."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, project_id, webhook_id)
    return None if row is None else webhook_of(row)


async def page(database: Database, acting: Acting, project_id: str | None, after: str, limit: int) -> list[Webhook]:
    """The next webhooks of exactly this place."""
    rows = await database.fetch(acting, LIST, acting.tenant_id, project_id, after, limit)
    return [webhook_of(row) for row in rows]


async def count(database: Database, acting: Acting, project_id: str | None) -> int:
    """How many webhooks this place has."""
    return int(await database.fetchval(acting, COUNT, acting.tenant_id, project_id))


async def keys(database: Database, acting: Acting, webhook_id: str, now: datetime) -> tuple[Sealed, ...]:
    """The keys that a webhook's messages are signed with now, the present one first."""
    return tuple(Sealed(*row) for row in await database.fetch(acting, KEYS, webhook_id, now))


async def receiver(database: Database, webhook_id: str, now: datetime) -> WebhookReceiver | None:
    """Where to send, for the worker; none when the webhook is paused or gone."""
    row = await database.fetchrow(PLATFORM, RECEIVER, webhook_id)
    if row is None:
        return None
    return WebhookReceiver(row["url"], row["tenant_id"], await keys(database, PLATFORM, webhook_id, now))


def webhook_of(row: asyncpg.Record) -> Webhook:
    """The webhook of a row."""
    return Webhook(*row)
