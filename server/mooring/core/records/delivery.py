"""Deliveries: one event on its way to one webhook, and the rules of that way.

The database makes a delivery in the transaction that writes the event. A worker claims it under a lease, sends it, and
writes down what came of it, fenced by the lease's token. What fails is tried again after a pause that grows, with some
chance in it so that many do not come back at once; after the last attempt it is a dead letter, which waits for a
replay. Every attempt at the same delivery bears the same id, so that a receiver can tell a repeat from news.

Messages are signed as Standard Webhooks asks: `v1,` and the base64 of HMAC-SHA256 over `{id}.{timestamp}.{body}`.
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
RETRY_SPREAD: Final = 0.2  # a pause is this much shorter or longer, by chance
REPLAY_BATCH: Final = 50
ERROR_LENGTH_MAX: Final = 500
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")


class DeliveryStatus(StrEnum):
    """Where a delivery stands."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one webhook."""

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
    """What is sent: its id stays the same over all attempts."""

    id: str
    body: bytes
    correlation_id: str
    trace_id: str


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What came of one attempt; without an error it was delivered."""

    seconds: float
    status: int | None = None
    error: str | None = None
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many deliveries are sent again, and whether there are more that wait for it."""

    count: int
    more: bool


def is_delivery_id(text: str) -> bool:
    """Whether this is the form of a delivery's id: that of its event, a dot, that of its webhook."""
    event_id, _, webhook_id = text.partition(".")
    return is_id(event_id, Prefix.EVENT) and is_id(webhook_id, Prefix.WEBHOOK)


def signature(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each key that counts."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    each = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return " ".join(f"v1,{one}" for one in each)


def message_headers(message: DeliveryMessage, keys: Sequence[bytes], now: datetime, span_id: str) -> dict[str, str]:
    """The headers of one attempt, signed for its own moment."""
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
    """What an answer means: only 2xx is a delivery."""
    if 200 <= status < 300:
        return DeliveryOutcome(seconds, status)
    wait = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else None
    said = f"the receiver answered {status}"
    if 300 <= status < 400:
        said += "; redirects are not followed: give the webhook the address that it points to"
    return DeliveryOutcome(seconds, status, said, wait)


def retry_seconds(attempts: int, chance: float, asked_for: float | None = None) -> float:
    """How long to wait after so many attempts; `chance` is between 0 and 1."""
    grown = min(RETRY_FIRST_SECONDS * RETRY_FACTOR ** min(max(0, attempts - 1), 50), RETRY_MAX_SECONDS)
    spread = grown * (1 + RETRY_SPREAD * (2 * chance - 1))
    return max(spread, min(asked_for or 0.0, RETRY_MAX_SECONDS))


def is_last(delivery: Delivery, attempts_max: int) -> bool:
    """Whether the attempt under way is the last one."""
    return delivery.attempts >= attempts_max


def bury(context: DecisionContext, delivery: Delivery, outcome: DeliveryOutcome) -> Decision[Delivery]:
    """The last attempt failed: a dead letter, of which somebody should hear."""
    after = replace(
        delivery,
        status=DeliveryStatus.DEAD.value,
        finished_at=context.now,
        leased_until=None,
        last_error=(outcome.error or "")[:ERROR_LENGTH_MAX],
        last_status=outcome.status,
        revision=delivery.revision + 1,
    )
    told = {**_about(delivery), "attempts": delivery.attempts, "error": after.last_error}
    return Decision(
        result=after,
        writes=(Update("delivery", delivery.id, delivery.revision, _ended(after)),),
        events=(_happened(EventType.DELIVERY_DEAD, delivery, told),),
        audits=(_audited("outbox.dead", delivery, after=told),),
    )


def replay(context: DecisionContext, delivery: Delivery, *, event_is_kept: bool) -> Decision[Delivery]:
    """Send it again now, with all attempts before it."""
    if delivery.status == DeliveryStatus.CLAIMED:
        raise Refusal(
            Code.ILLEGAL_TRANSITION,
            "the delivery is being sent at this moment",
            {"state": delivery.status, "allowed": []},
        )
    if not event_is_kept:
        raise Refusal(Code.NOT_FOUND, "the event of this delivery is no longer kept", {"noun": "event"})
    after = _queued_again(context, delivery)
    before: dict[str, object] = {"status": delivery.status, "attempts": delivery.attempts}
    return Decision(
        result=after,
        writes=(Update("delivery", delivery.id, delivery.revision, _ended(after)),),
        events=(_happened(EventType.DELIVERY_REPLAYED, delivery, _about(delivery)),),
        audits=(_audited("outbox.replay", delivery, before=before, after={"status": after.status}),),
    )


def replay_dead(
    context: DecisionContext, home: tuple[str | None, str | None], dead: Sequence[Delivery]
) -> Decision[Replayed]:
    """Send the dead letters of a place again, a batch at a time; one more than the batch says that there are more."""
    batch = dead[:REPLAY_BATCH]
    result = Replayed(len(batch), len(dead) > REPLAY_BATCH)
    if not batch:
        return Decision(result=result)
    listed = {"count": len(batch), "deliveries": [each.id for each in batch]}
    writes = tuple(Update("delivery", each.id, each.revision, _ended(_queued_again(context, each))) for each in batch)
    return Decision(
        result=result,
        writes=writes,
        events=tuple(_happened(EventType.DELIVERY_REPLAYED, each, _about(each)) for each in batch),
        audits=(AuditRecord("outbox.replay", "delivery", None, *home, after=listed),),
    )


def tested(context: DecisionContext, webhook: Webhook, outcome: DeliveryOutcome) -> Decision[DeliveryOutcome]:
    """A message was sent to try the receiver; nothing changes, and the trail says who did it."""
    told = {"change": "tested", "status": outcome.status, "error": outcome.error}
    audited = AuditRecord("webhook.update", "webhook", webhook.id, webhook.tenant_id, webhook.project_id, after=told)
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


def _ended(after: Delivery) -> dict[str, object]:
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


def _happened(type_: EventType, delivery: Delivery, data: Mapping[str, object]) -> EventRecord:
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
