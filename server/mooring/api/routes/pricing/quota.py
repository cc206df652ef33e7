"""Endpoints for quotas: the platform sets those of tenants, a tenant those of its projects."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.pricing.quota import PutQuota, QuotaView, quota_spec, quota_view
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.pricing import quota as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.pricing.quota import Quota
from mooring.storage.identity import project as projects
from mooring.storage.identity import tenant as tenants
from mooring.storage.kernel.database import Acting
from mooring.storage.pricing import spending

READ = RouteSpec("quota", "get", "billing.budget.read", answer=QuotaView, platform_too=True)
UPDATE = RouteSpec(
    "quota", "update", "billing.quota.update", answer=QuotaView, errors=(Code.REVISION_CONFLICT, Code.NOT_FOUND)
)


@route("GET", "/tenants/{tenant_id}/quotas", Scope.TENANT, READ)
async def get_tenant_quota(request: RequestContext) -> QuotaView:
    """Read the limits that the platform set for the tenant."""
    require(await tenants.find(request.services.database, request.acting, str(request.place.tenant_id)), "tenant")
    return await _shown(request, str(request.place.tenant_id), None)


@route(
    "GET",
    "/projects/{project_id}/quotas",
    Scope.PROJECT,
    RouteSpec("quota", "get", "billing.budget.read", answer=QuotaView),
)
async def get_project_quota(request: RequestContext) -> QuotaView:
    """Read the limits that the tenant set for the project."""
    require(await projects.find(request.services.database, request.acting, str(request.place.project_id)), "project")
    return await _shown(request, str(request.acting.tenant_id), request.place.project_id)


@route("PUT", "/tenants/{tenant_id}/quotas", Scope.PLATFORM, UPDATE)
async def update_tenant_quota(request: RequestContext, body: PutQuota) -> Answered:
    """Replace the limits of a tenant; they hold for its next launches, and nothing that runs is stopped."""
    return await _put(request, str(request.place.tenant_id), None, body)


@route("PUT", "/projects/{project_id}/quotas", Scope.PROJECT, UPDATE)
async def update_project_quota(request: RequestContext, body: PutQuota) -> Answered:
    """Replace the limits of a project; the tenant's limits hold too, and nothing that runs is stopped."""
    return await _put(request, str(request.acting.tenant_id), request.place.project_id, body)


async def _shown(request: RequestContext, tenant_id: str, project_id: str | None) -> QuotaView:
    found = await spending.limits(request.services.database, request.acting, tenant_id, project_id)
    own = next((each for each in found.quotas if each.project_id == project_id), None)
    return quota_view(request.caller.authority, request.place, own, tenant_id=tenant_id, project_id=project_id)


async def _put(request: RequestContext, tenant_id: str, project_id: str | None, body: PutQuota) -> Answered:
    work: Work[Quota] = request.work(
        lambda quota: quota_view(
            request.caller.authority, request.place, quota, tenant_id=tenant_id, project_id=project_id
        ),
        acting=Acting(request.caller.tenant_id),
    )
    return await commands.put(work, tenant_id, project_id, quota_spec(body), body.revision)
