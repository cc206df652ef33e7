"""What a launch reads: the app by its name, the version, the named allocations, and how earlier launches ended.

Launches of other tenants are read as the platform, since a version that fails for three tenants is not the fault of
one; the results do not say whose launches they were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Final

from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.compatibility import Fact
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.fleet.allocation import Allocation, ProjectHolding, SkuTerms
from mooring.core.fleet.inventory import facts_from
from mooring.core.identity.service_account import ServiceAccount
from mooring.core.runtime.launch_history import SAMPLES_MAX, CircuitFacts, LaunchOutcome, MeasuredLaunch
from mooring.core.runtime.launch_snapshot import TargetAllocation
from mooring.storage.catalog.app import COLUMNS as APP_COLUMNS
from mooring.storage.catalog.app_version import COLUMNS as VERSION_COLUMNS
from mooring.storage.catalog.app_version import columns_of, version_of
from mooring.storage.catalog.entitlement import COLUMNS as ENTITLEMENT_COLUMNS
from mooring.storage.fleet import allocation as allocations
from mooring.storage.fleet.allocation import COLUMNS as ALLOCATION_COLUMNS
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.pricing.price import CONTRACT

SHELF_MAX: Final = 200
INSTANCES_READ_MAX: Final = 200
FAILURES_MAX: Final = 200
ACCOUNT_COLUMNS: Final = columns_of(ServiceAccount, "s")
_WIDTHS: Final = tuple(
    accumulate((len(App.__slots__), len(Entitlement.__slots__), len(ServiceAccount.__slots__)), initial=0)
)
OPENING: Final = f"""
SELECT {APP_COLUMNS}, {ENTITLEMENT_COLUMNS}, {ACCOUNT_COLUMNS},
       coalesce(held.gpus, 0), coalesce(held.allocations, 0), coalesce(held.revision, 0),
       (SELECT count(*)::int FROM instance i WHERE i.project_id = $2 AND i.status <> 'stopped'),
       EXISTS (SELECT FROM instance i WHERE i.project_id = $2 AND i.name = $4 AND i.status <> 'stopped'),
       EXISTS (SELECT FROM service_account_key k WHERE k.service_account_id = s.id AND k.revoked_at IS NULL
                AND (k.expires_at IS NULL OR k.expires_at > now()))
  FROM project p
  LEFT JOIN app a ON (a.tenant_id IS NULL OR a.tenant_id = $1) AND (a.slug = $3 OR a.id = $3)
  LEFT JOIN entitlement e ON e.project_id = $2 AND e.app_id = a.id
  LEFT JOIN service_account s ON s.project_id = $2 AND s.id = coalesce($5, e.service_account_id)
  LEFT JOIN ({allocations.HOLDING.replace("$1", "$2")}) held (gpus, allocations, revision) ON true
 WHERE p.id = $2 AND p.deleted_at IS NULL"""
"""Everything that a launch reads of which there is only one row."""
APP_CATEGORY: Final = """
SELECT a.category FROM app a WHERE (a.tenant_id IS NULL OR a.tenant_id = $1) AND (a.slug = $2 OR a.id = $2)"""
VERSION: Final = f"SELECT {VERSION_COLUMNS} FROM app_version v WHERE v.app_id = $1 AND v.version = $2"
ALLOCATIONS: Final = f"""
SELECT {ALLOCATION_COLUMNS}, o.shares
  FROM allocation a
 CROSS JOIN LATERAL (
   SELECT bool_and(m.shares) AS shares FROM member m
    WHERE m.allocation_id = a.id AND m.instance_id <> $3
      AND NOT EXISTS (SELECT FROM closing_record c WHERE c.member_id = m.id)) o
 WHERE a.project_id = $1 AND a.id = ANY ($2::text[])"""
"""Allocations, each with whether all members of other instances in it share it; NULL if there are none."""
NODES: Final = "SELECT n.id, n.host, n.region, n.inventory FROM node n WHERE n.id = ANY ($1::text[])"
SHELF: Final = f"""
SELECT s.id, s.slug, s.shape, s.gpu_model, s.regions, s.allowed_gpu_counts,
       coalesce(c.minor, s.price_minor_per_gpu_hour), coalesce(c.currency, s.currency), s.price_revision, s.status, c.id
  FROM sku s {CONTRACT} WHERE s.status = 'offered' ORDER BY s.id LIMIT $1"""
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
class LaunchOpening:
    """What a launch reads first: the app, and what its project has."""

    app: App | None
    entitlement: Entitlement | None
    account: ServiceAccount | None  # the named one, or the app's operator account in this project
    holding: ProjectHolding
    open_instances: int
    name_taken: bool
    account_has_key: bool


async def opening(
    database: Database,
    acting: Acting,
    project_id: str,
    app: str,
    *,
    instance_name: str,
    service_account_id: str | None,
) -> LaunchOpening | None:
    """The project with the app of this slug or id that its tenant can see; None if the project does not exist."""
    row = await database.fetchrow(acting, OPENING, acting.tenant_id, project_id, app, instance_name, service_account_id)
    if row is None:
        return None
    values = tuple(row)
    parts = [values[begin:end] for begin, end in pairwise(_WIDTHS)]
    app_row, entitlement, account = (None if part[0] is None else part for part in parts)
    *holding, open_instances, name_taken, account_has_key = values[_WIDTHS[-1] :]
    return LaunchOpening(
        None if app_row is None else App(*app_row),
        None if entitlement is None else Entitlement(*entitlement),
        None if account is None else ServiceAccount(*account),
        ProjectHolding(*holding),
        open_instances,
        name_taken,
        account_has_key,
    )


async def app_category(database: Database, acting: Acting, app: str) -> str | None:
    """The category of the app of this slug or id that the tenant can see."""
    category: str | None = await database.fetchval(acting, APP_CATEGORY, acting.tenant_id, app)
    return category


async def version(database: Database, acting: Acting, app_id: str, number: str) -> AppVersion | None:
    """The version of an app by its number, in whatever state."""
    row = await database.fetchrow(acting, VERSION, app_id, number)
    return None if row is None else version_of(row)


async def target_allocations(
    database: Database, acting: Acting, project_id: str, allocation_ids: Sequence[str], instance_id: str = ""
) -> dict[str, TargetAllocation]:
    """Those of the allocations that the project has, with their nodes' facts and whether others use them."""
    wanted = list(dict.fromkeys(allocation_ids))
    if not wanted:
        return {}
    rows = [tuple(row) for row in await database.fetch(acting, ALLOCATIONS, project_id, wanted, instance_id)]
    found = [(Allocation(*values), shares) for *values, shares in rows]
    facts = await _facts(database, [each for each, _ in found])
    return {
        each.id: TargetAllocation(each, facts.get(each.node_id or "", {}), shares is not None, bool(shares))
        for each, shares in found
    }


async def shelf(database: Database, acting: Acting) -> list[SkuTerms]:
    return [SkuTerms(*row) for row in await database.fetch(acting, SHELF, SHELF_MAX)]


async def deploys(
    database: Database, tenant_id: str, version_id: str, shape: str | None, since: datetime
) -> CircuitFacts:
    """The latest failed launches of this version on this shape, by any tenant, and each such tenant's last success."""
    rows = await database.fetch(PLATFORM, DEPLOYS, version_id, shape, since, FAILURES_MAX)
    return CircuitFacts(tenant_id, tuple(LaunchOutcome(*row) for row in rows))


async def measured(database: Database, tenant_id: str, app_id: str, version_id: str) -> list[MeasuredLaunch]:
    """The latest successful launches of an app, those of the version first; of other tenants only the durations."""
    rows = await database.fetch(PLATFORM, MEASURED, app_id, INSTANCES_READ_MAX, version_id, SAMPLES_MAX, tenant_id)
    return [MeasuredLaunch(*row) for row in rows]


async def _facts(database: Database, found: Sequence[Allocation]) -> Mapping[str, Mapping[str, Fact]]:
    """Node id → facts; a tenant only learns whether an app fits there."""
    node_ids = sorted({each.node_id for each in found if each.node_id is not None})
    if not node_ids:
        return {}
    rows = await database.fetch(PLATFORM, NODES, node_ids)
    return {node_id: facts_from(host, region, inventory) for node_id, host, region, inventory in rows}
