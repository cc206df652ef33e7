"""Request and response bodies for usage."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.api.schemas.runtime.adapter import Fence, ProjectId
from mooring.core.fleet.task_schema import NO_NUL_PATTERN
from mooring.core.money.usage import UsageRecord


class ReportedUsage(Strict):
    """One interval of use; it is stored once under its id."""

    record_id: Annotated[str, Meta(min_length=1, max_length=128, pattern="^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")]
    unit: Annotated[str, Meta(max_length=64, pattern=NO_NUL_PATTERN)]
    started_at: Time
    ended_at: Time
    quantity: Annotated[float, Meta(ge=0, le=1e15)]
    attached_project_id: ProjectId | None = None


class ReportUsage(Strict):
    """Usage of the instance, in units of its manifest."""

    fence: Fence
    records: Annotated[list[ReportedUsage], Meta(min_length=1, max_length=500)]


class StoredUsage(Shown):
    """How many of the records were new; the others were stored already, with the same values."""

    stored: int
    repeated: int


class UsageRecordView(Shown):
    """One interval of use that an app reported."""

    id: str
    instance_id: str
    record_id: str
    unit: str
    started_at: Time
    ended_at: Time
    quantity: str
    attached_project_id: str | None
    usage_source: str
    covered_by_allocation: bool
    app: str
    correlation_id: str
    created_at: Time


def usage_view(record: UsageRecord) -> UsageRecordView:
    """A usage record; its quantity is a decimal number in plain notation."""
    return UsageRecordView(
        id=record.id,
        instance_id=record.instance_id,
        record_id=record.record_id,
        unit=record.unit,
        started_at=record.started_at,
        ended_at=record.ended_at,
        quantity=f"{record.quantity:f}",
        attached_project_id=record.attached_project_id,
        usage_source=record.usage_source,
        covered_by_allocation=record.covered_by_allocation,
        app=record.app_slug,
        correlation_id=record.correlation_id,
        created_at=record.created_at,
    )
