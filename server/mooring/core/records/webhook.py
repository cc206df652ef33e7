"""Webhooks: a URL that gets events, a filter of event types, and the key that signs the messages.

A webhook belongs to one scope (the platform, a tenant or a project) and gets the events of that scope and below it. The
platform generates its key, shows it once, and stores it sealed. A new key does not cut the receiver off: for a day each
message is signed with the old key as well. The URL may contain a credential of the receiver, so events and audit
records have only its host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.address import read_url
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Remove, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.secret import Sealed

WEBHOOKS_MAX: Final = 50
EVENT_TYPES_MAX: Final = 50
EVENT_TYPE_PATTERN: Final = r"^[a-z_]+(\.[a-z_]+)*(\.\*)?$"
KEY_PURPOSE: Final = "webhook_key"
KEY_BYTES: Final = 32
KEY_PREFIX: Final = "whsec_"
KEY_OVERLAP: Final = timedelta(hours=24)
UNDELIVERED: Final = (
    "contract.delivery."  # the database creates no deliveries for events about deliveries: they would never end
)


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that gets events; the key is referenced, not included."""

    id: str
    tenant_id: str | None
    project_id: str | None
    url: str
    description: str
    event_types: list[str]
    enabled: bool
    secret_id: str
    previous_secret_id: str | None
    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WebhookWithKey:
    """A webhook with its new key, which is shown once."""

    webhook: Webhook
    key: str


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """What the caller requests; in a change, None leaves a field as it is."""

    url: str | None = None
    event_types: tuple[str, ...] | None = None
    description: str | None = None
    enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class NewWebhookKey:
    """A new key: `text` is shown once, `sealed` is stored."""

    text: str
    sealed: Sealed


def create_webhook(
    context: DecisionContext,
    owner: tuple[str | None, str | None],
    spec: WebhookSpec,
    key: NewWebhookKey,
    webhook_count: int,
) -> Decision[WebhookWithKey]:
    """Create a webhook; `owner` is its tenant and project, None for the platform."""
    if webhook_count >= WEBHOOKS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"there may be at most {WEBHOOKS_MAX} webhooks here", {"limit": WEBHOOKS_MAX})
    webhook = Webhook(
        id=context.mint(Prefix.WEBHOOK),
        tenant_id=owner[0],
        project_id=owner[1],
        url=read_url(spec.url or "").url,
        description=validation.remark(spec.description or "", "description"),
        event_types=check_event_types(spec.event_types or ()),
        enabled=True,
        secret_id=key.sealed.id,
        previous_secret_id=None,
        revision=0,
        created_at=context.now,
    )
    summary = _summary(webhook)
    return Decision(
        result=WebhookWithKey(webhook, key.text),
        writes=(Insert("secret", key.sealed.row(context.now)), Insert("webhook", asdict(webhook))),
        events=(_webhook_event(EventType.WEBHOOK_CREATED, webhook, summary),),
        audits=(_audited("webhook.create", webhook, after=summary),),
    )


def update_webhook(
    context: DecisionContext, webhook: Webhook, spec: WebhookSpec, revision_expected: int | None
) -> Decision[Webhook]:
    """Change the URL, the event types or the description, or pause it; equal values change nothing."""
    require_revision(webhook.revision, revision_expected)
    wanted: dict[str, object] = {}
    if spec.url is not None:
        wanted["url"] = read_url(spec.url).url
    if spec.event_types is not None:
        wanted["event_types"] = check_event_types(spec.event_types)
    if spec.description is not None:
        wanted["description"] = validation.remark(spec.description, "description")
    if spec.enabled is not None:
        wanted["enabled"] = spec.enabled
    changed = {name: value for name, value in wanted.items() if value != getattr(webhook, name)}
    if not changed:
        return Decision(result=webhook)
    after = replace(webhook, revision=webhook.revision + 1, **changed)  # type: ignore[arg-type]
    change = "changed"
    if "enabled" in changed:
        change = "resumed" if after.enabled else "paused"
    return Decision(
        result=after,
        writes=(Update("webhook", webhook.id, webhook.revision, changed),),
        events=(_webhook_event(EventType.WEBHOOK_UPDATED, after, {"change": change, **_summary(after)}),),
        audits=(_audited("webhook.update", webhook, before=_summary(webhook), after=_summary(after)),),
    )


def rotate_key(
    context: DecisionContext, webhook: Webhook, key: NewWebhookKey, old_key: Sealed
) -> Decision[WebhookWithKey]:
    """Set a new key; `old_key` is the present one, sealed again with an expiry, and keeps signing for a while.

    A trigger of the database deletes the rows of keys that the webhook no longer references.
    """
    changed: dict[str, object] = {"secret_id": key.sealed.id, "previous_secret_id": old_key.id}
    after = replace(webhook, revision=webhook.revision + 1, **changed)  # type: ignore[arg-type]
    return Decision(
        result=WebhookWithKey(after, key.text),
        writes=(
            Update("webhook", webhook.id, webhook.revision, changed),
            Insert("secret", key.sealed.row(context.now)),
            Insert("secret", old_key.row(context.now, context.now + KEY_OVERLAP)),
        ),
        events=(_webhook_event(EventType.WEBHOOK_UPDATED, after, {"change": "re-keyed"}),),
        audits=(_audited("webhook.update", webhook, after={"change": "re-keyed"}),),
    )


def delete_webhook(context: DecisionContext, webhook: Webhook) -> Decision[Webhook]:
    """Delete it with its keys and its undelivered messages."""
    return Decision(
        result=webhook,
        writes=(Remove("webhook", webhook.id, webhook.revision),),
        events=(_webhook_event(EventType.WEBHOOK_DELETED, webhook, {}),),
        audits=(_audited("webhook.delete", webhook, before=_summary(webhook)),),
    )


def check_event_types(wanted: Sequence[str]) -> list[str]:
    """Check event types and families such as `identity.*`; an empty list means all."""
    if len(wanted) > EVENT_TYPES_MAX:
        raise validation.invalid("event_types", f"at most {EVENT_TYPES_MAX} types and families")
    delivered = [each.value for each in EventType if not each.startswith(UNDELIVERED)]
    for text in wanted:
        family = text.removesuffix("*")
        if text.startswith(UNDELIVERED):
            raise validation.invalid(
                "event_types", f"{text}: events about deliveries are never delivered; read them as events"
            )
        if not any(each.startswith(family) if text.endswith(".*") else each == text for each in delivered):
            raise validation.invalid(
                "event_types", f"{text[:100]!r} is neither an event type nor a family such as 'identity.*'"
            )
    return sorted(set(wanted))


def _summary(webhook: Webhook) -> dict[str, object]:
    return {
        "host": read_url(webhook.url).host,
        "event_types": list(webhook.event_types),
        "enabled": webhook.enabled,
        "description": webhook.description,
    }


def _webhook_event(type_: EventType, webhook: Webhook, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "webhook", webhook.id, webhook.tenant_id, webhook.project_id, data=data)


def _audited(
    action: str,
    webhook: Webhook,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> AuditRecord:
    return AuditRecord(action, "webhook", webhook.id, webhook.tenant_id, webhook.project_id, before=before, after=after)
