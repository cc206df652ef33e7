"""Commands on visits: made by the API for a caller, used by the relay for whoever holds the ticket."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.commands.kernel.apply import apply_and_notify, apply_once
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.runtime.instance import InstanceRef, standing
from mooring.commands.services import Services
from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import AccessDecision, Place, Scope
from mooring.core.runtime.terminal import LOGIN_SHELL, choose
from mooring.core.runtime.visit import (
    ACTION,
    ExecRequest,
    Visit,
    VisitEndpoint,
    VisitKind,
    begin_command,
    open_session,
    visit_command,
    visit_endpoint,
)
from mooring.gateways.passwords import digest
from mooring.storage.fleet import allocation as allocations
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import Origin
from mooring.storage.runtime import visit as visits

TUNNEL_LIFETIME: Final = timedelta(hours=24)
TUNNEL_IDLE_SECONDS: Final = 300.0


async def to_endpoint(
    work: Work[tuple[Visit, str]], project_id: str, endpoint_id: str, kind: VisitKind, ticket: str
) -> Answered:
    """Make a visit to an endpoint; the ticket is told in the answer and kept as its hash."""

    async def load() -> VisitEndpoint:
        return require(await visits.endpoint(work.database, work.acting, project_id, endpoint_id), "endpoint")

    return await work.execute(
        load, lambda endpoint: _with(visit_endpoint(work.context, endpoint, kind, digest(ticket)), ticket)
    )


async def to_command(
    work: Work[tuple[Visit, str]], project_id: str, allocation_id: str, request: ExecRequest, ticket: str
) -> Answered:
    """Make a visit for one command."""

    async def load() -> Any:
        return require(await allocations.find(work.database, work.acting, project_id, allocation_id), "allocation")

    return await work.execute(
        load, lambda allocation: _with(visit_command(work.context, allocation, request, digest(ticket)), ticket)
    )


async def to_terminal(
    work: Work[tuple[Visit, str]], at: InstanceRef, endpoint: str | None, request: ExecRequest, ticket: str
) -> Answered:
    """Make a visit for one command at an instance's terminal: as whom and where it runs is the terminal's to say."""

    async def load() -> tuple[ExecRequest, Any, str]:
        seen = await standing(work, at)
        terminal, member = choose(seen.instance, seen.manifest, seen.members, endpoint)
        row = await allocations.find(work.database, work.acting, at.project_id, str(member.allocation_id))
        wanted = replace(
            request,
            argv=request.argv or LOGIN_SHELL,
            run_as=terminal.user,
            label=member.id,
            directory=terminal.directory,
            environment=terminal.environment,
        )
        return wanted, require(row, "allocation"), seen.instance.id

    def decide(seen: tuple[ExecRequest, Any, str]) -> Decision[tuple[Visit, str]]:
        wanted, allocation, instance_id = seen
        return _with(visit_command(work.context, allocation, wanted, digest(ticket), instance_id), ticket)

    return await work.execute(load, decide)


async def admitted(services: Services, ticket: str, kinds: tuple[VisitKind, ...]) -> Visit:
    """The visit of a ticket, if its holder may still make it and what he visits still stands."""
    visit = await visits.by_ticket(services.database, digest(ticket))
    if visit is None or VisitKind(visit.kind) not in kinds:
        raise _unknown()
    await _admit(services, visit)
    return visit


async def still_admitted(services: Services, visit: Visit) -> None:
    """Refuse what is open already, once its holder may not have it any more, or it is gone, or its time is over.

    A command's time is that of its ticket, which was used; it goes on until it ends.
    """
    if visit.kind != VisitKind.EXEC and visit.expires_at <= services.clock.now():
        raise Refusal(Code.UNAUTHENTICATED, "the visit's time is over")
    await _admit(services, visit)


async def _admit(services: Services, visit: Visit) -> None:
    holder = await visits.holder(services.database, visit)
    place = Place(Scope.PROJECT, visit.tenant_id, visit.project_id)
    if holder is None or holder.authority.access(ACTION[VisitKind(visit.kind)], place) is not AccessDecision.ALLOWED:
        raise _unknown()
    if not await visits.stands(services.database, visit):
        raise Refusal(Code.NOT_FOUND, "what was visited is no longer there")


async def open_link(services: Services, code: str, session: str, remote_address: str | None) -> Visit:
    """Exchange a link, once, for a session that counts at its endpoint alone."""
    visit = await admitted(services, code, (VisitKind.BROWSE,))
    context = _context(services, visit)
    return await _used(services, context, open_session(context, visit, digest(session)), remote_address)


async def start_command(services: Services, visit: Visit, remote_address: str | None) -> Visit:
    """Use a command's ticket, once."""
    context = _context(services, visit)
    return await _used(services, context, begin_command(context, visit), remote_address)


async def ask_for_tunnel(
    services: Services, visit: Visit, relay_url: str, ports: tuple[int, ...], expect: Callable[[str], None]
) -> None:
    """Ask the visit's node to dial the relay; `expect` hears the id under which it will, before the node does."""
    context = replace(_context(services, visit), actor=system_context(services).actor)
    arguments: dict[str, Any] = {"relay": relay_url, "idle_seconds": TUNNEL_IDLE_SECONDS}
    if visit.argv is None:
        arguments["ports"] = sorted(ports)
    else:
        arguments |= {"argv": visit.argv, "user": visit.run_as, "columns": visit.columns, "rows": visit.rows}
        # What is as ever is not said, so that an agent which knows less is not asked for more.
        told = {"directory": visit.directory, "environment": visit.environment, "terminal": visit.terminal}
        arguments |= {name: value for name, value in told.items() if value not in (None, True)}
    made = make_task(
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
    decision = Decision(made.task, made.writes, made.events, made.audits)
    expect(made.task.id)
    await apply_and_notify(services, PLATFORM, context, decision)


async def _used(
    services: Services, context: DecisionContext, decision: Decision[Visit], remote_address: str | None
) -> Visit:
    if not await apply_once(services, PLATFORM, context, decision, origin=Origin("relay", remote_address)):
        raise _unknown()
    return decision.result


def _with(decision: Decision[Visit], ticket: str) -> Decision[tuple[Visit, str]]:
    return replace(decision, result=(decision.result, ticket))  # type: ignore[arg-type, return-value]


def _context(services: Services, visit: Visit) -> DecisionContext:
    kind = PrincipalKind.SERVICE_ACCOUNT if visit.principal_id.startswith("sa_") else PrincipalKind.USER
    actor = Actor(kind, visit.principal_id, visit.token_id)
    return replace(system_context(services), actor=actor, correlation_id=visit.correlation_id, trace_id=visit.trace_id)


def _unknown() -> Refusal:
    return Refusal(Code.UNAUTHENTICATED, "the ticket is unknown, used or expired, or its holder may no longer use it")
