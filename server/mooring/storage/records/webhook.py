"""Reads the webhooks of exactly one scope: the platform, a tenant or a project."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.kernel.secret import Sealed
from mooring.core.records.webhook import Webhook
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

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
    """Where a webhook's messages go, and the keys that sign them, the present one first."""

    url: str
    tenant_id: str | None
    keys: tuple[Sealed, ...]


async def find(database: Database, acting: Acting, project_id: str | None, webhook_id: str) -> Webhook | None:
    """One webhook of exactly this scope."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, project_id, webhook_id)
    return None if row is None else webhook_of(row)


async def page(database: Database, acting: Acting, project_id: str | None, window: PageWindow) -> list[Webhook]:
    """The webhooks of exactly this scope."""
    rows = await database.fetch(acting, LIST, acting.tenant_id, project_id, window.after, window.limit)
    return [webhook_of(row) for row in rows]


async def count(database: Database, acting: Acting, project_id: str | None) -> int:
    return int(await database.fetchval(acting, COUNT, acting.tenant_id, project_id))


async def keys(database: Database, acting: Acting, webhook_id: str, now: datetime) -> tuple[Sealed, ...]:
    """The keys that sign a webhook's messages now, the present one first."""
    return tuple(Sealed(*row) for row in await database.fetch(acting, KEYS, webhook_id, now))


async def receiver(database: Database, webhook_id: str, now: datetime) -> WebhookReceiver | None:
    """Where the worker sends; None when the webhook is paused or deleted."""
    row = await database.fetchrow(PLATFORM, RECEIVER, webhook_id)
    if row is None:
        return None
    return WebhookReceiver(row["url"], row["tenant_id"], await keys(database, PLATFORM, webhook_id, now))


def webhook_of(row: asyncpg.Record) -> Webhook:
    return Webhook(*row)
