"""Reads what must end where the money is used up."""

from typing import Final

from mooring.core.fleet.allocation import Allocation
from mooring.storage.fleet.allocation import COLUMNS as ALLOCATION_COLUMNS
from mooring.storage.fleet.allocation import allocation_of
from mooring.storage.kernel.database import PLATFORM, RowReader

INSTANCES: Final = """
SELECT i.id FROM instance i
 WHERE i.tenant_id = $1 AND ($2::text IS NULL OR i.project_id = $2) AND i.status IN ('created', 'starting', 'running')
   AND NOT EXISTS (SELECT FROM operation o WHERE o.instance_id = i.id AND o.kind = 'decommission'
                      AND o.status NOT IN ('succeeded', 'failed', 'cancelled'))
 ORDER BY i.id LIMIT $3"""
ALLOCATIONS: Final = f"""
SELECT {ALLOCATION_COLUMNS} FROM allocation a
 WHERE a.tenant_id = $1 AND ($2::text IS NULL OR a.project_id = $2)
   AND a.status IN ('requested', 'provisioning', 'active')
   AND NOT EXISTS (SELECT FROM member m JOIN instance i ON i.id = m.instance_id
                    WHERE m.allocation_id = a.id AND i.status <> 'stopped'
                      AND NOT EXISTS (SELECT FROM closing_record c WHERE c.member_id = m.id))
 ORDER BY a.id LIMIT $3"""
"""Allocations that no instance uses: those of an instance end with its teardown, or afterwards."""


async def running(reader: RowReader, tenant_id: str, project_id: str | None, limit: int) -> list[str]:
    return [str(row[0]) for row in await reader.fetch(PLATFORM, INSTANCES, tenant_id, project_id, limit)]


async def idle(reader: RowReader, tenant_id: str, project_id: str | None, limit: int) -> list[Allocation]:
    return [allocation_of(row) for row in await reader.fetch(PLATFORM, ALLOCATIONS, tenant_id, project_id, limit)]
