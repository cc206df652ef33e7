"""What a launch reads: the app by its name, the version that is meant, the places named, and how launches went.

How others' launches went is read for the platform, since a version that fails for three tenants is not the fault of
one; what comes of it says nothing of whose they were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.core.allocation import Allocation, Terms
from mooring.core.app import App
from mooring.core.app_version import AppVersion
from mooring.core.circuit import CircuitFacts, Deployed
from mooring.core.compatibility import Fact
from mooring.core.expectation import SAMPLES_MAX, Measured
from mooring.core.inventory import facts_of
from mooring.core.launch import Spot
from mooring.storage.allocation import COLUMNS as ALLOCATION_COLUMNS
from mooring.storage.allocation import allocation_of
from mooring.storage.app import COLUMNS as APP_COLUMNS
from mooring.storage.app import app_of
from mooring.storage.app_version import COLUMNS as VERSION_COLUMNS
from mooring.storage.app_version import version_of
from mooring.storage.database import PLATFORM, Acting, Database
from mooring.storage.node import find_all as find_nodes

SHELF_MAX: Final = 200
LOOKED_AT_MAX: Final = 200
FAILURES_MAX: Final = 200
APP: Final = f"""
SELECT {APP_COLUMNS} FROM app a WHERE (a.tenant_id IS NULL OR a.tenant_id = $1) AND (a.slug = $2 OR a.id = $2)"""
VERSION: Final = f"SELECT {VERSION_COLUMNS} FROM app_version v WHERE v.app_id = $1 AND v.version = $2"
ALLOCATIONS: Final = f"""
SELECT {ALLOCATION_COLUMNS} FROM allocation a WHERE a.project_id = $1 AND a.id = ANY ($2::text[])"""
OCCUPIED: Final = """
SELECT m.allocation_id, bool_and(m.shares) FROM member m
 WHERE m.allocation_id = ANY ($1::text[]) AND m.instance_id <> $2
   AND NOT EXISTS (SELECT FROM closing_record c WHERE c.member_id = m.id)
 GROUP BY m.allocation_id"""
SHELF: Final = """
SELECT s.id, s.slug, s.shape, s.gpu_model, s.regions, s.allowed_gpu_counts, s.price_minor_per_gpu_hour, s.currency,
       s.price_revision, s.status
  FROM sku s WHERE s.status = 'offered' ORDER BY s.id LIMIT $1"""
STANDING: Final = """
SELECT (SELECT count(*)::int FROM instance i WHERE i.project_id = $1 AND i.status <> 'stopped'),
       EXISTS (SELECT FROM instance i WHERE i.project_id = $1 AND i.name = $2 AND i.status <> 'stopped')"""
OPERATOR: Final = "SELECT e.service_account_id FROM entitlement e WHERE e.project_id = $1 AND e.app_id = $2"
_OF_KIND: Final = """o.kind = 'deploy' AND o.finished_at IS NOT NULL AND o.request ->> 'version_id' = $1
   AND (o.request ->> 'shape') IS NOT DISTINCT FROM $2 AND o.finished_at > $3"""
DEPLOYS: Final = f"""
WITH failed AS MATERIALIZED (
  SELECT o.tenant_id, o.id, o.finished_at, o.failure_code FROM operation o WHERE {_OF_KIND} AND o.status = 'failed'
   ORDER BY o.finished_at DESC LIMIT $4)
SELECT * FROM failed
UNION ALL
SELECT good.* FROM (SELECT DISTINCT tenant_id FROM failed) concerned CROSS JOIN LATERAL (
  SELECT o.tenant_id, o.id, o.finished_at, NULL::text FROM operation o
   WHERE {_OF_KIND} AND o.status = 'succeeded' AND o.tenant_id = concerned.tenant_id
   ORDER BY o.finished_at DESC LIMIT 1) good"""
MEASURED: Final = """
SELECT coalesce(o.request ->> 'version_id', ''), o.created_at, o.dispatched_at, o.started_at, o.finished_at,
       CASE WHEN o.tenant_id = $5 THEN o.steps ELSE '[]' END, o.tenant_id = $5
  FROM (SELECT i.id FROM instance i WHERE i.app_id = $1 ORDER BY i.id DESC LIMIT $2) i
  JOIN operation o ON o.instance_id = i.id AND o.kind = 'deploy' AND o.status = 'succeeded'
 ORDER BY (o.request ->> 'version_id' = $3) DESC, o.finished_at DESC LIMIT $4"""


@dataclass(frozen=True, slots=True)
class Present:
    """What a project has of instances, as far as a new one is concerned."""

    open: int
    name_taken: bool


async def app(database: Database, acting: Acting, named: str) -> App | None:
    """The app of this slug or id that the tenant sees; a slug means one app only."""
    row = await database.fetchrow(acting, APP, acting.tenant_id, named)
    return None if row is None else app_of(row)


async def version(database: Database, acting: Acting, app_id: str, number: str) -> AppVersion | None:
    """The version of an app by its number, however far it has come."""
    row = await database.fetchrow(acting, VERSION, app_id, number)
    return None if row is None else version_of(row)


async def spots(
    database: Database, acting: Acting, project_id: str, allocation_ids: Sequence[str], instance_id: str = ""
) -> dict[str, Spot]:
    """Those of the allocations that the project has, with their nodes' facts and whether others are in them."""
    wanted = list(dict.fromkeys(allocation_ids))
    if not wanted:
        return {}
    found = [allocation_of(row) for row in await database.fetch(acting, ALLOCATIONS, project_id, wanted)]
    taken = {row[0]: row[1] for row in await database.fetch(acting, OCCUPIED, wanted, instance_id)}
    facts = await _facts(database, found)
    return {
        each.id: Spot(each, facts.get(each.node_id or "", {}), each.id in taken, bool(taken.get(each.id, False)))
        for each in found
    }


async def shelf(database: Database, acting: Acting) -> list[Terms]:
    """Every SKU on offer."""
    return [Terms(*row) for row in await database.fetch(acting, SHELF, SHELF_MAX)]


async def present(database: Database, acting: Acting, project_id: str, name: str) -> Present:
    """How many instances the project has, and whether one of this name is among them."""
    row = await database.fetchrow(acting, STANDING, project_id, name)
    return Present(0, False) if row is None else Present(*row)


async def operator(database: Database, acting: Acting, project_id: str, app_id: str) -> str | None:
    """The account that was made for the app when the project was entitled."""
    found: str | None = await database.fetchval(acting, OPERATOR, project_id, app_id)
    return found


async def deploys(
    database: Database, tenant_id: str, version_id: str, shape: str | None, since: datetime
) -> CircuitFacts:
    """How launches of this version on this shape went lately, for every tenant."""
    rows = await database.fetch(PLATFORM, DEPLOYS, version_id, shape, since, FAILURES_MAX)
    return CircuitFacts(tenant_id, tuple(Deployed(*row) for row in rows))


async def measured(database: Database, tenant_id: str, app_id: str, version_id: str) -> list[Measured]:
    """The newest launches of an app that succeeded, those of the version first; of others only how long they took."""
    rows = await database.fetch(PLATFORM, MEASURED, app_id, LOOKED_AT_MAX, version_id, SAMPLES_MAX, tenant_id)
    return [Measured(*row) for row in rows]


async def _facts(database: Database, found: Sequence[Allocation]) -> Mapping[str, Mapping[str, Fact]]:
    """What the nodes of these allocations are; of a node a tenant learns only whether an app fits there."""
    node_ids = sorted({each.node_id for each in found if each.node_id is not None})
    return {each.id: facts_of(each) for each in await find_nodes(database, node_ids)} if node_ids else {}
