"""Reads what a proof needs: the laws of the wing's tables, and hours as the lifecycle log and the ledger have them.

Clocks are found in the log itself, and not by the columns of allocations that charging uses, so that a wrong column is
found too. Each statement shows a tenant its own rows only.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mooring.core.money.charge import (
    HOUR,
    Counter,
    MeteredUsage,
    RatedLine,
    month_of,
    quantity_micro,
    target_lines,
)
from mooring.core.money.interval import LogStep
from mooring.core.money.proof import Proven, ProvenHours, hours_between
from mooring.core.pricing.meter import Billing
from mooring.core.pricing.price import Item, Price
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.money import charge as charges
from mooring.storage.money import ledger_law, meter_event, meter_reading, payment, statement
from mooring.storage.money.law import Law
from mooring.storage.pricing import price as prices

LAWS: Final[tuple[Law, ...]] = (
    *ledger_law.LAWS,
    *statement.LAWS,
    *meter_event.LAWS,
    *meter_reading.LAWS,
    *payment.LAWS,
)
if len({law.key for law in LAWS}) != len(LAWS):
    raise ValueError("two laws have the same key")  # a proof goes on after the key of its last law
HOURS_AT_ONCE: Final = 24
LINES_AT_ONCE: Final = 20_000
TENANT_LAWS: Final[tuple[Law, ...]] = ledger_law.LAWS
"""The laws whose tables a tenant may read."""

CHARGED: Final = "SELECT min(hour) AS first, max(hour) AS last FROM billing_hour"
CLOCKS: Final = """
SELECT s.subject_id FROM transition s WHERE s.machine = 'allocation'
 GROUP BY s.subject_id
HAVING min(s.occurred_at) < $2
   AND coalesce(max(s.occurred_at) FILTER (WHERE s.target = 'released'), 'infinity') > $1"""
ALLOCATIONS: Final = f"""
SELECT a.id, a.tenant_id, a.project_id, a.gpu_count, a.price_id FROM allocation a
 WHERE a.price_id IS NOT NULL AND a.id IN ({CLOCKS}) ORDER BY a.id"""
SIZES: Final = """
SELECT h.hour, (SELECT count(*) FROM rated_usage r WHERE r.hour = h.hour) AS lines
  FROM generate_series($1::timestamptz, $2::timestamptz - interval '1 hour', interval '1 hour') AS h (hour)"""
LINES: Final = """
SELECT r.hour, r.tenant_id, r.project_id, r.source, r.source_id, r.price_id, r.currency, r.unit, r.billing,
       r.started_at, r.ended_at, r.quantity, r.amount, r.shadow_amount
  FROM rated_usage r WHERE r.hour >= $1 AND r.hour < $2 AND r.source <> 'correction'
 ORDER BY r.hour, r.revision"""


async def charged_period(reader: RowReader, acting: Acting) -> tuple[datetime, datetime] | None:
    """From when until when hours are charged; the first row only marks the beginning."""
    row = await reader.fetchrow(acting, CHARGED)
    if row is None or row["first"] is None or row["first"] == row["last"]:
        return None
    return row["first"] + HOUR, row["last"] + HOUR


async def check(reader: RowReader, acting: Acting, law: Law) -> Proven:
    """Count what the law speaks of, and look for a counterexample."""
    counted = await reader.fetchrow(acting, law.checked)
    found = await reader.fetchrow(acting, law.counterexample)
    checked = 0 if counted is None else int(counted[0])
    return Proven(checked, 0 if found is None else 1, None if found is None else str(found[0]))


async def hours(reader: RowReader, acting: Acting, since: datetime, until: datetime) -> ProvenHours:
    """What hours of one month cost by the log and the stored usage, and what is booked for them."""
    rows = await reader.fetch(acting, ALLOCATIONS, since, until)
    reported = await reader.fetch(acting, charges.USAGE, since, until)
    named = {row["price_id"] for row in (*rows, *reported) if row["price_id"] is not None}
    known = await prices.named(reader, acting, sorted(named))
    logs: defaultdict[str, list[LogStep]] = defaultdict(list)
    for step in await reader.fetch(acting, charges.LOG, [row["id"] for row in rows]):
        logs[step["subject_id"]].append(LogStep(step["generation"], step["target"], step["occurred_at"]))
    allocations = [charges.metered(row, known[row["price_id"]], logs[row["id"]]) for row in rows]
    usage = [charges.used(row, known.get(row["price_id"])) for row in reported]
    of_skus: defaultdict[str, list[Price]] = defaultdict(list)
    keys = sorted({each.price.item_key for each in allocations})
    for price in await prices.of_items(reader, acting, Item.SKU, keys):
        of_skus[price.item_key].append(price)
    booked: defaultdict[datetime, list[RatedLine]] = defaultdict(list)
    for row in await reader.fetch(acting, LINES, since, until):
        values = tuple(row)[1:]
        booked[row["hour"]].append(RatedLine(*values[:-3], *(int(number) for number in values[-3:])))
    counts = {
        Counter(row["project_id"], row["price_id"]): int(row["counted"])
        for row in await reader.fetch(acting, charges.BEFORE, month_of(since), since)
    }
    target = {}
    for hour in hours_between(since, until):
        within = [each for each in usage if hour <= each.created_at < hour + HOUR]
        target[hour] = target_lines(hour, allocations, of_skus, within, counts)
        _count(counts, within)
    return ProvenHours(since, until, allocations, of_skus, target, booked)


def _count(counts: dict[Counter, int], usage: Sequence[MeteredUsage]) -> None:
    """Add what was used in an hour to what was counted in the month before it."""
    for each in usage:
        if each.billing == Billing.CHARGED and each.price is not None:
            counter = Counter(each.project_id, each.price.id)
            counts[counter] = counts.get(counter, 0) + quantity_micro(each.quantity)


async def end_of_part(reader: RowReader, acting: Acting, since: datetime, until: datetime) -> datetime:
    """Where a part ends that begins at `since`: so many hours of one month that their lines fit into memory."""
    last = min(until, since + HOURS_AT_ONCE * HOUR)
    lines, end = 0, since
    for row in await reader.fetch(acting, SIZES, since, last):
        lines += row["lines"]
        if end > since and (lines > LINES_AT_ONCE or month_of(row["hour"]) != month_of(since)):
            return end
        end = row["hour"] + HOUR
    return end
