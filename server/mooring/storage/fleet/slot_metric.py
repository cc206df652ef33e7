"""Writes and reads the minutes of GPUs: one row for each slot, minute and allocation.

A sample counts for the allocation that had the slot when it was taken, and for nobody when it was free. Only slots that
the node has are written, and whether they are simulated says the inventory, not the sample.
"""

from collections.abc import Sequence
from typing import Final

import asyncpg

from mooring.core.fleet.slot_metric import (
    IDLE_PERCENT,
    ROWS_MAX,
    MetricPoint,
    MetricRange,
    SlotSample,
)
from mooring.storage.kernel.database import PLATFORM, Acting, Database

STORE: Final = """
INSERT INTO slot_metric AS m (node_id, slot_index, minute, allocation_id, tenant_id, samples, utilisation_sum,
  utilisation_count, utilisation_max, memory_used_bytes, memory_total_bytes, power_sum, power_count,
  temperature_celsius, ecc_errors, xid, simulated)
SELECT $1, x.index, date_trunc('minute', x.at), coalesce(a.id, ''), a.tenant_id, count(*)::int,
       coalesce(sum(x.utilisation), 0), count(x.utilisation)::int, max(x.utilisation), max(x.used), max(x.total),
       coalesce(sum(x.power), 0), count(x.power)::int, max(x.temperature), max(x.ecc), max(x.xid), s.simulated
  FROM unnest($2::int[], $3::timestamptz[], $4::float8[], $5::bigint[], $6::bigint[], $7::bigint[], $8::int[],
              $9::bigint[], $10::int[])
       AS x (index, at, utilisation, used, total, power, temperature, ecc, xid)
  JOIN slot s ON s.node_id = $1 AND s.index = x.index
  LEFT JOIN allocation a ON a.id = s.allocation_id AND a.activated_at <= x.at
   AND (a.releasing_at IS NULL OR a.releasing_at > x.at)
 GROUP BY x.index, date_trunc('minute', x.at), a.id, a.tenant_id, s.simulated
ON CONFLICT (node_id, slot_index, minute, allocation_id) DO UPDATE SET
  samples = m.samples + EXCLUDED.samples,
  utilisation_sum = m.utilisation_sum + EXCLUDED.utilisation_sum,
  utilisation_count = m.utilisation_count + EXCLUDED.utilisation_count,
  utilisation_max = greatest(m.utilisation_max, EXCLUDED.utilisation_max),
  memory_used_bytes = greatest(m.memory_used_bytes, EXCLUDED.memory_used_bytes),
  memory_total_bytes = greatest(m.memory_total_bytes, EXCLUDED.memory_total_bytes),
  power_sum = m.power_sum + EXCLUDED.power_sum,
  power_count = m.power_count + EXCLUDED.power_count,
  temperature_celsius = greatest(m.temperature_celsius, EXCLUDED.temperature_celsius),
  ecc_errors = greatest(m.ecc_errors, EXCLUDED.ecc_errors),
  xid = coalesce(EXCLUDED.xid, m.xid)"""
FIGURES: Final = f"""
       sum(m.utilisation_sum) / nullif(sum(m.utilisation_count), 0), max(m.utilisation_max),
       max(m.memory_used_bytes)::float8, max(m.memory_total_bytes)::float8,
       (sum(m.power_sum) / nullif(sum(m.power_count), 0) / 1000)::float8, max(m.temperature_celsius)::float8,
       max(m.ecc_errors)::float8, max(m.xid)::float8,
       count(DISTINCT m.minute)::int,
       count(DISTINCT m.minute) FILTER (
         WHERE m.utilisation_sum < {IDLE_PERCENT} * m.utilisation_count AND m.utilisation_count > 0)::int,
       max(m.minute)"""
"""The columns in the order of SERIES, and how much was measured."""
OF_NODE: Final = f"""
SELECT m.node_id, m.slot_index, NULL::text, date_bin(make_interval(secs => $4::float8), m.minute, $2) AS at, {FIGURES},
       s.gpu_model, bool_or(m.simulated), NULL::bigint, NULL::text
  FROM slot_metric m JOIN slot s ON s.node_id = m.node_id AND s.index = m.slot_index
 WHERE m.node_id = $1 AND m.minute >= $2 AND m.minute < $3
 GROUP BY m.node_id, m.slot_index, at, s.gpu_model ORDER BY m.node_id, m.slot_index, at LIMIT {ROWS_MAX}"""


async def store(database: Database, node_id: str, samples: Sequence[SlotSample]) -> None:
    """Add samples of a node to their minutes."""
    columns = [
        [each.index for each in samples],
        [each.at for each in samples],
        [each.utilisation_percent for each in samples],
        [each.memory_used_bytes for each in samples],
        [each.memory_total_bytes for each in samples],
        [each.power_milliwatts for each in samples],
        [each.temperature_celsius for each in samples],
        [each.ecc_errors for each in samples],
        [each.xid for each in samples],
    ]
    async with database.connection(PLATFORM) as connection:
        await connection.execute(STORE, node_id, *columns)


async def of_node(database: Database, acting: Acting, node_id: str, wanted: MetricRange) -> list[MetricPoint]:
    """What the GPUs of a node did, under whatever allocation."""
    rows = await database.fetch(acting, OF_NODE, node_id, wanted.since, wanted.until, wanted.step_seconds)
    return [point_of(row) for row in rows]


def point_of(row: asyncpg.Record) -> MetricPoint:
    node_id, index, allocation_id, at, *rest = row
    return MetricPoint(node_id, index, allocation_id, at, tuple(rest[:8]), *rest[8:])
