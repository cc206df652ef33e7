"""Endpoints of passkeys: people manage their own, and sign in with them."""

from collections.abc import Callable
from functools import partial

from mooring.api.browser_session import require_console_header, set_cookie
from mooring.api.guess_limits import GuessKind, site_of
from mooring.api.own_address import host_of, own_address, page_address
from mooring.api.page import Page
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route
from mooring.api.schemas.identity.access import BrowserSessionView
from mooring.api.schemas.identity.passkey import (
    PasskeyOptions,
    PasskeySignIn,
    PasskeyView,
    RegisterPasskey,
    RenamePasskey,
    passkey_view,
)
from mooring.api.schemas.identity.tenancy import user_view
from mooring.commands.identity import passkey as commands
from mooring.commands.kernel.work import Answered
from mooring.core.identity.token import TokenKind, token_maker
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Authority, Scope
from mooring.storage.identity import passkey as passkeys

PATH = "/whoami/passkeys"
ONE = PATH + "/{passkey_id}"


def _host_of(request: RequestContext) -> Callable[[str], str | None]:
    settings = request.services.settings
    return partial(host_of, request.headers, settings.public_url, request.tools.addresses)


@route("GET", PATH, Scope.SELF, RouteSpec("passkey", "list", "self.read", answer=Page[PasskeyView]))
async def list_passkeys(request: RequestContext) -> Page[PasskeyView]:
    """List the caller's passkeys; there are at most twenty."""
    rows = await passkeys.own(request.services.database, request.acting, request.caller.actor.id)
    return Page(items=[passkey_view(each) for each in rows], next_cursor=None)


@route(
    "POST",
    f"{PATH}/options",
    Scope.SELF,
    RouteSpec("passkey", "options", "self.update", answer=PasskeyOptions, read_only=True),
)
async def begin_passkey(request: RequestContext) -> PasskeyOptions:
    """Read what the browser needs to make a passkey: a challenge for the caller, valid for five minutes, among others.

    The passkey will belong to the host of the page; browsers make none for IP addresses.
    """
    request.tools.sign_in_starts.take(request.caller.actor.id)
    settings = request.services.settings
    address = page_address(request.headers, settings.public_url, request.tools.addresses)
    host = _host_of(request)(address) or ""
    options = await commands.registration_options(request.services, request.acting, request.context, host)
    return PasskeyOptions(public_key=options)


@route(
    "POST",
    PATH,
    Scope.SELF,
    RouteSpec("passkey", "register", "self.update", 201, PasskeyView, errors=(Code.LIMIT_REACHED, Code.NAME_TAKEN)),
)
async def register_passkey(request: RequestContext, body: RegisterPasskey) -> Answered:
    """Store a passkey that an authenticator made for the caller; only a session can, and no personal token."""
    if request.caller.token_kind != TokenKind.SESSION:
        raise Refusal(Code.PERMISSION_DENIED, "only a session can register a passkey", {"action": "self.update"})
    answer = commands.RegistrationAnswer(
        body.credential_id, body.client_data, body.attestation, body.transports, _host_of(request)
    )
    return await commands.register(request.work(passkey_view), body.name, answer)


@route("PATCH", ONE, Scope.SELF, RouteSpec("passkey", "rename", "self.update", answer=PasskeyView))
async def rename_passkey(request: RequestContext, passkey_id: str, body: RenamePasskey) -> Answered:
    """Give one of the caller's passkeys another name."""
    return await commands.rename(request.work(passkey_view), passkey_id, body.name)


@route("DELETE", ONE, Scope.SELF, RouteSpec("passkey", "delete", "self.update", 204))
async def delete_passkey(request: RequestContext, passkey_id: str) -> Answered:
    """Delete one of the caller's passkeys; nobody can sign in with it any more."""
    return await commands.delete(request.work(lambda _: None), passkey_id)


@route(
    "POST",
    "/sign-in/passkey",
    Scope.PUBLIC,
    RouteSpec("session", "begin_with_passkey", PUBLIC_ACTION, answer=PasskeyOptions, errors=(Code.CROSS_SITE_REQUEST,)),
)
async def begin_passkey_sign_in(request: RequestContext) -> PasskeyOptions:
    """Read what the browser needs to sign somebody in with a passkey: a challenge, valid for five minutes."""
    require_console_header(request.headers)
    settings = request.services.settings
    address = own_address(request.headers, settings.public_url, request.tools.addresses)
    request.tools.sign_in_starts.take(site_of(request.origin.remote_address))
    options = await commands.sign_in_options(request.services, request.context, _host_of(request)(address) or "")
    return PasskeyOptions(public_key=options)


@route(
    "POST",
    "/browser-session/passkey",
    Scope.PUBLIC,
    RouteSpec(
        "session",
        "open_with_passkey",
        PUBLIC_ACTION,
        answer=BrowserSessionView,
        errors=(Code.SIGN_IN_REFUSED, Code.CALLER_ADDRESS_DENIED, Code.CROSS_SITE_REQUEST),
    ),
)
async def open_browser_session_with_passkey(request: RequestContext, body: PasskeySignIn) -> Response:
    """Sign a person in with a passkey, and store the session in a cookie that no script can read."""
    require_console_header(request.headers)
    address = request.origin.remote_address
    answer = commands.SignInAnswer(
        body.credential_id,
        body.client_data,
        body.authenticator_data,
        body.signature,
        body.user_handle,
        _host_of(request),
    )
    signed_in = await commands.sign_in(
        request.services,
        request.context,
        answer,
        request.origin,
        maker=token_maker(address, request.headers.get("user-agent")),
        guessed=partial(request.tools.guesses.wrong, GuessKind.SIGN_IN, address, body.credential_id),
    )
    token = signed_in.token
    view = BrowserSessionView(
        token_id=token.id, expires_at=token.expires_at, user=user_view(Authority(), signed_in.user)
    )
    seconds = int((token.expires_at - token.created_at).total_seconds())
    return Response(200, encode_json(view), headers=set_cookie(signed_in.secret, seconds))
