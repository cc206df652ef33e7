"""Commands on deliveries: send one, give it up, or replay it."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.permissions import Place
from mooring.core.records.delivery import (
    REPLAY_BATCH,
    Delivery,
    DeliveryMessage,
    DeliveryOutcome,
    Replayed,
    mark_dead,
    message_headers,
    outcome_of,
    replay,
    replay_dead,
)
from mooring.gateways.egress import EgressFailed, EgressRequest
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.records import delivery as deliveries


async def send(services: Services, url: str, keys: Sequence[bytes], message: DeliveryMessage) -> DeliveryOutcome:
    """Make one signed attempt, outside of any transaction; the status counts even if reading the body fails."""
    headers = message_headers(message, keys, services.clock.now(), secrets.token_hex(8))
    deadline = services.settings.webhook_timeout_seconds
    request = EgressRequest("POST", url, headers, message.body, deadline_seconds=deadline)
    begun = time.monotonic()
    outcome = None
    try:
        async with services.outbound.open(request) as answer:
            elapsed = time.monotonic() - begun
            outcome = outcome_of(answer.status, elapsed, answer.headers.get("retry-after"))
            await answer.beginning()
    except EgressFailed as failed:
        return outcome or DeliveryOutcome(time.monotonic() - begun, error=failed.reason)
    except Refusal as refusal:
        return outcome or DeliveryOutcome(time.monotonic() - begun, error=refusal.detail)
    return outcome


async def give_up(services: Services, delivery: Delivery, outcome: DeliveryOutcome, trace_id: str | None) -> bool:
    """Make it a dead letter, under the correlation id of its event; False when the lease was lost meanwhile."""
    context = system_context(services)
    context = replace(context, correlation_id=delivery.correlation_id, trace_id=trace_id or context.trace_id)
    return await apply_once(services, PLATFORM, context, mark_dead(context, delivery, outcome))


async def replay_one(work: Work[Delivery], place: Place, delivery_id: str) -> Answered:
    async def load() -> tuple[Delivery, bool]:
        delivery = require(await deliveries.find(work.database, work.acting, place.project_id, delivery_id), "delivery")
        return delivery, await deliveries.event_is_kept(work.database, work.acting, delivery.id)

    return await work.execute(load, lambda loaded: replay(work.context, loaded[0], event_is_kept=loaded[1]))


async def replay_all_dead(work: Work[Replayed], place: Place) -> Answered:
    """Replay the oldest dead letters of a scope, a bounded number at a time."""
    owner = (work.acting.tenant_id, place.project_id)

    async def load() -> list[Delivery]:
        return await deliveries.dead(work.database, work.acting, place.project_id, REPLAY_BATCH + 1)

    return await work.execute(load, lambda dead: replay_dead(work.context, owner, dead))
