"""Endpoints for service accounts and their keys."""

import base64
import binascii
from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.identity.access import (
    CreateKey,
    CreateServiceAccount,
    KeyView,
    ServiceAccountView,
    UpdateServiceAccount,
    key_view,
    service_account_view,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.identity import service_account as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.identity.service_account import ServiceAccountSpec, ServiceAccountTrigger
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.storage.identity import service_account as accounts

HERE = (Scope.PROJECT,)
PATH = "/service-accounts"
ONE = PATH + "/{service_account_id}"
NOUN = "service_account"


@route_in(HERE, "GET", PATH, RouteSpec(NOUN, "list", "service_account.read", answer=Page[ServiceAccountView]))
async def list_service_accounts(request: RequestContext, query: PageQuery) -> Page[ServiceAccountView]:
    """List a project's service accounts; deleted ones can only be read by id."""
    project_id = str(request.place.project_id)
    window = page_window(query, NOUN)
    rows = await accounts.page(request.services.database, request.acting, project_id, window)
    return page(rows, query, NOUN, lambda row: service_account_view(request.caller.authority, row))


@route_in(
    HERE,
    "POST",
    PATH,
    RouteSpec(
        NOUN,
        "create",
        "service_account.create",
        201,
        ServiceAccountView,
        errors=(Code.NAME_TAKEN, Code.GRANT_EXCEEDS_CEILING, Code.LIMIT_REACHED),
    ),
)
async def create_service_account(request: RequestContext, body: CreateServiceAccount) -> Answered:
    """Create a service account with an explicit list of actions, at most those of its creator."""
    work = request.work(partial(service_account_view, request.caller.authority))
    key = None if body.public_key is None else read_key(body.public_key)
    spec = ServiceAccountSpec(body.name, body.description, tuple(body.actions), key)
    return await commands.create(work, request.place, spec)


@route_in(HERE, "GET", ONE, RouteSpec(NOUN, "get", "service_account.read", answer=ServiceAccountView))
async def get_service_account(request: RequestContext, service_account_id: str, query: WaitQuery) -> ServiceAccountView:
    """Read a service account."""
    project_id = str(request.place.project_id)

    async def read() -> ServiceAccountView:
        row = await accounts.find(request.services.database, request.acting, project_id, service_account_id)
        return service_account_view(request.caller.authority, require(row, "service account"))

    return await waited(request, query, service_account_id, read)


@route_in(
    HERE,
    "PATCH",
    ONE,
    RouteSpec(
        NOUN,
        "update",
        "service_account.update",
        answer=ServiceAccountView,
        errors=(Code.REVISION_CONFLICT, Code.GRANT_EXCEEDS_CEILING),
    ),
)
async def update_service_account(
    request: RequestContext, service_account_id: str, body: UpdateServiceAccount
) -> Answered:
    """Change a service account's list of actions or its description."""
    work = request.work(partial(service_account_view, request.caller.authority))
    actions = None if body.actions is None else tuple(body.actions)
    return await commands.update(
        work,
        str(request.place.project_id),
        service_account_id,
        actions=actions,
        description=body.description,
        revision_seen=body.revision,
    )


async def _move(request: RequestContext, service_account_id: str, trigger: ServiceAccountTrigger) -> Answered:
    work = request.work(partial(service_account_view, request.caller.authority))
    return await commands.move(work, str(request.place.project_id), service_account_id, trigger)


@route_in(
    HERE,
    "POST",
    ONE + "/disable",
    RouteSpec(
        NOUN,
        "disable",
        "service_account.disable",
        answer=ServiceAccountView,
        errors=(Code.ILLEGAL_TRANSITION,),
    ),
)
async def disable_service_account(request: RequestContext, service_account_id: str) -> Answered:
    """Switch a service account off; its tokens are no longer accepted."""
    return await _move(request, service_account_id, ServiceAccountTrigger.DISABLE)


@route_in(
    HERE,
    "POST",
    ONE + "/enable",
    RouteSpec(NOUN, "enable", "service_account.enable", answer=ServiceAccountView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def enable_service_account(request: RequestContext, service_account_id: str) -> Answered:
    """Switch a service account on again."""
    return await _move(request, service_account_id, ServiceAccountTrigger.ENABLE)


@route_in(
    HERE,
    "DELETE",
    ONE,
    RouteSpec(NOUN, "delete", "service_account.delete", answer=ServiceAccountView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def delete_service_account(request: RequestContext, service_account_id: str) -> Answered:
    """Permanently delete a service account; its record stays readable."""
    return await _move(request, service_account_id, ServiceAccountTrigger.DELETE)


@route_in(
    HERE,
    "GET",
    ONE + "/keys",
    RouteSpec("service_account_key", "list", "service_account.read", answer=Page[KeyView]),
)
async def list_service_account_keys(request: RequestContext, service_account_id: str) -> Page[KeyView]:
    """List the public keys of a service account, including revoked ones."""
    database, project_id = request.services.database, str(request.place.project_id)
    account = require(await accounts.find(database, request.acting, project_id, service_account_id), "service account")
    keys = await accounts.keys(database, request.acting, account.id)
    return Page(items=[key_view(key) for key in keys])


@route_in(
    HERE,
    "POST",
    ONE + "/keys",
    RouteSpec(
        "service_account_key",
        "create",
        "service_account.key.create",
        201,
        KeyView,
        errors=(Code.NAME_TAKEN, Code.LIMIT_REACHED),
    ),
)
async def create_service_account_key(request: RequestContext, service_account_id: str, body: CreateKey) -> Answered:
    """Add a public key. To rotate a key: add the new one, switch to it, revoke the old one."""
    project_id, public_key = str(request.place.project_id), read_key(body.public_key)
    return await commands.create_key(
        request.work(key_view), project_id, service_account_id, public_key, body.expires_at
    )


@route_in(
    HERE,
    "DELETE",
    ONE + "/keys/{key_id}",
    RouteSpec("service_account_key", "revoke", "service_account.key.revoke", answer=KeyView),
)
async def revoke_service_account_key(request: RequestContext, service_account_id: str, key_id: str) -> Answered:
    """Revoke a key, and with it every token that was issued with it."""
    project_id = str(request.place.project_id)
    return await commands.revoke(request.work(key_view), project_id, service_account_id, key_id)


def read_key(text: str) -> bytes:
    """The bytes of a public key; both base64 alphabets are accepted."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error) as error:
        raise invalid("public_key", "the 32 bytes of an Ed25519 public key, in base64") from error
