"""What the reconcile worker reads of instances: which of them have a next step, and everything that decides it.

Due instances are found from the small end: open operations, released allocations, silent machines, expired leases.
Running instances that need nothing are not read, however many there are. Reading the snapshots of many instances takes
the same few statements as reading one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg

from mooring.core.catalog.artifact_hold import ArtifactHold
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.allocation_reconcile import TaskFacts
from mooring.core.fleet.runtime_secret import RuntimeSecret
from mooring.core.fleet.task import Task
from mooring.core.runtime.instance_snapshot import (
    GRACEFUL,
    AttachmentSnapshot,
    ClaimWatch,
    ClosedMember,
    InstanceSnapshot,
    MemberSnapshot,
    NodeStanding,
    TimeLimits,
)
from mooring.core.runtime.launch_history import WINDOW, CircuitFacts, LaunchOutcome
from mooring.core.runtime.member import MemberState
from mooring.core.runtime.operation import TEARDOWN_KINDS, Operation, OperationKind, Phase
from mooring.core.runtime.topology import ONLY
from mooring.storage.fleet.allocation import COLUMNS as ALLOCATION_COLUMNS
from mooring.storage.fleet.task import COLUMNS as TASK_COLUMNS
from mooring.storage.fleet.task import task_of
from mooring.storage.kernel.database import PLATFORM, WITH_KEPT_PLANS, Database
from mooring.storage.runtime.attachment import COLUMNS as ATTACHMENT_COLUMNS
from mooring.storage.runtime.attachment import NAMES as ATTACHMENT_NAMES
from mooring.storage.runtime.attachment import attachment_of
from mooring.storage.runtime.instance import (
    INSTANCE_COLUMNS,
    INSTANCE_NAMES,
    MEMBER_COLUMNS,
    MEMBER_NAMES,
    OPERATION_COLUMNS,
    instance_of,
    member_of,
    open_operations,
    operation_of,
)

OVER: Final = "('succeeded', 'failed', 'cancelled')"
ENDED: Final = "('succeeded', 'failed', 'cancelled', 'expired')"
TEARDOWN: Final = "('remove', 'replace', 'decommission')"
GIVEN_BACK: Final = "('failed', 'releasing', 'release_failed', 'released')"
CLEAN: Final = """r.allocation_id = m.allocation_id AND r.clean AND (
  (r.owner = m.allocation_id || '/' || m.id AND r.task_type = 'teardown.verify')
  OR (r.owner = m.allocation_id AND r.task_type = 'sandbox.destroy'))"""
"""The receipt of a node that searched for leftovers of a member, or of its allocation, and found none."""
TORN_DOWN: Final = """m.instance_id = o.instance_id AND m.status <> 'removed'
   AND (o.kind = 'decommission' OR m.id = ANY (o.member_ids))
   AND (o.kind <> 'replace' OR EXISTS (
     SELECT FROM member s WHERE s.replaces_id = m.id AND s.id = ANY (o.member_ids)))"""
"""The members `m` that the operation `o` tears down and that are not removed yet."""

LATE: Final = f"""
(SELECT o.instance_id FROM operation o JOIN instance_claim c ON c.instance_id = o.instance_id
 CROSS JOIN LATERAL (SELECT c.expires_at IS NOT NULL AND c.expires_at > $1::timestamptz AS held) w
 WHERE o.status NOT IN {OVER} AND o.instance_id > $2 AND (
   (o.status = 'cancelling' AND (
      o.dispatched_at IS NULL OR o.phase = 'platform' OR NOT w.held OR o.phase_deadline_at IS NULL
      OR o.phase_deadline_at > $1 + $5::interval OR o.phase_deadline_at <= $1))
   OR (o.status <> 'cancelling' AND o.phase = 'adapter' AND o.dispatched_at IS NOT NULL AND (
      o.deadline_at <= $1
      OR (o.kind IN {TEARDOWN} AND o.phase_deadline_at <= $1)
      OR (o.kind IN ('remove', 'decommission') AND NOT EXISTS (
            SELECT FROM member m WHERE {TORN_DOWN} AND ((w.held AND m.status <> 'requested') OR EXISTS (
              SELECT FROM task t WHERE t.member_id = m.id AND t.first_claimed_at IS NOT NULL))))
      OR (o.kind NOT IN {TEARDOWN} AND o.started_at IS NULL AND NOT w.held AND o.dispatched_at <= $1 - $4::interval)
      OR (o.kind NOT IN {TEARDOWN} AND EXISTS (
            SELECT FROM jsonb_array_elements(o.steps) s
             WHERE s ->> 'status' = 'running' AND (s ->> 'started_at')::timestamptz <= $1 - $6::interval))))))"""
"""Operations that passed a time limit, or that must end and that nobody holds."""
UNDISPATCHED: Final = f"""
(SELECT o.instance_id FROM operation o
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE a.status <> 'active') AS waiting,
          count(*) FILTER (WHERE a.status IN {GIVEN_BACK}) AS dead,
          (array_agg(a.blocker ORDER BY a.id)
            FILTER (WHERE a.status <> 'active' AND a.blocker IS NOT NULL))[1] AS blocker
     FROM member m JOIN allocation a ON a.id = m.allocation_id
    WHERE m.id = ANY (o.member_ids) AND m.status IN ('requested', 'joining')) w
 WHERE o.status NOT IN {OVER} AND o.status <> 'cancelling' AND o.phase = 'adapter' AND o.dispatched_at IS NULL
   AND o.instance_id > $2 AND (
     o.kind NOT IN ('deploy', 'add', 'replace') OR w.waiting = 0 OR w.dead > 0
     OR (w.blocker IS NOT NULL AND (o.status <> 'blocked' OR strpos(o.blocker, left(w.blocker, 300)) = 0))
     OR (w.blocker IS NULL AND o.status <> 'blocked' AND o.created_at <= $1 - interval '10 seconds')
     OR (w.blocker IS NULL AND o.blocker_code = 'no_capacity')))"""
"""Operations whose allocations are active or never will be, or that do not name what they wait for."""
TEARING_DOWN: Final = f"""
(SELECT o.instance_id FROM operation o
 CROSS JOIN LATERAL (
   SELECT count(*) AS members,
          count(*) FILTER (WHERE m.status <> 'removing' OR t.id IS NULL OR n.status = 'retired'
            OR (m.owns_allocation AND NOT m.keep_allocation AND a.status IN ('requested', 'provisioning', 'active'))
            OR (t.status IN {ENDED} AND (m.retry_at IS NULL OR m.retry_at <= $1))
            OR (t.status NOT IN {ENDED} AND (n.unreachable_since IS NULL) <> (m.blocker IS NULL))
            OR EXISTS (SELECT FROM receipt r WHERE {CLEAN})) AS due,
          (array_agg(m.name ORDER BY m.component_key, m.ordinal) FILTER (WHERE m.blocker IS NOT NULL))[1] AS stuck
     FROM member m LEFT JOIN allocation a ON a.id = m.allocation_id LEFT JOIN node n ON n.id = a.node_id
       LEFT JOIN task t ON t.id = m.teardown_task_id
    WHERE {TORN_DOWN}) w
 WHERE o.status NOT IN {OVER} AND o.phase = 'platform' AND o.instance_id > $2 AND (
   o.status = 'accepted' OR w.members = 0 OR w.due > 0 OR (o.status = 'blocked') <> (w.stuck IS NOT NULL)
   OR strpos(o.blocker, 'member ' || w.stuck || ':') = 0))"""
"""Operations of which the platform has something to do besides waiting for a node."""
UNFINISHED: Final = f"""
(SELECT i.id FROM instance i
 CROSS JOIN LATERAL (SELECT count(*) AS open FROM operation o
    WHERE o.instance_id = i.id AND o.kind = 'deploy' AND o.status NOT IN {OVER}) w
 WHERE i.id > $2 AND i.status IN ('created', 'starting') AND w.open = 0
UNION ALL
SELECT i.id FROM instance i
 CROSS JOIN LATERAL (SELECT count(*) AS open FROM operation o
    WHERE o.instance_id = i.id AND o.kind = 'decommission' AND o.status NOT IN {OVER}) w
 WHERE i.id > $2 AND w.open = 0 AND (i.status = 'stopping' OR (i.status = 'failed'
         AND EXISTS (SELECT FROM member m WHERE m.instance_id = i.id AND m.status <> 'removed')))
UNION ALL
SELECT o.instance_id FROM operation o
 CROSS JOIN LATERAL (SELECT i.status FROM instance i WHERE i.id = o.instance_id OFFSET 0) i
 WHERE o.instance_id > $2 AND o.status NOT IN {OVER} AND o.status <> 'cancelling' AND o.kind <> 'decommission'
   AND i.status IN ('stopping', 'failed'))"""
"""Instances that end or have not started and lack the operation for it; and other open operations of ending ones."""
LOSING: Final = f"""
(SELECT m.instance_id FROM allocation a JOIN member m ON m.allocation_id = a.id JOIN instance i ON i.id = m.instance_id
  LEFT JOIN node n ON n.id = a.node_id
 WHERE a.status IN ('failed', 'releasing', 'release_failed') AND m.instance_id > $2
   AND m.status NOT IN ('removed', 'removing') AND i.status IN ('created', 'starting', 'running')
   AND CASE WHEN n.status = 'retired' THEN m.status <> 'failed' ELSE NOT EXISTS (
     SELECT FROM operation o WHERE o.instance_id = m.instance_id AND o.status NOT IN {OVER} AND o.kind IN {TEARDOWN}
        AND m.id = ANY (o.member_ids)) END
UNION ALL
SELECT m.instance_id FROM node n JOIN allocation a ON a.node_id = n.id JOIN member m ON m.allocation_id = a.id
 WHERE n.unreachable_since IS NOT NULL AND n.status <> 'retired' AND a.status <> 'released'
   AND m.instance_id > $2 AND m.status <> 'removed' AND m.health <> 'unknown')"""
"""Members whose allocation is released or lost, or whose machine does not answer."""
FORSAKEN: Final = """
(SELECT c.instance_id FROM (
   SELECT c.instance_id, c.service_account_id, c.expires_at FROM instance_claim c
    WHERE c.holder IS NOT NULL AND c.expires_at <= $1 OFFSET 0) c
 CROSS JOIN LATERAL (SELECT i.status, i.health FROM instance i WHERE i.id = c.instance_id OFFSET 0) i
  LEFT JOIN adapter_presence p ON p.service_account_id = c.service_account_id
 WHERE c.instance_id > $2 AND i.status = 'running' AND i.health <> 'unknown'
   AND (c.expires_at <= $1 - $7::interval OR p.seen_at IS NULL OR p.seen_at <= $1 - 2 * $7::interval)
UNION ALL
SELECT c.instance_id FROM (
   SELECT c.instance_id, c.service_account_id FROM instance_claim c WHERE c.wanted AND c.expires_at IS NULL OFFSET 0) c
 CROSS JOIN LATERAL (SELECT i.status, i.health FROM instance i WHERE i.id = c.instance_id OFFSET 0) i
  LEFT JOIN adapter_presence p ON p.service_account_id = c.service_account_id
 WHERE c.instance_id > $2 AND i.status = 'running' AND i.health <> 'unknown'
   AND (p.seen_at IS NULL OR p.seen_at <= $1 - 2 * $7::interval))"""
"""Running instances that no adapter watches any more."""
ORPHANS: Final = f"""
(SELECT m.instance_id FROM member m JOIN instance i ON i.id = m.instance_id
 WHERE (m.status IN ('requested', 'joining') OR (m.status = 'failed' AND m.failure_code = 'cancelled'))
   AND m.instance_id > $2 AND i.status = 'running' AND NOT EXISTS (
     SELECT FROM operation o WHERE o.instance_id = m.instance_id AND o.status NOT IN {OVER} AND (
       m.id = ANY (o.member_ids)
       OR o.kind IN ('deploy', 'upgrade', 'rollback', 'reconcile', 'repair', 'restart', 'configure'))))"""
"""Members that have not joined and that no open operation names."""
ATTACHED: Final = f"""
(SELECT t.instance_id FROM attachment t
  JOIN operation o ON o.id = t.operation_id JOIN instance i ON i.id = t.instance_id
 WHERE t.status IN ('requested', 'detaching') AND t.instance_id > $2 AND o.status IN {OVER}
   AND CASE i.status WHEN 'running' THEN t.retry_at IS NULL OR t.retry_at <= $1
            WHEN 'failed' THEN t.status = 'requested' OR NOT (
              EXISTS (SELECT FROM member m WHERE m.instance_id = i.id AND m.status <> 'removed')
              OR EXISTS (SELECT FROM operation p WHERE p.instance_id = i.id AND p.status NOT IN {OVER}))
            ELSE t.status = 'requested' END
UNION ALL
SELECT t.instance_id FROM instance i JOIN attachment t ON t.instance_id = i.id
 WHERE i.status IN ('stopping', 'failed') AND t.instance_id > $2 AND t.status = 'active')"""
"""Attachments whose operation has ended, or whose instance ends."""
# PostgreSQL plans this statement rarely, with the statistics of that moment. So rows that belong to a few others are
# looked up by id (`OFFSET 0`, or a count): a join might otherwise be planned as a scan of a whole table.
DUE: Final = f"""
SELECT d.instance_id FROM ({LATE} UNION {UNDISPATCHED} UNION {TEARING_DOWN} UNION {UNFINISHED}
 UNION {LOSING} UNION {FORSAKEN} UNION {ORPHANS} UNION {ATTACHED}) d (instance_id) ORDER BY 1 LIMIT $3"""
NEXT: Final = f"""
SELECT least(
  (SELECT min(o.deadline_at) FROM operation o WHERE o.finished_at IS NULL AND o.deadline_at > $1),
  (SELECT min(o.phase_deadline_at) FROM operation o
    WHERE o.status NOT IN {OVER} AND o.phase = 'adapter' AND o.phase_deadline_at > $1),
  (SELECT min(o.dispatched_at) + $2::interval FROM operation o
    WHERE o.status NOT IN {OVER} AND o.started_at IS NULL AND o.dispatched_at > $1 - $2::interval),
  (SELECT min(m.retry_at) FROM member m WHERE m.status = 'removing' AND m.retry_at > $1),
  (SELECT min(t.retry_at) FROM attachment t WHERE t.status = 'detaching' AND t.retry_at > $1))"""

INSTANCES: Final = f"""
SELECT {INSTANCE_COLUMNS}, c.holder, c.expires_at, p.seen_at, v.manifest -> 'components' AS components,
       (v.manifest #>> '{{lifecycle,delete,graceful_seconds}}')::int AS graceful
  FROM instance i LEFT JOIN instance_claim c ON c.instance_id = i.id
  LEFT JOIN adapter_presence p ON p.service_account_id = i.service_account_id
  LEFT JOIN app_version v ON v.id = i.version_id
 WHERE i.id = ANY ($1::text[]) ORDER BY i.id"""
MEMBERS: Final = f"""
SELECT {MEMBER_COLUMNS}, {ALLOCATION_COLUMNS},
       n.id AS n_id, n.status AS n_status, n.unreachable_since AS n_unreachable, n.retirement_reason AS n_reason,
       n.may_be_left AS n_left,
       t.id AS t_id, t.type AS t_type, t.status AS t_status, t.first_claimed_at IS NOT NULL AS t_claimed,
       t.failure_code AS t_code, t.failure_detail AS t_detail,
       (SELECT r.id FROM receipt r WHERE r.task_id = m.teardown_task_id) AS r_id,
       (SELECT min(r.id) FROM receipt r WHERE {CLEAN}) AS r_clean,
       EXISTS (SELECT FROM task k WHERE k.member_id = m.id AND k.first_claimed_at IS NOT NULL) AS started,
       (SELECT count(*)::int FROM task k WHERE k.member_id = m.id AND k.type = 'teardown.verify') AS teardowns,
       EXISTS (SELECT FROM member b WHERE b.allocation_id = m.allocation_id AND b.instance_id <> m.instance_id
                  AND b.status <> 'removed') AS shared,
       EXISTS (SELECT FROM member b WHERE b.allocation_id = m.allocation_id AND b.status = 'removed'
                  AND b.owns_allocation AND NOT b.keep_allocation) AS inherited,
       e.failure_code AS e_code, e.failure_detail AS e_detail, e.cancel_reason AS e_reason, e.id AS e_id
  FROM member m LEFT JOIN allocation a ON a.id = m.allocation_id LEFT JOIN node n ON n.id = a.node_id
  LEFT JOIN task t ON t.id = m.teardown_task_id
  LEFT JOIN LATERAL (
    SELECT o.id, o.failure_code, o.failure_detail, o.cancel_reason FROM operation_member l
      JOIN operation o ON o.id = l.operation_id AND o.kind IN ('deploy', 'add', 'replace') AND o.status IN {OVER}
     WHERE l.member_id = m.id ORDER BY l.operation_id DESC LIMIT 1) e ON m.status IN ('requested', 'joining')
 WHERE m.instance_id = ANY ($1::text[]) AND m.status <> 'removed'
 ORDER BY m.instance_id, m.component_key, m.ordinal"""
QUEUED: Final = f"""
SELECT {TASK_COLUMNS} FROM task t JOIN member m ON m.id = t.member_id
 WHERE m.instance_id = ANY ($1::text[]) AND m.status = 'removing' AND t.status = 'queued' ORDER BY t.id"""
LAST_DEPLOYS: Final = f"""
SELECT DISTINCT ON (o.instance_id) {OPERATION_COLUMNS} FROM operation o
 WHERE o.instance_id = ANY ($1::text[]) AND o.kind = 'deploy' AND o.status IN {OVER}
 ORDER BY o.instance_id, o.id DESC"""
CLOSED: Final = """
SELECT m.instance_id, c.member_id, c.kind, c.receipt ->> 'receipt_id', coalesce(a.gpu_count, 0),
       CASE WHEN a.activated_at IS NOT NULL THEN greatest(a.activated_at, m.created_at) END,
       least(a.releasing_at, c.created_at), m.allocation_id
  FROM member m JOIN closing_record c ON c.member_id = m.id LEFT JOIN allocation a ON a.id = m.allocation_id
 WHERE m.instance_id = ANY ($1::text[]) ORDER BY m.id"""
HOLDS: Final = """
SELECT id, tenant_id, project_id, digest, holder_noun, holder_id, version_id, revision, created_at
  FROM artifact_hold WHERE holder_noun = 'instance' AND holder_id = ANY ($1::text[]) ORDER BY digest"""
_SECRET: Final = ", ".join(f"s.{name}" for name in RuntimeSecret.__slots__)
SECRETS: Final = f"""
SELECT {_SECRET} FROM runtime_secret s
 WHERE coalesce(s.instance_id, s.allocation_id) = ANY ($1::text[]) AND s.destroyed_at IS NULL ORDER BY s.id"""
ATTACHMENTS: Final = f"""
SELECT {ATTACHMENT_COLUMNS}, {OPERATION_COLUMNS}
  FROM attachment t LEFT JOIN operation o ON o.id = t.operation_id
 WHERE t.instance_id = ANY ($1::text[]) AND t.status IN ('requested', 'active', 'detaching') ORDER BY t.id"""
LAST_LINES: Final = """
SELECT DISTINCT ON (t.operation_id) t.operation_id, t.last_lines FROM task t
 WHERE t.operation_id = ANY ($1::text[]) AND t.status IN ('failed', 'succeeded') AND t.last_lines <> '{}'
 ORDER BY t.operation_id, t.status = 'failed' DESC, t.finished_at DESC"""
DEPLOYS_FAILED: Final = """
SELECT o.request ->> 'version_id', o.request ->> 'shape', o.tenant_id, o.id, o.finished_at, o.failure_code
  FROM operation o
 WHERE o.kind = 'deploy' AND o.status = 'failed' AND o.finished_at > $2
   AND o.request ->> 'version_id' = ANY ($1::text[])
 ORDER BY o.finished_at DESC LIMIT 2000"""
DEPLOYS_GOOD: Final = """
SELECT o.request ->> 'version_id', o.request ->> 'shape', o.tenant_id, o.id, o.finished_at, NULL::text
  FROM operation o
 WHERE o.kind = 'deploy' AND o.status = 'succeeded' AND o.finished_at > $2
   AND o.request ->> 'version_id' = ANY ($1::text[])
 ORDER BY o.finished_at DESC LIMIT 2000"""

_INSTANCE_WIDTH: Final = len(INSTANCE_NAMES)
_MEMBER_WIDTH: Final = len(MEMBER_NAMES)
_ALLOCATION_WIDTH: Final = len(Allocation.__slots__)


async def due(database: Database, now: datetime, limits: TimeLimits, after: str, limit: int) -> list[str]:
    """The instances after this id that have a next step now."""
    intervals = (limits.claim, limits.cancel, limits.step, limits.lease)
    return [row[0] for row in await database.fetch(WITH_KEPT_PLANS, DUE, now, after, limit, *intervals)]


async def next_moment(database: Database, now: datetime, limits: TimeLimits) -> datetime | None:
    """When the next deadline or retry pause ends."""
    moment: datetime | None = await database.fetchval(PLATFORM, NEXT, now, limits.claim)
    return moment


async def snapshot(database: Database, now: datetime, instance_ids: Sequence[str]) -> list[InstanceSnapshot]:
    """These instances with everything that decides their next steps."""
    if not instance_ids:
        return []
    ids = list(instance_ids)
    rows = await database.fetch(PLATFORM, INSTANCES, ids)
    operations = await open_operations(database, PLATFORM, ids)
    members = await _members(database, ids)
    found = [_snapshot(row, operations, members) for row in rows]
    starting = [each.instance.id for each in found if each.instance.status in ("created", "starting")]
    ending = [each.instance.id for each in found if _may_end(each)]
    dropping_holds = [
        each.instance.id for each in found if _may_end(each) or any(o.target_pin for o in each.operations)
    ]
    late = [o.id for each in found for o in each.operations if o.phase == Phase.ADAPTER and o.deadline_at <= now]
    late += [o.id for each in found for o in each.operations if o.steps and o.id not in late]
    deploys = {row["instance_id"]: operation_of(row) for row in await _fetch(database, LAST_DEPLOYS, starting)}
    closed: dict[str, list[ClosedMember]] = {}
    for instance_id, *rest in await _fetch(database, CLOSED, ending):
        closed.setdefault(instance_id, []).append(ClosedMember(*rest))
    holds = _grouped_by(
        [ArtifactHold(**dict(row)) for row in await _fetch(database, HOLDS, dropping_holds)], "holder_id"
    )
    secrets = _grouped_by([RuntimeSecret(*row) for row in await _fetch(database, SECRETS, ending)], "instance_id")
    lines = {row[0]: row[1] for row in await _fetch(database, LAST_LINES, late)}
    circuits = await _circuits(database, now, found)
    attachments = await _attachments(database, found)
    return [
        replace(
            each,
            ended=deploys.get(each.instance.id),
            closed=tuple(closed.get(each.instance.id, ())),
            holds=tuple(holds.get(each.instance.id, ())),
            secrets=tuple(secrets.get(each.instance.id, ())),
            last_lines={o.id: lines[o.id] for o in each.operations if o.id in lines},
            circuit=circuits.get(each.instance.id),
            attachments=tuple(attachments.get(each.instance.id, ())),
        )
        for each in found
    ]


async def _attachments(database: Database, found: Sequence[InstanceSnapshot]) -> dict[str, list[AttachmentSnapshot]]:
    """The live attachments of these instances; no query if none of them is shared."""
    shared = [each.instance.id for each in found if each.instance.is_shared]
    attachments: dict[str, list[AttachmentSnapshot]] = {}
    for row in await _fetch(database, ATTACHMENTS, shared):
        attachment, last = attachment_of(row), row[len(ATTACHMENT_NAMES)]
        operation = None if last is None else operation_of(row, len(ATTACHMENT_NAMES))
        attachments.setdefault(attachment.instance_id, []).append(AttachmentSnapshot(attachment, operation))
    return attachments


async def _circuits(database: Database, now: datetime, found: Sequence[InstanceSnapshot]) -> dict[str, CircuitFacts]:
    """For each instance whose launch is not dispatched yet, how other launches ended; empty if none failed."""
    waiting = {
        each.instance.id: (str(o.request.get("version_id")), o.request.get("shape"), each.instance.tenant_id)
        for each in found
        for o in each.operations
        if o.kind == OperationKind.DEPLOY and o.dispatched_at is None
    }
    versions, since = sorted({version for version, _, _ in waiting.values()}), now - WINDOW
    failed = list(await database.fetch(PLATFORM, DEPLOYS_FAILED, versions, since)) if versions else []
    if not failed:
        return {}
    rows = [*failed, *await database.fetch(PLATFORM, DEPLOYS_GOOD, versions, since)]
    return {
        instance_id: CircuitFacts(
            tenant_id, [LaunchOutcome(*row[2:]) for row in rows if (row[0], row[1]) == (version, shape)]
        )
        for instance_id, (version, shape, tenant_id) in waiting.items()
    }


async def _fetch(database: Database, statement: str, ids: Sequence[str]) -> list[asyncpg.Record]:
    """The rows for these ids; no query if there are none."""
    return list(await database.fetch(PLATFORM, statement, list(ids))) if ids else []


async def _members(database: Database, ids: list[str]) -> dict[str, list[MemberSnapshot]]:
    found: dict[str, list[MemberSnapshot]] = {}
    for row in await database.fetch(PLATFORM, MEMBERS, ids):
        each = _member(row)
        found.setdefault(each.member.instance_id, []).append(each)
    removing = [
        key for key, members in found.items() if any(each.member.status == MemberState.REMOVING for each in members)
    ]
    queued: dict[str, list[Task]] = {}
    for row in await _fetch(database, QUEUED, removing):
        task = task_of(row)
        queued.setdefault(str(task.member_id), []).append(task)
    if queued:
        found = {
            key: [replace(each, queued=tuple(queued.get(each.member.id, ()))) for each in members]
            for key, members in found.items()
        }
    return found


def _may_end(each: InstanceSnapshot) -> bool:
    """Whether closing records decide its next step: an operation has torn down all of its members."""
    return any(
        o.kind in TEARDOWN_KINDS and o.phase == Phase.PLATFORM and not each.torn_down_by(o) for o in each.operations
    )


def _snapshot(
    row: asyncpg.Record, operations: Mapping[str, Sequence[Operation]], members: Mapping[str, Sequence[MemberSnapshot]]
) -> InstanceSnapshot:
    instance = instance_of(row)
    components = row["components"] or [{"key": ONLY, "min_count": 1}]
    graceful = GRACEFUL if row["graceful"] is None else timedelta(seconds=row["graceful"])
    return InstanceSnapshot(
        instance=instance,
        members=tuple(members.get(instance.id, ())),
        operations=tuple(operations.get(instance.id, ())),
        watch=ClaimWatch(row["holder"], row["expires_at"], row["seen_at"]),
        minimum={each["key"]: int(each.get("min_count", 0)) for each in components},
        graceful=graceful,
    )


def _member(row: asyncpg.Record) -> MemberSnapshot:
    width = _MEMBER_WIDTH + _ALLOCATION_WIDTH
    member = member_of(row)
    node = task = ended = None
    if row["n_id"] is not None:
        node = NodeStanding(row["n_id"], row["n_status"], row["n_unreachable"], row["n_reason"], row["n_left"])
    if row["t_id"] is not None:
        failure = {"failure_code": row["t_code"], "failure_detail": row["t_detail"]}
        task = TaskFacts(row["t_id"], row["t_type"], row["t_status"], row["t_claimed"], **failure)
    if row["e_id"] is not None:
        detail = row["e_detail"] or row["e_reason"] or "the operation that created it ended before it joined"
        ended = (row["e_code"] or "cancelled", detail)
    return MemberSnapshot(
        member=member,
        allocation=None if member.allocation_id is None else Allocation(*row[_MEMBER_WIDTH:width]),
        node=node,
        shared=row["shared"],
        inherited=row["inherited"],
        started=row["started"],
        task=task,
        receipt_id=row["r_id"],
        clean_receipt_id=row["r_clean"],
        teardowns=row["teardowns"],
        ended=ended,
    )


def _grouped_by(found: Iterable[Any], name: str) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for each in found:
        grouped.setdefault(getattr(each, name), []).append(each)
    return grouped
