"""Endpoints of service accounts and their keys."""

import base64
import binascii
from functools import partial

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
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
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered
from mooring.core.identity.service_account import AccountWish, ServiceAccountTrigger
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.storage.identity import service_account as accounts

HERE = (Scope.PROJECT,)
PATH = "/service-accounts"
ONE = PATH + "/{service_account_id}"
NOUN = "service_account"


@route_in(HERE, "GET", PATH, Declared(NOUN, "list", "service_account.read", answer=Page[ServiceAccountView]))
async def list_service_accounts(call: Call, query: PageQuery) -> Page[ServiceAccountView]:
    """List a project's service accounts; deleted ones are readable by id only."""
    project_id = str(call.place.project_id)
    after = start(query, NOUN)
    rows = await accounts.page(call.services.database, call.acting, project_id, after, query.limit + 1)
    return page(rows, query, NOUN, lambda row: service_account_view(call.caller.authority, row))


@route_in(
    HERE,
    "POST",
    PATH,
    Declared(
        NOUN, "create", "service_account.create", 201, ServiceAccountView,
        errors=(Code.NAME_TAKEN, Code.GRANT_EXCEEDS_CEILING, Code.LIMIT_REACHED),
    ),
)  # fmt: skip
async def create_service_account(call: Call, body: CreateServiceAccount) -> Answered:
    """Make a service account with an explicit list of actions, at most those of its maker."""
    work = call.work(partial(service_account_view, call.caller.authority))
    key = None if body.public_key is None else read_key(body.public_key)
    wish = AccountWish(body.name, body.description, tuple(body.actions), key)
    return await commands.create(work, call.place, wish)


@route_in(HERE, "GET", ONE, Declared(NOUN, "get", "service_account.read", answer=ServiceAccountView))
async def get_service_account(call: Call, service_account_id: str, query: WaitQuery) -> ServiceAccountView:
    """Read a service account."""
    project_id = str(call.place.project_id)

    async def read() -> ServiceAccountView:
        row = await accounts.find(call.services.database, call.acting, project_id, service_account_id)
        return service_account_view(call.caller.authority, found(row, "service account"))

    return await waited(call, query, service_account_id, read)


@route_in(
    HERE,
    "PATCH",
    ONE,
    Declared(
        NOUN, "update", "service_account.update", answer=ServiceAccountView,
        errors=(Code.REVISION_CONFLICT, Code.GRANT_EXCEEDS_CEILING),
    ),
)  # fmt: skip
async def update_service_account(call: Call, service_account_id: str, body: UpdateServiceAccount) -> Answered:
    """Change a service account's list of actions or its description."""
    work = call.work(partial(service_account_view, call.caller.authority))
    actions = None if body.actions is None else tuple(body.actions)
    ids = (str(call.place.project_id), service_account_id)
    return await commands.update(work, ids, actions, body.description, body.revision)


async def _move(call: Call, service_account_id: str, trigger: ServiceAccountTrigger) -> Answered:
    work = call.work(partial(service_account_view, call.caller.authority))
    return await commands.move(work, (str(call.place.project_id), service_account_id), trigger)


@route_in(
    HERE,
    "POST",
    ONE + "/disable",
    Declared(
        NOUN,
        "disable",
        "service_account.disable",
        answer=ServiceAccountView,
        errors=(Code.ILLEGAL_TRANSITION,),
    ),
)
async def disable_service_account(call: Call, service_account_id: str) -> Answered:
    """Switch a service account off: its tokens count no more."""
    return await _move(call, service_account_id, ServiceAccountTrigger.DISABLE)


@route_in(
    HERE,
    "POST",
    ONE + "/enable",
    Declared(NOUN, "enable", "service_account.enable", answer=ServiceAccountView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def enable_service_account(call: Call, service_account_id: str) -> Answered:
    """Switch a service account on again."""
    return await _move(call, service_account_id, ServiceAccountTrigger.ENABLE)


@route_in(
    HERE,
    "DELETE",
    ONE,
    Declared(NOUN, "delete", "service_account.delete", answer=ServiceAccountView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def delete_service_account(call: Call, service_account_id: str) -> Answered:
    """Delete a service account for ever; its record stays readable."""
    return await _move(call, service_account_id, ServiceAccountTrigger.DELETE)


@route_in(
    HERE,
    "GET",
    ONE + "/keys",
    Declared("service_account_key", "list", "service_account.read", answer=Page[KeyView]),
)
async def list_service_account_keys(call: Call, service_account_id: str) -> Page[KeyView]:
    """List the public keys of a service account, revoked ones too."""
    database, project_id = call.services.database, str(call.place.project_id)
    account = found(await accounts.find(database, call.acting, project_id, service_account_id), "service account")
    keys = await accounts.keys(database, call.acting, account.id)
    return Page(items=[key_view(key) for key in keys])


@route_in(
    HERE,
    "POST",
    ONE + "/keys",
    Declared(
        "service_account_key", "create", "service_account.key.create", 201, KeyView,
        errors=(Code.NAME_TAKEN, Code.LIMIT_REACHED),
    ),
)  # fmt: skip
async def create_service_account_key(call: Call, service_account_id: str, body: CreateKey) -> Answered:
    """Add a public key: add the new one, switch over, revoke the old one, and the key is rotated."""
    ids = (str(call.place.project_id), service_account_id)
    return await commands.create_key(call.work(key_view), ids, read_key(body.public_key), body.expires_at)


@route_in(
    HERE,
    "DELETE",
    ONE + "/keys/{key_id}",
    Declared("service_account_key", "revoke", "service_account.key.revoke", answer=KeyView),
)
async def revoke_service_account_key(call: Call, service_account_id: str, key_id: str) -> Answered:
    """Revoke a key, and with it every token that was made with it."""
    ids = (str(call.place.project_id), service_account_id)
    return await commands.revoke(call.work(key_view), ids, key_id)


def read_key(text: str) -> bytes:
    """The bytes of a public key in base64 of either alphabet."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error) as error:
        raise invalid("public_key", "the 32 bytes of an Ed25519 public key, in base64") from error
