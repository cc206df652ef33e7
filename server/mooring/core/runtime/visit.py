"""Visit: a bounded right to reach one endpoint of an app, or to run one command in its sandbox.

There are three kinds. `connect` gives a ticket that opens connections to one port for a while. `browse` gives a link
that works once: it is exchanged for a browser session that is valid only at that endpoint's own origin. `exec` gives a
ticket for one command, once; its arguments are in the audit trail.

Only hashes of tickets, links and sessions are stored. A visit never gives more than its holder has at the moment of
use: each time, the platform checks that the token it was made with is still valid and still has the action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from mooring.core.catalog.manifest import Manifest
from mooring.core.fleet.allocation import Allocation, AllocationState
from mooring.core.fleet.task import Task
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.sandbox_user import is_root
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member, MemberState

CONNECT_LIFETIME: Final = timedelta(hours=12)
SESSION_LIFETIME: Final = timedelta(hours=8)
LINK_LIFETIME: Final = timedelta(minutes=2)
COMMAND_LIFETIME: Final = timedelta(minutes=2)
ARGUMENTS_MAX: Final = 128
ARGUMENT_LENGTH_MAX: Final = 4_096
ARGUMENTS_BYTES_MAX: Final = 32_768
SIZE_MAX: Final = 1_000
TERMINAL_PROTOCOL: Final = "terminal"
DEFAULT_USER: Final = "app"
LOGIN_SHELL: Final = ("/bin/sh", "-c", "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l")
"""The command if the caller names none."""
OF_PORTS: Final = ("port", "path", "task_id")
OF_TERMINALS: Final = ("user", "directory", "environment")
UP: Final = (MemberState.READY, MemberState.DEGRADED)
TICKET_PREFIX: Final = "mrgv_"
"""The prefix of tickets, link codes and sessions, by which a leaked one is recognized."""


class VisitKind(StrEnum):
    """What a visit is for."""

    CONNECT = "connect"
    BROWSE = "browse"
    EXEC = "exec"


ACTION: Final = {
    VisitKind.CONNECT: "instance.connect",
    VisitKind.BROWSE: "instance.connect",
    VisitKind.EXEC: "instance.exec",
}


@dataclass(slots=True)
class RelayAddress:
    """The relay's URL and the pattern of its endpoint URLs; empty until it listens."""

    url: str = ""
    endpoints_url: str = ""  # the star stands for the endpoint's label, as in http://*.localhost:7421

    def origin_of(self, endpoint_id: str) -> str:
        return self.endpoints_url.replace("*", label_of(endpoint_id), 1)


def label_of(endpoint_id: str) -> str:
    """The first label of an endpoint's host name: the part of its id that a host name can contain."""
    return f"e-{endpoint_id.rpartition('_')[2]}"


@dataclass(frozen=True, slots=True)
class VisitEndpoint:
    """A port that an app declared when it was started; its id is that of the task that started it."""

    id: str
    tenant_id: str
    project_id: str
    allocation_id: str
    node_id: str
    owner: str
    instance_id: str | None
    name: str
    port: int
    protocol: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Visit:
    """A visit, without its ticket."""

    id: str
    tenant_id: str
    project_id: str
    allocation_id: str
    node_id: str
    owner: str
    kind: str
    endpoint_id: str | None
    port: int | None
    argv: list[str] | None
    run_as: str | None
    columns: int | None
    rows: int | None
    principal_id: str
    token_id: str
    ticket_hash: bytes
    correlation_id: str
    trace_id: str
    revision: int
    created_at: datetime
    expires_at: datetime
    opened_at: datetime | None = None
    terminal: bool = True  # of a command: whether it has a terminal; otherwise it has pipes
    directory: str | None = None
    environment: dict[str, str] | None = None
    instance_id: str | None = None  # of a command: the instance at whose terminal it runs
    held_until: datetime | None = None  # of a terminal that can be resumed: until when its process has it, at least
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command that a caller wants to run."""

    argv: Sequence[str]
    run_as: str
    columns: int
    rows: int
    label: str = ""
    terminal: bool = True
    directory: str | None = None
    environment: Mapping[str, str] | None = None


def endpoint_of(task: Task) -> VisitEndpoint:
    declared: dict[str, Any] = task.arguments["endpoint"]
    return VisitEndpoint(
        task.id,
        task.tenant_id,
        task.project_id,
        task.allocation_id,
        task.node_id,
        task.owner,
        task.instance_id,
        str(declared["name"]),
        int(declared["port"]),
        str(declared.get("protocol", "http")),
        task.created_at,
    )


def visit_endpoint(
    context: DecisionContext, endpoint: VisitEndpoint, kind: VisitKind, ticket_hash: bytes
) -> Decision[Visit]:
    """A visit to an endpoint, by ticket or by link."""
    if kind is VisitKind.BROWSE and endpoint.protocol != "http":
        raise Refusal(Code.CONFLICT, f"{endpoint.name} speaks {endpoint.protocol}: use `mooring connect` instead")
    lifetime = LINK_LIFETIME if kind is VisitKind.BROWSE else CONNECT_LIFETIME
    visit = replace(
        _visit(context, kind, ticket_hash, lifetime, tenant_id=endpoint.tenant_id, project_id=endpoint.project_id),
        allocation_id=endpoint.allocation_id,
        node_id=endpoint.node_id,
        owner=endpoint.owner,
        endpoint_id=endpoint.id,
        port=endpoint.port,
    )
    return _grant(visit, {"endpoint_id": endpoint.id, "name": endpoint.name, "port": endpoint.port})


@dataclass(frozen=True, slots=True)
class OpenCommands:
    """How many interactive commands a project and one of its allocations have open."""

    of_project: int
    of_allocation: int


def check_room_for_command(opened: OpenCommands, most: OpenCommands) -> None:
    """Refuse one more command than these; 0 means no bound."""
    for name, number, bound in (
        ("allocation", opened.of_allocation, most.of_allocation),
        ("project", opened.of_project, most.of_project),
    ):
        if 0 < bound <= number:
            raise Refusal(
                Code.LIMIT_REACHED,
                f"the {name} has as many interactive commands open as it may ({bound}): close one of them first",
                {"limit": bound},
            )


def visit_command(
    context: DecisionContext,
    allocation: Allocation,
    request: ExecRequest,
    ticket_hash: bytes,
    instance_id: str | None = None,
) -> Decision[Visit]:
    """A visit for one command as a non-root user; `instance_id` is set if it runs at an instance's terminal."""
    if allocation.status != AllocationState.ACTIVE or allocation.node_id is None:
        raise Refusal(Code.CONFLICT, f"the allocation is {allocation.status}: commands need an active one")
    if not request.argv or not request.argv[0]:
        raise invalid("argv", "required: the program and its arguments")
    if sum(len(each.encode()) + 1 for each in request.argv) > ARGUMENTS_BYTES_MAX:
        raise invalid("argv", f"at most {ARGUMENTS_BYTES_MAX} bytes together")
    if any("\x00" in each for each in request.argv):
        raise invalid("argv", "arguments must not contain a zero byte")
    if is_root(request.run_as):
        raise invalid("user", "must not be root")
    visit = replace(
        _visit(
            context,
            VisitKind.EXEC,
            ticket_hash,
            COMMAND_LIFETIME,
            tenant_id=allocation.tenant_id,
            project_id=allocation.project_id,
        ),
        allocation_id=allocation.id,
        node_id=allocation.node_id,
        owner=f"{allocation.id}/{request.label}" if request.label else allocation.id,
        argv=list(request.argv),
        run_as=request.run_as,
        columns=request.columns,
        rows=request.rows,
        terminal=request.terminal,
        directory=request.directory,
        environment=dict(request.environment) if request.environment else None,
        instance_id=instance_id,
    )
    details: dict[str, object] = {
        "owner": visit.owner,
        "argv": visit.argv,
        "user": request.run_as,
        "terminal": request.terminal,
    }
    return _grant(visit, details, instance_id)


def open_session(context: DecisionContext, visit: Visit, session_hash: bytes) -> Decision[Visit]:
    """Exchange a link for a browser session, once."""
    if visit.opened_at is not None:
        raise Refusal(Code.UNAUTHENTICATED, "this link was already used: request a new one")
    opened = replace(
        visit,
        ticket_hash=session_hash,
        opened_at=context.now,
        expires_at=context.now + SESSION_LIFETIME,
        revision=visit.revision + 1,
    )
    change = {"ticket_hash": session_hash, "opened_at": opened.opened_at, "expires_at": opened.expires_at}
    return _changed(visit, opened, change)


def begin_command(context: DecisionContext, visit: Visit, held_until: datetime | None = None) -> Decision[Visit]:
    """Use a command's ticket, once; a terminal that can be resumed is held until then, unless that is renewed."""
    if visit.opened_at is not None:
        raise Refusal(Code.UNAUTHENTICATED, "this command was already started")
    opened = replace(visit, opened_at=context.now, held_until=held_until, revision=visit.revision + 1)
    return _changed(visit, opened, {"opened_at": opened.opened_at, "held_until": held_until})


def end_terminal(context: DecisionContext, visit: Visit, reason: str) -> Decision[Visit]:
    """End a held terminal; the process that holds it hears of it by the event."""
    ended = replace(visit, ended_at=context.now, revision=visit.revision + 1)
    action = ACTION[VisitKind(visit.kind)]
    event = _event(EventType.VISIT_ENDED, ended)
    return Decision(
        result=ended,
        writes=(Update("visit", visit.id, visit.revision, {"ended_at": ended.ended_at}),),
        events=(replace(event, app_instance_id=visit.instance_id, data={**event.data, "reason": reason}),),
        audits=(
            AuditRecord(
                action,
                "visit",
                visit.id,
                visit.tenant_id,
                visit.project_id,
                after={"kind": visit.kind, "ended": True},
                reason=reason,
                app_instance_id=visit.instance_id,
            ),
        ),
    )


def _visit(
    context: DecisionContext,
    kind: VisitKind,
    ticket_hash: bytes,
    lifetime: timedelta,
    *,
    tenant_id: str,
    project_id: str,
) -> Visit:
    if context.actor.token_id is None:
        raise Refusal(Code.UNAUTHENTICATED, "a visit needs a caller with a token")
    return Visit(
        id=context.mint(Prefix.VISIT),
        tenant_id=tenant_id,
        project_id=project_id,
        allocation_id="",
        node_id="",
        owner="",
        kind=kind.value,
        endpoint_id=None,
        port=None,
        argv=None,
        run_as=None,
        columns=None,
        rows=None,
        principal_id=context.actor.id,
        token_id=context.actor.token_id,
        ticket_hash=ticket_hash,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        revision=0,
        created_at=context.now,
        expires_at=context.now + lifetime,
    )


def _grant(visit: Visit, details: dict[str, object], instance_id: str | None = None) -> Decision[Visit]:
    action = ACTION[VisitKind(visit.kind)]
    after = {"kind": visit.kind, **details}
    return Decision(
        result=visit,
        writes=(Insert("visit", asdict(visit)),),
        events=(replace(_event(EventType.VISIT_GRANTED, visit), app_instance_id=instance_id),),
        audits=(
            AuditRecord(
                action, "visit", visit.id, visit.tenant_id, visit.project_id, after=after, app_instance_id=instance_id
            ),
        ),
    )


def _changed(before: Visit, after: Visit, change: Mapping[str, object]) -> Decision[Visit]:
    action = ACTION[VisitKind(before.kind)]
    details = {"kind": before.kind, "opened": True}
    return Decision(
        result=after,
        writes=(Update("visit", before.id, before.revision, change),),
        events=(_event(EventType.VISIT_OPENED, after),),
        audits=(AuditRecord(action, "visit", before.id, before.tenant_id, before.project_id, after=details),),
    )


def _event(type_: EventType, visit: Visit) -> EventRecord:
    """The event of a visit, without the command's arguments: not everybody who may read events may run commands."""
    data = {
        "kind": visit.kind,
        "allocation_id": visit.allocation_id,
        "owner": visit.owner,
        "endpoint_id": visit.endpoint_id,
        "expires_at": visit.expires_at.isoformat(),
    }
    return EventRecord(type_, "visit", visit.id, visit.tenant_id, visit.project_id, data=data)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where people run commands in an app: an endpoint that has no port but a member and a user who is not root.

    An adapter reports it for a member, or the manifest declares it; then it is at the first member that is up.
    """

    name: str
    user: str = DEFAULT_USER
    directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def check_endpoint(endpoint: Mapping[str, Any], path: str) -> None:
    """Refuse a port with a user, and a terminal with a port or with root as its user."""
    is_terminal = endpoint["protocol"] == TERMINAL_PROTOCOL
    wrong = [each for each in (OF_PORTS if is_terminal else OF_TERMINALS) if endpoint.get(each) is not None]
    if wrong:
        raise invalid(f"{path}/{wrong[0]}", f"an endpoint of protocol {endpoint['protocol']} has no {wrong[0]}")
    if is_terminal and is_root(endpoint.get("user") or DEFAULT_USER):
        raise invalid(f"{path}/user", "must not be root: people run commands there")


def choose_terminal(
    instance: Instance, manifest: Manifest | None, members: Sequence[Member], name: str | None
) -> tuple[Terminal, Member]:
    """The named terminal, or the only one, and its member."""
    terminals = _reported(instance, members) or _declared(manifest, members)
    if not terminals:
        raise Refusal(Code.CONFLICT, f"{instance.name} has no terminal, or not yet: there is nowhere to run commands")
    if name is not None:
        terminals = [each for each in terminals if each[0].name == name]
        if not terminals:
            raise invalid("endpoint", f"{instance.name} has no terminal {name}")
    if len(terminals) > 1:
        names = ", ".join(sorted(each.name for each, _ in terminals))
        raise invalid("endpoint", f"must be one of {names}: {instance.name} has several terminals")
    terminal, member = terminals[0]
    if member is None or member.allocation_id is None:
        raise Refusal(Code.CONFLICT, f"no member of {instance.name} is up: there is nowhere to run a command yet")
    return terminal, member


def _reported(instance: Instance, members: Sequence[Member]) -> list[tuple[Terminal, Member | None]]:
    known = {each.id: each for each in members}
    return [
        (
            Terminal(
                each["name"], each.get("user", DEFAULT_USER), each.get("directory"), each.get("environment") or {}
            ),
            known.get(each.get("member_id", "")),
        )
        for each in instance.endpoints
        if each["protocol"] == TERMINAL_PROTOCOL
    ]


def _declared(manifest: Manifest | None, members: Sequence[Member]) -> list[tuple[Terminal, Member | None]]:
    order = {each.key: number for number, each in enumerate(() if manifest is None else manifest.components)}
    running = [each for each in members if each.status in UP]
    up = sorted(running, key=lambda each: (order.get(each.component_key, 0), each.ordinal))
    return [
        (Terminal(each.name, each.user or DEFAULT_USER), up[0] if up else None)
        for each in (() if manifest is None else manifest.endpoints)
        if each.protocol == TERMINAL_PROTOCOL
    ]
