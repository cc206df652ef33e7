"""Events, readings and the instance that they belong to, for tests of the sources of usage."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

from mooring.core.kernel.decision import DecisionContext
from mooring.core.money.late_usage import LateUsage, LateUsageStatus
from mooring.core.money.meter_event import BatchContext, MeteredInstance, MeterEvent
from mooring.core.money.meter_reading import LastReading, Reading, ReadingContext, SeriesEpoch
from server.tests.support.runtime_rows import seen

WINDOW = timedelta(days=35)


def metered(now: DecisionContext) -> MeteredInstance:
    """An instance that was made 60 days ago, and counts tokens."""
    instance = replace(seen().instance, created_at=now.now - timedelta(days=60))
    return MeteredInstance(instance, {"tokens": False}, frozenset({"main"}))


def event(now: DecisionContext, id: str, quantity: int = 1, days_ago: int = 0) -> MeterEvent:
    at = now.now - timedelta(days=days_ago)
    return MeterEvent("//test", id, metered(now).instance.id, "tokens", Decimal(quantity), at, at)


def batch(now: DecisionContext, stored: Mapping[str, MeterEvent] | None = None) -> BatchContext:
    known = metered(now)
    place = (known.instance.tenant_id, known.instance.project_id)
    return BatchContext(*place, {known.instance.id: known}, stored or {}, WINDOW)


def reading(now: DecisionContext, seq: int, value: int, epoch: int = 1) -> Reading:
    return Reading("head/tokens", epoch, seq, Decimal(value), now.now, "tokens")


def readings_of(now: DecisionContext, last: Mapping[SeriesEpoch, LastReading] | None = None) -> ReadingContext:
    return ReadingContext(seen().claim, metered(now), last or {}, {})


def late_usage(now: DecisionContext) -> LateUsage:
    instance, at = metered(now).instance, now.now - timedelta(days=40)
    return LateUsage(
        id="lat_1",
        tenant_id=instance.tenant_id,
        project_id=instance.project_id,
        instance_id=instance.id,
        record_id="key",
        event_source="//test",
        event_id="a",
        unit="tokens",
        quantity=Decimal(1),
        started_at=at,
        ended_at=at,
        attached_project_id=None,
        member_id=None,
        component=None,
        batch_id="mbt_1",
        correlation_id="cor_1",
        created_at=now.now,
        status=LateUsageStatus.OPEN.value,
        reason=None,
        resolved_by=None,
        resolved_at=None,
        usage_record_id=None,
        revision=0,
    )
