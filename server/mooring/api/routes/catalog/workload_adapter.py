"""Endpoints for the platform's workload adapter, which operates images and programs without an adapter of their own."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.identity.service_account import read_key
from mooring.api.schemas.catalog.workload_adapter import SetWorkloadKey, WorkloadAdapterView, workload_adapter_view
from mooring.commands.catalog import workload_adapter as commands
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.workload_adapter import WorkloadAdapter
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import workload_adapter as workload_adapters

PLACES = (Scope.PLATFORM,)
PATH = "/workload-adapter"


@route_in(PLACES, "GET", PATH, RouteSpec("workload-adapter", "get", "app_version.read", answer=WorkloadAdapterView))
async def get_workload_adapter(request: RequestContext) -> WorkloadAdapterView:
    """Read the public key of the platform's workload adapter."""
    found = await workload_adapters.find(request.services.database)
    return workload_adapter_view(request.caller.authority, found)


@route_in(
    PLACES, "PUT", PATH + "/key", RouteSpec("workload-adapter", "set-key", "app.update", answer=WorkloadAdapterView)
)
async def set_workload_adapter_key(request: RequestContext, body: SetWorkloadKey) -> Answered:
    """Set the public key of the platform's workload adapter.

    Operator accounts get it when an admin agrees to an entitlement of an app that has no adapter key of its own and is
    an image or a program. Accounts that have a former key get this one instead, and the former one counts no more.
    """
    key = None if body.public_key is None else read_key(body.public_key)
    work: Work[WorkloadAdapter] = request.work(lambda made: workload_adapter_view(request.caller.authority, made))
    return await commands.set_key(work, key)
