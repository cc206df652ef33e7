"""Reads signer keys: those of one place, and those that apply there together with the platform's."""

from typing import Final

import asyncpg

from mooring.core.catalog.artifact_trust import SignerKey
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = """k.id, k.tenant_id, k.fingerprint, k.removed_at, k.name, k.algorithm, k.public_key, k.revision,
       k.created_at"""
_SEEN: Final = "(k.tenant_id IS NULL OR k.tenant_id = $1)"
FIND: Final = f"SELECT {_COLUMNS} FROM signer_key k WHERE k.tenant_id IS NOT DISTINCT FROM $1 AND k.id = $2"
LIST: Final = f"SELECT {_COLUMNS} FROM signer_key k WHERE {_SEEN} AND k.id > $2 ORDER BY k.id LIMIT $3"
COUNT: Final = "SELECT count(*) FROM signer_key k WHERE k.tenant_id IS NOT DISTINCT FROM $1 AND k.removed_at IS NULL"


async def find(database: Database, acting: Acting, key_id: str) -> SignerKey | None:
    """One key of exactly this place."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, key_id)
    return None if row is None else key_of(row)


async def page(database: Database, acting: Acting, window: PageWindow) -> list[SignerKey]:
    """The keys that are or were trusted in this place: the platform's and the tenant's own."""
    return [key_of(row) for row in await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)]


async def count(database: Database, acting: Acting) -> int:
    """How many trusted keys this place has itself."""
    return int(await database.fetchval(acting, COUNT, acting.tenant_id))


def key_of(row: asyncpg.Record) -> SignerKey:
    return SignerKey(**dict(row.items()))
