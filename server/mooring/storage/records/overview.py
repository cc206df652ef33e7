"""What an operator sees across tenants: numbers, and no name, id or text of a tenant.

Each statement counts in one pass and returns a bounded number of rows. Apps of tenants are one row together, without
their names and failure codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.storage.kernel.database import PLATFORM, Acting, Database

APPS_MAX: Final = 500
CAPACITY_MAX: Final = 500
FAILURES_MAX: Final = 10_000
"""How many of the newest failures are looked at."""
_BY: Final = "(SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM"
COUNTS: Final = f"""
SELECT (SELECT count(*)::int FROM tenant),
       (SELECT count(*)::int FROM project WHERE deleted_at IS NULL),
       {_BY} (SELECT status k, count(*)::int n FROM node WHERE status <> 'retired' GROUP BY 1) x),
       (SELECT count(*)::int FROM node WHERE status <> 'retired' AND unreachable_since IS NOT NULL),
       (SELECT count(*)::int FROM node WHERE status <> 'retired' AND cordoned_at IS NOT NULL),
       {_BY} (SELECT status k, count(*)::int n FROM slot WHERE status <> 'quarantined' GROUP BY 1) x),
       {_BY} (SELECT status k, count(*)::int n FROM allocation WHERE status <> 'released' GROUP BY 1) x),
       {_BY} (SELECT status k, count(*)::int n FROM instance WHERE status <> 'stopped' GROUP BY 1) x),
       {_BY} (SELECT health k, count(*)::int n FROM instance WHERE status = 'running' GROUP BY 1) x),
       {_BY} (SELECT kind k, count(*)::int n FROM operation
                WHERE status NOT IN ('succeeded', 'failed', 'cancelled') AND NOT read_only GROUP BY 1) x)"""
APPS: Final = """
WITH living AS (
  SELECT CASE WHEN a.tenant_id IS NULL THEN a.slug END AS app, i.status, i.health, count(*)::int AS n
    FROM instance i JOIN app a ON a.id = i.app_id WHERE i.status <> 'stopped' GROUP BY 1, 2, 3),
failed AS (
  SELECT CASE WHEN a.tenant_id IS NULL THEN a.slug END AS app,
         CASE WHEN a.tenant_id IS NULL THEN f.failure_code ELSE 'failed' END AS code, count(*)::int AS n
    FROM (SELECT o.instance_id, o.failure_code FROM operation o
           WHERE o.status = 'failed' AND o.finished_at > $1 ORDER BY o.finished_at DESC LIMIT $2) f
    JOIN instance i ON i.id = f.instance_id JOIN app a ON a.id = i.app_id GROUP BY 1, 2)
SELECT named.app,
       (SELECT coalesce(jsonb_object_agg(x.status, x.n), '{}')
          FROM (SELECT l.status, sum(l.n)::int AS n FROM living l
                 WHERE l.app IS NOT DISTINCT FROM named.app GROUP BY 1) x) AS statuses,
       (SELECT coalesce(jsonb_object_agg(x.health, x.n), '{}')
          FROM (SELECT l.health, sum(l.n)::int AS n FROM living l
                 WHERE l.app IS NOT DISTINCT FROM named.app AND l.status = 'running' GROUP BY 1) x) AS healths,
       (SELECT coalesce(jsonb_object_agg(f.code, f.n), '{}')
          FROM failed f WHERE f.app IS NOT DISTINCT FROM named.app) AS failures
  FROM (SELECT app FROM living UNION SELECT app FROM failed) named
 ORDER BY named.app NULLS LAST LIMIT $3"""
CAPACITY: Final = """
SELECT n.region, s.gpu_model, count(DISTINCT n.id)::int AS nodes,
       count(*)::int AS slots,
       count(*) FILTER (WHERE s.status = 'free' AND n.status = 'ready' AND n.cordoned_at IS NULL
                          AND n.unreachable_since IS NULL AND NOT n.sweep_due)::int AS free,
       count(*) FILTER (WHERE s.status = 'claimed')::int AS claimed,
       count(*) FILTER (WHERE s.status = 'cleanup_blocked')::int AS blocked
  FROM slot s JOIN node n ON n.id = s.node_id
 WHERE n.status <> 'retired' AND s.status <> 'quarantined'
 GROUP BY 1, 2 ORDER BY 1, 2 LIMIT $1"""


@dataclass(frozen=True, slots=True)
class PlatformCounts:
    """How many of each there are, by their state."""

    tenants: int
    projects: int
    nodes: Mapping[str, int]
    nodes_unreachable: int
    nodes_cordoned: int
    slots: Mapping[str, int]
    allocations: Mapping[str, int]
    instances: Mapping[str, int]
    health: Mapping[str, int]
    operations: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AppCounts:
    """The instances of an app, and what failed lately; without a name: all apps of tenants together."""

    app: str | None
    instances: Mapping[str, int]
    health: Mapping[str, int]
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CapacityCounts:
    """The slots of one GPU model in one region; `free` are those that take work now."""

    region: str
    gpu_model: str
    nodes: int
    slots: int
    free: int
    claimed: int
    blocked: int


async def counts(database: Database, acting: Acting = PLATFORM) -> PlatformCounts:
    row = await database.fetchrow(acting, COUNTS)
    if row is None:
        raise AssertionError("a statement without a table returns one row")
    return PlatformCounts(*row)


async def by_app(database: Database, since: datetime, acting: Acting = PLATFORM) -> list[AppCounts]:
    return [AppCounts(*row) for row in await database.fetch(acting, APPS, since, FAILURES_MAX, APPS_MAX)]


async def capacity(database: Database, acting: Acting = PLATFORM) -> list[CapacityCounts]:
    return [CapacityCounts(*row) for row in await database.fetch(acting, CAPACITY, CAPACITY_MAX)]
