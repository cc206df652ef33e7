"""The token service of the platform's own registry.

The registry sends its clients here. They show a token of the platform's as a password, by basic authentication, as
registry clients do, or as a bearer token. What they ask for is cut down to what they may have: the repositories of a
place are pushed to by whoever may register artifacts there and pulled from by whoever may read them.
"""

import base64
import binascii
from typing import Annotated

from msgspec import Meta

from mooring.api.request_context import RequestContext
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route, route_in
from mooring.api.schemas.kernel.fields import Shown, Strict
from mooring.commands.identity.bootstrap import registry_pair
from mooring.core.identity.caller import Caller
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix, is_id
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.gateways.registry.artifact_reader import PLATFORM_NAMESPACE
from mooring.gateways.registry.registry_token import granted, read_scopes

PULL, PUSH = frozenset({"pull"}), frozenset({"pull", "push"})
NOTHING: frozenset[str] = frozenset()
Word = Annotated[str, Meta(max_length=4_000)]


class RegistryTokenQuery(Strict):
    """What a client of the registry asks for."""

    service: Annotated[str, Meta(max_length=200)] = ""
    scope: Word = ""
    account: Word = ""
    client_id: Word = ""
    offline_token: Word = ""


class RegistryToken(Shown):
    """A token for the registry; both names are in use."""

    token: str
    access_token: str
    expires_in: int
    issued_at: str


class RegistryView(Shown):
    """The platform's own registry, and what it is set up with."""

    url: str
    service: str
    issuer: str
    certificate: Annotated[str, Meta(description="For the registry's `auth.token.rootcertbundle`.")]


@route(
    "GET",
    "/registry/token",
    Scope.PUBLIC,
    RouteSpec(
        "registry",
        "token",
        PUBLIC_ACTION,
        answer=RegistryToken,
        errors=(Code.UNAUTHENTICATED, Code.VALIDATION_FAILED, Code.NOT_FOUND, Code.RATE_LIMITED),
    ),
)
async def get_registry_token(request: RequestContext, query: RegistryTokenQuery) -> RegistryToken:
    """Exchange a token of this platform for one that its registry takes, over some repositories.

    The token is the password of basic authentication, under any user name.
    """
    own = request.services.artifacts.own
    if own is None:
        raise Refusal(Code.NOT_FOUND, "this platform has no registry of its own")
    caller = await _caller(request)
    if query.service and query.service != own.issuer.service:
        raise Refusal(Code.VALIDATION_FAILED, f"service: {own.issuer.service}", {"path": "service"})
    given = granted(read_scopes([query.scope]), lambda repository: allowed_actions(caller.authority, repository))
    issued = own.issuer.issue(caller.actor.id, given)
    return RegistryToken(
        token=issued.token,
        access_token=issued.token,
        expires_in=issued.expires_in,
        issued_at=issued.issued_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


@route_in(
    (Scope.PLATFORM,), "GET", "/registry", RouteSpec("registry", "get", "artifact_source.read", answer=RegistryView)
)
async def get_registry(request: RequestContext) -> RegistryView:
    """Read how the platform's own registry is set up: name, issuer and the certificate that it trusts."""
    settings = request.services.settings
    pair = await registry_pair(request.services)
    return RegistryView(
        url=settings.registry_url,
        service=settings.registry_service,
        issuer=settings.registry_issuer,
        certificate=pair.certificate_pem.decode("ascii"),
    )


def allowed_actions(authority: Authority, repository: str) -> frozenset[str]:
    """What a caller may do with a repository of the platform's own registry, by the place that its name begins with."""
    first, _, rest = repository.partition("/")
    reads = [authority.tenant, *authority.projects.values()]
    if first == PLATFORM_NAMESPACE:
        if "artifact.create" in authority.platform:
            return PUSH
        return PULL if any("artifact.read" in held for held in (authority.platform, *reads)) else NOTHING
    if not is_id(first, Prefix.TENANT) or first != authority.tenant_id:
        return NOTHING
    second = rest.partition("/")[0]
    if is_id(second, Prefix.PROJECT):
        held = authority.at(Place(Scope.PROJECT, first, second))
        pulls = "artifact.read" in held
    else:
        held = authority.at(Place(Scope.TENANT, first))
        pulls = any("artifact.read" in each for each in reads)
    if "artifact.create" in held:
        return PUSH
    return PULL if pulls else NOTHING


async def _caller(request: RequestContext) -> Caller:
    try:
        return await request.tools.authenticator.caller(_password(request.headers.get("authorization", "")))
    except Refusal as refusal:
        if refusal.code is Code.UNAUTHENTICATED:
            request.tools.failures.take(f"address {request.origin.remote_address}")
        raise


def _password(authorization: str) -> str:
    """The token that was shown: as the password, or by itself."""
    scheme, _, shown = authorization.partition(" ")
    if scheme.lower() == "bearer" and shown.strip():
        return shown.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(shown.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError) as error:
            raise Refusal(Code.UNAUTHENTICATED, "the Authorization header is not basic authentication") from error
    raise Refusal(Code.UNAUTHENTICATED, "a token is needed: as the password of basic authentication")
