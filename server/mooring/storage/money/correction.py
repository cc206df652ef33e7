"""Reads the transaction that a correction names."""

from typing import Final

from mooring.core.money.correction import Correctable
from mooring.storage.kernel.database import Acting, RowReader

FIND: Final = """
SELECT t.id, t.tenant_id, t.project_id, t.hour, t.price_id, t.currency,
       (SELECT count(*) FROM ledger_transaction c WHERE c.project_id = t.project_id AND c.price_id = t.price_id
           AND c.hour = t.hour AND c.kind = 'correction')::int AS corrections,
       (SELECT coalesce(sum(e.amount), 0) FROM ledger_transaction c JOIN ledger_entry e ON e.transaction_id = c.id
         WHERE c.project_id = t.project_id AND c.price_id = t.price_id AND c.hour = t.hour
           AND c.kind IN ('charge', 'correction') AND e.account = 'receivable') AS owed_micro
  FROM ledger_transaction t WHERE t.id = $1 AND t.kind IN ('charge', 'correction')"""


async def find(reader: RowReader, acting: Acting, transaction_id: str) -> Correctable | None:
    row = await reader.fetchrow(acting, FIND, transaction_id)
    return None if row is None else Correctable(**{**row, "owed_micro": int(row["owed_micro"])})
