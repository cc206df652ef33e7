"""Endpoints for usage: adapters report it, and projects read it."""

from decimal import Decimal

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route, route_in
from mooring.api.routes.runtime.adapter import ONE as OF_CLAIMED
from mooring.api.routes.runtime.adapter import claim_ref
from mooring.api.routes.runtime.attachment import ONE as OF_ATTACHMENT
from mooring.api.routes.runtime.attachment import attached_at
from mooring.api.routes.runtime.instance import ONE as OF_INSTANCE
from mooring.api.routes.runtime.instance import PLACES, at
from mooring.api.schemas.money.usage import ReportUsage, StoredUsage, UsageRecordView, usage_view
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.money import usage as commands
from mooring.commands.runtime import attachment as attachment_commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.money.usage import UsageReport
from mooring.storage.money import usage as usages
from mooring.storage.runtime import instance as instances


@route_in(
    PLACES, "GET", OF_INSTANCE + "/usage", RouteSpec("usage_record", "list", "usage.read", answer=Page[UsageRecordView])
)
async def list_usage_records(request: RequestContext, instance_id: str, query: PageQuery) -> Page[UsageRecordView]:
    """List the usage that the app reported."""
    ref = at(request, instance_id)
    found = await instances.find(request.services.database, request.acting, ref.project_id, ref.instance_id)
    row = require(found, "instance")
    window = page_window(query, "usage_record")
    rows = await usages.page(request.services.database, request.acting, row.project_id, row.id, window)
    return page(rows, query, "usage_record", usage_view)


@route_in(
    PLACES,
    "GET",
    OF_ATTACHMENT + "/usage",
    RouteSpec("attachment_usage", "list", "usage.read", answer=Page[UsageRecordView]),
)
async def list_attachment_usage(request: RequestContext, attachment_id: str, query: PageQuery) -> Page[UsageRecordView]:
    """List the project's usage of the instance, as its app reported it."""
    row = await attachment_commands.find(request.services, request.acting, attached_at(request, attachment_id))
    window = page_window(query, "usage_record")
    rows = await usages.page_of_attachment(request.services.database, request.acting, row, window)
    return page(rows, query, "usage_record", usage_view)


@route(
    "POST",
    OF_CLAIMED + "/usage",
    Scope.RUNTIME,
    RouteSpec("runtime", "usage", "usage.report", answer=StoredUsage, errors=(Code.LEASE_LOST, Code.CONFLICT)),
)
async def report_usage(request: RequestContext, instance_id: str, body: ReportUsage) -> Answered:
    """Report usage in units of the manifest; each record is stored once under its id, all of them or none."""
    claimed = claim_ref(request, instance_id, body.fence)
    reported = [
        UsageReport(
            each.record_id,
            each.unit,
            each.started_at,
            each.ended_at,
            Decimal(repr(each.quantity)).normalize(),
            each.attached_project_id,
        )
        for each in body.records
    ]
    work: Work[tuple[int, int]] = request.work(lambda counts: StoredUsage(stored=counts[0], repeated=counts[1]))
    return await commands.report_usage(work, claimed, reported)
