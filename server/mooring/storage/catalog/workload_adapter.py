"""Reads the platform's workload adapter, and who operates an app in a project."""

from typing import Final

from mooring.core.catalog.workload_adapter import OperatedBy, WorkloadAdapter
from mooring.storage.kernel.database import PLATFORM, Database

FIND: Final = "SELECT id, public_key, revision, created_at, keys_before FROM workload_adapter"
OPERATED_BY: Final = """
SELECT k.service_account_id, CASE WHEN bool_or(w.id IS NULL) THEN 'app' ELSE 'platform' END
  FROM service_account_key k
  LEFT JOIN workload_adapter w ON k.public_key = w.public_key OR k.public_key = ANY (w.keys_before)
 WHERE k.service_account_id = ANY ($1::text[]) AND k.revoked_at IS NULL
   AND (k.expires_at IS NULL OR k.expires_at > now())
 GROUP BY k.service_account_id"""
"""Accounts with a valid key, each with whose it is: the platform's adapter, or an adapter of the app."""


async def find(database: Database) -> WorkloadAdapter | None:
    """The workload adapter; read as the platform, because tenants do not see the row."""
    row = await database.fetchrow(PLATFORM, FIND)
    return None if row is None else WorkloadAdapter(*row)


async def operated_by(database: Database, account_ids: list[str]) -> dict[str, OperatedBy]:
    """Whose key each of these accounts has; accounts without a valid key are left out."""
    return {row[0]: OperatedBy(row[1]) for row in await database.fetch(PLATFORM, OPERATED_BY, account_ids)}
