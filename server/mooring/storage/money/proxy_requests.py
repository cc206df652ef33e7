"""Reads which endpoints belong to instances whose app lets the proxy count requests."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from mooring.core.runtime.instance import Instance
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.runtime.instance import INSTANCE_COLUMNS, instance_of

METERED: Final = f"""
SELECT t.id, t.member_id, {INSTANCE_COLUMNS}
  FROM task t JOIN instance i ON i.id = t.instance_id JOIN app_version v ON v.id = i.version_id
 WHERE t.id = ANY ($1::text[]) AND v.manifest @> '{{"usage_units": [{{"counted_by": "proxy"}}]}}'"""


@dataclass(frozen=True, slots=True)
class MeteredEndpoint:
    """An endpoint whose requests are usage, and whose they are."""

    endpoint_id: str
    member_id: str | None
    instance: Instance


async def metered_endpoints(reader: RowReader, acting: Acting, endpoint_ids: Collection[str]) -> list[MeteredEndpoint]:
    """Those of these endpoints whose requests are usage of their instance's app."""
    rows = await reader.fetch(acting, METERED, sorted(endpoint_ids))
    return [MeteredEndpoint(row[0], row[1], instance_of(row, 2)) for row in rows]
