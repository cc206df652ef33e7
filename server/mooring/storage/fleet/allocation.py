"""Reads allocations and their groups for the API."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.fleet.allocation import Allocation, ProjectHolding, SkuTerms
from mooring.core.fleet.allocation_group import AllocationGroup
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.pricing.price import CONTRACT

COLUMNS: Final = ", ".join(f"a.{field.name}" for field in fields(Allocation))
GROUP_COLUMNS: Final = "g.id, g.tenant_id, g.project_id, g.name, g.same_node, g.revision, g.created_at"

FIND: Final = f"SELECT {COLUMNS} FROM allocation a WHERE a.project_id = $1 AND a.id = $2"
LIST: Final = f"""
SELECT {COLUMNS} FROM allocation a
 WHERE a.project_id = $1 AND a.id > $2 AND ($4::text IS NULL OR a.status = $4) AND ($5::text IS NULL OR a.group_id = $5)
 ORDER BY a.id LIMIT $3"""
OF_GROUPS: Final = f"""
SELECT {COLUMNS} FROM allocation a WHERE a.project_id = $1 AND a.group_id = ANY ($2::text[]) ORDER BY a.id"""
FIND_GROUP: Final = f"SELECT {GROUP_COLUMNS} FROM allocation_group g WHERE g.project_id = $1 AND g.id = $2"
LIST_GROUPS: Final = f"""
SELECT {GROUP_COLUMNS} FROM allocation_group g WHERE g.project_id = $1 AND g.id > $2 ORDER BY g.id LIMIT $3"""
TERMS: Final = f"""
SELECT s.id, s.slug, s.shape, s.gpu_model, s.regions, s.allowed_gpu_counts,
       coalesce(c.minor, s.price_minor_per_gpu_hour), coalesce(c.currency, s.currency), s.price_revision, s.status, c.id
  FROM sku s {CONTRACT} WHERE s.slug = $1 OR s.id = $1"""
HOLDING: Final = """
SELECT coalesce(sum(a.gpu_count) FILTER (WHERE a.status IN ('requested', 'provisioning', 'active')), 0)::int,
       count(a.id)::int, q.revision
  FROM project_quota q LEFT JOIN allocation a ON a.project_id = q.id AND a.status <> 'released'
 WHERE q.id = $1 GROUP BY q.revision"""
OF_NODE: Final = "SELECT a.id FROM allocation a WHERE a.node_id = $1 AND a.status <> 'released' ORDER BY a.id"
ON_NODES: Final = """
SELECT a.id, a.node_id, a.tenant_id, a.project_id, a.shape, a.gpu_count, a.status, a.blocker, a.placed_at,
       a.activated_at, a.releasing_at, a.retry_at, a.lost_at
  FROM allocation a
 WHERE a.node_id IS NOT NULL AND a.status <> 'released' AND a.id > $1
   AND ($3::text IS NULL OR a.node_id = $3) AND ($4::text IS NULL OR a.status = $4)
 ORDER BY a.id LIMIT $2"""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """An allocation as the operator of its node may see it: without its name and content."""

    id: str
    node_id: str
    tenant_id: str
    project_id: str
    shape: str
    gpu_count: int
    status: str
    blocker: str | None
    placed_at: datetime | None
    activated_at: datetime | None
    releasing_at: datetime | None
    retry_at: datetime | None
    lost_at: datetime | None


@dataclass(frozen=True, slots=True)
class AllocationFilter:
    """Which allocations of a project a list shows."""

    status: str | None = None
    group_id: str | None = None


async def find(database: Database, acting: Acting, project_id: str, allocation_id: str) -> Allocation | None:
    """One allocation of this project; a released one is found too."""
    row = await database.fetchrow(acting, FIND, project_id, allocation_id)
    return None if row is None else allocation_of(row)


async def page(
    database: Database, acting: Acting, project_id: str, wanted: AllocationFilter, window: PageWindow
) -> list[Allocation]:
    rows = await database.fetch(acting, LIST, project_id, window.after, window.limit, wanted.status, wanted.group_id)
    return [allocation_of(row) for row in rows]


async def find_group(database: Database, acting: Acting, project_id: str, group_id: str) -> AllocationGroup | None:
    row = await database.fetchrow(acting, FIND_GROUP, project_id, group_id)
    return None if row is None else AllocationGroup(*row)


async def page_groups(database: Database, acting: Acting, project_id: str, window: PageWindow) -> list[AllocationGroup]:
    rows = await database.fetch(acting, LIST_GROUPS, project_id, window.after, window.limit)
    return [AllocationGroup(*row) for row in rows]


async def of_groups(
    database: Database, acting: Acting, project_id: str, group_ids: Sequence[str]
) -> dict[str, list[Allocation]]:
    """The allocations of each group, by the id of the group."""
    found: dict[str, list[Allocation]] = {each: [] for each in group_ids}
    for row in await database.fetch(acting, OF_GROUPS, project_id, list(group_ids)):
        allocation = allocation_of(row)
        found[str(allocation.group_id)].append(allocation)
    return found


async def terms(database: Database, acting: Acting, sku: str) -> SkuTerms | None:
    """A SKU by slug or id."""
    row = await database.fetchrow(acting, TERMS, sku)
    return None if row is None else SkuTerms(*row)


async def holding(database: Database, acting: Acting, project_id: str) -> ProjectHolding:
    """What this project has, and the revision that guards its quota."""
    row = await database.fetchrow(acting, HOLDING, project_id)
    return ProjectHolding(0, 0, 0) if row is None else ProjectHolding(*row)


async def on_nodes(
    database: Database, acting: Acting, window: PageWindow, *, node_id: str | None, status: str | None
) -> list[Occupancy]:
    """Allocations that are placed on a node; only on `node_id` or with `status` where one is given."""
    rows = await database.fetch(acting, ON_NODES, window.after, window.limit, node_id, status)
    return [Occupancy(*row) for row in rows]


def allocation_of(row: asyncpg.Record) -> Allocation:
    return Allocation(*row)


async def of_node(database: Database, node_id: str) -> list[str]:
    """The allocations that are or may be on a node; any other sandbox there is a stray."""
    return [str(row[0]) for row in await database.fetch(PLATFORM, OF_NODE, node_id)]
