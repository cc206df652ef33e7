"""Endpoints for tenants: platform admins create them, tenant admins rename their own."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.identity.tenancy import (
    CreateTenant,
    Rename,
    TenantCreated,
    TenantView,
    tenant_created,
    tenant_view,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.identity import tenant as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.identity.user import UserSpec
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.gateways.passwords import new_one_time_code
from mooring.storage.identity import tenant as tenants


@route("GET", "/tenants", Scope.PLATFORM, RouteSpec("tenant", "list", "tenant.read", answer=Page[TenantView]))
async def list_tenants(request: RequestContext, query: PageQuery) -> Page[TenantView]:
    """List the platform's tenants."""
    rows = await tenants.page(request.services.database, request.acting, page_window(query, "tenant"))
    return page(rows, query, "tenant", lambda row: tenant_view(request.caller.authority, row))


@route(
    "POST",
    "/tenants",
    Scope.PLATFORM,
    RouteSpec(
        "tenant",
        "create",
        "tenant.create",
        201,
        TenantCreated,
        one_time_secret=True,
        errors=(Code.NAME_TAKEN,),
    ),
)
async def create_tenant(request: RequestContext, body: CreateTenant) -> Answered:
    """Create a tenant with its first admin.

    The answer holds the admin's one-time sign-in code. It is shown only once; a repeated request with the same
    Idempotency-Key shows it again.
    """
    code = new_one_time_code()
    work = request.work(partial(tenant_created, request.caller.authority, code=code))
    admin = UserSpec(body.first_admin.email, body.first_admin.display_name)
    return await commands.create(work, body.slug, body.display_name, admin, code)


@route(
    "GET",
    "/tenants/{tenant_id}",
    Scope.TENANT,
    RouteSpec("tenant", "get", "tenant.read", answer=TenantView, platform_too=True),
)
async def get_tenant(request: RequestContext, query: WaitQuery) -> TenantView:
    """Read a tenant."""
    tenant_id = str(request.place.tenant_id)

    async def read() -> TenantView:
        row = require(await tenants.find(request.services.database, request.acting, tenant_id), "tenant")
        return tenant_view(request.caller.authority, row)

    return await waited(request, query, tenant_id, read)


@route(
    "PATCH",
    "/tenants/{tenant_id}",
    Scope.TENANT,
    RouteSpec(
        "tenant",
        "update",
        "tenant.update",
        answer=TenantView,
        platform_too=True,
        errors=(Code.REVISION_CONFLICT,),
    ),
)
async def update_tenant(request: RequestContext, body: Rename) -> Answered:
    """Change a tenant's display name."""
    work = request.work(partial(tenant_view, request.caller.authority))
    return await commands.update(work, str(request.place.tenant_id), body.display_name, body.revision)
