"""Request and response bodies for events and the audit trail."""

from typing import Annotated, Any

from msgspec import Meta

from mooring.api.page import Cursor, Limit
from mooring.api.schemas.kernel.fields import ActionKey, Shown, Strict, Time
from mooring.core.kernel.decision import PrincipalKind
from mooring.core.kernel.event import Event, public_event
from mooring.core.records.audit import AuditRow

CorrelationId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:\-]*$",
        description="A correlation id.",
    ),
]
InstanceId = Annotated[
    str, Meta(min_length=1, max_length=60, pattern="^[a-z0-9_]+$", description="Only entries of this instance.")
]


class EventQuery(Strict):
    """Which events, from which cursor, and how long to wait for the first."""

    cursor: Cursor | None = None
    limit: Limit = 100
    correlation_id: CorrelationId | None = None
    app_instance_id: InstanceId | None = None
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for the first event.")] = 0
    newest: Annotated[bool, Meta(description="Without a cursor: the last events instead of the first.")] = False


class StreamQuery(Strict):
    """Where a stream starts: at a cursor, at the `beginning`, or (without a cursor) now."""

    cursor: Cursor | None = None
    correlation_id: CorrelationId | None = None
    app_instance_id: InstanceId | None = None


class EventView(Shown):
    """Something that happened."""

    id: str
    cursor: str
    type: str
    noun: str
    subject_id: str
    generation: int | None
    org_id: str | None
    project_id: str | None
    app_slug: str | None
    app_instance_id: str | None
    actor_kind: str
    actor_id: str
    correlation_id: str
    trace_id: str
    occurred_at: Time
    data: dict[str, Any]
    data_withheld: bool = False


class EventPage(Shown):
    """Events in order, and the cursor of the next page."""

    items: list[EventView]
    next_cursor: str


class AuditQuery(Strict):
    """Which audit rows are listed."""

    cursor: Cursor | None = None
    limit: Limit = 100
    correlation_id: CorrelationId | None = None
    actor_id: Annotated[str, Meta(max_length=60, pattern="^[a-z0-9_]+$")] | None = None
    action: ActionKey | None = None
    outcome: Annotated[str, Meta(pattern="^(done|denied|hidden|refused)$")] | None = None
    actor_kind: (
        Annotated[PrincipalKind, Meta(description="Rows of people (`user`), or of one kind of machine.")] | None
    ) = None
    subject_id: (
        Annotated[str, Meta(max_length=60, pattern="^[a-z0-9_]+$", description="Rows about what has this id.")] | None
    ) = None
    since: Annotated[Time, Meta(description="Rows of this time and later.")] | None = None
    until: Annotated[Time, Meta(description="Rows before this time.")] | None = None


class AuditView(Shown):
    """Who did what, or was refused."""

    id: str
    occurred_at: Time
    outcome: str
    action: str
    noun: str | None
    subject_id: str | None
    org_id: str | None
    project_id: str | None
    actor_kind: str
    actor_id: str
    token_id: str | None
    break_glass_id: str | None
    correlation_id: str
    trace_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str | None
    route: str | None
    remote_address: str | None
    app_instance_id: str | None
    count: int


def event_view(event: Event, *, withhold: bool = False) -> EventView:
    """An event; with `withhold` without its data: the platform's stream does not show what is in a tenant's events."""
    return EventView(**public_event(event, withhold=withhold))


def audit_view(row: AuditRow) -> AuditView:
    fields = {name: getattr(row, name) for name in AuditRow.__slots__ if name != "tenant_id"}
    return AuditView(**fields, org_id=row.tenant_id)
