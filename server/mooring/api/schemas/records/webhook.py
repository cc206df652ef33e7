"""Request and response bodies for webhooks and deliveries."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.page import Cursor, Limit
from mooring.api.schemas.kernel.fields import Description, Revision, Shown, Strict, Time, allowed
from mooring.core.kernel.address import URL_LENGTH_MAX
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.core.records.delivery import Delivery, DeliveryOutcome, DeliveryStatus, Replayed
from mooring.core.records.webhook import EVENT_TYPE_PATTERN, EVENT_TYPES_MAX, Webhook

Url = Annotated[
    str,
    Meta(
        min_length=8,
        max_length=URL_LENGTH_MAX,
        description="Where messages are sent: https, without user, password and fragment.",
    ),
]
EventTypes = Annotated[
    list[Annotated[str, Meta(min_length=3, max_length=100, pattern=EVENT_TYPE_PATTERN)]],
    Meta(
        max_length=EVENT_TYPES_MAX,
        description="Event types, or families such as `identity.*`; an empty list means all.",
    ),
]
SigningKey = Annotated[str, Meta(description="The key that signs messages; it is shown only once.")]


class CreateWebhook(Strict):
    """A new webhook."""

    url: Url
    event_types: EventTypes = msgspec.field(default_factory=list)
    description: Description = ""


class UpdateWebhook(Strict):
    """A new URL, event types or description, or a pause; other fields stay."""

    url: Url | None = None
    event_types: EventTypes | None = None
    description: Description | None = None
    enabled: bool | None = None
    revision: Revision | None = None


class WebhookView(Shown):
    """A URL that gets events, without its key."""

    id: str
    tenant_id: str | None
    project_id: str | None
    url: str
    description: str
    event_types: list[str]
    enabled: bool
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class WebhookKeyed(WebhookView):
    """A webhook with a new signing key."""

    signing_key: SigningKey


class WebhookTested(Shown):
    """The outcome of one message to the receiver."""

    delivered: bool
    status: int | None
    error: str | None
    seconds: float


class DeliveryQuery(Strict):
    """Which deliveries are listed."""

    cursor: Cursor | None = None
    limit: Limit = 100
    status: DeliveryStatus | None = None
    webhook_id: Annotated[str, Meta(pattern=pattern(Prefix.WEBHOOK))] | None = None


class DeliveryView(Shown):
    """One event on its way to one webhook."""

    id: str
    webhook_id: str
    event_id: str
    event_type: str
    tenant_id: str | None
    project_id: str | None
    status: DeliveryStatus
    attempts: int
    due_at: Time
    last_status: int | None
    last_error: str | None
    correlation_id: str
    created_at: Time
    finished_at: Time | None
    revision: int
    etag: str
    allowed_actions: list[str]


class ReplayedView(Shown):
    """How many dead letters are sent again, and whether more are left."""

    replayed: int
    more: bool


def webhook_view(authority: Authority, webhook: Webhook) -> WebhookView:
    return WebhookView(**_webhook_fields(authority, webhook))


def webhook_keyed(authority: Authority, webhook: Webhook, key: str) -> WebhookKeyed:
    return WebhookKeyed(**_webhook_fields(authority, webhook), signing_key=key)


def _webhook_fields(authority: Authority, webhook: Webhook) -> dict[str, Any]:
    place = _place(webhook.tenant_id, webhook.project_id)
    return {
        "id": webhook.id,
        "tenant_id": webhook.tenant_id,
        "project_id": webhook.project_id,
        "url": webhook.url,
        "description": webhook.description,
        "event_types": list(webhook.event_types),
        "enabled": webhook.enabled,
        "created_at": webhook.created_at,
        "revision": webhook.revision,
        "etag": str(webhook.revision),
        "allowed_actions": allowed(authority, place, ("webhook.update", "webhook.delete")),
    }


def webhook_tested(outcome: DeliveryOutcome) -> WebhookTested:
    return WebhookTested(
        delivered=outcome.error is None,
        status=outcome.status,
        error=outcome.error,
        seconds=round(outcome.seconds, 3),
    )


def delivery_view(authority: Authority, delivery: Delivery) -> DeliveryView:
    place = _place(delivery.tenant_id, delivery.project_id)
    actions = () if delivery.status == DeliveryStatus.CLAIMED else ("outbox.replay",)
    return DeliveryView(
        id=delivery.id,
        webhook_id=delivery.webhook_id,
        event_id=delivery.event_id,
        event_type=delivery.event_type,
        tenant_id=delivery.tenant_id,
        project_id=delivery.project_id,
        status=DeliveryStatus(delivery.status),
        attempts=delivery.attempts,
        due_at=delivery.due_at,
        last_status=delivery.last_status,
        last_error=delivery.last_error,
        correlation_id=delivery.correlation_id,
        created_at=delivery.created_at,
        finished_at=delivery.finished_at,
        revision=delivery.revision,
        etag=str(delivery.revision),
        allowed_actions=allowed(authority, place, actions),
    )


def replayed_view(replayed: Replayed) -> ReplayedView:
    return ReplayedView(replayed=replayed.count, more=replayed.more)


def _place(tenant_id: str | None, project_id: str | None) -> Place:
    if project_id is not None:
        return Place(Scope.PROJECT, tenant_id, project_id)
    return Place(Scope.PLATFORM) if tenant_id is None else Place(Scope.TENANT, tenant_id)
