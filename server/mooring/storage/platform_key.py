"""The platform's own keys, as they are read."""

from typing import Final

from mooring.core.secret import Sealed
from mooring.storage.database import PLATFORM, Database

CURRENT: Final = "SELECT id FROM platform_key WHERE purpose = $1 AND retired_at IS NULL"


PAIR: Final = """
SELECT k.public_key, s.id, s.tenant_id, s.purpose, s.master_key_id, s.wrapped_key, s.ciphertext
  FROM platform_key k JOIN secret s ON s.id = k.secret_id
 WHERE k.purpose = $1 AND k.retired_at IS NULL"""


async def pair(database: Database, purpose: str) -> tuple[bytes, Sealed] | None:
    """The key that is in use for a purpose: its public half, and the private one sealed."""
    row = await database.fetchrow(PLATFORM, PAIR, purpose)
    return None if row is None else (row[0], Sealed(*row[1:]))


async def current(database: Database, purpose: str) -> str | None:
    """The id of the key that is in use for a purpose."""
    key_id: str | None = await database.fetchval(PLATFORM, CURRENT, purpose)
    return key_id
