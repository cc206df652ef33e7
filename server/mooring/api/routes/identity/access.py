"""Endpoints for sign-in, tokens, the caller itself, and break-glass."""

from datetime import timedelta
from functools import partial

from mooring.api.browser_session import clear_cookie, require_console_header, set_cookie
from mooring.api.guess_limits import GuessKind
from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route, route_in
from mooring.api.schemas.identity.access import (
    AccessToken,
    BreakGlassOpened,
    BreakGlassView,
    BrowserSessionView,
    ChangePassword,
    CreateToken,
    OpenBreakGlass,
    SignedInView,
    SignIn,
    TokenCreated,
    TokenGrant,
    TokenView,
    WhoAmI,
    break_glass_opened,
    break_glass_view,
    token_created,
    token_view,
    who_am_i,
)
from mooring.api.schemas.identity.tenancy import user_view
from mooring.api.sign_in_attempt import begin_sign_in
from mooring.api.source_check import require_source_of_sign_in
from mooring.commands.identity import sign_in as signing_in
from mooring.commands.identity import token as commands
from mooring.commands.identity import user as user_commands
from mooring.commands.identity.token_exchange import exchange_token
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.identity.token import PersonalTokenSpec, TokenKind
from mooring.core.identity.user import User
from mooring.core.kernel.decision import PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Authority, Scope
from mooring.gateways.passwords import new_token
from mooring.storage.identity import break_glass as entries
from mooring.storage.identity import project as projects
from mooring.storage.identity import token as tokens
from mooring.storage.identity import user as users
from mooring.storage.kernel.database import Acting

EXCHANGE = "/oauth/token"


@route(
    "POST",
    "/sign-in",
    Scope.PUBLIC,
    RouteSpec(
        "session",
        "create",
        PUBLIC_ACTION,
        answer=SignedInView,
        errors=(Code.SIGN_IN_REFUSED, Code.CALLER_ADDRESS_DENIED),
    ),
)
async def sign_in(request: RequestContext, body: SignIn) -> SignedInView:
    """Sign a person in with a password or a one-time code; the answer is a short-lived session token.

    A user of a tenant gives the tenant's slug; a user of the platform does not. With a one-time code, `new_password`
    becomes the password, and the code cannot be used again. A code is valid for a day, unless the platform is set up
    otherwise. A new password has 12 to 200 characters, does not contain the local part of the e-mail address, and is
    not easy to guess, as a common password with a number would be.
    """
    signed_in = await _sign_in(request, body)
    return SignedInView(
        token=signed_in.secret,
        token_id=signed_in.token.id,
        expires_at=signed_in.token.expires_at,
        user=user_view(Authority(), signed_in.user),
    )


@route(
    "POST",
    "/browser-session",
    Scope.PUBLIC,
    RouteSpec(
        "session",
        "open_in_browser",
        PUBLIC_ACTION,
        answer=BrowserSessionView,
        errors=(Code.SIGN_IN_REFUSED, Code.CALLER_ADDRESS_DENIED, Code.CROSS_SITE_REQUEST),
    ),
)
async def open_browser_session(request: RequestContext, body: SignIn) -> Response:
    """Sign a person in as `/sign-in` does, and store the session in a cookie that no script can read.

    The session lasts twelve hours. Requests that change something need the header `X-Mooring-Console` besides the
    cookie, and every request must come from a page of this platform.
    """
    require_console_header(request.headers)
    signed_in = await _sign_in(request, body, in_browser=True)
    token = signed_in.token
    view = BrowserSessionView(
        token_id=token.id, expires_at=token.expires_at, user=user_view(Authority(), signed_in.user)
    )
    seconds = int((token.expires_at - token.created_at).total_seconds())
    return Response(200, encode_json(view), headers=set_cookie(signed_in.secret, seconds))


@route(
    "DELETE",
    "/browser-session",
    Scope.SELF,
    RouteSpec("session", "close_in_browser", "token.revoke", answer=TokenView, errors=(Code.CROSS_SITE_REQUEST,)),
)
async def close_browser_session(request: RequestContext) -> Response:
    """Sign out: revoke the token of this session, close its open streams, and remove the cookie."""
    token_id = require(request.caller.actor.token_id, "token")
    answered = await commands.revoke(request.work(token_view), token_id)
    return Response(answered.status, answered.body, headers=clear_cookie())


async def _sign_in(request: RequestContext, body: SignIn, *, in_browser: bool = False) -> signing_in.SignedIn:
    offered = signing_in.SignInCredentials(
        body.tenant, body.email, body.password, body.one_time_code, body.new_password
    )
    if body.tenant is not None:
        await require_source_of_sign_in(
            request.services, request.tools.guesses, request.context, body.tenant, origin=request.origin
        )
    guessed, undo = await begin_sign_in(request, body.tenant, body.email, has_password=body.one_time_code is None)
    try:
        signed_in = await signing_in.sign_in(
            request.services,
            request.context,
            offered,
            request.origin,
            guessed=guessed,
            user_agent=request.headers.get("user-agent"),
            in_browser=in_browser,
        )
    except Refusal as refusal:
        if refusal.code is not Code.SIGN_IN_REFUSED:
            undo()
        raise
    undo()
    return signed_in


@route(
    "POST",
    EXCHANGE,
    Scope.PUBLIC,
    RouteSpec(
        "session",
        "exchange",
        PUBLIC_ACTION,
        answer=AccessToken,
        form=True,
        errors=(Code.ASSERTION_REFUSED, Code.CALLER_ADDRESS_DENIED),
    ),
)
async def exchange_assertion(request: RequestContext, body: TokenGrant) -> AccessToken:
    """Exchange a signed assertion of a service account, or of a node, for a short-lived token (RFC 7523).

    The assertion is a JWT signed with EdDSA: `kid` the key's id (`signing` for a node), `iss` and `sub` the account's
    or the node's id, `aud` this endpoint's address, `exp` at most five minutes after `iat`, and a `jti` that was never
    used before.
    """
    audiences = tuple(f"{address}/api/v1{EXCHANGE}" for address in request.tools.addresses)
    guessed = partial(request.tools.guesses.wrong, GuessKind.ASSERTION, request.origin.remote_address)
    exchanged = await exchange_token(
        request.services, request.context, body.assertion, audiences, request.origin, guessed=guessed
    )
    seconds = int((exchanged.token.expires_at - exchanged.token.created_at).total_seconds())
    return AccessToken(access_token=exchanged.secret, token_type="Bearer", expires_in=seconds)


@route("GET", "/whoami", Scope.SELF, RouteSpec("whoami", "get", "self.read", answer=WhoAmI))
async def get_whoami(request: RequestContext) -> WhoAmI:
    """Read who the caller is, and what they may do in which place."""
    return who_am_i(request.caller, await _own_user(request), await _own_projects(request))


async def _own_user(request: RequestContext) -> User | None:
    """The person who calls; inside a break-glass entry that is a user of the platform."""
    actor = request.caller.actor
    if actor.kind is not PrincipalKind.USER:
        return None
    acting = Acting() if actor.break_glass_id is not None else request.acting
    return await users.find(request.services.database, acting, actor.id)


async def _own_projects(request: RequestContext) -> dict[str, str]:
    """The slug of the project that a service account belongs to; it may know it without `project.read`."""
    if request.caller.actor.kind is not PrincipalKind.SERVICE_ACCOUNT:
        return {}
    found = [
        await projects.find(request.services.database, request.acting, project_id)
        for project_id in list(request.caller.authority.projects)[:1]
    ]
    return {each.id: each.slug for each in found if each is not None}


@route(
    "POST",
    "/whoami/password",
    Scope.SELF,
    RouteSpec("whoami", "change_password", "self.update", 204, errors=(Code.SIGN_IN_REFUSED,)),
)
async def change_own_password(request: RequestContext, body: ChangePassword) -> Answered:
    """Change the caller's own password; it invalidates every older token except the one in use."""
    # Counted in advance: a stolen token must not help to guess the password.
    undo = request.tools.guesses.begin(GuessKind.PASSWORD_CHANGE, request.caller.actor.id)
    wanted = (body.current_password, body.new_password)
    try:
        answered = await user_commands.change_own_password(request.work(lambda _: None), *wanted)
    except Refusal as refusal:
        if refusal.code not in (Code.SIGN_IN_REFUSED, Code.VALIDATION_FAILED):  # to estimate a password takes long
            undo()
        raise
    undo()
    return answered


@route("GET", "/tokens", Scope.SELF, RouteSpec("token", "list", "token.read", answer=Page[TokenView]))
async def list_tokens(request: RequestContext, query: PageQuery) -> Page[TokenView]:
    """List the caller's own tokens that are neither revoked nor expired."""
    window = page_window(query, "token")
    rows = await tokens.list_own(
        request.services.database, request.acting, request.caller.actor.id, request.context.now, window
    )
    return page(rows, query, "token", partial(token_view, used=request.caller.actor.token_id))


@route(
    "POST",
    "/tokens",
    Scope.SELF,
    RouteSpec(
        "token",
        "create",
        "token.create",
        201,
        TokenCreated,
        one_time_secret=True,
        errors=(Code.LIMIT_REACHED,),
    ),
)
async def create_token(request: RequestContext, body: CreateToken) -> Answered:
    """Create a personal access token; it is shown only once.

    `actions` limits the token to these action keys; a token never allows more than its owner may do.
    """
    secret = new_token(TokenKind.PERSONAL)
    work = request.work(partial(token_created, secret=secret))
    spec = PersonalTokenSpec(body.name, timedelta(seconds=body.expires_in_seconds), body.actions)
    return await commands.create_personal(work, secret, spec, request.headers.get("user-agent"))


@route("GET", "/tokens/{token_id}", Scope.SELF, RouteSpec("token", "get", "token.read", answer=TokenView))
async def get_token(request: RequestContext, token_id: str) -> TokenView:
    """Read one of the caller's own tokens, never its secret."""
    row = await tokens.find_own(request.services.database, request.acting, token_id, request.caller.actor.id)
    return token_view(require(row, "token"), request.caller.actor.token_id)


@route("DELETE", "/tokens/{token_id}", Scope.SELF, RouteSpec("token", "revoke", "token.revoke", answer=TokenView))
async def revoke_token(request: RequestContext, token_id: str) -> Answered:
    """Revoke one of the caller's own tokens and close its open streams."""
    return await commands.revoke(request.work(token_view), token_id)


@route(
    "POST",
    "/tokens/end-other-sessions",
    Scope.SELF,
    RouteSpec("token", "end_other_sessions", "self.update", 204),
)
async def end_other_sessions(request: RequestContext) -> Answered:
    """End every session of the caller except the one in use, and close their open streams; personal tokens stay."""
    return await user_commands.end_own_other_sessions(request.work(lambda _: None))


@route(
    "POST",
    "/platform/break-glass",
    Scope.PLATFORM,
    RouteSpec("break_glass", "open", "break_glass.open", 201, BreakGlassOpened, one_time_secret=True),
)
async def open_break_glass(request: RequestContext, body: OpenBreakGlass) -> Answered:
    """Enter a tenant for a bounded time, with a stated reason that the tenant can read too."""
    secret = new_token(TokenKind.BREAK_GLASS)
    work = request.work(partial(break_glass_opened, secret=secret))
    return await commands.enter(work, secret, body.tenant_id, body.role, body.reason)


@route_in(
    (Scope.PLATFORM, Scope.TENANT),
    "GET",
    "/break-glass",
    RouteSpec("break_glass", "list", "break_glass.read", answer=Page[BreakGlassView]),
)
async def list_break_glass(request: RequestContext, query: PageQuery) -> Page[BreakGlassView]:
    """List who entered which tenant, when and why."""
    rows = await entries.page(request.services.database, request.acting, page_window(query, "break_glass"))
    return page(rows, query, "break_glass", break_glass_view)
