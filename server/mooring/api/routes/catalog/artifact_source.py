"""Endpoints for allowed sources and trusted signer keys, of the platform and of tenants."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.catalog.artifact_source import (
    AddSignerKey,
    ArtifactSourceView,
    CreateArtifactSource,
    SignerKeyView,
    key_view,
    source_view,
)
from mooring.commands.catalog import artifact_source as commands
from mooring.commands.catalog import signer_key as key_commands
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.catalog.artifact_source import ArtifactSourceSpec
from mooring.core.catalog.artifact_trust import SignerKey
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import artifact_source as sources
from mooring.storage.catalog import signer_key as signer_keys

PLACES = (Scope.PLATFORM, Scope.TENANT)
READERS = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)
SOURCES = "/artifact-sources"
KEYS = "/signer-keys"
USE_SECRET = "project_secret.use"


@route_in(
    READERS,
    "GET",
    SOURCES,
    RouteSpec("artifact_source", "list", "artifact_source.read", answer=Page[ArtifactSourceView]),
)
async def list_artifact_sources(request: RequestContext, query: PageQuery) -> Page[ArtifactSourceView]:
    """List the sources that apply in this place: the platform's and the tenant's own."""
    rows = await sources.page(request.services.database, request.acting, page_window(query, "artifact_source"))
    return page(rows, query, "artifact_source", lambda row: source_view(request.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    SOURCES,
    RouteSpec(
        "artifact_source",
        "create",
        "artifact_source.update",
        201,
        ArtifactSourceView,
        errors=(Code.LIMIT_REACHED, Code.NAME_TAKEN),
        also=(USE_SECRET,),
    ),
)
async def create_artifact_source(request: RequestContext, body: CreateArtifactSource) -> Answered:
    """Allow artifacts from a source.

    A tenant's source may name a credential for a private registry. Everybody in the tenant who may register artifacts
    can then read from it, and nodes pull from it with a short-lived token where the registry has a token service.
    """
    spec = ArtifactSourceSpec(body.name, body.pattern, body.reaches_private)
    asked = None
    if body.credential is not None:
        request.require_also(USE_SECRET)
        asked = commands.CredentialRequest(
            body.credential.username, body.credential.secret_id, body.credential.token_host
        )
    work: Work[ArtifactSource] = request.work(lambda made: source_view(request.caller.authority, made))
    return await commands.create(work, spec, asked)


@route_in(
    PLACES, "DELETE", SOURCES + "/{source_id}", RouteSpec("artifact_source", "delete", "artifact_source.update", 204)
)
async def delete_artifact_source(request: RequestContext, source_id: str) -> Answered:
    """Remove a source from the list; artifacts from it are not verified any more at their next use."""
    return await commands.delete(request.work(lambda _: None), source_id)


@route_in(READERS, "GET", KEYS, RouteSpec("signer_key", "list", "signer_key.read", answer=Page[SignerKeyView]))
async def list_signer_keys(request: RequestContext, query: PageQuery) -> Page[SignerKeyView]:
    """List the keys that are or were trusted in this place: the platform's and the tenant's own."""
    rows = await signer_keys.page(request.services.database, request.acting, page_window(query, "signer_key"))
    return page(rows, query, "signer_key", lambda row: key_view(request.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    KEYS,
    RouteSpec(
        "signer_key", "add", "signer_key.update", 201, SignerKeyView, errors=(Code.LIMIT_REACHED, Code.NAME_TAKEN)
    ),
)
async def add_signer_key(request: RequestContext, body: AddSignerKey) -> Answered:
    """Trust a public key. To rotate a key: add the new one, sign with it, and remove the old one."""
    work: Work[SignerKey] = request.work(lambda made: key_view(request.caller.authority, made))
    return await key_commands.add(work, body.name, body.public_key_pem)


@route_in(
    PLACES,
    "DELETE",
    KEYS + "/{signer_key_id}",
    RouteSpec("signer_key", "remove", "signer_key.update", answer=SignerKeyView),
)
async def remove_signer_key(request: RequestContext, signer_key_id: str) -> Answered:
    """Stop trusting a key immediately; if signatures are required, artifacts that only it signed are not verified."""
    work: Work[SignerKey] = request.work(lambda removed: key_view(request.caller.authority, removed))
    return await key_commands.remove(work, signer_key_id)
