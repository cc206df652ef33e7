"""Reads the answers that are stored under idempotency keys."""

from dataclasses import dataclass
from typing import Final

from mooring.core.kernel.secret import Sealed
from mooring.storage.kernel.database import Acting, Database

FIND: Final = """
SELECT i.fingerprint, i.status, i.body, i.correlation_id,
       s.id, s.tenant_id, s.purpose, s.master_key_id, s.wrapped_key, s.ciphertext
  FROM idempotency i LEFT JOIN secret s ON s.id = i.secret_id
 WHERE i.principal_id = $1 AND i.route = $2 AND i.key = $3"""


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """The stored answer of an earlier request; when it contains a secret, the body is in `sealed`."""

    fingerprint: bytes
    status: int
    body: bytes
    correlation_id: str
    sealed: Sealed | None


async def find(database: Database, acting: Acting, *, principal_id: str, route: str, key: str) -> EarlierAnswer | None:
    """The answer that is stored for this principal, route and key, if any."""
    row = await database.fetchrow(acting, FIND, principal_id, route, key)
    if row is None:
        return None
    sealed = None
    if row["id"] is not None:
        sealed = Sealed(
            row["id"],
            row["tenant_id"],
            row["purpose"],
            row["master_key_id"],
            row["wrapped_key"],
            row["ciphertext"],
        )
    return EarlierAnswer(row["fingerprint"], row["status"], row["body"], row["correlation_id"], sealed)
