"""Reads identity providers and whom they know; a sign-in reads them as the platform, since nobody is known yet."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from mooring.core.identity.identity_provider import IdentityProvider
from mooring.core.identity.user import User
from mooring.core.kernel.secret import Sealed
from mooring.storage.identity import user as users
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = ", ".join(f"p.{name}" for name in IdentityProvider.__slots__)
FIND: Final = f"SELECT {_COLUMNS} FROM identity_provider p WHERE p.tenant_id IS NOT DISTINCT FROM $1 AND p.id = $2"
FIND_ANYWHERE: Final = f"SELECT {_COLUMNS} FROM identity_provider p WHERE p.id = $1"
LIST: Final = f"""
SELECT {_COLUMNS} FROM identity_provider p
 WHERE p.tenant_id IS NOT DISTINCT FROM $1 AND p.id > $2 ORDER BY p.id LIMIT $3"""
COUNT: Final = "SELECT count(*) FROM identity_provider WHERE tenant_id IS NOT DISTINCT FROM $1"
OFFERED: Final = """
SELECT p.id, p.name FROM identity_provider p LEFT JOIN tenant t ON t.id = p.tenant_id
 WHERE p.disabled_at IS NULL AND t.slug IS NOT DISTINCT FROM $1 ORDER BY p.name, p.id LIMIT 10"""
SECRET: Final = """
SELECT v.id, v.tenant_id, v.purpose, v.master_key_id, v.wrapped_key, v.ciphertext
  FROM identity_provider p JOIN secret v ON v.id = p.secret_id WHERE p.id = $1"""
LINKED: Final = f"""
SELECT {users.COLUMNS} FROM user_identity i JOIN "user" u ON u.id = i.user_id
 WHERE i.identity_provider_id = $1 AND i.subject = $2"""
PROJECTS: Final = "SELECT id FROM project WHERE tenant_id = $1 AND id = ANY ($2::text[]) AND deleted_at IS NULL"


async def find(database: Database, acting: Acting, provider_id: str) -> IdentityProvider | None:
    """A provider of the tenant, or of the platform, that `acting` names."""
    return _provider(await database.fetchrow(acting, FIND, acting.tenant_id, provider_id))


async def find_anywhere(database: Database, provider_id: str) -> IdentityProvider | None:
    """The provider that somebody signs in with."""
    return _provider(await database.fetchrow(PLATFORM, FIND_ANYWHERE, provider_id))


async def page(database: Database, acting: Acting, window: PageWindow) -> list[IdentityProvider]:
    rows = await database.fetch(acting, LIST, acting.tenant_id, window.after, window.limit)
    return [IdentityProvider(*row) for row in rows]


async def count(database: Database, acting: Acting) -> int:
    return int(await database.fetchval(acting, COUNT, acting.tenant_id))


async def offered(database: Database, tenant_slug: str | None) -> list[tuple[str, str]]:
    """The ids and names of the providers that people of a tenant, or of the platform, can sign in with."""
    return [(row["id"], row["name"]) for row in await database.fetch(PLATFORM, OFFERED, tenant_slug)]


async def secret(database: Database, provider_id: str) -> Sealed | None:
    """The sealed secret of the provider's client; None for a public client."""
    row = await database.fetchrow(PLATFORM, SECRET, provider_id)
    return None if row is None else Sealed(*row)


async def linked_user(database: Database, provider_id: str, subject: str) -> User | None:
    """The user whom a provider means by a subject."""
    row = await database.fetchrow(PLATFORM, LINKED, provider_id, subject)
    return None if row is None else users.user_of(row)


async def existing_projects(database: Database, tenant_id: str | None, project_ids: Sequence[str]) -> frozenset[str]:
    """Which of these projects exist in the tenant."""
    rows = await database.fetch(PLATFORM, PROJECTS, tenant_id, list(project_ids))
    return frozenset(row["id"] for row in rows)


def _provider(row: asyncpg.Record | None) -> IdentityProvider | None:
    return None if row is None else IdentityProvider(*row)
