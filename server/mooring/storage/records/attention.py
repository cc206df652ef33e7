"""Reads what needs somebody: one statement for each kind, each over a partial index of just those rows.

For a tenant the statements run under row-level security, with names and reasons; for the platform without any text of a
tenant's. Each returns a bounded number of rows, those that have lasted longest.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from mooring.core.kernel.permissions import Place, Scope
from mooring.core.records.attention import (
    ADAPTER_SILENT,
    DEADLINE_NEAR,
    KEY_EXPIRES_SOON,
    LAUNCHES_FAILED,
    AttentionFacts,
    AttentionKind,
)
from mooring.core.runtime.launch_history import BLAMELESS, FAILURES_MAX, WINDOW
from mooring.core.runtime.next_steps import NEXT_OF_BLOCKER
from mooring.storage.kernel.database import PLATFORM, Acting, Database

ITEMS_MAX: Final = 200
K = AttentionKind
_CODES: Final = ", ".join(f"'{code}'" for code in NEXT_OF_BLOCKER)
_NOT_COUNTED: Final = ", ".join(f"'{code}'" for code in sorted(BLAMELESS))
UNWELL: Final = """(i.status = 'failed' OR (i.status = 'running' AND i.health = 'degraded')
       OR (i.distrust IS NOT NULL AND i.status <> 'stopped'))"""
"""The condition of the index `instance_unwell`."""

# The columns of every statement: noun, id, since, name, code, detail, count, tenant, project, instance.
_OPERATION: Final = """
'operation', o.id, {since}, {name}, {code}, {detail}, 1, o.tenant_id, o.project_id, o.instance_id
  FROM operation o JOIN instance i ON i.id = o.instance_id
 WHERE NOT o.read_only AND {which} AND {here:o}"""
_BLOCKED_SINCE: Final = """(SELECT t.occurred_at FROM transition t
   WHERE t.machine = 'operation' AND t.subject_id = o.id AND t.generation = o.generation)"""
_RELEASE_FAILED: Final = """
'allocation', a.id, a.releasing_at, {name:a}, NULL, a.blocker, 1, a.tenant_id, a.project_id, NULL
  FROM allocation a WHERE a.status = 'release_failed' AND {here:a}"""
_ADAPTER: Final = """
'service_account', s.id, min(coalesce(p.seen_at, o.dispatched_at)), {name:s}, NULL, NULL,
       count(DISTINCT c.instance_id)::int, s.tenant_id, s.project_id, min(c.instance_id)
  FROM instance_claim c JOIN service_account s ON s.id = c.service_account_id
  JOIN operation o ON o.instance_id = c.instance_id AND o.status NOT IN ('succeeded', 'failed', 'cancelled')
  LEFT JOIN adapter_presence p ON p.service_account_id = s.id
 WHERE c.wanted AND c.expires_at IS NULL AND o.dispatched_at < {time}
   AND coalesce(p.seen_at < {time}, true) AND {here:c}
 GROUP BY s.id, s.name, s.tenant_id, s.project_id"""
_CIRCUIT: Final = f"""
'app_version', f.version_id, max(f.finished_at), {{app}}, NULL, NULL, count(*)::int, f.tenant_id, NULL, NULL
  FROM (SELECT o.tenant_id, o.project_id, o.request ->> 'version_id' AS version_id, o.finished_at, i.app_id
          FROM operation o JOIN instance i ON i.id = o.instance_id
         WHERE o.status = 'failed' AND o.kind = 'deploy' AND o.finished_at > {{time}}
           AND o.failure_code NOT IN ({_NOT_COUNTED}) AND {{here:o}}
           AND NOT EXISTS (SELECT FROM operation g WHERE g.kind = 'deploy' AND g.status = 'succeeded'
                             AND g.request ->> 'version_id' = o.request ->> 'version_id'
                             AND g.tenant_id = o.tenant_id AND g.finished_at > o.finished_at)) f
  JOIN app a ON a.id = f.app_id
 GROUP BY f.tenant_id, f.version_id, a.slug, a.tenant_id HAVING count(*) >= {FAILURES_MAX}"""
_DEAD: Final = """
'webhook', w.id, min(d.finished_at), w.url, NULL, NULL, count(*)::int, w.tenant_id, w.project_id, NULL
  FROM (SELECT d.webhook_id, d.finished_at FROM delivery d WHERE d.status = 'dead' AND {dead} LIMIT 10000) d
  JOIN webhook w ON w.id = d.webhook_id AND {owner} GROUP BY w.id, w.url, w.tenant_id, w.project_id"""
_INSTANCE: Final = f"""
'instance', i.id, {{since}}, i.name, {{code}}, {{detail}}, 1, i.tenant_id, i.project_id, i.id
  FROM instance i WHERE {UNWELL} AND {{which}} AND {{here:i}}"""
_BUDGET: Final = """
'budget', c.budget_id, max(c.created_at), coalesce(p.slug, ''), (array_agg(c.action ORDER BY c.percent DESC))[1],
       NULL, max(c.percent), c.tenant_id, c.project_id, NULL
  FROM budget_crossing c LEFT JOIN project p ON p.id = c.project_id
 WHERE c.period = date_trunc('month', {time} AT TIME ZONE 'UTC')::date AND {here:c}
 GROUP BY c.budget_id, p.slug, c.tenant_id, c.project_id"""
_BALANCE: Final = """
'balance', c.account_id, c.created_at, '', c.level, NULL, 1, c.tenant_id, NULL, NULL
  FROM (SELECT DISTINCT ON (c.account_id) c.* FROM balance_crossing c
         WHERE c.tenant_id = $1 ORDER BY c.account_id, c.payment_id DESC, c.created_at DESC) c
 WHERE $2::text IS NULL AND c.payment_id = coalesce((
         SELECT max(e.transaction_id) FROM ledger_entry e WHERE e.tenant_id = $1 AND e.account = 'prepaid'), '')"""
_LATE: Final = """
'project', p.id, min(u.created_at), p.slug, NULL, NULL, count(*)::int, u.tenant_id, u.project_id, NULL
  FROM late_usage u JOIN project p ON p.id = u.project_id WHERE u.status = 'open' AND {here:u}
 GROUP BY p.id, p.slug, u.tenant_id, u.project_id"""
_KEY: Final = """
'service_account', s.id, min(k.expires_at), s.name, NULL, NULL, count(*)::int, s.tenant_id, s.project_id, NULL
  FROM service_account_key k JOIN service_account s ON s.id = k.service_account_id
 WHERE k.revoked_at IS NULL AND k.expires_at IS NOT NULL AND k.expires_at BETWEEN {time} AND {time} + $SOON
   AND s.status = 'active' AND {here:s}
 GROUP BY s.id, s.name, s.tenant_id, s.project_id""".replace("$SOON", f"interval '{KEY_EXPIRES_SOON.days} days'")
_FAILING: Final = """
'app', coalesce(min(x.app_id), ''), min(x.finished_at), x.slug, NULL, NULL, count(*)::int, NULL, NULL, NULL
  FROM (SELECT CASE WHEN a.tenant_id IS NULL THEN a.id END AS app_id,
               CASE WHEN a.tenant_id IS NULL THEN a.slug ELSE 'apps of tenants' END AS slug, o.finished_at
          FROM operation o JOIN instance i ON i.id = o.instance_id JOIN app a ON a.id = i.app_id
         WHERE o.status = 'failed' AND o.kind = 'deploy' AND o.finished_at > {time}
         ORDER BY o.finished_at DESC LIMIT 10000) x GROUP BY x.slug"""
_NODE: Final = """
'node', n.id, {since}, n.name, NULL, NULL, 1, NULL, NULL, NULL FROM node n WHERE {which}"""
_SLOTS: Final = """
'node', n.id, coalesce(n.unreachable_since, n.created_at), n.name, NULL, NULL, count(*)::int, NULL, NULL, NULL
  FROM slot s JOIN node n ON n.id = s.node_id WHERE s.status = 'cleanup_blocked' AND n.status <> 'retired'
 GROUP BY n.id, n.name, n.unreachable_since, n.created_at"""
_NEAR: Final = "o.finished_at IS NULL AND o.status <> 'blocked' AND o.deadline_at < {time}"


def _filled(statement: str, *, of_platform: bool, **parts: str) -> str:
    """The statement with its place: a tenant and perhaps a project, or everything without names."""
    for name, text in parts.items():
        statement = statement.replace(f"{{{name}}}", text)
    for alias in "oacsiu":
        here = "true" if of_platform else f"{alias}.tenant_id = $1 AND ($2::text IS NULL OR {alias}.project_id = $2)"
        name = "NULL" if of_platform else f"{alias}.name"
        statement = statement.replace(f"{{here:{alias}}}", here).replace(f"{{name:{alias}}}", name)
    statement = statement.replace("{time}", "$1::timestamptz" if of_platform else "$3::timestamptz")
    return f"SELECT {statement.strip()}\n ORDER BY 3 LIMIT {ITEMS_MAX}"


def _shared(*, of_platform: bool) -> dict[AttentionKind, str]:
    """What both the tenants and the platform see."""
    platform_code = f"CASE WHEN o.blocker_code IN ({_CODES}) THEN o.blocker_code END"
    name = "NULL" if of_platform else "i.name"
    app = "CASE WHEN a.tenant_id IS NULL THEN a.slug END" if of_platform else "a.slug"
    dead = "d.tenant_id IS NULL" if of_platform else "d.tenant_id = $1 AND ($2::text IS NULL OR d.project_id = $2)"
    owner = "w.tenant_id IS NULL" if of_platform else "w.tenant_id = $1"
    blocked = {
        "since": f"coalesce({_BLOCKED_SINCE}, o.created_at)",
        "which": "o.status = 'blocked'",
        "name": name,
        "code": platform_code if of_platform else "o.blocker_code",
        "detail": "NULL" if of_platform else "o.blocker",
    }
    near = {"since": "o.deadline_at", "which": _NEAR, "name": name, "code": "NULL", "detail": "NULL"}
    return {
        K.OPERATION_BLOCKED: _filled(_OPERATION, of_platform=of_platform, **blocked),
        K.OPERATION_NEAR_DEADLINE: _filled(_OPERATION, of_platform=of_platform, **near),
        K.RELEASE_FAILED: _filled(_RELEASE_FAILED, of_platform=of_platform),
        K.ADAPTER_ABSENT: _filled(_ADAPTER, of_platform=of_platform),
        K.CIRCUIT_OPEN: _filled(_CIRCUIT, of_platform=of_platform, app=app),
        K.DELIVERIES_DEAD: _filled(_DEAD, of_platform=of_platform, dead=dead, owner=owner),
    }


def _unwell(which: str, since: str, code: str, detail: str) -> str:
    return _filled(_INSTANCE, of_platform=False, which=which, since=since, code=code, detail=detail)


OF_TENANT: Final[Mapping[AttentionKind, str]] = {
    **_shared(of_platform=False),
    K.INSTANCE_FAILED: _unwell("i.status = 'failed'", "i.failed_at", "i.failure_code", "i.failure_detail"),
    K.INSTANCE_DEGRADED: _unwell(
        "i.status = 'running' AND i.health = 'degraded'",
        "coalesce(i.health_at, i.created_at)",
        "NULL",
        "i.health_detail",
    ),
    K.INSTANCE_DISTRUSTED: _unwell(
        "i.distrust IS NOT NULL AND i.status <> 'stopped'", "coalesce(i.health_at, i.created_at)", "NULL", "NULL"
    ),
    K.BUDGET_CROSSED: _filled(_BUDGET, of_platform=False),
    K.BALANCE_LOW: _filled(_BALANCE, of_platform=False),
    K.LATE_USAGE: _filled(_LATE, of_platform=False),
    K.KEY_EXPIRING: _filled(_KEY, of_platform=False),
}
OF_PLATFORM: Final[Mapping[AttentionKind, str]] = {
    **_shared(of_platform=True),
    K.LAUNCHES_FAILING: _filled(_FAILING, of_platform=True),
    K.NODE_UNREACHABLE: _filled(
        _NODE,
        of_platform=True,
        since="n.unreachable_since",
        which="n.unreachable_since IS NOT NULL AND n.status <> 'retired'",
    ),
    K.NODE_PENDING: _filled(_NODE, of_platform=True, since="n.created_at", which="n.status = 'pending'"),
    K.SLOTS_BLOCKED: _filled(_SLOTS, of_platform=True),
}
_BEFORE: Final[Mapping[AttentionKind, timedelta]] = {
    K.OPERATION_NEAR_DEADLINE: DEADLINE_NEAR,
    K.ADAPTER_ABSENT: -ADAPTER_SILENT,
    K.CIRCUIT_OPEN: -WINDOW,
    K.LAUNCHES_FAILING: -LAUNCHES_FAILED,
    K.BUDGET_CROSSED: timedelta(),
    K.KEY_EXPIRING: timedelta(),
}
"""Which statements compare with a time, and how far it is from now."""


async def read(
    database: Database, acting: Acting, place: Place, kind: AttentionKind, now: datetime
) -> list[AttentionFacts]:
    """The things of one kind at a place, those that have lasted longest."""
    time = (now + _BEFORE[kind],) if kind in _BEFORE else ()
    if place.scope is Scope.PLATFORM:
        rows = await database.fetch(PLATFORM, OF_PLATFORM[kind], *time)
    else:
        tenant_id = acting.tenant_id or place.tenant_id
        rows = await database.fetch(acting, OF_TENANT[kind], tenant_id, place.project_id, *time)
    return [AttentionFacts(kind, row[0], row[1], row[2], *row[3:10]) for row in rows]
