"""The janitor: deletes expired rows in batches, so that no statement and no round takes long.

Each kind of row has a retention rule. A round goes through the rules in turn, one batch of each at a time, until
nothing is left or the round's time is over; then the next round follows shortly after. A round once a minute is enough
otherwise.
"""

import logging
import time
from datetime import timedelta
from typing import Final

from mooring.commands.catalog.entitlement import end_idle_operators
from mooring.commands.records.seal_stored import seal_stored
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.storage.records import retention
from mooring.storage.records.retention import RetentionRule

BATCH: Final = 1_000
ROUND_SECONDS: Final = 10.0
CONTINUE_SECONDS: Final = 1.0
ASSERTION_RETENTION: Final = timedelta(hours=1)  # much longer than their lifetime and any clock skew
ROUTINE_LOOK_RETENTION: Final = timedelta(days=1)
READ_ONLY_RETENTION: Final = timedelta(hours=1)  # an app action that only reads is not part of any record

log = logging.getLogger("mooring.janitor")


class Janitor:
    """Deletes what the retention settings say."""

    name = "janitor"
    poll_interval_seconds = 60.0

    def __init__(self, services: Services, *, batch: int = BATCH, round_seconds: float = ROUND_SECONDS) -> None:
        self._services = services
        self._batch = batch
        self._round_seconds = round_seconds
        self._next_round = 0.0
        self._all_sealed = False  # documents from before the sealing are sealed once

    def wants(self, event: Event) -> bool:
        return False  # only time makes rows expire

    async def tick(self) -> float | None:
        """Run a round if one is due; returns in how many seconds the next one is."""
        left = self._next_round - time.monotonic()
        if left > 0:
            return left
        finished = await self.sweep()
        if not self._all_sealed:
            self._all_sealed = await seal_stored(self._services)
            finished = finished and self._all_sealed
        await end_idle_operators(self._services)
        wait = self.poll_interval_seconds if finished else CONTINUE_SECONDS
        self._next_round = time.monotonic() + wait
        return wait

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""

    def rules(self) -> list[RetentionRule]:
        """The retention rules, as of now."""
        settings, now = self._services.settings, self._services.clock.now()
        events = now - timedelta(days=settings.event_retention_days)
        tokens = now - timedelta(days=settings.token_retention_days)
        rules = [
            RetentionRule("idempotency", now - timedelta(hours=settings.idempotency_retention_hours)),
            RetentionRule("secret", now),
            RetentionRule("delivery", now - timedelta(days=settings.outbox_retention_days)),
            RetentionRule("event", events),
            RetentionRule("event_left_behind", events),
            RetentionRule("token_expired", tokens),
            RetentionRule("token_revoked", tokens),
            RetentionRule("assertion", now - ASSERTION_RETENTION),
            RetentionRule("node_assertion", now - ASSERTION_RETENTION),
            RetentionRule("sign_in_challenge", now),
            RetentionRule("enrolment_token", tokens),
            RetentionRule("visit", tokens),
            RetentionRule("slot_metric", now - timedelta(days=settings.gpu_metrics_retention_days)),
            RetentionRule("exec_recording", now - timedelta(days=settings.exec_recording_retention_days)),
            RetentionRule("task_log", now - timedelta(days=settings.task_log_retention_days)),
            RetentionRule("task", now - timedelta(days=settings.task_retention_days)),
            RetentionRule("log_read", now - READ_ONLY_RETENTION),
            RetentionRule("routine_look", now - ROUTINE_LOOK_RETENTION),
            RetentionRule("read_only_operation", now - READ_ONLY_RETENTION),
            RetentionRule("artifact_upload", now - timedelta(days=settings.upload_retention_days)),
            RetentionRule("artifact_check", now - timedelta(days=settings.check_retention_days)),
        ]
        if settings.audit_retention_days > 0:
            rules.append(RetentionRule("audit", now - timedelta(days=settings.audit_retention_days), (now,)))
        return rules

    async def sweep(self) -> bool:
        """Delete by every rule until nothing is left or the round's time is over; returns whether nothing is left."""
        until = time.monotonic() + self._round_seconds
        pending, deleted = self.rules(), dict[str, int]()
        while pending and time.monotonic() < until:
            remaining = []
            for rule in pending:
                count, more = await retention.delete(self._services.database, rule, self._batch)
                deleted[rule.kind] = deleted.get(rule.kind, 0) + count
                if more:
                    remaining.append(rule)
            pending = remaining
        counts = {kind: count for kind, count in deleted.items() if count}
        if counts:
            log.info("deleted expired rows", extra={"deleted": counts})
        return not pending
