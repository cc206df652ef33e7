"""Reads users: for admins, and as the platform for a sign-in."""

from typing import Final

import asyncpg

from mooring.core.identity.user import User
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = """u.id, u.tenant_id, u.email, u.display_name, u.password_hash, u.one_time_hash,
       u.one_time_expires_at, u.disabled_at, u.revision, u.created_at, u.tokens_from, u.tokens_except,
       u.sessions_from, u.sessions_except"""
FIND: Final = f'SELECT {COLUMNS} FROM "user" u WHERE u.id = $1 AND u.tenant_id IS NOT DISTINCT FROM $2'
LIST: Final = f"""
SELECT {COLUMNS} FROM "user" u WHERE u.tenant_id IS NOT DISTINCT FROM $1 AND u.id > $2 ORDER BY u.id LIMIT $3"""
SIGN_IN_TENANT: Final = f"""
SELECT {COLUMNS} FROM "user" u JOIN tenant t ON t.id = u.tenant_id WHERE t.slug = $1 AND u.email = $2"""
SIGN_IN_PLATFORM: Final = f'SELECT {COLUMNS} FROM "user" u WHERE u.tenant_id IS NULL AND u.email = $1'
BY_EMAIL: Final = f'SELECT {COLUMNS} FROM "user" u WHERE u.tenant_id IS NOT DISTINCT FROM $1 AND u.email = $2'
SIGNED_IN_FROM: Final = """
SELECT EXISTS (
  SELECT FROM audit WHERE action = 'sign_in' AND outcome = 'done' AND actor_id = $1 AND remote_address = $2)"""
ROLES: Final = "SELECT DISTINCT role FROM membership WHERE user_id = $1"
ANY_PLATFORM_ADMIN: Final = "SELECT EXISTS (SELECT FROM membership WHERE role = 'platform_admin')"


async def find(database: Database, acting: Acting, user_id: str) -> User | None:
    """One user of the tenant (or of the platform) that `acting` names."""
    row = await database.fetchrow(acting, FIND, user_id, acting.tenant_id)
    return None if row is None else user_of(row)


async def page(database: Database, acting: Acting, window: PageWindow) -> list[User]:
    """The users of a tenant, or of the platform."""
    return [user_of(row) for row in await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)]


async def find_for_sign_in(database: Database, tenant_slug: str | None, email: str) -> User | None:
    """The user whom a sign-in names, read as the platform because nobody is authenticated yet."""
    if tenant_slug is None:
        row = await database.fetchrow(PLATFORM, SIGN_IN_PLATFORM, email)
    else:
        row = await database.fetchrow(PLATFORM, SIGN_IN_TENANT, tenant_slug, email)
    return None if row is None else user_of(row)


async def find_by_email(database: Database, tenant_id: str | None, email: str) -> User | None:
    """The user with this address, read as the platform because nobody is authenticated yet."""
    row = await database.fetchrow(PLATFORM, BY_EMAIL, tenant_id, email)
    return None if row is None else user_of(row)


async def has_signed_in_from(database: Database, user_id: str, remote_address: str) -> bool:
    """Whether the audit trail has a sign-in of this user from this address."""
    return bool(await database.fetchval(PLATFORM, SIGNED_IN_FROM, user_id, remote_address))


async def roles(database: Database, acting: Acting, user_id: str) -> list[str]:
    """The names of the roles that a user holds in any place."""
    return [row["role"] for row in await database.fetch(acting, ROLES, user_id)]


async def any_platform_admin(database: Database) -> bool:
    return bool(await database.fetchval(PLATFORM, ANY_PLATFORM_ADMIN))


def user_of(row: asyncpg.Record) -> User:
    return User(*row)
