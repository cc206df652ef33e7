"""What `core/runtime/why.py` reads: the instance's snapshot, its latest ended operations, and the relevant tasks.

Whether the caller may see the instance is decided before, with a read as the caller; the rest is read as the platform,
since nodes belong to no tenant. A few rows of each kind are enough, since a chain names one of each.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_loss import ALLOCATION_ID
from mooring.core.runtime.why import OperatorFacts, WhyFacts
from mooring.storage.fleet.allocation import COLUMNS as ALLOCATION_COLUMNS
from mooring.storage.fleet.allocation import allocation_of
from mooring.storage.fleet.task import COLUMNS as TASK_COLUMNS
from mooring.storage.fleet.task import task_of
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.runtime import instance_reconcile
from mooring.storage.runtime.instance import OPERATION_COLUMNS, operation_of

ROWS_MAX: Final = 50
NAMED_MAX: Final = 5

ENDED: Final = f"""
SELECT {OPERATION_COLUMNS} FROM operation o
 WHERE o.instance_id = $1 AND o.status IN ('succeeded', 'failed', 'cancelled') AND NOT o.read_only
 ORDER BY o.id DESC LIMIT $2"""
FAILED: Final = f"""
SELECT {TASK_COLUMNS} FROM task t
 WHERE t.instance_id = $1 AND t.status IN ('failed', 'expired') ORDER BY t.id DESC LIMIT $2"""
OPEN: Final = f"""
SELECT {TASK_COLUMNS} FROM task t
 WHERE t.instance_id = $1 AND t.status IN ('queued', 'claimed', 'cancelling') ORDER BY t.id LIMIT $2"""

ACCOUNT: Final = """
SELECT a.id, a.name, a.status, a.disabled_at, r.action, r.reason, r.occurred_at
  FROM service_account a LEFT JOIN LATERAL (
    SELECT r.action, r.reason, r.occurred_at FROM audit r
     WHERE r.project_id = a.project_id AND r.actor_id = a.id AND r.outcome = 'denied' AND r.occurred_at > $2
     ORDER BY r.id DESC LIMIT 1) r ON true
 WHERE a.id = $1"""
RELEASED: Final = f"""
SELECT {ALLOCATION_COLUMNS} FROM allocation a WHERE a.id = ANY ($1::text[]) AND a.project_id = $2"""
REFUSED_LATELY: Final = timedelta(minutes=15)
"""How long a refusal explains what an adapter does not do; one that tries again is refused again."""

_NAMED: Final = "project_id = $1 AND id >= $2 AND id < $2 || '~'"
NAMED: Final = f"""
(SELECT id AS instance_id, 'instance' AS noun, id FROM instance WHERE {_NAMED} LIMIT $3)
UNION ALL
(SELECT id, 'instance', id FROM instance
  WHERE project_id = $1 AND name = $2 ORDER BY status = 'stopped', id DESC LIMIT 1)
UNION ALL
(SELECT instance_id, 'member', id FROM member WHERE {_NAMED} LIMIT $3)
UNION ALL
(SELECT instance_id, 'operation', id FROM operation WHERE {_NAMED} LIMIT $3)"""


@dataclass(frozen=True, slots=True)
class ExplainableSubject:
    """Something that can be explained: an instance, or a member or an operation of one."""

    instance_id: str
    noun: str
    id: str


async def named(database: Database, acting: Acting, project_id: str, text: str) -> list[ExplainableSubject]:
    """What an id, the beginning of one, or an instance's name stands for; several if it is ambiguous."""
    rows = await database.fetch(acting, NAMED, project_id, text, NAMED_MAX)
    return [ExplainableSubject(*row) for row in rows]


async def facts(database: Database, instance: Instance, now: datetime, circuit: str | None = None) -> WhyFacts | None:
    """Everything that explains an instance, its members and its operations; None if it no longer exists."""
    snapshots = await instance_reconcile.snapshot(database, now, [instance.id])
    if not snapshots:
        return None
    arguments = (instance.id, ROWS_MAX)
    ended = [operation_of(row) for row in await database.fetch(PLATFORM, ENDED, *arguments)]
    failed = [task_of(row) for row in await database.fetch(PLATFORM, FAILED, *arguments)]
    opened = [task_of(row) for row in await database.fetch(PLATFORM, OPEN, *arguments)]
    account = await database.fetchrow(PLATFORM, ACCOUNT, instance.service_account_id, now - REFUSED_LATELY)
    requests = [each.request for each in (*ended, *snapshots[0].operations)]
    causes = {str(each[ALLOCATION_ID]) for each in requests if each.get(ALLOCATION_ID) is not None}
    released = await database.fetch(PLATFORM, RELEASED, sorted(causes), instance.project_id) if causes else []
    return WhyFacts(
        snapshots[0],
        now,
        tuple(ended),
        tuple(failed),
        tuple(opened),
        circuit,
        account=None if account is None else OperatorFacts(*account),
        released=tuple(allocation_of(row) for row in released),
    )
