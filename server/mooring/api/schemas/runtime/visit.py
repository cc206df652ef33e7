"""Bodies and views of the visit endpoints."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.commands.runtime.visit import TicketedVisit
from mooring.core.fleet.task_creation import LABEL_PATTERN
from mooring.core.fleet.task_schema import NAME_PATTERN
from mooring.core.kernel.sandbox_user import USER_PATTERN
from mooring.core.runtime.visit import ARGUMENT_LENGTH_MAX, ARGUMENTS_MAX, SIZE_MAX, VisitEndpoint, VisitKind

Argument = Annotated[str, Meta(max_length=ARGUMENT_LENGTH_MAX)]
Size = Annotated[int, Meta(ge=1, le=SIZE_MAX)]


class EndpointView(Shown):
    """A port that an app declared, and its address for browsers."""

    id: str
    project_id: str
    allocation_id: str
    owner: str
    instance_id: str | None
    name: str
    port: int
    protocol: str
    origin: Annotated[str | None, Meta(description="Its origin for browsers, after a link was opened; http only.")]
    created_at: Time


class RunCommand(Strict):
    """A command to run in a sandbox, with a terminal."""

    argv: Annotated[list[Argument], Meta(min_length=1, max_length=ARGUMENTS_MAX)]
    user: Annotated[str, Meta(pattern=USER_PATTERN, description="A non-root user of the sandbox.")] = "app"
    label: Annotated[str, Meta(pattern=f"^$|{LABEL_PATTERN}", description="The owner within the allocation.")] = ""
    columns: Size = 80
    rows: Size = 24
    terminal: Annotated[
        bool, Meta(description="Whether it has a terminal; otherwise it has pipes, with a separate one for errors.")
    ] = True


class RunAtTerminal(Strict):
    """A command to run at an app's terminal, as the user that the app sets there."""

    argv: Annotated[
        list[Argument], Meta(max_length=ARGUMENTS_MAX, description="The command; without one it is a login shell.")
    ] = msgspec.field(default_factory=list)
    endpoint: (
        Annotated[str, Meta(pattern=NAME_PATTERN, description="Which terminal; required if the app has several.")]
        | None
    ) = None
    columns: Size = 80
    rows: Size = 24
    terminal: Annotated[
        bool, Meta(description="Whether it has a terminal; otherwise it has pipes, with a separate one for errors.")
    ] = True


class TicketView(Shown):
    """A ticket for the relay, which is shown only once."""

    id: str
    kind: str
    relay_url: Annotated[str, Meta(description="The relay that accepts the ticket.")]
    ticket: Annotated[str, Meta(description="Shown only once.")]
    expires_at: Time


class LinkView(Shown):
    """A link for a browser; it works once, for a few minutes."""

    id: str
    kind: str
    url: Annotated[
        str, Meta(description="Shown only once and works only once: it starts a session at this endpoint only.")
    ]
    expires_at: Time


def endpoint_view(endpoint: VisitEndpoint, origin: str) -> EndpointView:
    return EndpointView(
        id=endpoint.id,
        project_id=endpoint.project_id,
        allocation_id=endpoint.allocation_id,
        owner=endpoint.owner,
        instance_id=endpoint.instance_id,
        name=endpoint.name,
        port=endpoint.port,
        protocol=endpoint.protocol,
        origin=origin if endpoint.protocol == "http" else None,
        created_at=endpoint.created_at,
    )


def ticket_view(made: TicketedVisit, relay_url: str) -> TicketView:
    visit = made.visit
    return TicketView(
        id=visit.id, kind=visit.kind, relay_url=relay_url, ticket=made.ticket, expires_at=visit.expires_at
    )


def link_view(made: TicketedVisit, origin: str) -> LinkView:
    visit = made.visit
    url = f"{origin}/.mooring/open?code={made.ticket}"
    return LinkView(id=visit.id, kind=VisitKind(visit.kind).value, url=url, expires_at=visit.expires_at)
