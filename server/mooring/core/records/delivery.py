"""Deliveries: one event on its way to one webhook.

The database creates a delivery in the transaction that writes the event. A worker claims it under a lease, sends it,
and records the outcome, fenced by the lease's token. A failed delivery is retried after growing pauses with jitter, so
that many do not come back at once; after the last attempt it is a dead letter, which can be replayed. Every attempt at
the same delivery has the same id, so that a receiver can recognize a repeat.

Messages are signed as Standard Webhooks specifies: `v1,` and the base64 of HMAC-SHA256 over `{id}.{timestamp}.{body}`.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix, is_id
from mooring.core.records.webhook import Webhook

RETRY_FIRST_SECONDS: Final = 5.0
RETRY_FACTOR: Final = 3.0
RETRY_MAX_SECONDS: Final = 6 * 3600.0
RETRY_SPREAD: Final = 0.2  # jitter: a pause is up to this much shorter or longer
REPLAY_BATCH: Final = 50
ERROR_LENGTH_MAX: Final = 500
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")


class DeliveryStatus(StrEnum):
    QUEUED = "queued"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Delivery:
    id: str
    event_id: str
    webhook_id: str
    tenant_id: str | None
    project_id: str | None
    event_type: str
    correlation_id: str
    status: str
    attempts: int
    due_at: datetime
    lease_token: int
    leased_until: datetime | None
    last_error: str | None
    last_status: int | None
    revision: int
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeliveryMessage:
    """What is sent; all attempts have the same id."""

    id: str
    body: bytes
    correlation_id: str
    trace_id: str


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of one attempt; without an error it was delivered."""

    seconds: float
    status: int | None = None
    error: str | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many deliveries are sent again, and whether more dead letters are left."""

    count: int
    more: bool


def is_delivery_id(text: str) -> bool:
    """Whether the text has the form of a delivery's id: its event's id, a dot, its webhook's id."""
    event_id, _, webhook_id = text.partition(".")
    return is_id(event_id, Prefix.EVENT) and is_id(webhook_id, Prefix.WEBHOOK)


def signature(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each valid key."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    each = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return " ".join(f"v1,{one}" for one in each)


def message_headers(message: DeliveryMessage, keys: Sequence[bytes], now: datetime, span_id: str) -> dict[str, str]:
    """The headers of one attempt; the signature covers its own timestamp."""
    timestamp = int(now.timestamp())
    headers = {
        "content-type": "application/json",
        "webhook-id": message.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(keys, message.id, timestamp, message.body),
        "x-correlation-id": message.correlation_id,
    }
    if _TRACE_ID.fullmatch(message.trace_id):
        headers["traceparent"] = f"00-{message.trace_id}-{span_id}-01"
    return headers


def outcome_of(status: int, seconds: float, retry_after: str | None = None) -> DeliveryOutcome:
    """The outcome of an HTTP answer: only 2xx counts as delivered."""
    if 200 <= status < 300:
        return DeliveryOutcome(seconds, status)
    wait = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None
    error = f"the receiver answered {status}"
    if 300 <= status < 400:
        error += "; redirects are not followed: set the webhook's URL to the target of the redirect"
    return DeliveryOutcome(seconds, status, error, wait)


def retry_seconds(attempts: int, chance: float, asked_for: float | None = None) -> float:
    """How long to wait after so many attempts; `chance` is between 0 and 1, `asked_for` is from Retry-After."""
    grown = min(RETRY_FIRST_SECONDS * RETRY_FACTOR ** min(max(0, attempts - 1), 50), RETRY_MAX_SECONDS)
    spread = grown * (1 + RETRY_SPREAD * (2 * chance - 1))
    return max(spread, min(asked_for or 0.0, RETRY_MAX_SECONDS))


def is_last(delivery: Delivery, attempts_max: int) -> bool:
    return delivery.attempts >= attempts_max


def mark_dead(context: DecisionContext, delivery: Delivery, outcome: DeliveryOutcome) -> Decision[Delivery]:
    """Make a dead letter after the last attempt failed; an event says so."""
    after = replace(
        delivery,
        status=DeliveryStatus.DEAD.value,
        finished_at=context.now,
        leased_until=None,
        last_error=(outcome.error or "")[:ERROR_LENGTH_MAX],
        last_status=outcome.status,
        revision=delivery.revision + 1,
    )
    summary = {**_about(delivery), "attempts": delivery.attempts, "error": after.last_error}
    return Decision(
        result=after,
        writes=(Update("delivery", delivery.id, delivery.revision, _columns(after)),),
        events=(_delivery_event(EventType.DELIVERY_DEAD, delivery, summary),),
        audits=(_audited("outbox.dead", delivery, after=summary),),
    )


def replay(context: DecisionContext, delivery: Delivery, *, event_is_kept: bool) -> Decision[Delivery]:
    """Send it again now, with the full number of attempts."""
    if delivery.status == DeliveryStatus.CLAIMED:
        raise Refusal(
            Code.ILLEGAL_TRANSITION,
            "the delivery is being sent right now",
            {"state": delivery.status, "allowed": []},
        )
    if not event_is_kept:
        raise Refusal(Code.NOT_FOUND, "the event of this delivery was deleted by retention", {"noun": "event"})
    after = _queued_again(context, delivery)
    before: dict[str, object] = {"status": delivery.status, "attempts": delivery.attempts}
    return Decision(
        result=after,
        writes=(Update("delivery", delivery.id, delivery.revision, _columns(after)),),
        events=(_delivery_event(EventType.DELIVERY_REPLAYED, delivery, _about(delivery)),),
        audits=(_audited("outbox.replay", delivery, before=before, after={"status": after.status}),),
    )


def replay_dead(
    context: DecisionContext, owner: tuple[str | None, str | None], dead: Sequence[Delivery]
) -> Decision[Replayed]:
    """Send a batch of dead letters again; the caller passes one more than a batch when there are more.

    `owner` is the tenant and the project, None for the platform.
    """
    batch = dead[:REPLAY_BATCH]
    result = Replayed(len(batch), len(dead) > REPLAY_BATCH)
    if not batch:
        return Decision(result=result)
    listed = {"count": len(batch), "deliveries": [each.id for each in batch]}
    writes = tuple(Update("delivery", each.id, each.revision, _columns(_queued_again(context, each))) for each in batch)
    return Decision(
        result=result,
        writes=writes,
        events=tuple(_delivery_event(EventType.DELIVERY_REPLAYED, each, _about(each)) for each in batch),
        audits=(AuditRecord("outbox.replay", "delivery", None, *owner, after=listed),),
    )


def tested(context: DecisionContext, webhook: Webhook, outcome: DeliveryOutcome) -> Decision[DeliveryOutcome]:
    """Audit that a test message was sent; nothing else changes."""
    summary = {"change": "tested", "status": outcome.status, "error": outcome.error}
    audited = AuditRecord("webhook.update", "webhook", webhook.id, webhook.tenant_id, webhook.project_id, after=summary)
    return Decision(result=outcome, audits=(audited,))


def _queued_again(context: DecisionContext, delivery: Delivery) -> Delivery:
    return replace(
        delivery,
        status=DeliveryStatus.QUEUED.value,
        attempts=0,
        due_at=context.now,
        finished_at=None,
        leased_until=None,
        revision=delivery.revision + 1,
    )


def _columns(after: Delivery) -> dict[str, object]:
    """The columns that a change of status sets."""
    return {
        "status": after.status,
        "attempts": after.attempts,
        "due_at": after.due_at,
        "leased_until": after.leased_until,
        "finished_at": after.finished_at,
        "last_error": after.last_error,
        "last_status": after.last_status,
    }


def _about(delivery: Delivery) -> dict[str, object]:
    return {
        "webhook_id": delivery.webhook_id,
        "event_id": delivery.event_id,
        "event_type": delivery.event_type,
    }


def _delivery_event(type_: EventType, delivery: Delivery, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "delivery", delivery.id, delivery.tenant_id, delivery.project_id, data=data)


def _audited(
    action: str,
    delivery: Delivery,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> AuditRecord:
    return AuditRecord(
        action, "delivery", delivery.id, delivery.tenant_id, delivery.project_id, before=before, after=after
    )
