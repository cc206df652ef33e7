"""Visit: somebody's bounded right to reach one endpoint of an app, or to run one command in its sandbox.

Three kinds. `connect` gives a ticket that opens connections to one port for a while. `browse` gives a link that counts
once: it is exchanged for a session of a browser at that endpoint's own origin and nowhere else. `exec` gives a ticket
for one command, once; its arguments are in the audit trail.

Of tickets, links and sessions only hashes are kept. A visit never gives more than its holder has at the moment of use:
whether the token that it was made with still counts, and still holds the action, is looked up anew each time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation, AllocationState
from mooring.core.fleet.task import Task
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.sandbox_user import is_root
from mooring.core.kernel.validation import invalid

CONNECT_LIFETIME: Final = timedelta(hours=12)
SESSION_LIFETIME: Final = timedelta(hours=8)
LINK_LIFETIME: Final = timedelta(minutes=2)
COMMAND_LIFETIME: Final = timedelta(minutes=2)
ARGUMENTS_MAX: Final = 128
ARGUMENT_LENGTH_MAX: Final = 4_096
ARGUMENTS_BYTES_MAX: Final = 32_768
SIZE_MAX: Final = 1_000
TICKET_PREFIX: Final = "mrgv_"
"""How a ticket, a link's code and a session begin, so that one that leaked is recognized."""


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
    """Where the relay is reached, and under which names it shows endpoints; known once it listens."""

    url: str = ""
    endpoints_url: str = ""  # with a star for the endpoint's own part, such as http://*.localhost:7421

    def origin_of(self, endpoint_id: str) -> str:
        """The origin of one endpoint."""
        return self.endpoints_url.replace("*", label_of(endpoint_id), 1)


def label_of(endpoint_id: str) -> str:
    """The first part of an endpoint's name: of its id, what a host name can hold."""
    return f"e-{endpoint_id.rpartition('_')[2]}"


@dataclass(frozen=True, slots=True)
class VisitEndpoint:
    """A port that an app declared when it was started; it is named by the task that started it."""

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
    terminal: bool = True  # of a command: it has a terminal, else pipes
    directory: str | None = None
    environment: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """A command that somebody wants to run."""

    argv: Sequence[str]
    run_as: str
    columns: int
    rows: int
    label: str = ""
    terminal: bool = True
    directory: str | None = None
    environment: Mapping[str, str] | None = None


def endpoint_of(task: Task) -> VisitEndpoint:
    """The endpoint that a task declared."""
    told: dict[str, Any] = task.arguments["endpoint"]
    return VisitEndpoint(
        task.id,
        task.tenant_id,
        task.project_id,
        task.allocation_id,
        task.node_id,
        task.owner,
        task.instance_id,
        str(told["name"]),
        int(told["port"]),
        str(told.get("protocol", "http")),
        task.created_at,
    )


def visit_endpoint(
    context: DecisionContext, endpoint: VisitEndpoint, kind: VisitKind, ticket_hash: bytes
) -> Decision[Visit]:
    """A visit to an endpoint: a ticket, or a link."""
    if kind is VisitKind.BROWSE and endpoint.protocol != "http":
        raise Refusal(
            Code.CONFLICT, f"{endpoint.name} speaks {endpoint.protocol}: reach it by `mooring connect` instead"
        )
    lifetime = LINK_LIFETIME if kind is VisitKind.BROWSE else CONNECT_LIFETIME
    visit = replace(
        _visit(context, kind, ticket_hash, (endpoint.tenant_id, endpoint.project_id), lifetime),
        allocation_id=endpoint.allocation_id,
        node_id=endpoint.node_id,
        owner=endpoint.owner,
        endpoint_id=endpoint.id,
        port=endpoint.port,
    )
    return _made(visit, {"endpoint_id": endpoint.id, "name": endpoint.name, "port": endpoint.port})


def visit_command(
    context: DecisionContext,
    allocation: Allocation,
    request: ExecRequest,
    ticket_hash: bytes,
    instance_id: str | None = None,
) -> Decision[Visit]:
    """A visit for one command, as a user who is not root; of an instance, where it is at one of its terminals."""
    if allocation.status != AllocationState.ACTIVE or allocation.node_id is None:
        raise Refusal(Code.CONFLICT, f"the allocation is {allocation.status}: a command runs in an active one")
    if not request.argv or not request.argv[0]:
        raise invalid("argv", "the program and its arguments")
    if sum(len(each.encode()) + 1 for each in request.argv) > ARGUMENTS_BYTES_MAX:
        raise invalid("argv", f"at most {ARGUMENTS_BYTES_MAX} bytes together")
    if any("\x00" in each for each in request.argv):
        raise invalid("argv", "no argument holds a zero byte")
    if is_root(request.run_as):
        raise invalid("user", "a user who is not root: an interactive command has no need of more")
    visit = replace(
        _visit(context, VisitKind.EXEC, ticket_hash, (allocation.tenant_id, allocation.project_id), COMMAND_LIFETIME),
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
    )
    told: dict[str, object] = {
        "owner": visit.owner,
        "argv": visit.argv,
        "user": request.run_as,
        "terminal": request.terminal,
    }
    return _made(visit, told, instance_id)


def open_session(context: DecisionContext, visit: Visit, session_hash: bytes) -> Decision[Visit]:
    """Exchange a link for a browser's session, once."""
    if visit.opened_at is not None:
        raise Refusal(Code.UNAUTHENTICATED, "this link was used before: ask for a new one")
    opened = replace(
        visit,
        ticket_hash=session_hash,
        opened_at=context.now,
        expires_at=context.now + SESSION_LIFETIME,
        revision=visit.revision + 1,
    )
    change = {"ticket_hash": session_hash, "opened_at": opened.opened_at, "expires_at": opened.expires_at}
    return _changed(visit, opened, change)


def begin_command(context: DecisionContext, visit: Visit) -> Decision[Visit]:
    """Use a command's ticket, once."""
    if visit.opened_at is not None:
        raise Refusal(Code.UNAUTHENTICATED, "this command was started before")
    opened = replace(visit, opened_at=context.now, revision=visit.revision + 1)
    return _changed(visit, opened, {"opened_at": opened.opened_at})


def _visit(
    context: DecisionContext, kind: VisitKind, ticket_hash: bytes, home: tuple[str, str], lifetime: timedelta
) -> Visit:
    if context.actor.token_id is None:
        raise Refusal(Code.UNAUTHENTICATED, "a visit is made by somebody who holds a token")
    return Visit(
        id=context.mint(Prefix.VISIT),
        tenant_id=home[0],
        project_id=home[1],
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


def _made(visit: Visit, told: dict[str, object], instance_id: str | None = None) -> Decision[Visit]:
    action = ACTION[VisitKind(visit.kind)]
    after = {"kind": visit.kind, **told}
    return Decision(
        result=visit,
        writes=(Insert("visit", asdict(visit)),),
        events=(replace(_happened(EventType.VISIT_GRANTED, visit), app_instance_id=instance_id),),
        audits=(
            AuditRecord(
                action, "visit", visit.id, visit.tenant_id, visit.project_id, after=after, app_instance_id=instance_id
            ),
        ),
    )


def _changed(before: Visit, after: Visit, change: Mapping[str, object]) -> Decision[Visit]:
    action = ACTION[VisitKind(before.kind)]
    told = {"kind": before.kind, "opened": True}
    return Decision(
        result=after,
        writes=(Update("visit", before.id, before.revision, change),),
        events=(_happened(EventType.VISIT_OPENED, after),),
        audits=(AuditRecord(action, "visit", before.id, before.tenant_id, before.project_id, after=told),),
    )


def _happened(type_: EventType, visit: Visit) -> EventRecord:
    """What became true, without a command's arguments: who may read events need not be who may run commands."""
    data = {
        "kind": visit.kind,
        "allocation_id": visit.allocation_id,
        "owner": visit.owner,
        "endpoint_id": visit.endpoint_id,
        "expires_at": visit.expires_at.isoformat(),
    }
    return EventRecord(type_, "visit", visit.id, visit.tenant_id, visit.project_id, data=data)
