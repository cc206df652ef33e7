"""Endpoints of identity providers: admins set them up, and people sign in with them."""

import secrets
from functools import partial
from urllib.parse import urlencode

from mooring.api.browser_session import (
    clear_flow_cookie,
    flow_cookie,
    read_flow,
    require_console_header,
    set_cookie,
)
from mooring.api.guess_limits import GuessKind, site_of
from mooring.api.own_address import host_name, own_address
from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route, route_in
from mooring.api.schemas.identity.identity_provider import (
    BeginProviderSignIn,
    CreateIdentityProvider,
    IdentityProviderView,
    OfferedProvider,
    ProviderAnswerQuery,
    ProviderSignInBegun,
    SignInMethods,
    SignInMethodsQuery,
    UpdateIdentityProvider,
    provider_spec,
    provider_view,
    redirect_uri,
)
from mooring.commands.identity import identity_provider as commands
from mooring.commands.identity import provider_sign_in as signing_in
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.identity_provider import IdentityProvider
from mooring.core.identity.token import token_maker
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import identity_provider as providers

HOMES = (Scope.PLATFORM, Scope.TENANT)
PATH = "/identity-providers"
ONE = PATH + "/{identity_provider_id}"
CONSOLE = "/console"
SIGN_IN_PAGE = f"{CONSOLE}/sign-in"


def _address(request: RequestContext) -> str | None:
    return next(iter(request.tools.addresses), None)


def _work(request: RequestContext) -> Work[IdentityProvider]:
    return request.work(partial(provider_view, request.caller.authority, _address(request)))


@route_in(
    HOMES,
    "GET",
    PATH,
    RouteSpec("identity_provider", "list", "identity_provider.read", answer=Page[IdentityProviderView]),
)
async def list_identity_providers(request: RequestContext, query: PageQuery) -> Page[IdentityProviderView]:
    """List the identity providers of a tenant, or of the platform, never their secrets."""
    rows = await providers.page(request.services.database, request.acting, page_window(query, "identity_provider"))
    return page(rows, query, "identity_provider", partial(provider_view, request.caller.authority, _address(request)))


@route_in(
    HOMES,
    "POST",
    PATH,
    RouteSpec(
        "identity_provider",
        "create",
        "identity_provider.update",
        201,
        IdentityProviderView,
        errors=(Code.ADDRESS_REFUSED, Code.GRANT_EXCEEDS_CEILING, Code.LIMIT_REACHED, Code.NAME_TAKEN),
    ),
)
async def create_identity_provider(request: RequestContext, body: CreateIdentityProvider) -> Answered:
    """Set up an OpenID Connect provider that people of this place can sign in with.

    The caller must hold every key of each role that a group gives. The answer has the redirect URI to register there.
    """
    return await commands.create(_work(request), body.issuer, provider_spec(body), body.client_secret)


@route_in(
    HOMES,
    "GET",
    ONE,
    RouteSpec("identity_provider", "get", "identity_provider.read", answer=IdentityProviderView),
)
async def get_identity_provider(request: RequestContext, identity_provider_id: str) -> IdentityProviderView:
    """Read an identity provider, never its secret."""
    found = await providers.find(request.services.database, request.acting, identity_provider_id)
    return provider_view(request.caller.authority, _address(request), require(found, "identity provider"))


@route_in(
    HOMES,
    "PATCH",
    ONE,
    RouteSpec(
        "identity_provider",
        "update",
        "identity_provider.update",
        answer=IdentityProviderView,
        errors=(Code.GRANT_EXCEEDS_CEILING, Code.REVISION_CONFLICT),
    ),
)
async def update_identity_provider(
    request: RequestContext, identity_provider_id: str, body: UpdateIdentityProvider
) -> Answered:
    """Change, disable or enable an identity provider; what it gave before stays until its users sign in again."""
    return await commands.update(
        _work(request), identity_provider_id, provider_spec(body), body.client_secret, revision=body.revision
    )


@route_in(HOMES, "DELETE", ONE, RouteSpec("identity_provider", "delete", "identity_provider.update", 204))
async def delete_identity_provider(request: RequestContext, identity_provider_id: str) -> Answered:
    """Delete an identity provider; its users stay with their roles, and need another way to sign in."""
    return await commands.delete(request.work(lambda _: None), identity_provider_id)


@route("GET", "/sign-in/methods", Scope.PUBLIC, RouteSpec("session", "methods", PUBLIC_ACTION, answer=SignInMethods))
async def get_sign_in_methods(request: RequestContext, query: SignInMethodsQuery) -> SignInMethods:
    """Read how people of a tenant, or of the platform, can sign in.

    A tenant that does not exist looks like one without providers.
    """
    offered = await providers.offered(request.services.database, query.tenant)
    host = request.services.settings.public_url or f"http://{request.headers.get('host', '')}"
    return SignInMethods(
        password=True,
        passkey=host_name(host) is not None,
        identity_providers=[OfferedProvider(id=id_, name=name) for id_, name in offered],
    )


@route(
    "POST",
    "/sign-in/providers",
    Scope.PUBLIC,
    RouteSpec(
        "session",
        "begin_at_provider",
        PUBLIC_ACTION,
        answer=ProviderSignInBegun,
        errors=(Code.CROSS_SITE_REQUEST, Code.NOT_FOUND, Code.SIGN_IN_REFUSED),
    ),
)
async def begin_provider_sign_in(request: RequestContext, body: BeginProviderSignIn) -> Response:
    """Begin to sign in at an identity provider: for pages of the console, which then go to the answer's address.

    The answer stores a cookie that binds the sign-in to this browser for ten minutes.
    """
    require_console_header(request.headers)
    settings = request.services.settings
    address = own_address(request.headers, settings.public_url, request.tools.addresses)
    request.tools.sign_in_starts.take(site_of(request.origin.remote_address))
    flow_secret = secrets.token_urlsafe(32)
    back = redirect_uri(address, body.identity_provider_id)
    url = await signing_in.begin(request.services, request.context, body.identity_provider_id, back, flow_secret)
    headers = flow_cookie(flow_secret, address, body.to)
    return Response(200, encode_json(ProviderSignInBegun(authorization_url=url)), headers=headers)


@route(
    "GET",
    "/sign-in/providers/{identity_provider_id}/callback",
    Scope.PUBLIC,
    RouteSpec("session", "finish_at_provider", PUBLIC_ACTION, 303, hidden=True),
)
async def finish_provider_sign_in(
    request: RequestContext, identity_provider_id: str, query: ProviderAnswerQuery
) -> Response:
    """Finish to sign in at an identity provider: the browser comes back from there, and goes on to the console."""
    flow = read_flow(request.headers)
    answer = signing_in.ProviderAnswer(
        provider_id=identity_provider_id,
        redirect_uri=redirect_uri(flow.address, identity_provider_id),
        flow_secret=flow.secret,
        state=query.state,
        code=query.code,
        error=query.error,
        issuer=query.iss,
    )
    address = request.origin.remote_address
    guessed = partial(request.tools.guesses.wrong, GuessKind.SIGN_IN, address, identity_provider_id)
    maker = token_maker(address, request.headers.get("user-agent"))
    try:
        signed_in = await signing_in.finish(
            request.services, request.context, answer, request.origin, maker=maker, guessed=guessed
        )
    except Refusal as refusal:
        return _to_sign_in_page(request, refusal, flow.to)
    token = signed_in.token
    seconds = int((token.expires_at - token.created_at).total_seconds())
    return Response(303, b"", headers={"location": f"{CONSOLE}{flow.to}", **set_cookie(signed_in.secret, seconds)})


def _to_sign_in_page(request: RequestContext, refusal: Refusal, to: str) -> Response:
    """The console's page says what went wrong; it gets a code and a correlation id, and no text that it would show."""
    reason = str(refusal.details.get("reason", refusal.code.value))
    said = {"problem": reason, "correlation": request.context.correlation_id, "to": to}
    return Response(303, b"", headers={"location": f"{SIGN_IN_PAGE}?{urlencode(said)}", **clear_flow_cookie()})
