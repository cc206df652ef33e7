"""Reads service accounts and their keys: of one project, or across tenants by a key."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.identity.service_account import ServiceAccount, ServiceAccountKey
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = """id, tenant_id, project_id, name, description, actions, status, generation, revision, created_at,
       disabled_at, deleted_at, app_id"""
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
"""Revoked keys come last before the limit applies, so no number of them can hide a key that is not revoked."""
OF_KEY: Final = """
SELECT a.id, a.project_id, k.id,
       coalesce((SELECT array_agg(e.app_slug ORDER BY e.app_slug) FROM entitlement e WHERE e.service_account_id = a.id),
                '{}')
  FROM service_account_key k JOIN service_account a ON a.id = k.service_account_id
 WHERE k.public_key = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > $2)
   AND a.status = 'active' AND a.id > $3
 ORDER BY a.id LIMIT $4"""
OPERATOR_NAMES: Final = """
SELECT name FROM service_account WHERE project_id = $1 AND name LIKE 'app-%' AND status <> 'deleted'"""
OPERATES: Final = "SELECT EXISTS (SELECT FROM instance WHERE service_account_id = $1 AND status <> 'stopped')"
UNKEYED: Final = f"""
SELECT {", ".join(f"a.{name.strip()}" for name in _COLUMNS.split(","))}
  FROM service_account a
 WHERE a.app_id = $1 AND a.status <> 'deleted' AND a.id > $4
   AND (EXISTS (SELECT FROM service_account_key k
                 WHERE k.service_account_id = a.id AND k.revoked_at IS NULL AND k.public_key = ANY ($3::bytea[]))
        OR ($2::bytea IS NOT NULL AND NOT EXISTS (
             SELECT FROM service_account_key k
              WHERE k.service_account_id = a.id AND k.revoked_at IS NULL AND k.public_key = $2)))
 ORDER BY a.id LIMIT $5"""
OPERATORS_WITH: Final = f"""
SELECT {", ".join(f"a.{name.strip()}" for name in _COLUMNS.split(","))}
  FROM service_account a
 WHERE a.app_id IS NOT NULL AND a.status <> 'deleted' AND a.id > $2 AND a.id IN (
   SELECT k.service_account_id FROM service_account_key k
    WHERE k.revoked_at IS NULL AND k.public_key = ANY ($1::bytea[]))
 ORDER BY a.id LIMIT $3"""
IDLE: Final = f"""
SELECT {", ".join(f"a.{name.strip()}" for name in _COLUMNS.split(","))}
  FROM service_account a
 WHERE a.app_id IS NOT NULL AND a.status <> 'deleted'
   AND NOT EXISTS (SELECT FROM entitlement e WHERE e.service_account_id = a.id)
   AND NOT EXISTS (SELECT FROM instance i WHERE i.service_account_id = a.id AND i.status <> 'stopped')
 ORDER BY a.id LIMIT $1"""
KEYS_OF: Final = (
    f"SELECT {_KEY_COLUMNS} FROM service_account_key WHERE service_account_id = ANY ($1::text[]) ORDER BY id"
)
KEY: Final = f"SELECT {_KEY_COLUMNS} FROM service_account_key WHERE service_account_id = $1 AND id = $2"


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """An account that has a certain key, and the apps that the account operates."""

    service_account_id: str
    project_id: str
    key_id: str
    apps: list[str]


async def find(database: Database, acting: Acting, project_id: str, account_id: str) -> ServiceAccount | None:
    """One service account of a project; a deleted one stays readable."""
    row = await database.fetchrow(acting, FIND, project_id, account_id)
    return None if row is None else account_of(row)


async def find_anywhere(database: Database, account_id: str) -> ServiceAccount | None:
    """The account that an assertion names, read as the platform because its project is not known yet."""
    row = await database.fetchrow(PLATFORM, FIND_ANYWHERE, account_id)
    return None if row is None else account_of(row)


async def page(database: Database, acting: Acting, project_id: str, window: PageWindow) -> list[ServiceAccount]:
    return [account_of(row) for row in await database.fetch(acting, LIST, project_id, window.after, window.limit)]


async def count(database: Database, acting: Acting, project_id: str) -> int:
    return int(await database.fetchval(acting, COUNT, project_id))


async def keys(database: Database, acting: Acting, account_id: str) -> list[ServiceAccountKey]:
    """The keys of an account: all that are not revoked, and the newest of the revoked ones."""
    return [key_of(row) for row in await database.fetch(acting, KEYS, account_id)]


async def of_key(database: Database, public_key: bytes, now: datetime, window: PageWindow) -> list[KeyHolder]:
    """The active accounts that have this key, in all tenants."""
    rows = await database.fetch(PLATFORM, OF_KEY, public_key, now, window.after, window.limit)
    return [KeyHolder(*row) for row in rows]


async def operator_names(database: Database, acting: Acting, project_id: str) -> set[str]:
    """The account names of a project that have the form of an operator account's name."""
    return {row[0] for row in await database.fetch(acting, OPERATOR_NAMES, project_id)}


async def operates(database: Database, acting: Acting, account_id: str) -> bool:
    """Whether this account operates an instance that is not stopped."""
    return bool(await database.fetchval(acting, OPERATES, account_id))


async def idle_operators(database: Database, limit: int) -> list[ServiceAccount]:
    """Operator accounts that are no longer needed: without an entitlement, and without an instance that runs."""
    return [account_of(row) for row in await database.fetch(PLATFORM, IDLE, limit)]


async def unkeyed(
    database: Database,
    acting: Acting,
    app_id: str,
    *,
    new_key: bytes | None,
    old_keys: list[bytes],
    window: PageWindow,
) -> list[tuple[ServiceAccount, list[ServiceAccountKey]]]:
    """The next operator accounts of an app that lack `new_key` or still have one of `old_keys`, each with its keys."""
    rows = await database.fetch(acting, UNKEYED, app_id, new_key, old_keys, window.after, window.limit)
    return await _with_keys(database, acting, [account_of(row) for row in rows])


async def operators_with(
    database: Database, public_keys: list[bytes], window: PageWindow
) -> list[tuple[ServiceAccount, list[ServiceAccountKey]]]:
    """The next operator accounts of all tenants that have one of these keys, each with all its keys."""
    rows = await database.fetch(PLATFORM, OPERATORS_WITH, public_keys, window.after, window.limit)
    return await _with_keys(database, PLATFORM, [account_of(row) for row in rows])


async def _with_keys(
    database: Database, acting: Acting, found: list[ServiceAccount]
) -> list[tuple[ServiceAccount, list[ServiceAccountKey]]]:
    by_account: dict[str, list[ServiceAccountKey]] = {each.id: [] for each in found}
    for row in await database.fetch(acting, KEYS_OF, list(by_account)):
        key = key_of(row)
        by_account[key.service_account_id].append(key)
    return [(each, by_account[each.id]) for each in found]


async def key(database: Database, acting: Acting, account_id: str, key_id: str) -> ServiceAccountKey | None:
    row = await database.fetchrow(acting, KEY, account_id, key_id)
    return None if row is None else key_of(row)


def account_of(row: asyncpg.Record) -> ServiceAccount:
    return ServiceAccount(*row)


def key_of(row: asyncpg.Record) -> ServiceAccountKey:
    return ServiceAccountKey(*row)
