"""Reads what was rated, summed by what people ask for: a project, an app, an instance, a SKU, a day.

Each sum is one statement over the hours of a period; names of the keys are one more statement for each page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.money.cost import CostGroup, CostLine, CostPeriod, CostSum
from mooring.storage.kernel.database import PLATFORM, Acting, RowReader
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


_OF_INSTANCE: Final = """
   AND (r.source <> 'allocation' OR r.source_id IN (SELECT m.allocation_id FROM member m WHERE m.instance_id = $5))
   AND coalesce(u.instance_id, b.instance_id) = $5"""


def _grouped(key: str, joins: str, only: str, *, by_unit: bool = False) -> str:
    split = ", unit" if by_unit else ""
    id = "coalesce(key, '') || ' ' || coalesce(currency, '')" + (" || ' ' || unit" if by_unit else "")
    return f"""
SELECT * FROM (
  SELECT {id} COLLATE "C" AS id, key, currency,
         sum(amount) AS charged, sum(shadow_amount) AS covered,
         CASE WHEN min(unit) = max(unit) THEN min(unit) END AS unit,
         CASE WHEN min(unit) = max(unit) THEN sum(quantity) END AS quantity
    FROM (SELECT {key} AS key, r.currency, r.amount, r.shadow_amount, r.unit, r.quantity FROM rated_usage r {joins}
           WHERE {_RANGE} {only}) each
   GROUP BY key, currency{split}) line
 WHERE id > $6 ORDER BY id LIMIT $7"""


def _time(step: str) -> str:
    return f"""to_char(date_trunc('{step}', r.hour, 'UTC') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""


_PRICE: Final = "LEFT JOIN price p ON r.source = 'allocation' AND p.id = r.price_id"
_KEYS: Final[Mapping[CostGroup, tuple[str, str]]] = {
    CostGroup.TENANT: ("r.tenant_id", ""),
    CostGroup.PROJECT: ("r.project_id", ""),
    CostGroup.APP: ("coalesce(u.app_slug, i.app_slug)", _INSTANCE),
    CostGroup.INSTANCE: ("coalesce(u.instance_id, b.instance_id)", f"{_USED} {_MEMBER}"),
    CostGroup.MEMBER: ("b.id", _MEMBER),
    CostGroup.ALLOCATION: ("CASE WHEN r.source = 'allocation' THEN r.source_id END", ""),
    CostGroup.SKU: ("CASE WHEN p.item = 'sku' THEN p.item_key END", _PRICE),
    CostGroup.UNIT: ("r.unit", ""),
    CostGroup.DAY: (_time("day"), ""),
    CostGroup.HOUR: (_time("hour"), ""),
    CostGroup.DAY_UNIT: (_time("day"), ""),
    CostGroup.HOUR_UNIT: (_time("hour"), ""),
}
"""What each group is keyed by, and the joins that the key needs."""
_BY_UNIT: Final = frozenset({CostGroup.DAY_UNIT, CostGroup.HOUR_UNIT})
STATEMENTS: Final[Mapping[CostGroup, str]] = {
    by: _grouped(key, joins, "AND $5::text IS NULL", by_unit=by in _BY_UNIT) for by, (key, joins) in _KEYS.items()
}
OF_INSTANCE: Final[Mapping[CostGroup, str]] = {
    by: _grouped(key, f"{_INSTANCE} {_PRICE}", _OF_INSTANCE, by_unit=by in _BY_UNIT) for by, (key, _) in _KEYS.items()
}
"""The same of one instance: all joins, because the filter needs most of them."""


def _summed(joins: str, only: str) -> str:
    return f"""
SELECT r.currency, sum(r.amount) AS charged, sum(r.shadow_amount) AS covered FROM rated_usage r {joins}
 WHERE {_RANGE} {only} AND r.currency IS NOT NULL AND (NOT $6::boolean OR r.source <> 'allocation')
 GROUP BY r.currency ORDER BY r.currency"""


SUMS: Final = _summed("", "AND $5::text IS NULL")
SUMS_OF_INSTANCE: Final = _summed(f"{_USED} {_MEMBER}", _OF_INSTANCE)
RATES: Final = """
SELECT currency, sum(price_minor_per_gpu_hour * gpu_count) AS rate FROM allocation
 WHERE status = 'active' AND currency IS NOT NULL GROUP BY currency"""
ALLOCATIONS_OF: Final = "SELECT DISTINCT m.allocation_id FROM member m WHERE m.instance_id = $1"
USAGE_OF: Final = "SELECT u.id FROM usage_record u WHERE u.instance_id = $1 AND u.created_at >= $2"
TENANT_NAMES: Final = "SELECT id, slug AS name FROM tenant WHERE id = ANY ($1::text[])"
PROJECT_NAMES: Final = "SELECT id, slug AS name FROM project WHERE id = ANY ($1::text[])"
INSTANCE_NAMES: Final = "SELECT id, name FROM instance WHERE id = ANY ($1::text[])"
MEMBER_NAMES: Final = "SELECT id, name FROM member WHERE id = ANY ($1::text[])"
ALLOCATION_NAMES: Final = "SELECT id, name FROM allocation WHERE id = ANY ($1::text[])"
SKU_NAMES: Final = "SELECT id, slug AS name FROM sku WHERE id = ANY ($1::text[])"

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
    """Whose cost: of all tenants, of one, of one project, or of one instance."""

    tenant_id: str | None
    project_id: str | None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """What the open hours of an instance consist of."""

    allocations: frozenset[str]
    usage: frozenset[str]


async def page(
    reader: RowReader, acting: Acting, wanted: CostFilter, period: CostPeriod, *, by: CostGroup, window: PageWindow
) -> list[CostLine]:
    """The cost of a period by key and currency; usage that has no such key stands under none."""
    ids = (period.since, period.until, wanted.tenant_id, wanted.project_id, wanted.instance_id)
    statements = STATEMENTS if wanted.instance_id is None else OF_INSTANCE
    rows = await reader.fetch(acting, statements[by], *ids, window.after, window.limit)
    named: dict[str, str] = {}
    if by in NAMES:
        keys = sorted({row["key"] for row in rows if row["key"] is not None})
        named = {row["id"]: row["name"] for row in await reader.fetch(acting, NAMES[by], keys)}
    return [_line(row, named) for row in rows]


async def sums(
    reader: RowReader, acting: Acting, wanted: CostFilter, period: CostPeriod, *, only_usage: bool = False
) -> list[CostSum]:
    """The cost of a period in each currency, or that of usage of apps alone."""
    ids = (period.since, period.until, wanted.tenant_id, wanted.project_id, wanted.instance_id)
    statement = SUMS if wanted.instance_id is None else SUMS_OF_INSTANCE
    rows: Sequence[asyncpg.Record] = await reader.fetch(acting, statement, *ids, only_usage)
    return [CostSum(row["currency"], int(row["charged"]), int(row["covered"])) for row in rows]


async def rates(reader: RowReader) -> dict[tuple[str, ...], float]:
    """What running allocations cost in an hour by the prices of their plans, in minor units of each currency."""
    return {(row["currency"],): float(row["rate"]) for row in await reader.fetch(PLATFORM, RATES)}


async def facts_of_instance(reader: RowReader, acting: Acting, instance_id: str, since: datetime) -> InstanceFacts:
    """The allocations that members of the instance had, and its usage since a time."""
    held = await reader.fetch(acting, ALLOCATIONS_OF, instance_id)
    used = await reader.fetch(acting, USAGE_OF, instance_id, since)
    return InstanceFacts(frozenset(row[0] for row in held if row[0]), frozenset(row[0] for row in used))


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
