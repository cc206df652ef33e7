"""Reads the lines of a statement, and sums over them.

A line of an allocation belongs to the member that was bound to it last when the line ended, and to its instance.
"""

from collections.abc import Mapping
from typing import Final

import asyncpg

from mooring.core.money.statement import Statement
from mooring.core.money.statement_line import GroupBy, StatementGroup, StatementLine
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.money.statement import AFTER, OF_STATEMENT

NAMED: Final = """
  JOIN project p ON p.id = r.project_id
  LEFT JOIN allocation a ON r.source = 'allocation' AND a.id = r.source_id
  LEFT JOIN usage_record u ON r.source = 'usage' AND u.id = r.source_id
  LEFT JOIN LATERAL (SELECT m.id, m.instance_id, m.component_key, m.name FROM member m
                      WHERE m.allocation_id = a.id AND m.created_at <= r.ended_at ORDER BY m.id DESC LIMIT 1) m ON true
  LEFT JOIN instance i ON i.id = coalesce(u.instance_id, m.instance_id)"""
PAGE: Final = f"""
SELECT r.id, r.project_id, p.slug, p.display_name, r.source, r.source_id, r.transaction_id,
       coalesce(t.kind = 'correction', r.revision > 0), coalesce(t.correlation_id, u.correlation_id), r.hour,
       r.started_at, r.ended_at, r.unit, r.billing, r.quantity, r.amount, r.shadow_amount, r.currency, r.price_id,
       c.minor, c.per,
       c.tiers = '[]' AND c.included = 0 AND c.minimum_seconds = 0 AND c.granularity_seconds = 1,
       coalesce(l.minor, c.minor), coalesce(l.per, c.per), a.sku_id, a.sku_slug, a.gpu_model, a.gpu_count, a.region,
       a.id, a.name, coalesce(u.app_slug, i.app_slug), i.id, i.name, m.id, m.component_key, u.attached_project_id
  FROM (SELECT * FROM rated_usage r WHERE {OF_STATEMENT} AND {AFTER} LIMIT $5) r {NAMED}
  LEFT JOIN ledger_transaction t ON t.id = r.transaction_id
  LEFT JOIN price c ON c.id = r.price_id
  LEFT JOIN LATERAL (SELECT l.minor, l.per FROM price l
                      WHERE c.tenant_id IS NOT NULL AND l.tenant_id IS NULL AND l.item = c.item
                        AND l.item_key = c.item_key AND l.currency = c.currency AND l.valid_from <= r.started_at
                      ORDER BY l.valid_from DESC, l.id DESC LIMIT 1) l ON true
 ORDER BY r.id"""


def _grouped(key: str, name: str) -> str:
    return f"""
SELECT g.id, g.key, g.name, g.unit, g.billing, g.line_count, g.quantity, g.amount, g.shadow_amount FROM (
  SELECT concat_ws(' ', {key}, r.unit, r.billing) COLLATE "C" AS id, {key} AS key, min({name}) AS name, r.unit,
         r.billing, count(*)::bigint AS line_count, sum(r.quantity) AS quantity, sum(r.amount) AS amount,
         sum(r.shadow_amount) AS shadow_amount
    FROM rated_usage r {NAMED}
   WHERE {OF_STATEMENT} GROUP BY {key}, r.unit, r.billing) g
 WHERE g.id > $4 ORDER BY g.id LIMIT $5"""


BY_PROJECT: Final = _grouped("r.project_id", "p.slug")
BY_APP: Final = _grouped("coalesce(u.app_slug, i.app_slug)", "coalesce(u.app_slug, i.app_slug)")
BY_INSTANCE: Final = _grouped("i.id", "i.name")
BY_MEMBER: Final = _grouped("m.id", "m.name")
BY_SKU: Final = _grouped("a.sku_slug", "a.sku_slug")
BY_UNIT: Final = _grouped("r.unit", "r.unit")
GROUPED: Final[Mapping[GroupBy, str]] = {
    GroupBy.PROJECT: BY_PROJECT,
    GroupBy.APP: BY_APP,
    GroupBy.INSTANCE: BY_INSTANCE,
    GroupBy.MEMBER: BY_MEMBER,
    GroupBy.SKU: BY_SKU,
    GroupBy.UNIT: BY_UNIT,
}
_NUMBERS: Final = frozenset({"quantity_micro", "amount_micro", "shadow_micro"})


async def page(reader: RowReader, acting: Acting, statement: Statement, window: PageWindow) -> list[StatementLine]:
    """Lines in the order of their ids."""
    key = (statement.tenant_id, statement.period, statement.currency)
    rows = await reader.fetch(acting, PAGE, *key, window.after, window.limit)
    return [_line(row) for row in rows]


def _line(row: asyncpg.Record) -> StatementLine:
    values = dict(zip(StatementLine.__slots__, row, strict=True))
    return StatementLine(**values | {name: int(values[name]) for name in _NUMBERS})


async def breakdown(
    reader: RowReader, acting: Acting, statement: Statement, group_by: GroupBy, window: PageWindow
) -> list[StatementGroup]:
    """Sums over the lines; those that belong to no member, app or SKU form a group without a key."""
    key = (statement.tenant_id, statement.period, statement.currency)
    rows = await reader.fetch(acting, GROUPED[group_by], *key, window.after, window.limit)
    return [StatementGroup(*tuple(row)[:6], *(int(value) for value in tuple(row)[6:])) for row in rows]
