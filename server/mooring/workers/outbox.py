"""The outbox relay: sends what is queued for webhooks, at least once.

A tick reads which webhooks have something due and opens a lane for each. A lane belongs to one webhook: it claims a few
deliveries under a lease, sends them side by side, records the outcomes, and continues until nothing is due. So a
receiver that is slow, or has a long backlog, delays only itself. The number of lanes is limited, and receivers that
failed the last time get at most half of them.

The database has everything that the worker has in memory. A worker that dies leaves leases that expire; every worker
queues such deliveries again, and the receiver may get one of them twice, under the same id. A worker that stops gives
its leases back.
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
PACE_SECONDS: Final = 0.05  # events come by the thousand; one pass answers all of them
RETRY_SECONDS: Final = 0.1
FAILURE_PAUSE_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 2.0
WEBHOOKS_MAX: Final = 10_000
REAP_BATCH: Final = 1_000

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
        self._paused_until: dict[str, float] = {}  # webhooks whose lane met an error of ours
        self._pace = WakePace(PACE_SECONDS)
        self._closing = False

    def wants(self, event: Event) -> bool:
        """Every event: any of them may have deliveries."""
        return True

    async def tick(self) -> float | None:
        """Open lanes for what is due; returns in how many seconds something else is due, or None."""
        async with self._pace.turn():
            database, now = self._services.database, self._services.clock.now()
            reaped = await deliveries.reap(database, now, REAP_BATCH)
            waiting = await deliveries.waiting(database, WEBHOOKS_MAX)
        if reaped:
            log.warning("the leases of %d deliveries expired; queued them again", reaped)
        return self._open_lanes(waiting, now)

    async def close(self) -> None:
        """Give running attempts a moment to end; then hand the leases back."""
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
            log.info("released the leases of %d deliveries; other processes can send them now", count)

    async def drain(self) -> None:
        """Wait until every open lane has ended."""
        while self._lanes:
            await asyncio.wait(list(self._lanes.values()))

    def _open_lanes(self, waiting: Sequence[deliveries.WaitingWebhook], now: datetime) -> float | None:
        """Open a lane for each webhook with due deliveries; failing webhooks come last."""
        due = [each.webhook_id for each in waiting if each.due_at <= now]
        next_due = min(((each.due_at - now).total_seconds() for each in waiting if each.due_at > now), default=None)
        clock = time.monotonic()
        self._paused_until = {webhook_id: until for webhook_id, until in self._paused_until.items() if until > clock}
        self._failing &= {each.webhook_id for each in waiting} | set(self._lanes)
        ready = [each for each in due if each not in self._lanes and each not in self._paused_until]
        for webhook_id in sorted(ready, key=lambda each: each in self._failing):
            if self._has_room(webhook_id):
                self._lanes[webhook_id] = asyncio.create_task(self._lane(webhook_id))
        if any(each not in self._paused_until for each in due):
            return RETRY_SECONDS  # a lane may just have missed something, or had no room
        pause_left = min((until - clock for until in self._paused_until.values()), default=None)
        return min((each for each in (next_due, pause_left) if each is not None), default=None)

    def _has_room(self, webhook_id: str) -> bool:
        if self._closing or len(self._lanes) >= LANES_MAX:
            return False
        failing = sum(1 for each in self._lanes if each in self._failing)
        return webhook_id not in self._failing or failing < LANES_MAX // 2

    async def _lane(self, webhook_id: str) -> None:
        """Send what is due for one webhook, for a limited time."""
        until = time.monotonic() + LANE_SECONDS
        try:
            while not self._closing and time.monotonic() < until and await self._batch(webhook_id):
                pass
        except Refusal as refusal:
            self._paused_until[webhook_id] = time.monotonic() + FAILURE_PAUSE_SECONDS
            log.warning(
                "cannot deliver to %s; retrying in %.0f s: %s", webhook_id, FAILURE_PAUSE_SECONDS, refusal.detail
            )
        except Exception:  # an error with one webhook must not stop the others
            self._paused_until[webhook_id] = time.monotonic() + FAILURE_PAUSE_SECONDS
            log.exception("cannot deliver to %s; retrying in %.0f s", webhook_id, FAILURE_PAUSE_SECONDS)
        finally:
            del self._lanes[webhook_id]

    async def _batch(self, webhook_id: str) -> bool:
        """Claim and send a few; returns whether more may be due now."""
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
        """Make one attempt and record it; returns whether it was delivered."""
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
                outcome = DeliveryOutcome(0.0, error="its event was deleted by retention")
                attempts_max = 0
            elif delivery.attempts > attempts_max:
                outcome = DeliveryOutcome(
                    0.0, delivery.last_status, delivery.last_error or "the last attempt did not finish"
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
        """Record the outcome; after a lost lease nothing is written."""
        services = self._services
        now = services.clock.now()
        if outcome.error is None:
            recorded = await deliveries.delivered(services.database, delivery, now, outcome.status)
        elif is_last(delivery, attempts_max):
            log.warning("delivery %s failed for the last time; it is a dead letter now: %s", delivery.id, outcome.error)
            recorded = await give_up(services, delivery, outcome, trace_id)
        else:
            pause = retry_seconds(delivery.attempts, random.random(), outcome.retry_after_seconds)
            due_at = now + timedelta(seconds=pause)
            error = outcome.error[:ERROR_LENGTH_MAX]
            log.info("delivery %s failed; retrying in %.0f s: %s", delivery.id, pause, error)
            recorded = await deliveries.queue_again(services.database, delivery, due_at, outcome.status, error)
        if not recorded:
            log.warning("delivery %s lost its lease during the attempt; not recording its outcome", delivery.id)
