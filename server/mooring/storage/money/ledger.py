"""Reads the ledger of a tenant or a project: transactions with their entries, and balances, which are sums."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.core.money.ledger import LedgerBalance, LedgerEntry, LedgerTransaction
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow

COLUMNS: Final = ", ".join(f"t.{name}" for name in LedgerTransaction.__slots__)
ENTRY_COLUMNS: Final = ", ".join(f"e.{name}" for name in LedgerEntry.__slots__)
LIST: Final = f"""
SELECT {COLUMNS} FROM ledger_transaction t
 WHERE t.tenant_id = $1 AND ($2::text IS NULL OR t.project_id = $2) AND t.id < $3
   AND ($4::text IS NULL OR t.kind = $4) AND ($5::timestamptz IS NULL OR t.hour >= $5)
   AND ($6::timestamptz IS NULL OR t.hour < $6)
 ORDER BY t.id DESC LIMIT $7"""
ENTRIES: Final = f"""
SELECT {ENTRY_COLUMNS} FROM ledger_entry e WHERE e.transaction_id = ANY ($1::text[])
 ORDER BY e.transaction_id, e.line"""
BALANCES: Final = """
SELECT e.account, e.currency, sum(e.amount) AS amount, count(*) AS entries FROM ledger_entry e
 WHERE e.tenant_id = $1 AND ($2::text IS NULL OR e.project_id = $2)
 GROUP BY e.account, e.currency ORDER BY e.account, e.currency"""


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """Which transactions a list shows: of a tenant or one project of it, of one kind, of hours in a range."""

    tenant_id: str
    project_id: str | None = None
    kind: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class BookedTransaction:
    """A transaction with its entries."""

    transaction: LedgerTransaction
    entries: list[LedgerEntry]

    @property
    def id(self) -> str:
        return self.transaction.id


async def page(reader: RowReader, acting: Acting, wanted: LedgerFilter, window: PageWindow) -> list[BookedTransaction]:
    """Transactions with their entries, the newest first."""
    filters = (wanted.kind, wanted.since, wanted.until)
    rows = await reader.fetch(acting, LIST, wanted.tenant_id, wanted.project_id, window.after, *filters, window.limit)
    found = [LedgerTransaction(*row) for row in rows]
    entries: defaultdict[str, list[LedgerEntry]] = defaultdict(list)
    for row in await reader.fetch(acting, ENTRIES, [each.id for each in found]):
        entries[row["transaction_id"]].append(LedgerEntry(**(dict(row) | {"amount": int(row["amount"])})))
    return [BookedTransaction(each, entries[each.id]) for each in found]


async def balances(reader: RowReader, acting: Acting, tenant_id: str, project_id: str | None) -> list[LedgerBalance]:
    """The balance of each account in each currency."""
    rows = await reader.fetch(acting, BALANCES, tenant_id, project_id)
    return [LedgerBalance(row["account"], row["currency"], int(row["amount"]), row["entries"]) for row in rows]
