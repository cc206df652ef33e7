"""Commands on webhooks.

The URL is resolved and checked before the transaction, and again at each delivery. A key is generated here, shown once
in the answer, and sealed before the decision.
"""

import base64
import secrets
from dataclasses import replace
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.records.delivery import send
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Place
from mooring.core.kernel.secret import Sealed
from mooring.core.records.delivery import DeliveryMessage, DeliveryOutcome, tested
from mooring.core.records.webhook import (
    KEY_BYTES,
    KEY_PREFIX,
    KEY_PURPOSE,
    NewWebhookKey,
    Webhook,
    WebhookSpec,
    WebhookWithKey,
    create_webhook,
    delete_webhook,
    rotate_key,
    update_webhook,
)
from mooring.gateways.egress import ascii_url
from mooring.storage.identity import project as projects
from mooring.storage.records import webhook as webhooks


async def create(work: Work[WebhookWithKey], place: Place, spec: WebhookSpec) -> Answered:
    owner = (work.acting.tenant_id, place.project_id)

    async def load() -> tuple[WebhookSpec, NewWebhookKey, int]:
        if place.project_id is not None:
            require(await projects.find(work.database, work.acting, place.project_id), "project")
        count = await webhooks.count(work.database, work.acting, place.project_id)
        return await _checked(work, spec), _new_key(work), count

    return await work.execute(load, lambda loaded: create_webhook(work.context, owner, *loaded))


async def update(
    work: Work[Webhook], place: Place, webhook_id: str, spec: WebhookSpec, revision_expected: int | None
) -> Answered:
    """Change a webhook; fields that are None stay."""

    async def load() -> tuple[Webhook, WebhookSpec]:
        return await _load(work, place, webhook_id), await _checked(work, spec)

    return await work.execute(load, lambda loaded: update_webhook(work.context, *loaded, revision_expected))


async def rotate(work: Work[WebhookWithKey], place: Place, webhook_id: str) -> Answered:
    """Give a webhook a new key; the old one keeps signing for a while."""

    async def load() -> tuple[Webhook, NewWebhookKey, Sealed]:
        webhook = await _load(work, place, webhook_id)
        present = (await _keys(work, webhook))[0]
        return webhook, _new_key(work), _sealed(work, present)

    return await work.execute(load, lambda loaded: rotate_key(work.context, *loaded))


async def delete(work: Work[Webhook], place: Place, webhook_id: str) -> Answered:
    return await work.execute(
        lambda: _load(work, place, webhook_id), lambda webhook: delete_webhook(work.context, webhook)
    )


async def ping(work: Work[DeliveryOutcome], place: Place, webhook_id: str) -> Answered:
    """Send a signed `ping` once, now, and answer with the outcome."""

    async def load() -> tuple[Webhook, DeliveryOutcome]:
        webhook = await _load(work, place, webhook_id)
        message = _ping(work, webhook)
        return webhook, await send(work.services, webhook.url, await _keys(work, webhook), message)

    return await work.execute(load, lambda loaded: tested(work.context, *loaded))


def _ping(work: Work[DeliveryOutcome], webhook: Webhook) -> DeliveryMessage:
    context = work.context
    body = b'{"type":"ping","webhook_id":"%b","occurred_at":"%b"}' % (
        webhook.id.encode(),
        context.now.isoformat().replace("+00:00", "Z").encode(),
    )
    message_id = f"{context.mint(Prefix.EVENT)}.{webhook.id}"
    return DeliveryMessage(message_id, body, context.correlation_id, context.trace_id)


async def _load(work: Work[Any], place: Place, webhook_id: str) -> Webhook:
    return require(await webhooks.find(work.database, work.acting, place.project_id, webhook_id), "webhook")


async def _keys(work: Work[Any], webhook: Webhook) -> list[bytes]:
    sealed = await webhooks.keys(work.database, work.acting, webhook.id, work.context.now)
    return [work.services.secrets.unseal(each) for each in sealed]


async def _checked(work: Work[Any], spec: WebhookSpec) -> WebhookSpec:
    """The spec with its URL in ASCII; refuses a URL that resolves to a forbidden address."""
    if spec.url is None:
        return spec
    url = ascii_url(spec.url)
    await work.services.outbound.check(url)
    return replace(spec, url=url)


def _new_key(work: Work[Any]) -> NewWebhookKey:
    key = secrets.token_bytes(KEY_BYTES)
    return NewWebhookKey(KEY_PREFIX + base64.b64encode(key).decode(), _sealed(work, key))


def _sealed(work: Work[Any], key: bytes) -> Sealed:
    secret_id = work.context.mint(Prefix.SECRET)
    return work.services.secrets.seal(key, id=secret_id, tenant_id=work.acting.tenant_id, purpose=KEY_PURPOSE)
