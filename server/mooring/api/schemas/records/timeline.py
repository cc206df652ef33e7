"""Request and response bodies for the timeline."""

from typing import Annotated, Any

from msgspec import Meta

from mooring.api.page import Cursor, Limit
from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.api.schemas.records.record import CorrelationId, InstanceId
from mooring.core.records.timeline import TimelineRow, text_of

WithAudit = Annotated[bool, Meta(description="Include audit rows, if the caller may read them.")]
Wait = Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for the first entry.")]


class InstanceTimelineQuery(Strict):
    """From which cursor, and how long to wait for the first entry."""

    cursor: Cursor | None = None
    limit: Limit = 100
    correlation_id: CorrelationId | None = None
    audit: WithAudit = True
    wait: Wait = 0


class TimelineQuery(Strict):
    """Which timeline, from which cursor, and how long to wait for the first entry."""

    cursor: Cursor | None = None
    limit: Limit = 100
    correlation_id: CorrelationId | None = None
    app_instance_id: InstanceId | None = None
    audit: WithAudit = True
    wait: Wait = 0


class TimelineStreamQuery(Strict):
    """Which timeline, and where it starts: at a cursor, at the `beginning`, or (without a cursor) now."""

    cursor: Cursor | None = None
    correlation_id: CorrelationId | None = None
    app_instance_id: InstanceId | None = None
    audit: WithAudit = True


class TimelineEntry(Shown):
    """One line of a timeline: an event, or an audit row."""

    cursor: str
    id: str
    at: Time
    kind: Annotated[str, Meta(description="`audit`, or the noun of the event: `instance`, `member`, `operation`, …")]
    type: Annotated[str, Meta(description="The type of the event, or the action of the audit row.")]
    subject_id: str | None
    app_instance_id: str | None
    text: Annotated[str, Meta(description="The entry in one line.")]
    actor_kind: str
    actor_id: str
    correlation_id: str
    trace_id: str
    data: dict[str, Any]


class TimelinePage(Shown):
    """Entries in order, and the cursor of the next page."""

    items: list[TimelineEntry]
    next_cursor: str


def entry_view(entry: TimelineRow) -> TimelineEntry:
    return TimelineEntry(
        cursor=entry.position.cursor(),
        id=entry.id,
        at=entry.occurred_at,
        kind=entry.kind,
        type=entry.type,
        subject_id=entry.subject_id,
        app_instance_id=entry.app_instance_id,
        text=text_of(entry),
        actor_kind=entry.actor_kind,
        actor_id=entry.actor_id,
        correlation_id=entry.correlation_id,
        trace_id=entry.trace_id,
        data=entry.data,
    )
