"""Endpoints for running apps, and the visits that reach them."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.runtime.instance import ONE as ONE_INSTANCE
from mooring.api.routes.runtime.instance import at
from mooring.api.schemas.runtime.visit import (
    EndpointView,
    LinkView,
    RunAtTerminal,
    RunCommand,
    TicketView,
    endpoint_view,
    link_view,
    ticket_view,
)
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import visit as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.visit import ExecRequest, VisitKind
from mooring.gateways.passwords import new_visit_ticket
from mooring.storage.runtime import visit as visits

HERE = (Scope.PROJECT,)
PATH = "/endpoints"
ONE = PATH + "/{endpoint_id}"
NOUN = "endpoint"


@route_in(HERE, "GET", PATH, RouteSpec(NOUN, "list", "instance.read", answer=Page[EndpointView]))
async def list_endpoints(request: RequestContext, query: PageQuery) -> Page[EndpointView]:
    """List the endpoints of a project's apps that can be reached now."""
    project_id, window = str(request.place.project_id), page_window(query, NOUN)
    rows = await visits.endpoints(request.services.database, request.acting, project_id, window)
    return page(rows, query, NOUN, lambda row: endpoint_view(row, request.tools.relay.origin_of(row.id)))


@route_in(HERE, "GET", ONE, RouteSpec(NOUN, "get", "instance.read", answer=EndpointView))
async def get_endpoint(request: RequestContext, endpoint_id: str) -> EndpointView:
    """Read an endpoint."""
    project_id = str(request.place.project_id)
    row = await visits.endpoint(request.services.database, request.acting, project_id, endpoint_id)
    return endpoint_view(require(row, "endpoint"), request.tools.relay.origin_of(endpoint_id))


@route_in(
    HERE,
    "POST",
    ONE + "/connect",
    RouteSpec(NOUN, "connect", "instance.connect", 201, TicketView, one_time_secret=True, errors=(Code.CONFLICT,)),
)
async def connect_endpoint(request: RequestContext, endpoint_id: str) -> Answered:
    """Get a ticket that opens connections to this endpoint through the relay."""
    relay = request.tools.relay
    work: Work[commands.TicketedVisit] = request.work(lambda made: ticket_view(made, relay.url))
    ids = (str(request.place.project_id), endpoint_id)
    return await commands.to_endpoint(work, *ids, VisitKind.CONNECT, new_visit_ticket())


@route_in(
    HERE,
    "POST",
    ONE + "/open",
    RouteSpec(NOUN, "open", "instance.connect", 201, LinkView, one_time_secret=True, errors=(Code.CONFLICT,)),
)
async def open_endpoint(request: RequestContext, endpoint_id: str) -> Answered:
    """Get a link that opens this endpoint in a browser.

    The link works once, within two minutes. It starts a session that is valid only at this endpoint's own origin.
    """
    relay = request.tools.relay
    work: Work[commands.TicketedVisit] = request.work(lambda made: link_view(made, relay.origin_of(endpoint_id)))
    ids = (str(request.place.project_id), endpoint_id)
    return await commands.to_endpoint(work, *ids, VisitKind.BROWSE, new_visit_ticket())


@route_in(
    HERE,
    "POST",
    "/allocations/{allocation_id}/exec",
    RouteSpec(
        "allocation",
        "exec",
        "instance.exec",
        201,
        TicketView,
        one_time_secret=True,
        errors=(Code.CONFLICT, Code.LIMIT_REACHED, Code.VALIDATION_FAILED),
    ),
)
async def exec_allocation(request: RequestContext, allocation_id: str, body: RunCommand) -> Answered:
    """Get a ticket for one interactive command in the sandbox; its arguments are in the audit trail."""
    relay = request.tools.relay
    work: Work[commands.TicketedVisit] = request.work(lambda made: ticket_view(made, relay.url))
    command = ExecRequest(tuple(body.argv), body.user, body.columns, body.rows, body.label, body.terminal)
    return await commands.to_command(work, str(request.place.project_id), allocation_id, command, new_visit_ticket())


@route_in(
    HERE,
    "POST",
    ONE_INSTANCE + "/exec",
    RouteSpec(
        "instance",
        "exec",
        "instance.exec",
        201,
        TicketView,
        one_time_secret=True,
        errors=(Code.CONFLICT, Code.LIMIT_REACHED, Code.VALIDATION_FAILED),
    ),
)
async def exec_instance(request: RequestContext, instance_id: str, body: RunAtTerminal) -> Answered:
    """Get a ticket for one command at the app's terminal, as the user that the app sets there, who is never root.

    Without a command it is a login shell. The command's arguments are in the audit trail.
    """
    relay = request.tools.relay
    work: Work[commands.TicketedVisit] = request.work(lambda made: ticket_view(made, relay.url))
    command = ExecRequest(tuple(body.argv), "", body.columns, body.rows, terminal=body.terminal)
    return await commands.to_terminal(work, at(request, instance_id), body.endpoint, command, new_visit_ticket())
