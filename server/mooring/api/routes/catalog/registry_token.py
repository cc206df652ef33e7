"""The token service of the platform's own registry.

The registry sends its clients here. They present a token of the platform as the password of basic authentication, as
registry clients do, or as a bearer token. The requested access is reduced to what the caller may do: push to the
repositories of a place requires the right to register artifacts there, and pull requires the right to read them.
"""

import base64
import binascii
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from mooring.api.guess_limits import GuessKind
from mooring.api.request_context import RequestContext
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route, route_in
from mooring.api.schemas.kernel.fields import Shown, Strict
from mooring.api.source_check import require_source
from mooring.commands.identity.bootstrap import registry_pair
from mooring.core.identity.caller import Caller
from mooring.core.kernel.decision import AuditRecord
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix, is_id
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.gateways.registry.artifact_reader import PLATFORM_NAMESPACE
from mooring.gateways.registry.registry_token import granted, read_scopes
from mooring.storage.kernel.unit_of_work import record_read

PULL, PUSH = frozenset({"pull"}), frozenset({"pull", "push"})
NOTHING: frozenset[str] = frozenset()
Word = Annotated[str, Meta(max_length=4_000)]


class RegistryTokenQuery(Strict):
    """The access that a client of the registry asks for."""

    service: Annotated[str, Meta(max_length=200)] = ""
    scope: Word = ""
    account: Word = ""
    client_id: Word = ""
    offline_token: Word = ""


class RegistryToken(Shown):
    """A token for the registry, under both names that clients expect."""

    token: str
    access_token: str
    expires_in: int
    issued_at: str


class RegistryView(Shown):
    """The platform's own registry and its configuration."""

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
    """Exchange a token of this platform for a token for some repositories of its registry.

    Send the platform's token as the password of basic authentication, with any user name.
    """
    own = request.services.artifacts.own
    if own is None:
        raise Refusal(Code.NOT_FOUND, "this platform has no registry of its own")
    caller = await _caller(request)
    if caller.source_networks:
        context = replace(request.context, actor=caller.actor)
        await require_source(
            request.services, request.tools.guesses, caller, context, action="artifact.read", origin=request.origin
        )
    if caller.actor.break_glass_id is not None:
        context = replace(request.context, actor=caller.actor)
        audited = AuditRecord("artifact.read", "registry", None, caller.tenant_id, after={"scope": query.scope})
        await record_read(request.services.database, context, audited, request.origin)
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
    """Read the configuration of the platform's own registry: name, issuer and the certificate that it trusts."""
    settings = request.services.settings
    pair = await registry_pair(request.services)
    return RegistryView(
        url=settings.registry_url,
        service=settings.registry_service,
        issuer=settings.registry_issuer,
        certificate=pair.certificate_pem.decode("ascii"),
    )


def allowed_actions(authority: Authority, repository: str) -> frozenset[str]:
    """What a caller may do with a repository of the platform's own registry; its name begins with its place."""
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
            request.tools.guesses.wrong(GuessKind.TOKEN, request.origin.remote_address)
        raise


def _password(authorization: str) -> str:
    """The token from the header: the password of basic authentication, or a bearer token."""
    scheme, _, shown = authorization.partition(" ")
    if scheme.lower() == "bearer" and shown.strip():
        return shown.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(shown.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError) as error:
            raise Refusal(Code.UNAUTHENTICATED, "the Authorization header is not basic authentication") from error
    raise Refusal(Code.UNAUTHENTICATED, "a token is needed: as the password of basic authentication")
