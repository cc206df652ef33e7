"""Reads the platform's own keys: the current one for a purpose, and the chain that leads to it."""

from typing import Final

import asyncpg

from mooring.core.identity.platform_key import PlatformKey
from mooring.core.kernel.secret import Sealed
from mooring.storage.kernel.database import PLATFORM, Acting, Database

_COLUMNS: Final = "id, public_key, signed_by, signature, revision, created_at, retired_at, epoch, root_signature"
_WIDTH: Final = len(_COLUMNS.split(", "))
CURRENT: Final = "SELECT id FROM platform_key WHERE purpose = $1 AND retired_at IS NULL"
FIRST: Final = "SELECT id FROM platform_key WHERE purpose = $1 ORDER BY signed_by IS NOT NULL, id LIMIT 1"
CHAIN: Final = f"SELECT {_COLUMNS} FROM platform_key WHERE purpose = $1"
WAITING: Final = f"SELECT {_COLUMNS} FROM platform_key WHERE purpose = $1 AND retired_at IS NULL"

PAIR: Final = """
SELECT k.public_key, s.id, s.tenant_id, s.purpose, s.master_key_id, s.wrapped_key, s.ciphertext
  FROM platform_key k JOIN secret s ON s.id = k.secret_id
 WHERE k.purpose = $1 AND k.retired_at IS NULL"""
SIGNING_PAIR: Final = f"""
SELECT {", ".join(f"k.{column}" for column in _COLUMNS.split(", "))},
       s.id AS secret_id, s.tenant_id, s.purpose, s.master_key_id, s.wrapped_key, s.ciphertext
  FROM platform_key k JOIN secret s ON s.id = k.secret_id
 WHERE k.purpose = $1 AND k.retired_at IS NULL"""


async def pair(database: Database, purpose: str) -> tuple[bytes, Sealed] | None:
    """The current key for a purpose: its public half, and its sealed private half."""
    row = await database.fetchrow(PLATFORM, PAIR, purpose)
    return None if row is None else (row[0], Sealed(*row[1:]))


async def signing_pair(database: Database, purpose: str) -> tuple[PlatformKey, Sealed] | None:
    """The current key for a purpose, with its position in the chain, and its sealed private half."""
    row = await database.fetchrow(PLATFORM, SIGNING_PAIR, purpose)
    return None if row is None else (PlatformKey(*row[:_WIDTH]), Sealed(*row[_WIDTH:]))


async def waiting(database: Database, purpose: str) -> PlatformKey | None:
    """The key that waits to be put into use."""
    row = await database.fetchrow(PLATFORM, WAITING, purpose)
    return None if row is None else key_of(row)


async def current(database: Database, purpose: str) -> str | None:
    """The id of the current key for a purpose."""
    key_id: str | None = await database.fetchval(PLATFORM, CURRENT, purpose)
    return key_id


async def first(database: Database, purpose: str) -> str | None:
    """The id of the very first key for a purpose."""
    key_id: str | None = await database.fetchval(PLATFORM, FIRST, purpose)
    return key_id


async def chain(database: Database, purpose: str, *, acting: Acting = PLATFORM) -> list[PlatformKey]:
    """Every key for a purpose, in the order of the chain: the newest one is last."""
    rows = await database.fetch(acting, CHAIN, purpose)
    by_signer = {key.signed_by: key for key in (key_of(row) for row in rows)}
    keys: list[PlatformKey] = []
    while (following := by_signer.get(keys[-1].id if keys else None)) is not None:
        keys.append(following)
    return keys


def key_of(row: asyncpg.Record) -> PlatformKey:
    return PlatformKey(*row)
