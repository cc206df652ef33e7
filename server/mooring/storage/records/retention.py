"""Deletes expired rows, a bounded number at a time.

Any number of janitors may run. Each statement takes an advisory lock of the whole database while it runs, and deletes
nothing when another janitor has it. The statements do not depend on each other, so each may be repeated or skipped.

Events are deleted in the order of the stream, and the same statement moves the horizon: a client with an older cursor
gets the error that it has expired. An expired event that is still queued for a webhook is behind the horizon, so no
longer in the stream, and is deleted when its deliveries have ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.storage.kernel.database import PLATFORM, Database
from mooring.storage.kernel.event import SETTLED
from mooring.storage.records.audit_chain import BATCH as CHAIN_BATCH

LOCK_KEY: Final = 0x4A616E69  # "Jani"
_LOCK: Final = f"(SELECT pg_try_advisory_xact_lock({LOCK_KEY}))"
_OPEN_DELIVERY: Final = """
EXISTS (SELECT FROM delivery d WHERE d.event_id = e.id AND d.status IN ('queued', 'claimed'))"""

EVENTS: Final = f"""
WITH oldest AS MATERIALIZED (
  SELECT e.epoch, e.tx, e.seq, e.id, e.occurred_at FROM event_horizon h CROSS JOIN LATERAL (
    SELECT * FROM event e
     WHERE (e.epoch, e.tx, e.seq) > (h.epoch, h.tx, h.seq) AND {SETTLED}
     ORDER BY e.epoch, e.tx, e.seq LIMIT $2) e
   WHERE {_LOCK}),
past AS MATERIALIZED (SELECT * FROM oldest WHERE occurred_at < $1),
gone AS (
  DELETE FROM event e USING past p
   WHERE (e.epoch, e.tx, e.seq) = (p.epoch, p.tx, p.seq) AND NOT {_OPEN_DELIVERY} RETURNING 1),
moved AS (
  UPDATE event_horizon h SET epoch = l.epoch, tx = l.tx, seq = l.seq
    FROM (SELECT epoch, tx, seq FROM past ORDER BY epoch DESC, tx DESC, seq DESC LIMIT 1) l
   WHERE (h.epoch, h.tx, h.seq) < (l.epoch, l.tx, l.seq) RETURNING 1)
SELECT (SELECT count(*) FROM gone) AS deleted, (SELECT count(*) FROM past) AS examined"""
EVENTS_LEFT_BEHIND: Final = f"""
WITH past AS MATERIALIZED (
  SELECT e.epoch, e.tx, e.seq FROM event_horizon h CROSS JOIN LATERAL (
    SELECT e.epoch, e.tx, e.seq FROM event e
     WHERE (e.epoch, e.tx, e.seq) <= (h.epoch, h.tx, h.seq) AND e.occurred_at < $1 AND NOT {_OPEN_DELIVERY}
     ORDER BY e.epoch, e.tx, e.seq LIMIT $2) e
   WHERE {_LOCK}),
gone AS (DELETE FROM event e USING past p WHERE (e.epoch, e.tx, e.seq) = (p.epoch, p.tx, p.seq) RETURNING 1)
SELECT count(*) AS deleted, count(*) AS examined FROM gone"""


def _old(table: str, condition: str) -> str:
    """A statement that deletes the next rows of a table; rows that others have locked are left for the next time."""
    return f"""
WITH gone AS (
  DELETE FROM {table} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table} WHERE {condition} AND {_LOCK} LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) AS deleted, count(*) AS examined FROM gone"""


IDEMPOTENCY: Final = _old("idempotency", "created_at < $1")
SECRETS: Final = _old("secret", "expires_at < $1")
DELIVERIES: Final = _old("delivery", "finished_at < $1")
TOKENS_EXPIRED: Final = _old("token", "expires_at < $1")
TOKENS_REVOKED: Final = _old("token", "revoked_at < $1")
ASSERTIONS: Final = _old("assertion", "expires_at < $1")
NODE_ASSERTIONS: Final = _old("node_assertion", "expires_at < $1")
SIGN_IN_CHALLENGES: Final = _old("sign_in_challenge", "expires_at < $1")
ENROLMENT_TOKENS: Final = _old("enrolment_token", "expires_at < $1")
EXEC_RECORDINGS: Final = _old("exec_recording", "started_at < $1")
SLOT_METRICS: Final = _old("slot_metric", "minute < $1")
VISITS: Final = _old("visit", "expires_at < $1")
ARTIFACT_UPLOADS: Final = _old(
    "artifact_upload",
    """created_at < $1 AND NOT EXISTS (
         SELECT FROM artifact a WHERE a.location = artifact_upload.location AND a.source_type = 'upload'
            AND (a.promotion NOT IN ('draft', 'retired')
                 OR EXISTS (SELECT FROM artifact_hold h WHERE h.digest = a.digest)
                 OR EXISTS (SELECT FROM app_version_artifact l JOIN app_version v ON v.id = l.version_id
                             WHERE l.digest = a.digest AND l.tenant_id = a.tenant_id AND v.promotion <> 'retired')))""",
)
"""Uploads that were never staged and that no version names, and those whose artifact is retired."""
AUDIT: Final = f"""
SELECT r.* FROM (SELECT 1 WHERE {_LOCK}) alone, audit_retire($1, greatest($2, {CHAIN_BATCH}), $3) r
UNION ALL SELECT 0, 0 LIMIT 1"""
"""Audit rows are deleted only by this function of the database, up to a signed link of each chain."""
TASK_LOGS: Final = f"""
WITH past AS MATERIALIZED (
  SELECT l.ctid FROM task_log l JOIN task t ON t.id = l.task_id
   WHERE l.received_at < $1 AND t.finished_at < $1 AND {_LOCK} LIMIT $2 FOR UPDATE OF l SKIP LOCKED),
gone AS (DELETE FROM task_log WHERE ctid = ANY (ARRAY(SELECT ctid FROM past)) RETURNING 1)
SELECT count(*) AS deleted, count(*) AS examined FROM gone"""
TASKS: Final = f"""
WITH past AS MATERIALIZED (
  SELECT t.id FROM task t
   WHERE t.finished_at < $1 AND t.type NOT IN ('sandbox.create', 'sandbox.destroy', 'teardown.verify') AND {_LOCK}
     AND NOT EXISTS (SELECT FROM member m WHERE m.id = t.member_id AND m.status <> 'removed')
     AND NOT EXISTS (SELECT FROM operation o WHERE o.id = t.operation_id AND o.finished_at IS NULL)
     AND NOT EXISTS (SELECT FROM receipt r WHERE r.task_id = t.id)
   LIMIT $2 FOR UPDATE OF t SKIP LOCKED),
logs AS (DELETE FROM task_log l USING past p WHERE l.task_id = p.id),
granted AS (DELETE FROM secret_grant g USING past p WHERE g.task_id = p.id),
moves AS (DELETE FROM transition m USING past p WHERE m.machine = 'task' AND m.subject_id = p.id),
gone AS (DELETE FROM task t USING past p WHERE t.id = p.id RETURNING 1)
SELECT count(*) AS deleted, count(*) AS examined FROM gone"""
"""Tasks that created, destroyed or verified a sandbox are part of a proof and stay."""
LOG_READS: Final = f"""
WITH past AS MATERIALIZED (
  SELECT t.id FROM task t
   WHERE t.type = 'log.read' AND t.finished_at < $1 AND {_LOCK}
     AND NOT EXISTS (SELECT FROM operation o WHERE o.id = t.operation_id AND o.finished_at IS NULL)
   LIMIT $2 FOR UPDATE OF t SKIP LOCKED),
moves AS (DELETE FROM transition m USING past p WHERE m.machine = 'task' AND m.subject_id = p.id),
gone AS (DELETE FROM task t USING past p WHERE t.id = p.id RETURNING 1)
SELECT count(*) AS deleted, count(*) AS examined FROM gone"""
"""Log content may be confidential, and is deleted as soon as no caller can ask for it again."""
ROUTINE_LOOKS: Final = f"""
WITH past AS MATERIALIZED (
  SELECT t.id FROM task t
   WHERE t.routine AND t.finished_at < $1 AND {_LOCK}
     AND EXISTS (SELECT FROM task n
                  WHERE n.member_id = t.member_id AND n.operation_id IS NULL AND n.maker <> 'system' AND n.id > t.id)
   LIMIT $2 FOR UPDATE OF t SKIP LOCKED),
logs AS (DELETE FROM task_log l USING past p WHERE l.task_id = p.id),
granted AS (DELETE FROM secret_grant g USING past p WHERE g.task_id = p.id),
moves AS (DELETE FROM transition m USING past p WHERE m.machine = 'task' AND m.subject_id = p.id),
gone AS (DELETE FROM task t USING past p WHERE t.id = p.id RETURNING 1)
SELECT count(*) AS deleted, count(*) AS examined FROM gone"""
"""The newest look of each member stays: its adapter reads it."""
READ_ONLY_OPERATIONS: Final = f"""
WITH past AS MATERIALIZED (
  SELECT o.id FROM operation o
   WHERE o.read_only AND o.finished_at < $1 AND {_LOCK} AND NOT EXISTS (SELECT FROM task t WHERE t.operation_id = o.id)
   LIMIT $2 FOR UPDATE OF o SKIP LOCKED),
moves AS (DELETE FROM transition m USING past p WHERE m.machine = 'operation' AND m.subject_id = p.id),
gone AS (DELETE FROM operation o USING past p WHERE o.id = p.id RETURNING 1)
SELECT count(*) AS deleted, count(*) AS examined FROM gone"""
"""Actions that only read leave nothing behind; one that used tasks is deleted after its tasks."""
ARTIFACT_CHECKS: Final = _old(
    "artifact_check c",
    """c.finished_at < $1 AND EXISTS (
      SELECT FROM artifact_check n
       WHERE n.artifact_id = c.artifact_id AND n.name = c.name AND n.id > c.id AND n.finished_at IS NOT NULL
         AND (c.passed IS NULL OR n.passed OR (NOT c.passed AND n.passed IS NOT NULL)))""",
)
"""The last check of each name stays, the last with a result, and the last that passed: staging needs them."""

STATEMENTS: Final[Mapping[str, str]] = {
    "idempotency": IDEMPOTENCY,
    "secret": SECRETS,
    "delivery": DELIVERIES,
    "event": EVENTS,
    "event_left_behind": EVENTS_LEFT_BEHIND,
    "token_expired": TOKENS_EXPIRED,
    "token_revoked": TOKENS_REVOKED,
    "assertion": ASSERTIONS,
    "node_assertion": NODE_ASSERTIONS,
    "sign_in_challenge": SIGN_IN_CHALLENGES,
    "enrolment_token": ENROLMENT_TOKENS,
    "visit": VISITS,
    "slot_metric": SLOT_METRICS,
    "exec_recording": EXEC_RECORDINGS,
    "audit": AUDIT,
    "task_log": TASK_LOGS,
    "task": TASKS,
    "log_read": LOG_READS,
    "routine_look": ROUTINE_LOOKS,
    "read_only_operation": READ_ONLY_OPERATIONS,
    "artifact_check": ARTIFACT_CHECKS,
    "artifact_upload": ARTIFACT_UPLOADS,
}


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Rows of one kind are deleted when they are older than `before`."""

    kind: str  # a key of STATEMENTS
    before: datetime
    further: tuple[object, ...] = ()  # the statement's other arguments


async def delete(database: Database, rule: RetentionRule, limit: int) -> tuple[int, bool]:
    """Delete the next rows by a rule; returns how many, and whether there may be more."""
    row = await database.fetchrow(PLATFORM, STATEMENTS[rule.kind], rule.before, limit, *rule.further)
    if row is None:
        raise AssertionError("an aggregate query always returns a row")
    return row["deleted"], row["examined"] >= limit
