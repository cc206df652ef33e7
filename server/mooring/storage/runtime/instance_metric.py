"""Reads what the GPUs of an instance did, for the time in which its members had them."""

from typing import Final

from mooring.core.fleet.slot_metric import ROWS_MAX, MetricPoint, MetricRange
from mooring.core.runtime.instance import InstanceRef
from mooring.storage.fleet.slot_metric import FIGURES, point_of
from mooring.storage.kernel.database import Acting, Database

OF_INSTANCE: Final = f"""
WITH held AS (
  SELECT m.allocation_id, min(m.created_at) AS since,
         CASE WHEN bool_or(m.removed_at IS NULL) THEN 'infinity' ELSE max(m.removed_at) END AS until
    FROM member m WHERE m.project_id = $1 AND m.instance_id = $2 AND m.allocation_id IS NOT NULL
   GROUP BY m.allocation_id)
SELECT m.node_id, m.slot_index, m.allocation_id, date_bin(make_interval(secs => $5::float8), m.minute, $3) AS at,
       {FIGURES}, a.gpu_model, bool_or(m.simulated), a.price_minor_per_gpu_hour, a.currency
  FROM held h JOIN allocation a ON a.id = h.allocation_id AND a.project_id = $1
  JOIN slot_metric m ON m.allocation_id = h.allocation_id AND m.allocation_id <> ''
   AND m.minute >= greatest($3, date_trunc('minute', h.since)) AND m.minute < $4 AND m.minute <= h.until
 GROUP BY m.node_id, m.slot_index, m.allocation_id, at, a.gpu_model, a.price_minor_per_gpu_hour, a.currency
 ORDER BY m.node_id, m.slot_index, m.allocation_id, at LIMIT {ROWS_MAX}"""


async def of_instance(database: Database, acting: Acting, ref: InstanceRef, wanted: MetricRange) -> list[MetricPoint]:
    """What the GPUs of an instance's members did; the tenant's own rows only, by the second lock too."""
    rows = await database.fetch(
        acting, OF_INSTANCE, ref.project_id, ref.instance_id, wanted.since, wanted.until, wanted.step_seconds
    )
    return [point_of(row) for row in rows]
