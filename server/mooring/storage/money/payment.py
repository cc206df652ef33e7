"""Reads payments and credits, and proves that balances are sums."""

from typing import Final

from mooring.core.money.payment import Payment
from mooring.core.pricing.rating import MICRO
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.money.law import Law

LIST: Final = f"""
SELECT t.id, t.tenant_id, t.kind, t.currency, (-e.amount / {MICRO})::bigint, t.reference, t.reason, t.created_by,
       t.created_at
  FROM ledger_transaction t JOIN ledger_entry e ON e.transaction_id = t.id AND e.account = 'prepaid'
 WHERE t.tenant_id = $1 AND t.kind IN ('payment', 'credit') AND t.id > $2 ORDER BY t.id LIMIT $3"""


async def page(reader: RowReader, acting: Acting, tenant_id: str, window: PageWindow) -> list[Payment]:
    rows = await reader.fetch(acting, LIST, tenant_id, window.after, window.limit)
    return [Payment(*row) for row in rows]


LAWS: Final = (
    Law(
        "payment_has_two_sides",
        "every payment and credit moves one amount between cash or credits and what its tenant has",
        "SELECT count(*) FROM ledger_transaction WHERE kind IN ('payment', 'credit')",
        """
SELECT 'transaction ' || t.id || ' of kind ' || t.kind FROM ledger_transaction t
 WHERE t.kind IN ('payment', 'credit')
   AND (SELECT count(*) FILTER (WHERE e.account = 'prepaid') = 1
               AND count(*) FILTER (WHERE (t.kind, e.account) IN (('payment', 'cash'), ('credit', 'credits_given'))) = 1
               AND count(*) = 2 AND sum(e.amount) = 0
          FROM ledger_entry e WHERE e.transaction_id = t.id) IS NOT TRUE
 ORDER BY t.id LIMIT 1""",
    ),
    Law(
        "hold_is_covered",
        "no hold is larger than what was available at its moment",
        "SELECT count(*) FROM hold",
        """
SELECT 'hold of allocation ' || h.allocation_id || ': ' || h.amount_minor || ' of ' || h.available_minor FROM hold h
 WHERE h.amount_minor > h.available_minor ORDER BY h.allocation_id LIMIT 1""",
    ),
    Law(
        "hold_ends",
        "every hold ends: its allocation exists, and is over or has a clock or a deadline",
        "SELECT count(*) FROM hold",
        """
SELECT 'hold of allocation ' || h.allocation_id FROM hold h LEFT JOIN allocation a ON a.id = h.allocation_id
 WHERE a.id IS NULL OR (a.status = 'active' AND a.activated_at IS NULL)
    OR (a.status = 'requested' AND a.deadline_at IS NULL)
 ORDER BY h.allocation_id LIMIT 1""",
    ),
    Law(
        "budget_crossing_is_true",
        "a threshold fires once a month, and only when what was spent had reached it",
        "SELECT count(*) FROM budget_crossing",
        """
SELECT 'budget ' || c.budget_id || ' at ' || c.percent || ' % in ' || c.period FROM budget_crossing c
 GROUP BY c.budget_id, c.percent, c.period
HAVING count(*) > 1 OR bool_or(c.spent_minor::numeric * 100 < c.minor_per_month::numeric * c.percent)
 ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "balance_crossing_is_true",
        "a level of a balance fires once after each payment",
        "SELECT count(*) FROM balance_crossing",
        """
SELECT 'account ' || c.account_id || ' ' || c.level || ' after ' || c.payment_id FROM balance_crossing c
 GROUP BY c.account_id, c.level, c.payment_id
HAVING count(*) > 1 OR bool_or(c.level = 'depleted' AND c.balance_minor > 0)
 ORDER BY 1 LIMIT 1""",
    ),
)
