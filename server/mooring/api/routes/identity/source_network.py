"""Endpoints of the networks from which a tenant's users and service accounts may call."""

from functools import partial

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.identity.tenancy import PutSourceNetworks, SourceNetworksView, source_networks_view
from mooring.commands.identity import tenant as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.identity.source_network import read_networks
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import tenant as tenants

PATH = "/tenants/{tenant_id}/source-networks"


@route(
    "GET",
    PATH,
    Scope.TENANT,
    RouteSpec("source_network", "get", "source_network.read", answer=SourceNetworksView, platform_too=True),
)
async def get_source_networks(request: RequestContext) -> SourceNetworksView:
    """Read the networks from which the tenant's users and service accounts may call, and the caller's own address."""
    row = await tenants.find(request.services.database, request.acting, str(request.place.tenant_id))
    return source_networks_view(request.origin.remote_address, require(row, "tenant"))


@route(
    "PUT",
    PATH,
    Scope.TENANT,
    RouteSpec(
        "source_network",
        "update",
        "source_network.update",
        answer=SourceNetworksView,
        platform_too=True,
        errors=(Code.REVISION_CONFLICT, Code.WOULD_LOCK_OUT),
    ),
)
async def update_source_networks(request: RequestContext, body: PutSourceNetworks) -> Answered:
    """Replace the networks from which the tenant's users and service accounts may call; an empty list allows all.

    Requests from elsewhere are refused with `caller_address_denied`. Nodes are not affected. The caller's own address
    must be in the list; only a platform admin can force another one.
    """
    if body.force and request.caller.tenant_id is not None:
        raise Refusal(
            Code.PERMISSION_DENIED, "only a platform admin can use `force`", {"action": "source_network.update"}
        )
    work = request.work(partial(source_networks_view, request.origin.remote_address))
    return await commands.limit_sources(
        work, str(request.place.tenant_id), read_networks(body.networks), body.revision, forced=body.force
    )
