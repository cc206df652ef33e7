"""Endpoints for the sources of usage: batches of events, the queue of late ones, and readings of adapters."""

from mooring.api.page import Page, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route, route_in
from mooring.api.routes.runtime.adapter import ONE as OF_CLAIMED
from mooring.api.routes.runtime.adapter import claim_ref
from mooring.api.schemas.money.meter_event import (
    BATCH_BYTES_MAX,
    LateUsageQuery,
    LateUsageView,
    MeterBatchView,
    RecordMeterEvents,
    ReportReadings,
    ResolveLateUsage,
    StoredReadings,
    event_of,
    late_usage_view,
    reading_of,
)
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.money import late_usage as late_commands
from mooring.commands.money import meter_event as commands
from mooring.commands.money import meter_reading as reading_commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.money.late_usage import LateUsage, LateUsageStatus, Resolution
from mooring.core.money.meter_event import BatchResult
from mooring.core.money.meter_reading import ReadingResult
from mooring.storage.money import late_usage as late_usages

PLACES = (Scope.PROJECT,)
LATE = "/late-usage"
ONE_LATE = LATE + "/{late_usage_id}"


@route_in(
    PLACES,
    "POST",
    "/meter-events",
    RouteSpec(
        "meter_event",
        "record",
        "usage.report",
        answer=MeterBatchView,
        errors=(Code.CONFLICT, Code.LIMIT_REACHED),
        batch="events",
        body_bytes_max=BATCH_BYTES_MAX,
    ),
)
async def record_meter_events(request: RequestContext, body: RecordMeterEvents) -> Answered:
    """Record a batch of usage events, all of them or none.

    The events are CloudEvents of the type `mooring.usage`, at most 5,000 in 4 MiB. Besides the JSON object, an array of
    events (`application/cloudevents-batch+json`) and one event per line (`application/x-ndjson`) are accepted. An
    event that is stored already with the same content counts as a duplicate; one with other content refuses the batch
    with 409, and `details.events` has the indexes and both hashes. An event that ended before the window goes into the
    queue of late usage.
    """
    request.tools.meter_events.take(str(request.acting.tenant_id), len(body.events))
    work: Work[BatchResult] = request.work(
        lambda result: MeterBatchView(
            batch_id=result.batch_id, accepted=result.accepted, late=result.late, duplicates=result.duplicates
        )
    )
    return await commands.record(work, request.place, [event_of(each) for each in body.events])


@route_in(PLACES, "GET", LATE, RouteSpec("late_usage", "list", "usage.read", answer=Page[LateUsageView]))
async def list_late_usage(request: RequestContext, query: LateUsageQuery) -> Page[LateUsageView]:
    """List usage events that came after the window, with what became of them."""
    project_id = request.place.project_id or ""
    window = page_window(query, "late_usage")
    rows = await late_usages.page(request.services.database, request.acting, project_id, window, query.status)
    return page(rows, query, "late_usage", late_usage_view)


@route_in(PLACES, "GET", ONE_LATE, RouteSpec("late_usage", "get", "usage.read", answer=LateUsageView))
async def get_late_usage(request: RequestContext, late_usage_id: str) -> LateUsageView:
    """Get one usage event that came after the window."""
    project_id = request.place.project_id or ""
    found = await late_usages.find(request.services.database, request.acting, project_id, late_usage_id)
    return late_usage_view(require(found, "late usage"))


@route_in(
    PLACES,
    "POST",
    ONE_LATE + "/accept",
    RouteSpec("late_usage", "accept", "usage.resolve", answer=LateUsageView, errors=(Code.CONFLICT,)),
)
async def accept_late_usage(request: RequestContext, late_usage_id: str, body: ResolveLateUsage) -> Answered:
    """Accept late usage: it becomes a usage record, and is charged in the hour of its acceptance."""
    return await _resolve(request, late_usage_id, Resolution(LateUsageStatus.ACCEPTED, body.reason))


@route_in(
    PLACES,
    "POST",
    ONE_LATE + "/reject",
    RouteSpec("late_usage", "reject", "usage.resolve", answer=LateUsageView, errors=(Code.CONFLICT,)),
)
async def reject_late_usage(request: RequestContext, late_usage_id: str, body: ResolveLateUsage) -> Answered:
    """Reject late usage: it is never charged, and stays readable with the reason."""
    return await _resolve(request, late_usage_id, Resolution(LateUsageStatus.REJECTED, body.reason))


async def _resolve(request: RequestContext, late_usage_id: str, resolution: Resolution) -> Answered:
    work: Work[LateUsage] = request.work(late_usage_view)
    return await late_commands.resolve(work, request.place.project_id or "", late_usage_id, resolution)


@route(
    "POST",
    OF_CLAIMED + "/readings",
    Scope.RUNTIME,
    RouteSpec("runtime", "read", "usage.report", answer=StoredReadings, errors=(Code.LEASE_LOST, Code.CONFLICT)),
)
async def report_readings(request: RequestContext, instance_id: str, body: ReportReadings) -> Answered:
    """Report cumulative readings of counters; what was used is the difference to the reading before.

    A replay adds nothing, and a lost report is contained in the next one. A value that falls inside its epoch is
    refused with 409: a reset begins a new epoch. All readings are stored, or none.
    """
    claimed = claim_ref(request, instance_id, body.fence)
    work: Work[ReadingResult] = request.work(
        lambda result: StoredReadings(stored=result.stored, unchanged=result.unchanged)
    )
    return await reading_commands.report_readings(work, claimed, [reading_of(each) for each in body.readings])
