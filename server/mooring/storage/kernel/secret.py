"""Sealed secrets: found one by one, wrapped anew in batches."""

from collections.abc import Callable
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
    """One sealed secret."""
    row = await database.fetchrow(acting, FIND, secret_id)
    return None if row is None else Sealed(*row)


async def master_keys(database: Database) -> list[str]:
    """The ids of the master keys that stored secrets need."""
    return [row["master_key_id"] for row in await database.fetch(PLATFORM, MASTER_KEYS)]


async def rewrap_batch(url: str, key_id: str, rewrap: Callable[[Sealed], Sealed], limit: int) -> int:
    """Wrap the next secrets that another key wraps; each update is guarded by what was read."""
    connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS_MAX)
    try:
        rows = await connection.fetch(UNDER_OTHER_KEYS, key_id, limit)
        for row in rows:
            fresh = rewrap(Sealed(*row))
            await connection.execute(REWRAP, fresh.id, row["wrapped_key"], fresh.master_key_id, fresh.wrapped_key)
        return len(rows)
    finally:
        await connection.close()
