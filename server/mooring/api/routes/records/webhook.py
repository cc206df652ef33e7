"""Endpoints for webhooks and their deliveries, of the platform, of tenants and of projects."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.records.webhook import (
    CreateWebhook,
    DeliveryQuery,
    DeliveryView,
    ReplayedView,
    UpdateWebhook,
    WebhookKeyed,
    WebhookTested,
    WebhookView,
    delivery_view,
    replayed_view,
    webhook_keyed,
    webhook_tested,
    webhook_view,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.records import delivery as delivery_commands
from mooring.commands.records import webhook as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.records.delivery import Delivery, is_delivery_id
from mooring.core.records.webhook import Webhook, WebhookSpec, WebhookWithKey
from mooring.storage.records import delivery as deliveries
from mooring.storage.records import webhook as webhooks

PLACES = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)
PATH = "/webhooks"
ONE = PATH + "/{webhook_id}"
OUTBOX = "/deliveries"
LAST_ID = "~"  # sorts after every id


def _work(request: RequestContext) -> Work[Webhook]:
    return request.work(lambda webhook: webhook_view(request.caller.authority, webhook))


def _work_with_key(request: RequestContext) -> Work[WebhookWithKey]:
    return request.work(lambda made: webhook_keyed(request.caller.authority, made.webhook, made.key))


@route_in(PLACES, "GET", PATH, RouteSpec("webhook", "list", "webhook.read", answer=Page[WebhookView]))
async def list_webhooks(request: RequestContext, query: PageQuery) -> Page[WebhookView]:
    """List the webhooks of exactly this scope."""
    window = page_window(query, "webhook")
    rows = await webhooks.page(request.services.database, request.acting, request.place.project_id, window)
    return page(rows, query, "webhook", lambda row: webhook_view(request.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    PATH,
    RouteSpec(
        "webhook",
        "create",
        "webhook.create",
        201,
        WebhookKeyed,
        one_time_secret=True,
        errors=(Code.ADDRESS_REFUSED, Code.LIMIT_REACHED),
    ),
)
async def create_webhook(request: RequestContext, body: CreateWebhook) -> Answered:
    """Send the events of this scope to a URL.

    The answer has the signing key (`whsec_…`, in the form of Standard Webhooks), which is shown only once; a repeat
    with the same Idempotency-Key shows it again.
    """
    spec = WebhookSpec(body.url, tuple(body.event_types), body.description)
    return await commands.create(_work_with_key(request), request.place, spec)


@route_in(PLACES, "GET", ONE, RouteSpec("webhook", "get", "webhook.read", answer=WebhookView))
async def get_webhook(request: RequestContext, webhook_id: str, query: WaitQuery) -> WebhookView:
    """Read a webhook."""

    async def read() -> WebhookView:
        row = await webhooks.find(request.services.database, request.acting, request.place.project_id, webhook_id)
        return webhook_view(request.caller.authority, require(row, "webhook"))

    return await waited(request, query, webhook_id, read)


@route_in(
    PLACES,
    "PATCH",
    ONE,
    RouteSpec(
        "webhook",
        "update",
        "webhook.update",
        answer=WebhookView,
        errors=(Code.ADDRESS_REFUSED, Code.REVISION_CONFLICT),
    ),
)
async def update_webhook(request: RequestContext, webhook_id: str, body: UpdateWebhook) -> Answered:
    """Change a webhook's URL, event types or description, pause it, or resume it.

    While it is paused nothing is sent, and events from that time are never delivered to it.
    """
    types = None if body.event_types is None else tuple(body.event_types)
    spec = WebhookSpec(body.url, types, body.description, body.enabled)
    return await commands.update(_work(request), request.place, webhook_id, spec, body.revision)


@route_in(
    PLACES,
    "POST",
    ONE + "/rotate-key",
    RouteSpec("webhook", "rotate_key", "webhook.update", answer=WebhookKeyed, one_time_secret=True),
)
async def rotate_webhook_key(request: RequestContext, webhook_id: str) -> Answered:
    """Give a webhook a new signing key, which is shown only once.

    For 24 hours messages are signed with the old key as well, so that the receiver can switch over.
    """
    return await commands.rotate(_work_with_key(request), request.place, webhook_id)


@route_in(PLACES, "POST", ONE + "/test", RouteSpec("webhook", "test", "webhook.update", answer=WebhookTested))
async def test_webhook(request: RequestContext, webhook_id: str) -> Answered:
    """Send a signed `ping` to the receiver now, once, and return the outcome."""
    return await commands.ping(request.work(webhook_tested), request.place, webhook_id)


@route_in(PLACES, "DELETE", ONE, RouteSpec("webhook", "delete", "webhook.delete", 204))
async def delete_webhook(request: RequestContext, webhook_id: str) -> Answered:
    """Delete a webhook and its undelivered messages."""
    return await commands.delete(request.work(lambda _: None), request.place, webhook_id)


@route_in(PLACES, "GET", OUTBOX, RouteSpec("delivery", "list", "outbox.read", answer=Page[DeliveryView]))
async def list_deliveries(request: RequestContext, query: DeliveryQuery) -> Page[DeliveryView]:
    """List the deliveries of this scope's webhooks, newest first."""
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    wanted = deliveries.DeliveryFilter(None if query.status is None else query.status.value, query.webhook_id)
    window = page_window(pages, "delivery", LAST_ID)
    rows = await deliveries.page(request.services.database, request.acting, request.place.project_id, wanted, window)
    return page(rows, pages, "delivery", lambda row: delivery_view(request.caller.authority, row))


@route_in(PLACES, "GET", OUTBOX + "/{delivery_id}", RouteSpec("delivery", "get", "outbox.read", answer=DeliveryView))
async def get_delivery(request: RequestContext, delivery_id: str) -> DeliveryView:
    """Read a delivery."""
    _require_id(delivery_id)
    row = await deliveries.find(request.services.database, request.acting, request.place.project_id, delivery_id)
    return delivery_view(request.caller.authority, require(row, "delivery"))


@route_in(
    PLACES,
    "POST",
    OUTBOX + "/{delivery_id}/replay",
    RouteSpec("delivery", "replay", "outbox.replay", answer=DeliveryView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def replay_delivery(request: RequestContext, delivery_id: str) -> Answered:
    """Send a delivery again now, under the same id and with the full number of attempts."""
    _require_id(delivery_id)
    work: Work[Delivery] = request.work(lambda delivery: delivery_view(request.caller.authority, delivery))
    return await delivery_commands.replay_one(work, request.place, delivery_id)


@route_in(
    PLACES, "POST", OUTBOX + "/replay-dead", RouteSpec("delivery", "replay_dead", "outbox.replay", answer=ReplayedView)
)
async def replay_dead_deliveries(request: RequestContext) -> Answered:
    """Send the oldest dead letters of this scope again; `more` says whether to repeat the request."""
    return await delivery_commands.replay_all_dead(request.work(replayed_view), request.place)


def _require_id(delivery_id: str) -> None:
    """An id of the wrong form is answered like an unknown one."""
    require(delivery_id if is_delivery_id(delivery_id) else None, "delivery")
