"""Commands on visits: the API creates them for a caller, the relay uses them for the holder of the ticket."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.commands.kernel.apply import apply_and_notify, apply_once
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.runtime.instance import load_context
from mooring.commands.services import Services
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.task_creation import TaskRequest, check_room, make_task
from mooring.core.identity.source_network import is_allowed, not_allowed
from mooring.core.kernel.decision import Actor, AuditRecord, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import AccessDecision, Place, Scope
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.visit import (
    ACTION,
    LOGIN_SHELL,
    ExecRequest,
    OpenCommands,
    Visit,
    VisitEndpoint,
    VisitKind,
    begin_command,
    check_room_for_command,
    choose_terminal,
    end_terminal,
    open_session,
    visit_command,
    visit_endpoint,
)
from mooring.gateways.passwords import digest
from mooring.storage.fleet import allocation as allocations
from mooring.storage.fleet import task as tasks
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import Origin
from mooring.storage.runtime import visit as visits

TUNNEL_LIFETIME: Final = timedelta(hours=24)
TUNNEL_IDLE_SECONDS: Final = 300.0
OUTSIDE: Final = "the address is outside of the tenant's source networks"


@dataclass(frozen=True, slots=True)
class TicketedVisit:
    """A visit with its ticket, which only the response of its creation contains."""

    visit: Visit
    ticket: str


@dataclass(frozen=True, slots=True)
class _TerminalCommand:
    request: ExecRequest
    allocation: Allocation
    instance_id: str


async def to_endpoint(
    work: Work[TicketedVisit], project_id: str, endpoint_id: str, kind: VisitKind, ticket: str
) -> Answered:
    """Create a visit to an endpoint; the response contains the ticket, and only its hash is stored."""

    async def load() -> VisitEndpoint:
        return require(await visits.endpoint(work.database, work.acting, project_id, endpoint_id), "endpoint")

    return await work.execute(
        load, lambda endpoint: _with(visit_endpoint(work.context, endpoint, kind, digest(ticket)), ticket)
    )


async def to_command(
    work: Work[TicketedVisit], project_id: str, allocation_id: str, request: ExecRequest, ticket: str
) -> Answered:
    """Create a visit for one command."""

    async def load() -> Any:
        await _check_room(work.services, project_id, allocation_id)
        return require(await allocations.find(work.database, work.acting, project_id, allocation_id), "allocation")

    return await work.execute(
        load, lambda allocation: _with(visit_command(work.context, allocation, request, digest(ticket)), ticket)
    )


async def to_terminal(
    work: Work[TicketedVisit], ref: InstanceRef, endpoint: str | None, request: ExecRequest, ticket: str
) -> Answered:
    """Create a visit for one command at an instance's terminal, which decides the user and the directory."""

    async def load() -> _TerminalCommand:
        current = await load_context(work, ref)
        terminal, member = choose_terminal(current.instance, current.manifest, current.members, endpoint)
        await _check_room(work.services, ref.project_id, str(member.allocation_id))
        row = await allocations.find(work.database, work.acting, ref.project_id, str(member.allocation_id))
        command = replace(
            request,
            argv=request.argv or LOGIN_SHELL,
            run_as=terminal.user,
            label=member.id,
            directory=terminal.directory,
            environment=terminal.environment,
        )
        return _TerminalCommand(command, require(row, "allocation"), current.instance.id)

    def decide(command: _TerminalCommand) -> Decision[TicketedVisit]:
        decision = visit_command(work.context, command.allocation, command.request, digest(ticket), command.instance_id)
        return _with(decision, ticket)

    return await work.execute(load, decide)


async def admitted(services: Services, ticket: str, kinds: tuple[VisitKind, ...], remote_address: str | None) -> Visit:
    """The visit of a ticket, if its holder may still use it from there and its target still exists."""
    visit = await visits.by_ticket(services.database, digest(ticket))
    if visit is None or VisitKind(visit.kind) not in kinds:
        raise _unknown()
    await _admit(services, visit, remote_address)
    return visit


async def still_admitted(services: Services, visit: Visit, remote_address: str | None) -> None:
    """Refuse an open visit once its holder lost the right, also from this address, its target is gone, or it expired.

    A command's expiry is that of its ticket, which was already used; it continues until it ends.
    """
    if visit.kind != VisitKind.EXEC and visit.expires_at <= services.clock.now():
        raise Refusal(Code.UNAUTHENTICATED, "the visit has expired")
    await _admit(services, visit, remote_address, is_open=True)


async def _admit(services: Services, visit: Visit, remote_address: str | None, *, is_open: bool = False) -> None:
    holder = await visits.holder(services.database, visit)
    place, action = Place(Scope.PROJECT, visit.tenant_id, visit.project_id), ACTION[VisitKind(visit.kind)]
    if holder is None:
        over = Refusal(Code.UNAUTHENTICATED, "the sign-in or token that opened it is over")
        raise over if is_open else _unknown()
    if holder.authority.access(action, place) is not AccessDecision.ALLOWED:
        lost = Refusal(Code.PERMISSION_DENIED, f"the right {action} was taken away", {"action": action})
        raise lost if is_open else _unknown()
    if holder.source_networks and not is_allowed(holder.source_networks, remote_address):
        place_of_denial = (visit.tenant_id, visit.project_id)
        audited = AuditRecord(ACTION[VisitKind(visit.kind)], "visit", visit.id, *place_of_denial, reason=OUTSIDE)
        context, origin = _context(services, visit), Origin("relay", remote_address)
        await services.denials.record(services.database, context, audited, AccessDecision.DENIED.value, origin)
        raise not_allowed(remote_address)
    if not await visits.stands(services.database, visit):
        raise Refusal(Code.NOT_FOUND, "the visited endpoint or allocation no longer exists")


async def open_link(services: Services, code: str, session: str, remote_address: str | None) -> Visit:
    """Exchange a link, once, for a session that is valid only at its endpoint."""
    visit = await admitted(services, code, (VisitKind.BROWSE,), remote_address)
    context = _context(services, visit)
    return await _apply(services, context, open_session(context, visit, digest(session)), remote_address)


async def start_command(
    services: Services, visit: Visit, remote_address: str | None, held_until: datetime | None = None
) -> Visit:
    """Use a command's ticket, once; a ticket over the bound is not used up."""
    await _check_room(services, visit.project_id, visit.allocation_id)
    context = _context(services, visit)
    return await _apply(services, context, begin_command(context, visit, held_until), remote_address)


async def finish_terminal(services: Services, visit: Visit, reason: str) -> None:
    """Record that a held terminal has ended, unless its user ended it, which is recorded already."""
    context = _context(services, visit)
    await apply_once(services, PLATFORM, context, end_terminal(context, visit, reason), origin=Origin("relay", None))


async def close_terminal(work: Work[Visit], project_id: str, terminal_id: str) -> Answered:
    """End one of the caller's terminals, whichever process holds it."""

    async def load() -> Visit:
        mine = (project_id, work.context.actor.id, terminal_id)
        return require(await visits.terminal(work.database, work.acting, *mine), "terminal")

    return await work.execute(load, lambda visit: end_terminal(work.context, visit, "its user ended it"))


async def ask_for_tunnel(
    services: Services, visit: Visit, relay_url: str, ports: tuple[int, ...], expect: Callable[[str], None]
) -> None:
    """Ask the visit's node to dial the relay; `expect` gets the tunnel's id before the node does."""
    context = replace(_context(services, visit), actor=system_context(services).actor)
    arguments: dict[str, Any] = {"relay": relay_url, "idle_seconds": TUNNEL_IDLE_SECONDS}
    if visit.argv is None:
        arguments["ports"] = sorted(ports)
    else:
        arguments |= {"argv": visit.argv, "user": visit.run_as, "columns": visit.columns, "rows": visit.rows}
        # Defaults are left out, so that an older agent accepts the task.
        optional = {"directory": visit.directory, "environment": visit.environment, "terminal": visit.terminal}
        arguments |= {name: value for name, value in optional.items() if value not in (None, True)}
    new_task = make_task(
        context,
        TaskRequest(
            tenant_id=visit.tenant_id,
            project_id=visit.project_id,
            allocation_id=visit.allocation_id,
            node_id=visit.node_id,
            type="tunnel.open",
            step=f"tunnel/{context.mint(Prefix.CORRELATION)}",
            label=visit.owner.partition("/")[2],
            arguments=arguments,
            lifetime=TUNNEL_LIFETIME,
        ),
    )
    decision = Decision(new_task.task, new_task.writes, new_task.events, new_task.audits)
    limit = services.settings.open_tasks_per_project_max
    with services.open_tasks.reserve(visit.project_id, 1) as reserved:
        open_count = await tasks.count_open(services.database, PLATFORM, visit.project_id, limit)
        check_room(open_count + reserved, limit)
        expect(new_task.task.id)
        await apply_and_notify(services, PLATFORM, context, decision)


async def _check_room(services: Services, project_id: str, allocation_id: str) -> None:
    """Bound the open commands of a project and an allocation; those that come at the same moment may pass together."""
    settings = services.settings
    most = OpenCommands(settings.exec_sessions_per_project, settings.exec_sessions_per_allocation)
    check_room_for_command(await visits.open_commands(services.database, project_id, allocation_id), most)


async def _apply(
    services: Services, context: DecisionContext, decision: Decision[Visit], remote_address: str | None
) -> Visit:
    if not await apply_once(services, PLATFORM, context, decision, origin=Origin("relay", remote_address)):
        raise _unknown()
    return decision.result


def _with(decision: Decision[Visit], ticket: str) -> Decision[TicketedVisit]:
    result = TicketedVisit(decision.result, ticket)
    return Decision(result, decision.writes, decision.events, decision.audits, decision.traceless)


def _context(services: Services, visit: Visit) -> DecisionContext:
    kind = PrincipalKind.SERVICE_ACCOUNT if visit.principal_id.startswith("sa_") else PrincipalKind.USER
    actor = Actor(kind, visit.principal_id, visit.token_id)
    return replace(system_context(services), actor=actor, correlation_id=visit.correlation_id, trace_id=visit.trace_id)


def _unknown() -> Refusal:
    return Refusal(Code.UNAUTHENTICATED, "the ticket is unknown, used or expired, or its holder may no longer use it")
