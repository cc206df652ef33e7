"""The platform's own keys, as they are read."""

from typing import Final

from mooring.storage.database import PLATFORM, Database

CURRENT: Final = "SELECT id FROM platform_key WHERE purpose = $1 AND retired_at IS NULL"


async def current(database: Database, purpose: str) -> str | None:
    """The id of the key that is in use for a purpose."""
    key_id: str | None = await database.fetchval(PLATFORM, CURRENT, purpose)
    return key_id
