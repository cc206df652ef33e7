"""Service accounts and their keys, as they are read."""

from typing import Final

import asyncpg

from mooring.core.service_account import ServiceAccount, ServiceAccountKey
from mooring.storage.database import PLATFORM, Acting, Database

_COLUMNS: Final = """id, tenant_id, project_id, name, description, actions, status, generation, revision, created_at,
       disabled_at, deleted_at"""
_KEY_COLUMNS: Final = """id, tenant_id, service_account_id, algorithm, public_key, revision, created_at, expires_at,
       revoked_at"""
FIND: Final = f"SELECT {_COLUMNS} FROM service_account WHERE project_id = $1 AND id = $2"
FIND_ANYWHERE: Final = f"SELECT {_COLUMNS} FROM service_account WHERE id = $1"
LIST: Final = f"""
SELECT {_COLUMNS} FROM service_account
 WHERE project_id = $1 AND status <> 'deleted' AND id > $2 ORDER BY id LIMIT $3"""
COUNT: Final = "SELECT count(*) FROM service_account WHERE project_id = $1 AND status <> 'deleted'"
KEYS: Final = f"""
SELECT * FROM (
  SELECT {_KEY_COLUMNS} FROM service_account_key WHERE service_account_id = $1
   ORDER BY revoked_at IS NOT NULL, id DESC LIMIT 1000) k
 ORDER BY id"""
"""Those that count are always among them: no number of revoked keys hides one."""
KEY: Final = f"SELECT {_KEY_COLUMNS} FROM service_account_key WHERE service_account_id = $1 AND id = $2"


async def find(database: Database, acting: Acting, project_id: str, account_id: str) -> ServiceAccount | None:
    """One service account of a project; a deleted one stays readable."""
    row = await database.fetchrow(acting, FIND, project_id, account_id)
    return None if row is None else account_of(row)


async def find_anywhere(database: Database, account_id: str) -> ServiceAccount | None:
    """The account that an assertion names, before its project is known."""
    row = await database.fetchrow(PLATFORM, FIND_ANYWHERE, account_id)
    return None if row is None else account_of(row)


async def page(database: Database, acting: Acting, project_id: str, after: str, limit: int) -> list[ServiceAccount]:
    """The next service accounts of a project."""
    return [account_of(row) for row in await database.fetch(acting, LIST, project_id, after, limit)]


async def count(database: Database, acting: Acting, project_id: str) -> int:
    """How many service accounts a project has."""
    return int(await database.fetchval(acting, COUNT, project_id))


async def keys(database: Database, acting: Acting, account_id: str) -> list[ServiceAccountKey]:
    """The keys of an account: all that count, and the newest of the revoked ones."""
    return [key_of(row) for row in await database.fetch(acting, KEYS, account_id)]


async def key(database: Database, acting: Acting, account_id: str, key_id: str) -> ServiceAccountKey | None:
    """One key of an account."""
    row = await database.fetchrow(acting, KEY, account_id, key_id)
    return None if row is None else key_of(row)


def account_of(row: asyncpg.Record) -> ServiceAccount:
    """The service account of a row."""
    return ServiceAccount(*row)


def key_of(row: asyncpg.Record) -> ServiceAccountKey:
    """The key of a row."""
    return ServiceAccountKey(*row)
