"""Reads passkeys: for their owners, and as the platform for a sign-in."""

from typing import Final

import asyncpg

from mooring.core.identity.passkey import Passkey
from mooring.core.kernel.decision import Remove
from mooring.storage.kernel.database import PLATFORM, Acting, Database

_COLUMNS: Final = ", ".join(f"k.{name}" for name in Passkey.__slots__)
OWN: Final = f"SELECT {_COLUMNS} FROM passkey k WHERE k.user_id = $1 ORDER BY k.id LIMIT 100"
FIND_OWN: Final = f"SELECT {_COLUMNS} FROM passkey k WHERE k.id = $1 AND k.user_id = $2"
BY_CREDENTIAL: Final = f"SELECT {_COLUMNS} FROM passkey k WHERE k.credential_id = $1"


async def own(database: Database, acting: Acting, user_id: str) -> list[Passkey]:
    """All passkeys of a user; there are few."""
    return [Passkey(*row) for row in await database.fetch(acting, OWN, user_id)]


async def removals(database: Database, acting: Acting, user_id: str) -> list[Remove]:
    """What removes every passkey of a user."""
    return [Remove("passkey", each.id, each.revision) for each in await own(database, acting, user_id)]


async def find_own(database: Database, acting: Acting, passkey_id: str, user_id: str) -> Passkey | None:
    return _passkey(await database.fetchrow(acting, FIND_OWN, passkey_id, user_id))


async def by_credential(database: Database, credential_id: bytes) -> Passkey | None:
    """The passkey that a sign-in names, read as the platform because nobody is authenticated yet."""
    return _passkey(await database.fetchrow(PLATFORM, BY_CREDENTIAL, credential_id))


def _passkey(row: asyncpg.Record | None) -> Passkey | None:
    return None if row is None else Passkey(*row)
