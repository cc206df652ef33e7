"""Endpoints for agents: the long poll that claims tasks, and the reports about them."""

import msgspec

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.fleet.agent_task import (
    ClaimedTasks,
    ClaimTasks,
    NodeAllocations,
    ReportedTasks,
    ReportTasks,
    claimed_tasks,
    poll_of,
    read_report,
    report_verdict,
    slot_sample,
)
from mooring.commands.fleet.task import offer_again
from mooring.commands.fleet.task_report import take_reports
from mooring.core.fleet.slot_metric import check_samples
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.storage.fleet import allocation as allocations
from mooring.storage.fleet import slot_metric as slot_metrics

HEALTH_BYTES_MAX = 8_192


@route("POST", "/agent/claims", Scope.NODE, RouteSpec("agent_task", "claim", "agent.claim", answer=ClaimedTasks))
async def claim_tasks(request: RequestContext, body: ClaimTasks) -> ClaimedTasks:
    """Wait for tasks: heartbeat, renewal of leases and claim in one request.

    The newest poll of a node counts; an older one returns at once, empty. Every task in `running` keeps its lease.
    """
    services = request.services
    health = msgspec.json.encode(body.health)
    if len(health) > HEALTH_BYTES_MAX or b"\\u0000" in health:
        raise invalid("health", f"at most {HEALTH_BYTES_MAX} bytes, without U+0000")
    node_id = request.caller.actor.id
    services.presence.record(node_id, request.context.now, body.health)
    if body.samples and services.settings.gpu_sample_seconds > 0:
        taken = [slot_sample(each, request.context.now) for each in body.samples]
        check_samples(taken)
        await slot_metrics.store(services.database, node_id, taken)
    if body.session and request.tools.sessions.get(node_id) != body.session:
        await offer_again(services, node_id, [each.task_id for each in body.running])
        request.tools.sessions[node_id] = body.session
    poll = poll_of(node_id, body, services.settings.wait_seconds_max)
    answer = await request.tools.dispatcher.poll(poll, request.gone)
    settings = services.settings
    return claimed_tasks(
        answer, settings.node_heartbeat_seconds, settings.task_lease_seconds, settings.gpu_sample_seconds
    )


@route("POST", "/agent/reports", Scope.NODE, RouteSpec("agent_task", "report", "agent.report", answer=ReportedTasks))
async def report_tasks(request: RequestContext, body: ReportTasks) -> ReportedTasks:
    """Report progress, output and results of tasks; each report is answered on its own, in order."""
    request.services.presence.record(request.caller.actor.id, request.context.now)
    received = [read_report(each) for each in body.reports]
    verdicts = await take_reports(
        request.services, request.tools.logs, received, context=request.context, origin=request.origin
    )
    return ReportedTasks(results=[report_verdict(each) for each in verdicts])


@route(
    "GET",
    "/agent/allocations",
    Scope.NODE,
    RouteSpec("agent_allocation", "list", "agent.claim", answer=NodeAllocations),
)
async def list_agent_allocations(request: RequestContext) -> NodeAllocations:
    """List the platform's allocations on the calling node; every other sandbox there is a stray."""
    return NodeAllocations(allocations=await allocations.of_node(request.services.database, request.caller.actor.id))
