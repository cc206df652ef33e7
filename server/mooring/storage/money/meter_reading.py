"""Reads the last accepted readings of an instance's counters; and the laws of readings."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from mooring.core.money.meter_reading import LastReading, Reading, SeriesEpoch
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.money.law import Law

LAST: Final = """
SELECT k.series, k.epoch, r.seq, r.value, r.at
  FROM (SELECT DISTINCT * FROM unnest($2::text[], $3::bigint[]) k (series, epoch)) k
 CROSS JOIN LATERAL (
    SELECT r.seq, r.value, r.at FROM meter_reading r
     WHERE r.instance_id = $1 AND r.series = k.series AND r.epoch = k.epoch ORDER BY r.seq DESC LIMIT 1) r"""
SAME: Final = """
SELECT r.series, r.epoch, r.seq, r.value FROM meter_reading r
  JOIN unnest($2::text[], $3::bigint[], $4::bigint[]) k (series, epoch, seq)
    ON (r.series, r.epoch, r.seq) = (k.series, k.epoch, k.seq)
 WHERE r.instance_id = $1"""

LAWS: Final = (
    Law(
        "meter_reading_adds_up",
        "in each epoch of a series the usage is the last reading minus the first",
        "SELECT count(*) FROM (SELECT DISTINCT instance_id, series, epoch FROM meter_reading) e",
        """SELECT 'series ' || r.series || ' of ' || r.instance_id || ' in epoch ' || r.epoch || ' read '
                  || max(r.value) - min(r.value) || ', used ' || coalesce(sum(u.quantity), 0)
             FROM meter_reading r LEFT JOIN usage_record u ON u.id = r.usage_record_id
            GROUP BY r.instance_id, r.series, r.epoch
           HAVING (array_agg(r.value ORDER BY r.seq DESC))[1] - (array_agg(r.value ORDER BY r.seq))[1]
                  <> coalesce(sum(u.quantity), 0)
            ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "meter_reading_is_the_source",
        "each usage record that was read from a counter is the difference of one reading",
        "SELECT count(*) FROM usage_record WHERE usage_source = 'meter_reading'",
        """SELECT 'usage record ' || u.id || ' has ' || u.quantity || ', its reading '
                  || coalesce((r.value - r.previous_value)::text, 'is missing')
             FROM usage_record u LEFT JOIN meter_reading r ON r.usage_record_id = u.id
            WHERE u.usage_source = 'meter_reading'
              AND (r.id IS NULL OR r.value - r.previous_value <> u.quantity OR r.instance_id <> u.instance_id)
            ORDER BY u.id LIMIT 1""",
    ),
)


async def last(
    reader: RowReader, acting: Acting, instance_id: str, readings: Sequence[Reading]
) -> dict[SeriesEpoch, LastReading]:
    """The last accepted reading of each epoch that is reported."""
    series, epochs = [each.series for each in readings], [each.epoch for each in readings]
    return {
        SeriesEpoch(row["series"], row["epoch"]): LastReading(row["seq"], row["value"], row["at"])
        for row in await reader.fetch(acting, LAST, instance_id, series, epochs)
    }


async def same(
    reader: RowReader, acting: Acting, instance_id: str, readings: Sequence[Reading]
) -> dict[tuple[str, int, int], Decimal]:
    """The values of those readings that are stored already."""
    columns = ([r.series for r in readings], [r.epoch for r in readings], [r.seq for r in readings])
    rows = await reader.fetch(acting, SAME, instance_id, *columns)
    return {(row["series"], row["epoch"], row["seq"]): row["value"] for row in rows}
