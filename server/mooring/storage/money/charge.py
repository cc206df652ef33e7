"""Reads what charging needs: clocks, prices and usage of an hour, and what is booked for it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.money.charge import HOUR, Counter, MeteredUsage, PostingKey, RatedLine, month_of
from mooring.core.money.interval import LogStep, MeteredAllocation
from mooring.core.money.ledger import BookedCharge, BookedHour
from mooring.core.pricing.price import Item, Price
from mooring.storage.kernel.database import PLATFORM, Acting, RowReader
from mooring.storage.pricing import price as prices

CLOSED: Final = "SELECT max(hour) FROM billing_hour"
AGAIN: Final = (
    "SELECT hour FROM billing_hour WHERE hour > (SELECT min(hour) FROM billing_hour) ORDER BY hour DESC LIMIT $1"
)
RUNNING: Final = """
SELECT a.id, a.tenant_id, a.project_id, a.gpu_count, a.price_id FROM allocation a
 WHERE a.activated_at < $2 AND (a.releasing_at IS NULL OR a.releasing_at > $1) AND a.price_id IS NOT NULL
 ORDER BY a.id"""
LOG: Final = """
SELECT t.subject_id, t.generation, t.target, t.occurred_at FROM transition t
 WHERE t.machine = 'allocation' AND t.subject_id = ANY ($1::text[])"""
USAGE: Final = """
SELECT u.id, u.tenant_id, u.project_id, u.unit, u.billing, u.price_id, u.quantity, u.started_at, u.ended_at,
       u.created_at
  FROM usage_record u WHERE u.created_at >= $1 AND u.created_at < $2 AND u.billing <> 'informative'"""
BEFORE: Final = """
SELECT u.project_id, u.price_id, sum(floor(u.quantity * 1000000)) AS counted
  FROM usage_record u WHERE u.created_at >= $1 AND u.created_at < $2 AND u.billing = 'charged'
 GROUP BY u.project_id, u.price_id"""
LINES: Final = """
SELECT r.tenant_id, r.project_id, r.source, r.source_id, r.price_id, r.currency, r.unit, r.billing, r.started_at,
       r.ended_at, r.quantity, r.amount, r.shadow_amount
  FROM rated_usage r WHERE r.hour = $1 AND r.source <> 'correction'"""
CHARGES: Final = """
SELECT t.tenant_id, t.project_id, t.price_id, t.currency, min(t.id) FILTER (WHERE t.kind = 'charge') AS id,
       count(*) FILTER (WHERE t.kind = 'correction')::int AS corrections
  FROM ledger_transaction t WHERE t.hour = $1 AND t.price_id IS NOT NULL
 GROUP BY t.tenant_id, t.project_id, t.price_id, t.currency"""


@dataclass(frozen=True, slots=True)
class HourFacts:
    """Everything that decides what an hour costs."""

    allocations: Sequence[MeteredAllocation]
    prices: dict[str, list[Price]]  # by SKU
    usage: Sequence[MeteredUsage]
    before: dict[Counter, int]


async def last_closed(reader: RowReader) -> datetime | None:
    """The last hour that was charged."""
    row = await reader.fetchrow(PLATFORM, CLOSED)
    found: datetime | None = None if row is None else row[0]
    return found


async def last_hours(reader: RowReader, count: int) -> list[datetime]:
    """The last hours that were charged; the first row is none of them, charging began after it."""
    return [row[0] for row in await reader.fetch(PLATFORM, AGAIN, count)]


async def facts(
    reader: RowReader, hour: datetime, until: datetime | None = None, *, acting: Acting = PLATFORM
) -> HourFacts:
    """The clocks that ran in the hour, or from it to `until`, their prices, and what was reported in that time."""
    end = until or hour + HOUR
    rows = await reader.fetch(acting, RUNNING, hour, end)
    reported = await reader.fetch(acting, USAGE, hour, end)
    named = {row["price_id"] for row in (*rows, *reported) if row["price_id"] is not None}
    known = await prices.named(reader, acting, sorted(named))
    logs: defaultdict[str, list[LogStep]] = defaultdict(list)
    for step in await reader.fetch(acting, LOG, [row["id"] for row in rows]):
        logs[step["subject_id"]].append(LogStep(step["generation"], step["target"], step["occurred_at"]))
    return HourFacts(
        [metered(row, known[row["price_id"]], logs[row["id"]]) for row in rows],
        await of_skus(reader, acting, {known[row["price_id"]].item_key for row in rows}),
        [used(row, known.get(row["price_id"])) for row in reported],
        {
            Counter(row["project_id"], row["price_id"]): int(row["counted"])
            for row in await reader.fetch(acting, BEFORE, month_of(hour), hour)
        },
    )


def metered(row: asyncpg.Record, price: Price, log: Sequence[LogStep]) -> MeteredAllocation:
    return MeteredAllocation(row["id"], row["tenant_id"], row["project_id"], row["gpu_count"], price, tuple(log))


def used(row: asyncpg.Record, price: Price | None) -> MeteredUsage:
    values = {name: row[name] for name in MeteredUsage.__slots__ if name != "price"}
    return MeteredUsage(**values, price=price)


async def of_skus(reader: RowReader, acting: Acting, keys: set[str]) -> dict[str, list[Price]]:
    """All prices of these SKUs, by SKU."""
    found: defaultdict[str, list[Price]] = defaultdict(list)
    for price in await prices.of_items(reader, acting, Item.SKU, sorted(keys)):
        found[price.item_key].append(price)
    return found


async def booked(reader: RowReader, hour: datetime) -> BookedHour:
    lines = [
        RatedLine(*tuple(row)[:-3], *(int(number) for number in tuple(row)[-3:]))
        for row in await reader.fetch(PLATFORM, LINES, hour)
    ]
    charges = {
        PostingKey(row["tenant_id"], row["project_id"], row["price_id"], row["currency"]): BookedCharge(
            row["id"], row["corrections"]
        )
        for row in await reader.fetch(PLATFORM, CHARGES, hour)
    }
    return BookedHour(lines, charges)
