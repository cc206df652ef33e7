"""Reads sealed secrets, and rewraps them in batches after a rotation of the master key."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.kernel.secret import Sealed
from mooring.storage.kernel.database import PLATFORM, Acting, Database

CONNECT_SECONDS_MAX: Final = 60.0
_COLUMNS: Final = "id, tenant_id, purpose, master_key_id, wrapped_key, ciphertext"
FIND: Final = f"SELECT {_COLUMNS} FROM secret WHERE id = $1"
MASTER_KEYS: Final = "SELECT DISTINCT master_key_id FROM secret"
UNDER_OTHER_KEYS: Final = f"SELECT {_COLUMNS} FROM secret WHERE master_key_id <> $1 ORDER BY id LIMIT $2"
REWRAP: Final = """
UPDATE secret SET master_key_id = $3, wrapped_key = $4 WHERE id = $1 AND wrapped_key = $2"""


async def find(database: Database, acting: Acting, secret_id: str) -> Sealed | None:
    row = await database.fetchrow(acting, FIND, secret_id)
    return None if row is None else Sealed(*row)


ADD_ONCE: Final = f"""
INSERT INTO secret ({_COLUMNS}, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING"""


async def add_once(database: Database, sealed: Sealed, now: datetime) -> Sealed:
    """Store a secret with a fixed id, unless another process was faster; returns the one that is stored."""
    async with database.connection(PLATFORM) as connection:
        values = (sealed.id, sealed.tenant_id, sealed.purpose, sealed.master_key_id)
        await connection.execute(ADD_ONCE, *values, sealed.wrapped_key, sealed.ciphertext, now)
        stored = await connection.fetchrow(FIND, sealed.id)
    if stored is None:
        raise AssertionError("a secret without an expiry is never deleted")
    return Sealed(*stored)


async def master_keys(database: Database) -> list[str]:
    """The ids of the master keys that stored secrets need."""
    return [row["master_key_id"] for row in await database.fetch(PLATFORM, MASTER_KEYS)]


async def rewrap_batch(url: str, key_id: str, rewrap: Callable[[Sealed], Sealed], limit: int) -> int:
    """Rewrap the next secrets that are under another key; each update is guarded by the wrapped key that was read."""
    connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS_MAX)
    try:
        rows = await connection.fetch(UNDER_OTHER_KEYS, key_id, limit)
        for row in rows:
            rewrapped = rewrap(Sealed(*row))
            key = (rewrapped.master_key_id, rewrapped.wrapped_key)
            await connection.execute(REWRAP, rewrapped.id, row["wrapped_key"], *key)
        return len(rows)
    finally:
        await connection.close()
