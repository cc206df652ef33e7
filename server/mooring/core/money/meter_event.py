"""Meter events: usage that anybody with `usage.report` sends in batches, as CloudEvents.

An event is named by its source and its id, once for its tenant and for ever: sent again with the same content it is a
duplicate, which is counted and not stored; with other content the batch is refused, and the refusal has both hashes. A
batch is accepted completely or not at all, so nothing of it is dropped silently. An event that ended before the window
goes into the queue of late usage (`core/money/late_usage.py`).

A batch is decided per group of equal attribution, not per event: the unit, the member and the attached project of an
instance are checked once, and its rows are written by column.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from mooring.core.catalog.operating_mode import ControlPlaneScope
from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    InsertMany,
    Row,
    Write,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.core.money.usage import COUNTED_ALREADY, METER_EVENT, billed_at, earliest_start
from mooring.core.pricing.meter import Billing, Meter, billing_of
from mooring.core.pricing.price import Price
from mooring.core.runtime.instance import Instance

EVENTS_MAX: Final = 5_000
INSTANCES_MAX: Final = 100
CONFLICTS_SHOWN_MAX: Final = 20
LATE_OPEN_MAX: Final = 50_000
"""How many events of a tenant may wait in the queue of late usage."""
CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far the clock of a sender may be ahead of the platform's."""


class MeterEvent(NamedTuple):
    """One interval of use; a named tuple, because a batch has thousands of them."""

    source: str
    id: str
    instance_id: str
    unit: str
    quantity: Decimal
    started_at: datetime
    ended_at: datetime
    attached_project_id: str | None = None
    member_id: str | None = None
    component: str | None = None


class Attribution(NamedTuple):
    """Whose use it was, besides the instance's."""

    attached_project_id: str | None
    member_id: str | None
    component: str | None


class _Fresh(NamedTuple):
    """An event to store, and how it is billed."""

    key: str
    event: MeterEvent
    billing: Billing
    price_id: str | None


@dataclass(frozen=True, slots=True)
class MeteredInstance:
    """An instance, and what its usage is checked against."""

    instance: Instance
    units: Mapping[str, bool]  # unit of the pinned manifest → whether the allocation covers it
    components: frozenset[str] = frozenset()
    members: Mapping[str, str] = field(default_factory=dict)  # id → component, of the named members
    projects: frozenset[str] = frozenset()  # those of the named projects that are, or were, attached
    meters: Mapping[str, Meter] = field(default_factory=dict)
    prices: Mapping[str, Sequence[Price]] = field(default_factory=dict)
    collected: frozenset[str] = frozenset()  # units that the manifest's `metering` reads from counters
    proxied: frozenset[str] = frozenset()  # units that the platform's proxy counts


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What a batch is checked against."""

    tenant_id: str
    project_id: str
    instances: Mapping[str, MeteredInstance]
    stored: Mapping[str, MeterEvent]  # by key: what is stored already, as usage or in the queue of late usage
    window: timedelta
    late_open: int = 0  # how many events of the tenant wait in the queue


@dataclass(frozen=True, slots=True)
class BatchResult:
    batch_id: str | None  # None if every event was stored already
    accepted: int
    late: int
    duplicates: int


def event_key(project_id: str, source: str, id: str) -> str:
    """The name under which an event is stored once."""
    return hashlib.sha256(f"{project_id}\0{source}\0{id}".encode()).hexdigest()[:32]


def content_hash(event: MeterEvent) -> str:
    """A hash of what an event says, for a refusal that compares two."""
    times = (event.started_at.timestamp().hex(), event.ended_at.timestamp().hex())
    of = (event.attached_project_id or "", event.member_id or "", event.component or "")
    parts = (event.instance_id, event.unit, f"{event.quantity.normalize():f}", *times, *of)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def accept_events(
    context: DecisionContext, loaded: BatchContext, events: Sequence[MeterEvent]
) -> Decision[BatchResult]:
    """Store the new events of a batch, all of them or none."""
    named = [_with_component(loaded, each) for each in events]
    fresh = _billed(context, loaded, named, _new_events(loaded, named))
    duplicates = len(events) - len(fresh)
    if not fresh:
        return Decision(BatchResult(None, 0, 0, duplicates))
    border = context.now - loaded.window
    late = [each for each in fresh if each.event.ended_at < border]
    usage = [each for each in fresh if each.event.ended_at >= border]
    if late and loaded.late_open + len(late) > LATE_OPEN_MAX:
        detail = f"{loaded.late_open} late events wait to be resolved; at most {LATE_OPEN_MAX} may"
        raise Refusal(Code.LIMIT_REACHED, detail, {"limit": LATE_OPEN_MAX})
    result = BatchResult(context.mint(Prefix.METER_BATCH), len(usage), len(late), duplicates)
    counts = {"accepted": result.accepted, "late": result.late, "duplicates": result.duplicates}
    batch = {
        "id": result.batch_id,
        "tenant_id": loaded.tenant_id,
        "project_id": loaded.project_id,
        "principal_id": context.actor.id,
        **counts,
        "correlation_id": context.correlation_id,
        "created_at": context.now,
    }
    writes: list[Write] = [Insert("meter_batch", batch)]
    if usage:
        writes.append(_usage_rows(context, loaded, usage, result.batch_id))
    if late:
        writes.append(_late_rows(context, loaded, late, result.batch_id))
    audit = AuditRecord(
        "usage.report", "meter_batch", result.batch_id, loaded.tenant_id, loaded.project_id, after=counts
    )
    return Decision(result, tuple(writes), _received(loaded, result) if late else (), (audit,))


def _received(loaded: BatchContext, result: BatchResult) -> tuple[EventRecord, ...]:
    data = {"late": result.late}
    place = (loaded.tenant_id, loaded.project_id)
    return (EventRecord(EventType.LATE_USAGE_RECEIVED, "meter_batch", result.batch_id or "", *place, data),)


def _with_component(loaded: BatchContext, event: MeterEvent) -> MeterEvent:
    """The event with the component of its member, where it names the member alone."""
    if event.member_id is None or event.component is not None or event.instance_id not in loaded.instances:
        return event
    return event._replace(component=loaded.instances[event.instance_id].members.get(event.member_id))


def _new_events(loaded: BatchContext, events: Sequence[MeterEvent]) -> dict[str, int]:
    """The index of each new event by its key; refuses the batch if an event has other content than its first one."""
    fresh: dict[str, int] = {}
    conflicts = []
    for index, event in enumerate(events):
        key = event_key(loaded.project_id, event.source, event.id)
        before = loaded.stored.get(key) or (events[fresh[key]] if key in fresh else None)
        if before is None:
            fresh[key] = index
        elif before != event:
            hashes = {"stored_hash": content_hash(before), "sent_hash": content_hash(event)}
            conflicts.append({"index": index, "source": event.source, "id": event.id, **hashes})
    if conflicts:
        raise Refusal(
            Code.CONFLICT,
            f"events/{conflicts[0]['index']}: this id is stored with other content; nothing of the batch was stored",
            {"conflicts": len(conflicts), "events": conflicts[:CONFLICTS_SHOWN_MAX]},
        )
    # Rows are written in the order of their keys, so batches that overlap never wait for each other in a circle.
    return dict(sorted(fresh.items()))


def _billed(
    context: DecisionContext, loaded: BatchContext, events: Sequence[MeterEvent], fresh: Mapping[str, int]
) -> list[_Fresh]:
    """The new events with how they are billed; refuses what the instance does not have, does not meter, or not then."""
    groups: dict[tuple[str | None, ...], _Group] = {}
    latest = context.now + CLOCK_SKEW
    found = []
    for key, index in fresh.items():
        event = events[index]
        of = (event.instance_id, event.unit, event.attached_project_id, event.member_id, event.component)
        group = groups.get(of)
        if group is None:
            group = groups[of] = _group(loaded, event, f"events/{index}")
        if not group.earliest <= event.started_at <= event.ended_at <= latest:
            raise invalid(f"events/{index}/time", "an interval between the instance's creation and now, in this order")
        found.append(_Fresh(key, event, *group.billed(event.ended_at)))
    return found


@dataclass(slots=True)
class _Group:
    """Events of one attribution: what holds for all of them, and the price of the last one that was looked at."""

    tenant_id: str
    earliest: datetime
    billing: Billing
    prices: Sequence[Price]
    changes: Sequence[datetime]  # when the price changes
    known: dict[int, tuple[Billing, str | None]] = field(default_factory=dict)  # by the number of changes before

    def billed(self, ended_at: datetime) -> tuple[Billing, str | None]:
        period = bisect_right(self.changes, ended_at)
        if period not in self.known:
            self.known[period] = billed_at(self.prices, self.tenant_id, self.billing, ended_at)
        return self.known[period]


def _group(loaded: BatchContext, event: MeterEvent, path: str) -> _Group:
    known = loaded.instances.get(event.instance_id)
    if known is None:
        raise Refusal(Code.NOT_FOUND, f"{path}/subject: the project has no such instance")
    check_attribution(known, Attribution(event.attached_project_id, event.member_id, event.component), f"{path}/data")
    billing = billing_of(event.unit, known.units, known.meters.get(event.unit), f"{path}/data/unit")
    if event.unit in known.collected:
        raise invalid(f"{path}/data/unit", "a unit that is not read from the app's counters already")
    if event.unit in known.proxied:
        raise invalid(f"{path}/data/unit", COUNTED_ALREADY)
    prices = known.prices.get(event.unit, ())
    changes = sorted(each.valid_from for each in prices)
    return _Group(known.instance.tenant_id, earliest_start(known.instance), billing, prices, changes)


def check_attribution(known: MeteredInstance, of: Attribution, path: str) -> None:
    """Refuse a member, a component or an attached project that the instance does not have."""
    if of.member_id is not None and of.member_id not in known.members:
        raise Refusal(Code.NOT_FOUND, f"{path}/member_id: the instance has no such member")
    if of.member_id is not None and of.component != known.members[of.member_id]:
        raise invalid(f"{path}/component", "the component of the member")
    if of.component is not None and of.component not in known.components:
        raise invalid(f"{path}/component", "a component of the pinned manifest")
    attached = of.attached_project_id
    if attached is None or attached == known.instance.project_id:
        return
    if known.instance.control_plane_scope == ControlPlaneScope.PROJECT:
        raise invalid(f"{path}/attached_project_id", "none: the instance serves its own project alone")
    if attached not in known.projects:
        raise Refusal(Code.NOT_FOUND, f"{path}/attached_project_id: no such project is attached, or was")


def _usage_rows(
    context: DecisionContext, loaded: BatchContext, fresh: Sequence[_Fresh], batch_id: str | None
) -> InsertMany:
    of = {each.event.instance_id: loaded.instances[each.event.instance_id].instance for each in fresh}
    instances = [of[each.event.instance_id] for each in fresh]
    return by_column(
        "usage_record",
        {**_shared(context, loaded, batch_id), "usage_source": METER_EVENT, "trace_id": context.trace_id},
        {
            "id": [context.mint(Prefix.USAGE_RECORD) for _ in fresh],
            **_event_columns(fresh),
            "app_slug": [each.app_slug for each in instances],
            "covered_by_allocation": [each.billing is Billing.COVERED for each in fresh],
            "billing": [each.billing.value for each in fresh],
            "price_id": [each.price_id for each in fresh],
            "operating_mode": [each.operating_mode for each in instances],
            "control_plane_scope": [each.control_plane_scope for each in instances],
            "runtime_backend": [each.runtime_backend for each in instances],
        },
    )


def _late_rows(
    context: DecisionContext, loaded: BatchContext, fresh: Sequence[_Fresh], batch_id: str | None
) -> InsertMany:
    ids: list[object] = [context.mint(Prefix.LATE_USAGE) for _ in fresh]
    return by_column("late_usage", _shared(context, loaded, batch_id), {"id": ids, **_event_columns(fresh)})


def _shared(context: DecisionContext, loaded: BatchContext, batch_id: str | None) -> Row:
    return {
        "tenant_id": loaded.tenant_id,
        "project_id": loaded.project_id,
        "batch_id": batch_id,
        "correlation_id": context.correlation_id,
        "created_at": context.now,
    }


def _event_columns(fresh: Sequence[_Fresh]) -> dict[str, list[object]]:
    return {
        "record_id": [each.key for each in fresh],
        "event_source": [each.event.source for each in fresh],
        "event_id": [each.event.id for each in fresh],
        "instance_id": [each.event.instance_id for each in fresh],
        "unit": [each.event.unit for each in fresh],
        "quantity": [each.event.quantity for each in fresh],
        "started_at": [each.event.started_at for each in fresh],
        "ended_at": [each.event.ended_at for each in fresh],
        "attached_project_id": [each.event.attached_project_id for each in fresh],
        "member_id": [each.event.member_id for each in fresh],
        "component": [each.event.component for each in fresh],
    }


def by_column(noun: str, same: Row, columns: Mapping[str, Sequence[object]]) -> InsertMany:
    """The rows, with what is equal in all of them sent once."""
    constant = {name: values[0] for name, values in columns.items() if name != "id" and len(set(values)) == 1}
    return InsertMany(
        noun, {**same, **constant}, {name: values for name, values in columns.items() if name not in constant}
    )
