"""Reads statements, the sums over their lines, and what a proof checks of their chain.

A statement's lines are the rated usage that counts in its month, in its currency. Covered usage without a price has no
currency: it is shown with every currency of the month, and costs nothing in any.
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.money.statement import Charged, LineTotals, Statement, StatementKey
from mooring.storage.kernel.database import PLATFORM, Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.money.law import Law

NAMES: Final = tuple(Statement.__slots__)
COLUMNS: Final = ", ".join(f"s.{name}" for name in NAMES)
OF_STATEMENT: Final = "r.tenant_id = $1 AND r.period = $2 AND (r.currency = $3 OR r.currency IS NULL)"
AFTER: Final = 'r.id COLLATE "POSIX" > $4 ORDER BY r.id COLLATE "POSIX"'
"""Keeps to the index of a tenant's month: the primary key has another collation, although the same order."""

MISSING: Final = """
WITH RECURSIVE place AS (
  (SELECT t.tenant_id, t.currency FROM ledger_transaction t WHERE t.kind IN ('charge', 'correction')
    ORDER BY t.tenant_id, t.currency LIMIT 1)
  UNION ALL
  SELECT n.tenant_id, n.currency FROM place p CROSS JOIN LATERAL (
    SELECT t.tenant_id, t.currency FROM ledger_transaction t
     WHERE (t.tenant_id, t.currency) > (p.tenant_id, p.currency) AND t.kind IN ('charge', 'correction')
     ORDER BY t.tenant_id, t.currency LIMIT 1) n)
SELECT p.tenant_id, p.currency, m.month::date AS period
  FROM place p
 CROSS JOIN LATERAL (SELECT min(t.period) AS first, max(t.period) AS last FROM ledger_transaction t
                      WHERE t.tenant_id = p.tenant_id AND t.currency = p.currency
                        AND t.kind IN ('charge', 'correction')) e
  LEFT JOIN LATERAL (SELECT max(s.period) AS period FROM statement s
                      WHERE s.tenant_id = p.tenant_id AND s.currency = p.currency AND s.status <> 'open') f ON true
 CROSS JOIN LATERAL generate_series(coalesce(f.period + interval '1 month', e.first), e.last,
                                    interval '1 month') m (month)
 WHERE EXISTS (SELECT FROM ledger_transaction t
                WHERE t.tenant_id = p.tenant_id AND t.currency = p.currency AND t.period = m.month::date
                  AND t.kind IN ('charge', 'correction'))
   AND NOT EXISTS (SELECT FROM statement s
                    WHERE s.tenant_id = p.tenant_id AND s.currency = p.currency AND s.period = m.month::date)
 ORDER BY 1, 2, 3 LIMIT 500"""
"""Months with a charge and without a statement. It looks up single keys of indexes, however long the ledger is."""
UNCLOSED: Final = f"""
SELECT {COLUMNS} FROM statement s WHERE s.status <> 'closed' AND s.period < $1
 ORDER BY s.tenant_id, s.currency, s.period LIMIT 500"""
BEFORE: Final = f"""
SELECT {COLUMNS} FROM statement s WHERE s.tenant_id = $1 AND s.currency = $2 AND s.period < $3
 ORDER BY s.period DESC LIMIT 1"""
CHARGED: Final = "SELECT h.hour, h.closed_at FROM billing_hour h ORDER BY h.hour DESC LIMIT 1"
CHARGED_UNTIL: Final = "SELECT h.hour, h.closed_at FROM billing_hour h WHERE h.hour >= $1 ORDER BY h.hour LIMIT 1"
FIND: Final = f"SELECT {COLUMNS} FROM statement s WHERE s.tenant_id = $1 AND s.id = $2"
LIST: Final = f"""
SELECT {COLUMNS} FROM statement s
 WHERE s.tenant_id = $1 AND s.id < $2 AND ($4::text IS NULL OR s.status = $4) ORDER BY s.id DESC LIMIT $3"""
LIST_ALL: Final = f"""
SELECT {COLUMNS} FROM statement s WHERE s.id < $1 AND ($3::text IS NULL OR s.status = $3) ORDER BY s.id DESC LIMIT $2"""
OWED: Final = """
SELECT t.tenant_id, t.currency, t.period, sum(e.amount) AS amount
  FROM unnest($1::text[], $2::text[], $3::date[]) AS k (tenant_id, currency, period)
  JOIN ledger_transaction t ON (t.tenant_id, t.currency, t.period) = (k.tenant_id, k.currency, k.period)
  JOIN ledger_entry e ON e.transaction_id = t.id AND e.account = 'receivable'
 WHERE t.kind IN ('charge', 'correction') GROUP BY t.tenant_id, t.currency, t.period"""

LINE_DIGEST: Final = """sha256(convert_to(concat_ws('|', r.id, r.project_id, coalesce(r.transaction_id, ''),
  extract(epoch FROM r.hour)::bigint, r.source, r.source_id, coalesce(r.price_id, ''), coalesce(r.currency, ''), r.unit,
  r.billing, (extract(epoch FROM r.started_at) * 1000000)::bigint, (extract(epoch FROM r.ended_at) * 1000000)::bigint,
  r.quantity, r.amount, r.shadow_amount), 'UTF8'))"""
DIGESTS: Final = f"""
SELECT max(l.id) AS last, count(*)::bigint AS lines, coalesce(sum(l.amount), 0) AS amount,
       coalesce(sum(l.shadow_amount), 0) AS shadow_amount, string_agg(l.digest, ''::bytea ORDER BY l.id) AS digests
  FROM (SELECT r.id, r.amount, r.shadow_amount, {LINE_DIGEST} AS digest FROM rated_usage r
         WHERE {OF_STATEMENT} AND {AFTER} LIMIT $5) l"""
LINES_AT_ONCE: Final = 10_000

_LINES: Final = f"""
SELECT s.id, count(r.id) AS line_count, coalesce(sum(r.amount), 0) AS amount,
       coalesce(sum(r.shadow_amount), 0) AS shadow_amount,
       'sha256:' || encode(sha256(coalesce(string_agg({LINE_DIGEST}, ''::bytea ORDER BY r.id), ''::bytea)), 'hex')
         AS lines_digest
  FROM statement s
  LEFT JOIN rated_usage r ON r.tenant_id = s.tenant_id AND r.period = s.period
                         AND (r.currency = s.currency OR r.currency IS NULL)
 WHERE s.status = 'closed' GROUP BY s.id"""
_BOOKED: Final = """
SELECT b.tenant_id, b.currency, b.period, sum(b.lines) AS lines, sum(b.entries) AS entries
  FROM (SELECT r.tenant_id, r.currency, r.period, r.amount AS lines, 0 AS entries
          FROM rated_usage r WHERE r.billing = 'charged'
         UNION ALL
        SELECT t.tenant_id, t.currency, t.period, 0, e.amount
          FROM ledger_transaction t JOIN ledger_entry e ON e.transaction_id = t.id
         WHERE e.account = 'receivable' AND t.kind IN ('charge', 'correction')) b
 GROUP BY b.tenant_id, b.currency, b.period"""

LAWS: Final = (
    Law(
        "statement_lines_are_the_entries",
        "the lines of each month add up to what the ledger's entries of that month say the tenant owes",
        f"SELECT count(*) FROM ({_BOOKED}) b",
        f"""SELECT format('%s, %s %s: the lines add up to %s, the entries to %s', b.tenant_id, b.period, b.currency,
                          b.lines, b.entries)
              FROM ({_BOOKED}) b WHERE b.lines <> b.entries ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "line_counts_with_its_transaction",
        "each charged line counts in the month of its transaction",
        "SELECT count(*) FROM rated_usage WHERE transaction_id IS NOT NULL",
        """SELECT format('%s counts in %s, its transaction %s in %s', r.id, r.period, t.id, t.period)
             FROM rated_usage r JOIN ledger_transaction t ON t.id = r.transaction_id
            WHERE r.period <> t.period ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "closed_statement_has_its_lines",
        "the totals and the digest over the lines of each closed statement are those of its lines",
        "SELECT count(*) FROM statement WHERE status = 'closed'",
        f"""SELECT format('%s: it says %s lines, %s and %s; its lines are %s, %s and %s', s.id, s.line_count, s.amount,
                          s.lines_digest, l.line_count, l.amount, l.lines_digest)
              FROM statement s JOIN ({_LINES}) l ON l.id = s.id
             WHERE (s.line_count, s.amount, s.shadow_amount, s.lines_digest)
                   IS DISTINCT FROM (l.line_count, l.amount, l.shadow_amount, l.lines_digest)
             ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "statement_chain",
        "the digest of each closed statement is over its totals and the digest of the closed one before it",
        "SELECT count(*) FROM statement WHERE status = 'closed'",
        """SELECT format('%s of %s does not follow %s', c.id, c.period, coalesce(c.before, 'nothing'))
             FROM (SELECT s.*, lag(s.id) OVER chain AS before, lag(s.digest) OVER chain AS before_digest
                     FROM statement s WHERE s.status = 'closed'
                   WINDOW chain AS (PARTITION BY s.tenant_id, s.currency ORDER BY s.period)) c
            WHERE c.previous_digest IS DISTINCT FROM c.before_digest
               OR c.digest <> 'sha256:' || encode(sha256(convert_to(concat_ws('|', c.tenant_id, c.currency,
                    to_char(c.period, 'YYYY-MM-DD'), c.line_count, c.amount, c.shadow_amount, c.lines_digest,
                    coalesce(c.before_digest, '')), 'UTF8')), 'hex')
            ORDER BY 1 LIMIT 1""",
    ),
)


def _statement(row: asyncpg.Record) -> Statement:
    values = dict(zip(NAMES, row, strict=True))
    for name in ("amount", "shadow_amount"):
        values[name] = None if values[name] is None else int(values[name])
    return Statement(**values)


async def missing(reader: RowReader) -> list[StatementKey]:
    """The months that have a charge and no statement yet."""
    return [StatementKey(*row) for row in await reader.fetch(PLATFORM, MISSING)]


async def unclosed(reader: RowReader, now: datetime) -> list[Statement]:
    """The statements of months that are over and not closed, the oldest first for each tenant and currency."""
    month = now.date().replace(day=1)
    return [_statement(row) for row in await reader.fetch(PLATFORM, UNCLOSED, month)]


async def before(reader: RowReader, statement: Statement) -> Statement | None:
    """The statement of the same tenant and currency before this one."""
    row = await reader.fetchrow(PLATFORM, BEFORE, statement.tenant_id, statement.currency, statement.period)
    return None if row is None else _statement(row)


async def charged(reader: RowReader, until: datetime | None = None) -> Charged | None:
    """The last hour that was charged; with `until`, the first one at or after it."""
    if until is None:
        row = await reader.fetchrow(PLATFORM, CHARGED)
    else:
        row = await reader.fetchrow(PLATFORM, CHARGED_UNTIL, until)
    return None if row is None else Charged(*row)


async def find(reader: RowReader, acting: Acting, tenant_id: str, statement_id: str) -> Statement | None:
    row = await reader.fetchrow(acting, FIND, tenant_id, statement_id)
    return None if row is None else _statement(row)


async def page(
    reader: RowReader, acting: Acting, tenant_id: str | None, window: PageWindow, status: str | None
) -> list[Statement]:
    """Statements, the newest first: of one tenant, or of all."""
    if tenant_id is None:
        rows = await reader.fetch(acting, LIST_ALL, window.after, window.limit, status)
    else:
        rows = await reader.fetch(acting, LIST, tenant_id, window.after, window.limit, status)
    return [_statement(row) for row in rows]


async def owed(reader: RowReader, acting: Acting, statements: Sequence[Statement]) -> dict[StatementKey, int]:
    """What the ledger says so far, for statements without totals."""
    keys = [StatementKey(each.tenant_id, each.currency, each.period) for each in statements if each.amount is None]
    if not keys:
        return {}
    columns = ([each.tenant_id for each in keys], [each.currency for each in keys], [each.period for each in keys])
    rows = await reader.fetch(acting, OWED, *columns)
    return dict.fromkeys(keys, 0) | {StatementKey(*tuple(row)[:3]): int(row["amount"]) for row in rows}


async def totals(reader: RowReader, statement: Statement) -> LineTotals:
    """The sums over all lines, and their digest, read in parts of a bounded size."""
    whole, after = hashlib.sha256(), ""
    lines = amount = shadow = 0
    key = (statement.tenant_id, statement.period, statement.currency)
    while True:
        row = await reader.fetchrow(PLATFORM, DIGESTS, *key, after, LINES_AT_ONCE)
        if row is None or not row["lines"]:
            return LineTotals(lines, amount, shadow, "sha256:" + whole.hexdigest())
        whole.update(row["digests"])
        lines, amount, shadow = lines + row["lines"], amount + int(row["amount"]), shadow + int(row["shadow_amount"])
        after = row["last"]
