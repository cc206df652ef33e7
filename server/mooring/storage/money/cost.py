"""Reads what was rated, summed by what people ask for: a project, an app, an instance, a SKU, a day.

Each sum is one statement over the hours of a period; names of the keys are one more statement for each page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.money.cost import CostGroup, CostLine, CostPeriod, CostSum
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.kernel.page_window import PageWindow

_USED: Final = "LEFT JOIN usage_record u ON r.source = 'usage' AND u.id = r.source_id"
_MEMBER: Final = """LEFT JOIN LATERAL (
         SELECT m.id, m.instance_id FROM member m
          WHERE r.source = 'allocation' AND m.allocation_id = r.source_id AND m.created_at < r.ended_at
          ORDER BY m.id DESC LIMIT 1) b ON true"""
"""The member that had the allocation last in the hour."""
_INSTANCE: Final = f"{_USED} {_MEMBER} LEFT JOIN instance i ON i.id = coalesce(u.instance_id, b.instance_id)"
_RANGE: Final = """r.hour >= $1 AND r.hour < $2 AND ($3::text IS NULL OR r.tenant_id = $3)
           AND ($4::text IS NULL OR r.project_id = $4)"""


def _grouped(key: str, joins: str = "") -> str:
    return f"""
SELECT * FROM (
  SELECT coalesce(key, '') || ' ' || coalesce(currency, '') COLLATE "C" AS id, key, currency,
         sum(amount) AS charged, sum(shadow_amount) AS covered,
         CASE WHEN min(unit) = max(unit) THEN min(unit) END AS unit,
         CASE WHEN min(unit) = max(unit) THEN sum(quantity) END AS quantity
    FROM (SELECT {key} AS key, r.currency, r.amount, r.shadow_amount, r.unit, r.quantity FROM rated_usage r {joins}
           WHERE {_RANGE}) each
   GROUP BY key, currency) line
 WHERE id > $5 ORDER BY id LIMIT $6"""


def _time(step: str) -> str:
    return f"""to_char(date_trunc('{step}', r.hour, 'UTC') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""


BY_TENANT: Final = _grouped("r.tenant_id")
BY_PROJECT: Final = _grouped("r.project_id")
BY_APP: Final = _grouped("coalesce(u.app_slug, i.app_slug)", _INSTANCE)
BY_INSTANCE: Final = _grouped("coalesce(u.instance_id, b.instance_id)", f"{_USED} {_MEMBER}")
BY_MEMBER: Final = _grouped("b.id", _MEMBER)
BY_ALLOCATION: Final = _grouped("CASE WHEN r.source = 'allocation' THEN r.source_id END")
BY_SKU: Final = _grouped(
    "CASE WHEN p.item = 'sku' THEN p.item_key END", "LEFT JOIN price p ON r.source = 'allocation' AND p.id = r.price_id"
)
BY_UNIT: Final = _grouped("r.unit")
BY_DAY: Final = _grouped(_time("day"))
BY_HOUR: Final = _grouped(_time("hour"))
SUMS: Final = f"""
SELECT r.currency, sum(r.amount) AS charged, sum(r.shadow_amount) AS covered FROM rated_usage r
 WHERE {_RANGE} AND r.currency IS NOT NULL GROUP BY r.currency ORDER BY r.currency"""
USED_SUMS: Final = f"""
SELECT r.currency, sum(r.amount) AS charged, sum(r.shadow_amount) AS covered FROM rated_usage r
 WHERE {_RANGE} AND r.currency IS NOT NULL AND r.source <> 'allocation' GROUP BY r.currency ORDER BY r.currency"""
TENANT_NAMES: Final = "SELECT id, slug AS name FROM tenant WHERE id = ANY ($1::text[])"
PROJECT_NAMES: Final = "SELECT id, slug AS name FROM project WHERE id = ANY ($1::text[])"
INSTANCE_NAMES: Final = "SELECT id, name FROM instance WHERE id = ANY ($1::text[])"
MEMBER_NAMES: Final = "SELECT id, name FROM member WHERE id = ANY ($1::text[])"
ALLOCATION_NAMES: Final = "SELECT id, name FROM allocation WHERE id = ANY ($1::text[])"
SKU_NAMES: Final = "SELECT id, slug AS name FROM sku WHERE id = ANY ($1::text[])"

STATEMENTS: Final[Mapping[CostGroup, str]] = {
    CostGroup.TENANT: BY_TENANT,
    CostGroup.PROJECT: BY_PROJECT,
    CostGroup.APP: BY_APP,
    CostGroup.INSTANCE: BY_INSTANCE,
    CostGroup.MEMBER: BY_MEMBER,
    CostGroup.ALLOCATION: BY_ALLOCATION,
    CostGroup.SKU: BY_SKU,
    CostGroup.UNIT: BY_UNIT,
    CostGroup.DAY: BY_DAY,
    CostGroup.HOUR: BY_HOUR,
}
NAMES: Final[Mapping[CostGroup, str]] = {
    CostGroup.TENANT: TENANT_NAMES,
    CostGroup.PROJECT: PROJECT_NAMES,
    CostGroup.INSTANCE: INSTANCE_NAMES,
    CostGroup.MEMBER: MEMBER_NAMES,
    CostGroup.ALLOCATION: ALLOCATION_NAMES,
    CostGroup.SKU: SKU_NAMES,
}
"""What keys that are ids are called; the others are names already."""


@dataclass(frozen=True, slots=True)
class CostFilter:
    """Whose cost: of all tenants, of one, or of one project."""

    tenant_id: str | None
    project_id: str | None


async def page(
    reader: RowReader, acting: Acting, wanted: CostFilter, period: CostPeriod, *, by: CostGroup, window: PageWindow
) -> list[CostLine]:
    """The cost of a period by key and currency; usage that has no such key stands under none."""
    ids = (period.since, period.until, wanted.tenant_id, wanted.project_id)
    rows = await reader.fetch(acting, STATEMENTS[by], *ids, window.after, window.limit)
    named: dict[str, str] = {}
    if by in NAMES:
        keys = sorted({row["key"] for row in rows if row["key"] is not None})
        named = {row["id"]: row["name"] for row in await reader.fetch(acting, NAMES[by], keys)}
    return [_line(row, named) for row in rows]


async def sums(reader: RowReader, acting: Acting, wanted: CostFilter, period: CostPeriod) -> list[CostSum]:
    """The cost of a period in each currency."""
    return await _sums(reader, acting, SUMS, wanted, period=period)


async def used_sums(reader: RowReader, acting: Acting, wanted: CostFilter, period: CostPeriod) -> list[CostSum]:
    """The same, of usage of apps alone."""
    return await _sums(reader, acting, USED_SUMS, wanted, period=period)


async def _sums(
    reader: RowReader, acting: Acting, statement: str, wanted: CostFilter, *, period: CostPeriod
) -> list[CostSum]:
    rows: Sequence[asyncpg.Record] = await reader.fetch(
        acting, statement, period.since, period.until, wanted.tenant_id, wanted.project_id
    )
    return [CostSum(row["currency"], int(row["charged"]), int(row["covered"])) for row in rows]


def _line(row: asyncpg.Record, named: Mapping[str, str]) -> CostLine:
    key: str | None = row["key"]
    return CostLine(
        id=row["id"],
        key=key,
        name=named.get(key or "") or key,
        currency=row["currency"],
        charged_micro=int(row["charged"]),
        covered_micro=int(row["covered"]),
        unit=row["unit"],
        quantity_micro=None if row["quantity"] is None else int(row["quantity"]),
    )
