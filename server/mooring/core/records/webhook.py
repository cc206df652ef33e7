"""Webhooks: who is told of events, at which address, and with which key the messages are signed.

A webhook belongs to one place: the platform, a tenant or a project, and is told of the events of that place and below.
Its key is made by the platform, told once, and sealed at rest. A new key does not cut the receiver off: for a day each
message is signed with the old one as well. The address may hold a credential of the receiver's, so events and audit
rows name its host only.
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
UNDELIVERED: Final = "contract.delivery."  # the database delivers no news of deliveries: it would feed itself


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that is told of events."""

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
    """A webhook with a key that is told once."""

    webhook: Webhook
    key: str


@dataclass(frozen=True, slots=True)
class WebhookSpec:
    """What the caller asks for; in a change, what is not given stays."""

    url: str | None = None
    event_types: tuple[str, ...] | None = None
    description: str | None = None
    enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class NewWebhookKey:
    """A new key, as it is told and as it is kept."""

    told: str
    sealed: Sealed


def create_webhook(
    context: DecisionContext,
    home: tuple[str | None, str | None],
    spec: WebhookSpec,
    key: NewWebhookKey,
    webhooks_there: int,
) -> Decision[WebhookWithKey]:
    """A new webhook; `home` is its tenant and project, none of them for the platform."""
    if webhooks_there >= WEBHOOKS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a place has at most {WEBHOOKS_MAX} webhooks", {"limit": WEBHOOKS_MAX})
    webhook = Webhook(
        id=context.mint(Prefix.WEBHOOK),
        tenant_id=home[0],
        project_id=home[1],
        url=read_url(spec.url or "").url,
        description=validation.remark(spec.description or "", "description"),
        event_types=check_event_types(spec.event_types or ()),
        enabled=True,
        secret_id=key.sealed.id,
        previous_secret_id=None,
        revision=0,
        created_at=context.now,
    )
    told = _told(webhook)
    return Decision(
        result=WebhookWithKey(webhook, key.told),
        writes=(Insert("secret", key.sealed.row(context.now)), Insert("webhook", asdict(webhook))),
        events=(_happened(EventType.WEBHOOK_CREATED, webhook, told),),
        audits=(_audited("webhook.create", webhook, after=told),),
    )


def update_webhook(
    context: DecisionContext, webhook: Webhook, spec: WebhookSpec, revision_seen: int | None
) -> Decision[Webhook]:
    """Another address, list, description, or a pause; saying what is there already changes nothing."""
    require_revision(webhook.revision, revision_seen)
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
        events=(_happened(EventType.WEBHOOK_UPDATED, after, {"change": change, **_told(after)}),),
        audits=(_audited("webhook.update", webhook, before=_told(webhook), after=_told(after)),),
    )


def rotate_key(
    context: DecisionContext, webhook: Webhook, key: NewWebhookKey, old_key: Sealed
) -> Decision[WebhookWithKey]:
    """A new key; `old_key` is the present one sealed anew, which signs beside it for a while.

    The rows of the keys that are no longer named go with the change, by a trigger of the database.
    """
    changed: dict[str, object] = {"secret_id": key.sealed.id, "previous_secret_id": old_key.id}
    after = replace(webhook, revision=webhook.revision + 1, **changed)  # type: ignore[arg-type]
    return Decision(
        result=WebhookWithKey(after, key.told),
        writes=(
            Update("webhook", webhook.id, webhook.revision, changed),
            Insert("secret", key.sealed.row(context.now)),
            Insert("secret", old_key.row(context.now, context.now + KEY_OVERLAP)),
        ),
        events=(_happened(EventType.WEBHOOK_UPDATED, after, {"change": "re-keyed"}),),
        audits=(_audited("webhook.update", webhook, after={"change": "re-keyed"}),),
    )


def delete_webhook(context: DecisionContext, webhook: Webhook) -> Decision[Webhook]:
    """It goes at once, with its keys and with what it had not delivered."""
    return Decision(
        result=webhook,
        writes=(Remove("webhook", webhook.id, webhook.revision),),
        events=(_happened(EventType.WEBHOOK_DELETED, webhook, {}),),
        audits=(_audited("webhook.delete", webhook, before=_told(webhook)),),
    )


def check_event_types(wanted: Sequence[str]) -> list[str]:
    """Whole types, or families that end in `.*`, that something can be delivered for; none: all."""
    if len(wanted) > EVENT_TYPES_MAX:
        raise validation.invalid("event_types", f"at most {EVENT_TYPES_MAX} types and families")
    delivered = [each.value for each in EventType if not each.startswith(UNDELIVERED)]
    for text in wanted:
        family = text.removesuffix("*")
        if text.startswith(UNDELIVERED):
            raise validation.invalid("event_types", f"{text}: news of deliveries is never delivered; read it as events")
        if not any(each.startswith(family) if text.endswith(".*") else each == text for each in delivered):
            raise validation.invalid(
                "event_types", f"{text[:100]!r} is no event type and no family such as 'identity.*'"
            )
    return sorted(set(wanted))


def _told(webhook: Webhook) -> dict[str, object]:
    return {
        "host": read_url(webhook.url).host,
        "event_types": list(webhook.event_types),
        "enabled": webhook.enabled,
        "description": webhook.description,
    }


def _happened(type_: EventType, webhook: Webhook, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "webhook", webhook.id, webhook.tenant_id, webhook.project_id, data=data)


def _audited(
    action: str,
    webhook: Webhook,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> AuditRecord:
    return AuditRecord(action, "webhook", webhook.id, webhook.tenant_id, webhook.project_id, before=before, after=after)
