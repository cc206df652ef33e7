"""The endpoint that lists the runtime secrets of an instance, without their values."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.runtime.instance_secret import InstanceSecretView, instance_secret_view
from mooring.commands.kernel.lookup import require
from mooring.core.kernel.permissions import Scope
from mooring.storage.fleet import runtime_secret as runtime_secrets
from mooring.storage.runtime import instance as instances


@route_in(
    (Scope.PROJECT,),
    "GET",
    "/app-instances/{instance_id}/secrets",
    RouteSpec("instance_secret", "list", "secret.read", answer=Page[InstanceSecretView]),
)
async def list_instance_secrets(
    request: RequestContext, instance_id: str, query: PageQuery
) -> Page[InstanceSecretView]:
    """List the secrets that an instance has at runtime, which its adapter stored; never their values."""
    database, project_id = request.services.database, str(request.place.project_id)
    require(await instances.find(database, request.acting, project_id, instance_id), "instance")
    window = page_window(query, "runtime_secret")
    rows = await runtime_secrets.page(database, request.acting, project_id, instance_id, window)
    return page(rows, query, "runtime_secret", instance_secret_view)
