"""Loads what a request may still have and spend: plans, launches and requests for capacity use it."""

from mooring.commands.services import Services
from mooring.core.pricing.spending import SpendingSnapshot
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.pricing import spending


async def load(services: Services, acting: Acting, project_id: str) -> SpendingSnapshot | None:
    """The limits of the project and its tenant, with what is used; None if nothing limits it."""
    tenant_id = str(acting.tenant_id)
    if not await spending.are_limited(services.database, acting, tenant_id, project_id):
        return None
    now = services.clock.now()

    async def read(reader: RowReader) -> SpendingSnapshot:
        found = await spending.limits(reader, acting, tenant_id, project_id)
        return SpendingSnapshot(
            tenant_id,
            project_id,
            await spending.figures(reader, acting, tenant_id, now, ever=found.prepaid is not None),
            found.quotas,
            found.budgets,
            found.prepaid,
            services.settings.hold_seconds,
        )

    return await services.database.in_snapshot(acting, read)
