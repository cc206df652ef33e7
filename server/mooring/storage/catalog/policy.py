"""Reads policy layers: the layer of exactly one place, and the chain from the platform down to a place."""

from typing import Final

import asyncpg

from mooring.core.catalog.policy_change import Policy
from mooring.storage.kernel.database import Acting, Database

_COLUMNS: Final = "p.id, p.tenant_id, p.project_id, p.rules, p.revision, p.created_at, p.updated_at"
FIND: Final = f"""
SELECT {_COLUMNS} FROM policy p
 WHERE p.tenant_id IS NOT DISTINCT FROM $1 AND p.project_id IS NOT DISTINCT FROM $2"""
CHAIN: Final = f"""
SELECT {_COLUMNS} FROM policy p
 WHERE p.tenant_id IS NULL OR (p.tenant_id = $1 AND (p.project_id IS NULL OR p.project_id = $2))"""


async def find(database: Database, acting: Acting, project_id: str | None) -> Policy | None:
    """The layer of exactly this place; None if it has no rules yet."""
    row = await database.fetchrow(acting, FIND, acting.tenant_id, project_id)
    return None if row is None else policy_of(row)


async def chain(database: Database, acting: Acting, project_id: str | None) -> list[Policy]:
    """The layers that apply in this place, including its own."""
    return [policy_of(row) for row in await database.fetch(acting, CHAIN, acting.tenant_id, project_id)]


def policy_of(row: asyncpg.Record) -> Policy:
    return Policy(*row)
