"""The janitor: deletes what is past its time, in batches, so that no statement and no round takes long.

Each kind of row has a rule with a time before which it goes. A round works through the rules in turn, one batch of
each at a time, until nothing is left or its time is over; then it goes on shortly after. Events wake every worker, so
a round that comes too soon is put off: once a minute is enough.
"""

import logging
import time
from datetime import timedelta
from typing import Final

from mooring.commands.catalog.entitlement import end_idle_operators
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.core.kernel.ids import CHANCE_BYTES, Prefix, encode
from mooring.storage.records import retention
from mooring.storage.records.retention import RetentionRule

BATCH: Final = 1_000
ROUND_SECONDS: Final = 10.0
GO_ON_SECONDS: Final = 1.0
ASSERTIONS_KEPT: Final = timedelta(hours=1)  # far beyond their lifetime and any difference between clocks
READ_ONLY_KEPT: Final = timedelta(hours=1)  # an app action that only reads is no part of any record

log = logging.getLogger("mooring.janitor")


class Janitor:
    """Keeps the database as small as the settings say."""

    name = "janitor"
    poll_interval_seconds = 60.0

    def __init__(self, services: Services, *, batch: int = BATCH, round_seconds: float = ROUND_SECONDS) -> None:
        self._services = services
        self._batch = batch
        self._round_seconds = round_seconds
        self._next_round = 0.0

    def wants(self, event: Event) -> bool:
        """What is past its time is found by looking."""
        return False  # it goes by the time alone

    async def tick(self) -> float | None:
        """A round, when it is time for one."""
        left = self._next_round - time.monotonic()
        if left > 0:
            return left
        finished = await self.sweep()
        await end_idle_operators(self._services)
        wait = self.poll_interval_seconds if finished else GO_ON_SECONDS
        self._next_round = time.monotonic() + wait
        return wait

    async def close(self) -> None:
        """Nothing is held between two rounds."""

    def rules(self) -> list[RetentionRule]:
        """What goes now, and what is older than what."""
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
            RetentionRule("assertion", now - ASSERTIONS_KEPT),
            RetentionRule("node_assertion", now - ASSERTIONS_KEPT),
            RetentionRule("enrolment_token", tokens),
            RetentionRule("visit", tokens),
            RetentionRule("task_log", now - timedelta(days=settings.task_log_retention_days)),
            RetentionRule("task", now - timedelta(days=settings.task_retention_days)),
            RetentionRule("log_read", now - READ_ONLY_KEPT),
            RetentionRule("read_only_operation", now - READ_ONLY_KEPT),
            RetentionRule("artifact_check", now - timedelta(days=settings.check_retention_days)),
        ]
        if settings.audit_retention_days > 0:
            before = now - timedelta(days=settings.audit_retention_days)
            # Ids are sorted by time, so the primary key finds the oldest rows.
            first_kept = encode(Prefix.AUDIT, max(0, int(before.timestamp() * 1000)), b"\0" * CHANCE_BYTES)
            rules.append(RetentionRule("audit", before, (first_kept,)))
        return rules

    async def sweep(self) -> bool:
        """Delete by every rule until nothing is left, or the round's time is over; returns whether all is done."""
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
            log.info("what was past its time is deleted", extra={"deleted": counts})
        return not pending
