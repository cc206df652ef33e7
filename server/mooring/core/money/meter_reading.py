"""Readings: cumulative values of counters, of an adapter or of the proxy, like those of an electricity meter.

A series is one counter of one instance. Inside an epoch (one life of the process that counts) its value never falls;
usage is the difference to the reading before. So a replay adds nothing, a lost report is contained in the next one, and
a reset is a new epoch. The first reading of an epoch is where counting begins; a producer that knows when its process
started begins the epoch with a reading of 0 at that time.

Values count in millionths: they are rounded down once, so differences add up exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal
from typing import Final, NamedTuple

from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, InsertMany, Row, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.core.money.meter_event import CLOCK_SKEW, Attribution, MeteredInstance, by_column, check_attribution
from mooring.core.money.usage import COUNTED_ALREADY, METER_READING, billed_at, earliest_start
from mooring.core.pricing.meter import Billing, billing_of
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance

READINGS_MAX: Final = 500
MILLIONTH: Final = Decimal("0.000001")


class SeriesEpoch(NamedTuple):
    """One life of one counter of an instance."""

    series: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a counter showed, and whose use it counts."""

    series: str
    epoch: int
    seq: int
    value: Decimal
    at: datetime
    unit: str
    attached_project_id: str | None = None
    member_id: str | None = None
    component: str | None = None


@dataclass(frozen=True, slots=True)
class LastReading:
    """The last accepted reading of an epoch."""

    seq: int
    value: Decimal
    at: datetime


@dataclass(frozen=True, slots=True)
class ReadingContext:
    """What readings are checked against."""

    claim: InstanceClaim | None  # of the adapter that reports; None if the platform counts by itself
    known: MeteredInstance
    last: Mapping[SeriesEpoch, LastReading]
    same: Mapping[tuple[str, int, int], Decimal]  # (series, epoch, seq) → value, of those that are stored already


@dataclass(frozen=True, slots=True)
class ReadingResult:
    stored: int
    unchanged: int  # they add nothing: repeated, contained in a later one, or the same value as the one before


@dataclass(frozen=True, slots=True)
class _Step:
    """A reading that is stored, with the one before it; None at the beginning of its epoch."""

    reading: Reading
    before: LastReading | None
    billing: Billing
    price_id: str | None


def take_readings(
    context: DecisionContext, loaded: ReadingContext, readings: Sequence[Reading]
) -> Decision[ReadingResult]:
    """Store what is new, all of it or nothing; each difference becomes a usage record."""
    last = dict(loaded.last)
    steps: list[_Step] = []
    for index, sent in enumerate(readings):
        reading = _normal(loaded, sent)
        key = SeriesEpoch(reading.series, reading.epoch)
        before = last.get(key)
        billing = _check(context, loaded, reading, f"readings/{index}")
        if not _is_news(loaded, reading, before, f"readings/{index}"):
            continue
        prices = loaded.known.prices.get(reading.unit, ())
        steps.append(_Step(reading, before, *billed_at(prices, loaded.known.instance.tenant_id, billing, reading.at)))
        last[key] = LastReading(reading.seq, reading.value, reading.at)
    result = ReadingResult(len(steps), len(readings) - len(steps))
    if not steps:
        return Decision(result)
    instance = loaded.known.instance
    audit = AuditRecord(
        "usage.report",
        "instance",
        instance.id,
        *instance.place,
        after={"readings": len(steps), "cause_id": instance.correlation_id},
        app_instance_id=instance.id,
    )
    guards = () if loaded.claim is None else (guard_of(loaded.claim),)
    return Decision(result, (*guards, *_rows(context, loaded, steps)), (), (audit,))


def _normal(loaded: ReadingContext, sent: Reading) -> Reading:
    component = sent.component
    if sent.member_id is not None and component is None:
        component = loaded.known.members.get(sent.member_id)
    return replace(sent, value=sent.value.quantize(MILLIONTH, ROUND_FLOOR), component=component)


def _check(context: DecisionContext, loaded: ReadingContext, reading: Reading, path: str) -> Billing:
    known = loaded.known
    check_attribution(known, Attribution(reading.attached_project_id, reading.member_id, reading.component), path)
    if not earliest_start(known.instance) <= reading.at <= context.now + CLOCK_SKEW:
        raise invalid(f"{path}/at", "a time between the instance's creation and now")
    if loaded.claim is not None and reading.unit in known.proxied:
        raise invalid(f"{path}/unit", COUNTED_ALREADY)
    return billing_of(reading.unit, known.units, known.meters.get(reading.unit), f"{path}/unit")


def _is_news(loaded: ReadingContext, reading: Reading, before: LastReading | None, path: str) -> bool:
    """Whether the reading adds something; refuses one that contradicts what is stored."""
    stored = loaded.same.get((reading.series, reading.epoch, reading.seq))
    if stored is not None and stored != reading.value:
        raise Refusal(
            Code.CONFLICT,
            f"{path}: the reading {reading.seq} of {reading.series} is stored with another value",
            {"path": path, "stored_value": f"{stored:f}", "sent_value": f"{reading.value:f}"},
        )
    if before is None:
        return True
    if reading.seq <= before.seq:
        return False  # a replay, or one that was overtaken: the later reading contains it
    if reading.value < before.value:
        raise Refusal(
            Code.CONFLICT,
            f"{path}: the value of {reading.series} falls inside its epoch; a reset begins a new one",
            {"path": path, "stored_value": f"{before.value:f}", "sent_value": f"{reading.value:f}"},
        )
    if reading.at < before.at:
        raise invalid(f"{path}/at", "a time that is not before the reading before it")
    return reading.value > before.value


def _rows(context: DecisionContext, loaded: ReadingContext, steps: Sequence[_Step]) -> list[Write]:
    instance = loaded.known.instance
    shared = {
        "tenant_id": instance.tenant_id,
        "project_id": instance.project_id,
        "instance_id": instance.id,
        "correlation_id": context.correlation_id,
        "created_at": context.now,
    }
    columns: dict[str, list[object]] = {
        "id": [context.mint(Prefix.METER_READING) for _ in steps],
        "series": [each.reading.series for each in steps],
        "epoch": [each.reading.epoch for each in steps],
        "seq": [each.reading.seq for each in steps],
        "value": [each.reading.value.normalize() for each in steps],
        "at": [each.reading.at for each in steps],
        "previous_seq": [None if each.before is None else each.before.seq for each in steps],
        "previous_value": [None if each.before is None else each.before.value for each in steps],
        "usage_record_id": [None if each.before is None else context.mint(Prefix.USAGE_RECORD) for each in steps],
    }
    readings = by_column("meter_reading", shared, columns)
    counted = [
        _Counted(usage_id, reading_id, each, each.before)
        for usage_id, reading_id, each in zip(columns["usage_record_id"], columns["id"], steps, strict=True)
        if usage_id is not None and each.before is not None
    ]
    return [_usage_rows(context, instance, shared, counted), readings] if counted else [readings]


@dataclass(frozen=True, slots=True)
class _Counted:
    """A reading that follows another one: their difference is a usage record."""

    usage_id: object
    reading_id: object
    step: _Step
    before: LastReading


def _usage_rows(context: DecisionContext, instance: Instance, shared: Row, counted: Sequence[_Counted]) -> InsertMany:
    readings = [each.step.reading for each in counted]
    return by_column(
        "usage_record",
        {
            **shared,
            "usage_source": METER_READING,
            "trace_id": context.trace_id,
            "app_slug": instance.app_slug,
            "operating_mode": instance.operating_mode,
            "control_plane_scope": instance.control_plane_scope,
            "runtime_backend": instance.runtime_backend,
        },
        {
            "id": [each.usage_id for each in counted],
            "record_id": [each.reading_id for each in counted],
            "unit": [each.unit for each in readings],
            "started_at": [each.before.at for each in counted],
            "ended_at": [each.at for each in readings],
            "quantity": [(each.step.reading.value - each.before.value).normalize() for each in counted],
            "attached_project_id": [each.attached_project_id for each in readings],
            "member_id": [each.member_id for each in readings],
            "component": [each.component for each in readings],
            "covered_by_allocation": [each.step.billing is Billing.COVERED for each in counted],
            "billing": [each.step.billing.value for each in counted],
            "price_id": [each.step.price_id for each in counted],
        },
    )
