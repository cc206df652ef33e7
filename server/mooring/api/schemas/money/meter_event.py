"""Request and response bodies for meter events, late usage and readings."""

from decimal import Decimal
from typing import Annotated, Final, Literal

from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.api.schemas.runtime.adapter import Fence, InstanceId, MemberId, ProjectId
from mooring.core.fleet.task_schema import NO_NUL_PATTERN
from mooring.core.money.late_usage import LateUsage
from mooring.core.money.meter_event import EVENTS_MAX, MeterEvent
from mooring.core.money.meter_reading import READINGS_MAX, Reading

Unit = Annotated[str, Meta(max_length=64, pattern=NO_NUL_PATTERN, description="A unit of the app's manifest.")]
Quantity = Annotated[float, Meta(ge=0, le=1e15)]
Component = Annotated[str, Meta(min_length=1, max_length=128, pattern=NO_NUL_PATTERN)]
LateStatus = Literal["open", "accepted", "rejected"]
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024


class UsageData(Strict):
    """What was used. Without `started_at` the use is a moment: the event's `time`."""

    unit: Unit
    quantity: Quantity
    started_at: Time | None = None
    attached_project_id: ProjectId | None = None
    member_id: MemberId | None = None
    component: Component | None = None


class UsageEvent(Strict):
    """A CloudEvent about usage: `source` and `id` name it, `subject` is the instance, `time` is when the use ended."""

    specversion: Literal["1.0"]
    type: Literal["mooring.usage"]
    source: Annotated[str, Meta(min_length=1, max_length=256, pattern=NO_NUL_PATTERN)]
    id: Annotated[str, Meta(min_length=1, max_length=128, pattern=NO_NUL_PATTERN)]
    subject: InstanceId
    time: Time
    data: UsageData
    datacontenttype: Literal["application/json"] | None = None
    dataschema: Annotated[str, Meta(max_length=500)] | None = None
    traceparent: Annotated[str, Meta(max_length=200)] | None = None
    tracestate: Annotated[str, Meta(max_length=500)] | None = None


class RecordMeterEvents(Strict):
    """A batch of events; it is stored completely or not at all."""

    events: Annotated[list[UsageEvent], Meta(min_length=1, max_length=EVENTS_MAX)]


class MeterBatchView(Shown):
    """What became of a batch: stored as usage, put into the queue of late usage, or stored before."""

    batch_id: str | None
    accepted: int
    late: int
    duplicates: int


class LateUsageQuery(PageQuery):
    """Which late usage to list."""

    status: LateStatus | None = None


class ResolveLateUsage(Strict):
    """Why late usage is accepted or rejected."""

    reason: Annotated[str, Meta(min_length=1, max_length=500)]


class LateUsageView(Shown):
    """An event that came after the window, and what a person decided about it."""

    id: str
    instance_id: str
    event_source: str
    event_id: str
    unit: str
    quantity: str
    started_at: Time
    ended_at: Time
    attached_project_id: str | None
    member_id: str | None
    component: str | None
    batch_id: str
    status: LateStatus
    reason: str | None
    resolved_by: str | None
    resolved_at: Time | None
    usage_record_id: str | None
    correlation_id: str
    created_at: Time


class MeterReading(Strict):
    """What a counter showed: `value` never falls inside an `epoch`, and `seq` grows with each reading."""

    series: Annotated[str, Meta(min_length=1, max_length=128, pattern="^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")]
    epoch: Annotated[int, Meta(ge=0, le=2**62)]
    seq: Annotated[int, Meta(ge=0, le=2**62)]
    value: Quantity
    at: Time
    unit: Unit
    attached_project_id: ProjectId | None = None
    member_id: MemberId | None = None
    component: Component | None = None


class ReportReadings(Strict):
    """Readings of the instance's counters."""

    fence: Fence
    readings: Annotated[list[MeterReading], Meta(min_length=1, max_length=READINGS_MAX)]


class StoredReadings(Shown):
    """How many readings were new; the others add nothing."""

    stored: int
    unchanged: int


def decimal_of(quantity: float) -> Decimal:
    """The decimal number that the sender wrote."""
    return Decimal(repr(quantity)).normalize()


def event_of(event: UsageEvent) -> MeterEvent:
    data = event.data
    return MeterEvent(
        event.source,
        event.id,
        event.subject,
        data.unit,
        decimal_of(data.quantity),
        data.started_at or event.time,
        event.time,
        data.attached_project_id,
        data.member_id,
        data.component,
    )


def reading_of(sent: MeterReading) -> Reading:
    return Reading(
        sent.series,
        sent.epoch,
        sent.seq,
        decimal_of(sent.value),
        sent.at,
        sent.unit,
        sent.attached_project_id,
        sent.member_id,
        sent.component,
    )


def late_usage_view(late: LateUsage) -> LateUsageView:
    hidden = ("tenant_id", "project_id", "record_id", "revision", "quantity")
    values = {name: getattr(late, name) for name in LateUsage.__slots__ if name not in hidden}
    return LateUsageView(**values, quantity=f"{late.quantity:f}")
