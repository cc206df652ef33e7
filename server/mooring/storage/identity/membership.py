"""Reads the memberships of exactly one place, never those above or below it."""

from typing import Final

import asyncpg

from mooring.core.identity.membership import Membership
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = "id, tenant_id, project_id, user_id, role, revision, created_at, identity_provider_id"
_HERE: Final = "tenant_id IS NOT DISTINCT FROM $1 AND project_id IS NOT DISTINCT FROM $2"
FIND: Final = f"SELECT {_COLUMNS} FROM membership WHERE {_HERE} AND id = $3"
LIST: Final = f"SELECT {_COLUMNS} FROM membership WHERE {_HERE} AND id > $3 ORDER BY id LIMIT $4"
OTHERS: Final = f"SELECT count(*) FROM membership WHERE {_HERE} AND role = $3 AND id <> $4"
OF_USER: Final = (
    f"SELECT {_COLUMNS} FROM membership WHERE tenant_id IS NOT DISTINCT FROM $1 AND user_id = $2 ORDER BY id"
)
OTHER_ADMINS: Final = """
SELECT count(*) FROM membership m JOIN "user" u ON u.id = m.user_id
 WHERE m.tenant_id IS NOT DISTINCT FROM $1 AND m.user_id <> $2 AND u.disabled_at IS NULL
   AND m.role = CASE WHEN $1 IS NULL THEN 'platform_admin' ELSE 'tenant_admin' END"""


async def find(database: Database, acting: Acting, project_id: str | None, membership_id: str) -> Membership | None:
    """One membership of exactly this place, not of a place above or below."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, project_id, membership_id)
    return None if row is None else membership_of(row)


async def page(database: Database, acting: Acting, project_id: str | None, window: PageWindow) -> list[Membership]:
    """The memberships of exactly this place, not of places above or below."""
    rows = await database.fetch(acting, LIST, acting.tenant_id, project_id, window.after, window.limit)
    return [membership_of(row) for row in rows]


async def others(database: Database, acting: Acting, membership: Membership) -> int:
    """How many other memberships give the same role in the same place."""
    return int(
        await database.fetchval(
            acting, OTHERS, membership.tenant_id, membership.project_id, membership.role, membership.id
        )
    )


async def of_user(database: Database, acting: Acting, user_id: str) -> list[Membership]:
    """All memberships of a user, in every place."""
    return [membership_of(row) for row in await database.fetch(acting, OF_USER, acting.tenant_id, user_id)]


async def other_admins(database: Database, acting: Acting, user_id: str) -> int:
    """How many other users who can sign in administer the tenant, or the platform."""
    return int(await database.fetchval(acting, OTHER_ADMINS, acting.tenant_id, user_id))


def membership_of(row: asyncpg.Record) -> Membership:
    return Membership(*row)
