"""The command that sets the quota of a tenant or a project."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.pricing.quota import Quota, QuotaSpec, set_quota
from mooring.storage.identity import project as projects
from mooring.storage.identity import tenant as tenants
from mooring.storage.pricing import spending


async def put(
    work: Work[Quota], tenant_id: str, project_id: str | None, spec: QuotaSpec, revision_seen: int | None
) -> Answered:
    async def load() -> Quota | None:
        if project_id is None:
            require(await tenants.find(work.database, work.acting, tenant_id), "tenant")
        else:
            require(await projects.find(work.database, work.acting, project_id), "project")
        found = await spending.limits(work.database, work.acting, tenant_id, project_id)
        return next((each for each in found.quotas if each.project_id == project_id), None)

    return await work.execute(
        load,
        lambda before: set_quota(
            work.context, before, spec, tenant_id=tenant_id, project_id=project_id, revision_seen=revision_seen
        ),
    )
