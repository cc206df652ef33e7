"""Reads enrolment tokens: by id, or by the hash of the secret that a machine presents."""

from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.fleet.enrolment import EnrolmentToken
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = """id, region, labels, created_by, revision, created_at, expires_at, used_at, node_id, revoked_at,
       approval, expects"""
FIND: Final = f"SELECT {_COLUMNS} FROM enrolment_token WHERE id = $1"
BY_HASH: Final = f"SELECT {_COLUMNS} FROM enrolment_token WHERE hash = $1"
LIST: Final = f"SELECT {_COLUMNS} FROM enrolment_token WHERE id > $1 ORDER BY id LIMIT $2"
COUNT_OPEN: Final = """
SELECT count(*) FROM enrolment_token WHERE used_at IS NULL AND revoked_at IS NULL AND expires_at > $1"""


async def find(database: Database, acting: Acting, token_id: str) -> EnrolmentToken | None:
    row = await database.fetchrow(acting, FIND, token_id)
    return None if row is None else token_of(row)


async def by_hash(database: Database, hashed: bytes) -> EnrolmentToken | None:
    """The token whose secret has this hash."""
    row = await database.fetchrow(PLATFORM, BY_HASH, hashed)
    return None if row is None else token_of(row)


async def page(database: Database, acting: Acting, window: PageWindow) -> list[EnrolmentToken]:
    """All tokens: also used, revoked and expired ones."""
    return [token_of(row) for row in await database.fetch(acting, LIST, window.after, window.limit)]


async def count_open(database: Database, acting: Acting, now: datetime) -> int:
    """How many tokens are still usable."""
    return int(await database.fetchval(acting, COUNT_OPEN, now))


def token_of(row: asyncpg.Record) -> EnrolmentToken:
    return EnrolmentToken(*row)
