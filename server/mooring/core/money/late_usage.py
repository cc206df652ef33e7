"""Late usage: events that ended before the window, which a person accepts or rejects.

Accepted late usage becomes a usage record under the same key, and is charged in the hour of its acceptance. Rejected
late usage stays readable with its reason. Either way the event is never stored again.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import reason as checked_reason
from mooring.core.money.meter_event import MeteredInstance
from mooring.core.money.usage import METER_EVENT, UsageRecord, billed_at
from mooring.core.pricing.meter import Billing, billing_of


class LateUsageStatus(StrEnum):
    OPEN = "open"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class LateUsage:
    """An event that came after the window."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    record_id: str
    event_source: str
    event_id: str
    unit: str
    quantity: Decimal
    started_at: datetime
    ended_at: datetime
    attached_project_id: str | None
    member_id: str | None
    component: str | None
    batch_id: str
    correlation_id: str
    created_at: datetime
    status: str
    reason: str | None
    resolved_by: str | None
    resolved_at: datetime | None
    usage_record_id: str | None
    revision: int


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a person decided about late usage."""

    status: LateUsageStatus
    reason: str


def resolve_late_usage(
    context: DecisionContext, late: LateUsage, known: MeteredInstance, resolution: Resolution
) -> Decision[LateUsage]:
    """Turn late usage into a usage record, or reject it."""
    why = checked_reason(resolution.reason)
    if late.status != LateUsageStatus.OPEN:
        if (late.status, late.reason) == (resolution.status, why):
            return Decision(late)
        raise Refusal(Code.CONFLICT, f"the late usage is {late.status} already", {"status": late.status})
    record = None
    if resolution.status is LateUsageStatus.ACCEPTED:
        record = _record(context, late, known)
    changed = {
        "status": resolution.status.value,
        "reason": why,
        "resolved_by": context.actor.id,
        "resolved_at": context.now,
        "usage_record_id": None if record is None else record.id,
    }
    writes: tuple[Write, ...] = (Update("late_usage", late.id, late.revision, changed),)
    if record is not None:
        writes = (Insert("usage_record", asdict(record)), *writes)
    audit = AuditRecord(
        "usage.resolve",
        "late_usage",
        late.id,
        late.tenant_id,
        late.project_id,
        before={"status": late.status},
        after={"status": resolution.status.value, "usage_record_id": changed["usage_record_id"]},
        reason=why,
        app_instance_id=late.instance_id,
    )
    event = EventRecord(
        EventType.LATE_USAGE_RESOLVED,
        "late_usage",
        late.id,
        late.tenant_id,
        late.project_id,
        {"status": resolution.status.value, "unit": late.unit, "quantity": f"{late.quantity:f}"},
        app_slug=known.instance.app_slug,
        app_instance_id=late.instance_id,
    )
    after = LateUsage(**{**asdict(late), **changed, "revision": late.revision + 1})
    return Decision(after, writes, (event,), (audit,))


def _record(context: DecisionContext, late: LateUsage, known: MeteredInstance) -> UsageRecord:
    billing = billing_of(late.unit, known.units, known.meters.get(late.unit))
    billing, price_id = billed_at(known.prices.get(late.unit, ()), late.tenant_id, billing, late.ended_at)
    instance = known.instance
    return UsageRecord(
        id=context.mint(Prefix.USAGE_RECORD),
        tenant_id=late.tenant_id,
        project_id=late.project_id,
        instance_id=late.instance_id,
        record_id=late.record_id,
        unit=late.unit,
        started_at=late.started_at,
        ended_at=late.ended_at,
        quantity=late.quantity,
        attached_project_id=late.attached_project_id,
        usage_source=METER_EVENT,
        app_slug=instance.app_slug,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        created_at=context.now,
        covered_by_allocation=billing is Billing.COVERED,
        billing=billing.value,
        price_id=price_id,
        operating_mode=instance.operating_mode,
        control_plane_scope=instance.control_plane_scope,
        runtime_backend=instance.runtime_backend,
        member_id=late.member_id,
        component=late.component,
        event_source=late.event_source,
        event_id=late.event_id,
        batch_id=late.batch_id,
    )
