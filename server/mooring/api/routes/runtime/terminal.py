"""Terminals over WebSocket: which ones the caller has open, how to end one, and the WebSocket itself."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.runtime.terminal import TerminalView, terminal_view
from mooring.api.socket import accept
from mooring.api.terminal_socket import TerminalAddress, TerminalSocketResponse
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import visit as commands
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.visit import Visit
from mooring.storage.runtime import visit as visits

HERE = (Scope.PROJECT,)
PATH = "/terminals"
ONE = PATH + "/{terminal_id}"
NOUN = "terminal"


@route_in(HERE, "GET", PATH, RouteSpec(NOUN, "list", "instance.exec", answer=Page[TerminalView]))
async def list_terminals(request: RequestContext, query: PageQuery) -> Page[TerminalView]:
    """List the terminals that you have open in this project over WebSocket, in any window."""
    window, mine = page_window(query, NOUN), (str(request.place.project_id), request.caller.actor.id)
    rows = await visits.terminals(request.services.database, request.acting, *mine, window)
    terminals = request.tools.terminals
    return page(rows, query, NOUN, lambda row: terminal_view(row, viewed=terminals.is_viewed(row.id)))


@route_in(HERE, "DELETE", ONE, RouteSpec(NOUN, "end", "instance.exec", 204))
async def end_terminal(request: RequestContext, terminal_id: str) -> Answered:
    """End one of your terminals, with the command that runs in it."""
    work: Work[Visit] = request.work(lambda ended: None)
    return await commands.close_terminal(work, str(request.place.project_id), terminal_id)


@route_in(
    HERE,
    "GET",
    ONE + "/ws",
    RouteSpec(
        NOUN,
        "connect",
        "instance.exec",
        unlimited=True,
        hidden=True,
        websocket=True,
        ticket=True,
        errors=(Code.CONFLICT, Code.LIMIT_REACHED),
    ),
)
async def connect_terminal(request: RequestContext, terminal_id: str) -> TerminalSocketResponse:
    """Look at a terminal (WebSocket): the first message starts it with its ticket, or resumes it."""
    remote, project_id = request.origin.remote_address, str(request.place.project_id)
    if not await visits.has_command(request.services.database, request.acting, project_id, terminal_id):
        raise Refusal(Code.NOT_FOUND, "there is no such terminal")
    address = TerminalAddress(request.tools.terminals, project_id, terminal_id, remote)
    return address.socket_of(accept(request.headers), request.caller.actor.id)
