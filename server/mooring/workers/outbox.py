"""The outbox relay: sends what is queued for webhooks, at least once.

A tick asks which webhooks have something due and opens a lane for each. A lane belongs to one webhook: it claims a few
deliveries under a lease, sends them side by side, writes down what came of each, and goes on until nothing is due. So
a receiver that is slow, or has a long backlog, waits only for itself. Lanes are few; those of receivers that failed
the last time get at most half of them.

Nothing is held in memory that is not in the database as well. A worker that dies leaves leases that run out; the
reaper, which runs in every worker, queues those deliveries again, and the receiver may get one of them twice, under
the same id. A worker that stops gives its leases back.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from mooring.commands.records.delivery import give_up, send
from mooring.commands.services import Services
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.event import Event, public_event
from mooring.core.records.delivery import (
    ERROR_LENGTH_MAX,
    Delivery,
    DeliveryMessage,
    DeliveryOutcome,
    is_last,
    retry_seconds,
)
from mooring.gateways.telemetry.instruments import bound, span
from mooring.storage.records import delivery as deliveries
from mooring.storage.records import webhook as webhooks
from mooring.storage.records.delivery import ClaimedDelivery
from mooring.storage.records.webhook import WebhookReceiver
from mooring.workers.loop import WakePace

LANES_MAX: Final = 32
LANE_SECONDS: Final = 30.0  # then others get a turn
BATCH: Final = 8  # how many messages one receiver gets at once
LEASE_MARGIN_SECONDS: Final = 30.0
PACE_SECONDS: Final = 0.05  # events come by the thousand; one look answers for all of them
AGAIN_SECONDS: Final = 0.1
REST_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 2.0
WEBHOOKS_LOOKED_AT: Final = 10_000
REAPED_AT_ONCE: Final = 1_000

log = logging.getLogger("mooring.outbox")


class OutboxRelay:
    """Sends deliveries; any number of workers may do so side by side."""

    name = "outbox"
    poll_interval_seconds = 5.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._held: dict[str, Delivery] = {}
        self._failing: set[str] = set()
        self._resting: dict[str, float] = {}  # webhooks whose lane met an error of ours, and until when
        self._pace = WakePace(PACE_SECONDS)
        self._closing = False

    def wants(self, event: Event) -> bool:
        """Any event may be one that is delivered."""
        return True

    async def tick(self) -> float | None:
        """Open lanes for what is due; returns when something else will be."""
        async with self._pace.look():
            database, now = self._services.database, self._services.clock.now()
            reaped = await deliveries.reap(database, now, REAPED_AT_ONCE)
            waiting = await deliveries.waiting(database, WEBHOOKS_LOOKED_AT)
        if reaped:
            log.warning("%d deliveries of lost workers are queued again", reaped)
        return self._open_lanes(waiting, now)

    async def close(self) -> None:
        """Let what is under way end, for a moment; then hand the leases back."""
        self._closing = True
        lanes = list(self._lanes.values())
        if lanes:
            _, late = await asyncio.wait(lanes, timeout=GRACE_SECONDS)
            for lane in late:
                lane.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._held:
            count = await deliveries.hand_back(self._services.database, list(self._held.values()))
            self._held.clear()
            log.info("%d deliveries are handed back", count)

    async def drain(self) -> None:
        """Wait until every lane that is open has ended."""
        while self._lanes:
            await asyncio.wait(list(self._lanes.values()))

    def _open_lanes(self, waiting: Sequence[tuple[str, datetime]], now: datetime) -> float | None:
        """Give each webhook that has something due a lane, those that work before those that fail."""
        due = [webhook_id for webhook_id, due_at in waiting if due_at <= now]
        next_due = min(((due_at - now).total_seconds() for _, due_at in waiting if due_at > now), default=None)
        clock = time.monotonic()
        self._resting = {webhook_id: until for webhook_id, until in self._resting.items() if until > clock}
        self._failing &= {webhook_id for webhook_id, _ in waiting} | set(self._lanes)
        ready = [each for each in due if each not in self._lanes and each not in self._resting]
        for webhook_id in sorted(ready, key=lambda each: each in self._failing):
            if self._has_room(webhook_id):
                self._lanes[webhook_id] = asyncio.create_task(self._lane(webhook_id))
        if any(each not in self._resting for each in due):
            return AGAIN_SECONDS  # what a lane just missed, or had no room for, is looked at soon
        rested = min((until - clock for until in self._resting.values()), default=None)
        return min((each for each in (next_due, rested) if each is not None), default=None)

    def _has_room(self, webhook_id: str) -> bool:
        if self._closing or len(self._lanes) >= LANES_MAX:
            return False
        failing = sum(1 for each in self._lanes if each in self._failing)
        return webhook_id not in self._failing or failing < LANES_MAX // 2

    async def _lane(self, webhook_id: str) -> None:
        """Send what is due for one webhook."""
        until = time.monotonic() + LANE_SECONDS
        try:
            while not self._closing and time.monotonic() < until and await self._batch(webhook_id):
                pass
        except Refusal as refusal:
            self._resting[webhook_id] = time.monotonic() + REST_SECONDS
            log.warning("deliveries of %s have to wait: %s", webhook_id, refusal.detail)
        except Exception:  # an error with one webhook must not end the others; the log has its cause
            self._resting[webhook_id] = time.monotonic() + REST_SECONDS
            log.exception("deliveries of %s have to wait", webhook_id)
        finally:
            del self._lanes[webhook_id]

    async def _batch(self, webhook_id: str) -> bool:
        """Claim and send a few; returns whether there may be more to send now."""
        services = self._services
        now = services.clock.now()
        receiver = await webhooks.receiver(services.database, webhook_id, now)
        if receiver is None:
            return False
        keys = [services.secrets.unseal(each) for each in receiver.keys]
        lease = timedelta(seconds=services.settings.webhook_timeout_seconds + LEASE_MARGIN_SECONDS)
        claimed = await deliveries.claim(services.database, webhook_id, now, now + lease, BATCH)
        self._held.update({each.delivery.id: each.delivery for each in claimed})
        results = await asyncio.gather(
            *(self._deliver(receiver, keys, each) for each in claimed), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if any(results):
            self._failing.discard(webhook_id)
            return True
        if claimed:
            self._failing.add(webhook_id)
        return False

    async def _deliver(self, receiver: WebhookReceiver, keys: Sequence[bytes], claimed: ClaimedDelivery) -> bool:
        """One attempt and its record; returns whether it arrived."""
        delivery, event = claimed.delivery, claimed.event
        attempts_max = max(1, self._services.settings.webhook_attempts_max)
        trace_id = None if event is None else event.trace_id
        with (
            bound(
                correlation_id=delivery.correlation_id,
                trace_id=trace_id,
                org_id=delivery.tenant_id,
                project_id=delivery.project_id,
            ),
            span("deliver to a webhook", webhook_id=delivery.webhook_id),
        ):
            if event is None:
                outcome = DeliveryOutcome(0.0, error="its event is no longer kept")
                attempts_max = 0
            elif delivery.attempts > attempts_max:
                outcome = DeliveryOutcome(
                    0.0, delivery.last_status, delivery.last_error or "the last attempt did not end"
                )
            else:
                withhold = receiver.tenant_id is None
                body = msgspec.json.encode(public_event(event, withhold=withhold))
                message = DeliveryMessage(delivery.id, body, event.correlation_id, event.trace_id)
                outcome = await send(self._services, receiver.url, keys, message)
            await self._record(delivery, outcome, attempts_max, trace_id)
        self._held.pop(delivery.id, None)
        return outcome.error is None

    async def _record(
        self, delivery: Delivery, outcome: DeliveryOutcome, attempts_max: int, trace_id: str | None
    ) -> None:
        """Write down what came of it; whoever lost the lease meanwhile writes nothing."""
        services = self._services
        now = services.clock.now()
        if outcome.error is None:
            kept = await deliveries.delivered(services.database, delivery, now, outcome.status)
        elif is_last(delivery, attempts_max):
            log.warning("delivery %s is a dead letter: %s", delivery.id, outcome.error)
            kept = await give_up(services, delivery, outcome, trace_id)
        else:
            pause = retry_seconds(delivery.attempts, random.random(), outcome.retry_after_seconds)
            due_at = now + timedelta(seconds=pause)
            error = outcome.error[:ERROR_LENGTH_MAX]
            log.info("delivery %s failed and is tried again in %.0f s: %s", delivery.id, pause, error)
            kept = await deliveries.queue_again(services.database, delivery, due_at, outcome.status, error)
        if not kept:
            log.warning("delivery %s ended after its lease was lost", delivery.id)
