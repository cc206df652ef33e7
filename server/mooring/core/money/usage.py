"""Usage that apps report: intervals with a quantity, each stored once under the adapter's id.

The manifest defines the units. A record that is repeated unchanged is accepted and not stored again. A record that
differs from the stored one with its id is refused, with the whole batch: a stored quantity never changes, and a
correction is a record of its own. A record keeps how its meter was billed and at which price; what it costs is decided
when its hour is charged (`core/money/charge.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from mooring.core.catalog.manifest import PROXY, Manifest
from mooring.core.catalog.operating_mode import ControlPlaneScope
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.core.pricing.meter import Billing, Meter, billing_of
from mooring.core.pricing.price import Price, price_at
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance

RECORDS_MAX: Final = 500
APP_RUNTIME: Final = "app_runtime"
METER_EVENT: Final = "meter_event"
METER_READING: Final = "meter_reading"
COUNTED_ALREADY: Final = "a unit that the platform's proxy does not count already"


@dataclass(frozen=True, slots=True)
class UsageReport:
    """One interval of use, as an adapter reports it."""

    record_id: str
    unit: str
    started_at: datetime
    ended_at: datetime
    quantity: Decimal
    attached_project_id: str | None = None


@dataclass(frozen=True, slots=True)
class UsageRecord:
    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    record_id: str
    unit: str
    started_at: datetime
    ended_at: datetime
    quantity: Decimal
    attached_project_id: str | None
    usage_source: str
    app_slug: str
    correlation_id: str
    trace_id: str
    created_at: datetime
    covered_by_allocation: bool = False  # it shows who used what the allocation pays for, and is not charged again
    billing: str = Billing.INFORMATIVE.value  # what the meter said when it was reported
    price_id: str | None = None  # the price that held when the interval ended
    operating_mode: str | None = None
    control_plane_scope: str | None = None
    runtime_backend: str | None = None
    member_id: str | None = None
    component: str | None = None
    event_source: str | None = None  # of a meter event: who sent it, and the name that it has there
    event_id: str | None = None
    batch_id: str | None = None

    @property
    def report(self) -> UsageReport:
        """The report that this record was made from."""
        return UsageReport(
            self.record_id, self.unit, self.started_at, self.ended_at, self.quantity, self.attached_project_id
        )


@dataclass(frozen=True, slots=True)
class UsageContext:
    """What a usage report is checked against."""

    claim: InstanceClaim
    instance: Instance
    manifest: Manifest
    stored: Mapping[str, UsageRecord]  # by the adapter's id: those of the reported records that are stored already
    projects: frozenset[str]  # those of the reported projects that are, or were, attached to the instance
    meters: Mapping[str, Meter] = field(default_factory=dict)  # by unit: what the platform decided about the app's
    prices: Mapping[str, Sequence[Price]] = field(default_factory=dict)  # by unit


def store_usage(
    context: DecisionContext, loaded: UsageContext, reported: Sequence[UsageReport]
) -> Decision[tuple[int, int]]:
    """Store the new records; the result is how many were new, and how many were stored already."""
    if len({each.record_id for each in reported}) != len(reported):
        raise invalid("records", "each record_id once")
    units = {each.unit: each.covered_by_allocation for each in loaded.manifest.usage_units}
    proxied = {each.unit for each in loaded.manifest.usage_units if each.counted_by == PROXY}
    fresh = []
    for index, each in enumerate(reported):
        before = loaded.stored.get(each.record_id)
        if before is not None:
            if before.report != each:
                raise Refusal(
                    Code.CONFLICT,
                    f"the record {each.record_id} is stored with different values",
                    {"record_id": each.record_id},
                )
            continue
        billing = billing_of(each.unit, units, loaded.meters.get(each.unit), f"records/{index}/unit")
        if each.unit in proxied:
            raise invalid(f"records/{index}/unit", COUNTED_ALREADY)
        _check(context, loaded, each, f"records/{index}")
        fresh.append(_record(context, loaded, each, billing))
    if not fresh:
        return Decision((0, len(reported)))
    instance = loaded.instance
    audit = AuditRecord(
        "usage.report",
        "instance",
        instance.id,
        *instance.place,
        after={"records": len(fresh), "cause_id": instance.correlation_id},
        app_instance_id=instance.id,
    )
    rows = tuple(Insert("usage_record", asdict(each)) for each in fresh)
    return Decision((len(fresh), len(reported) - len(fresh)), (guard_of(loaded.claim), *rows), (), (audit,))


def earliest_start(instance: Instance) -> datetime:
    """Before this nothing of the instance was used.

    Many programs keep time in whole seconds: what they start right after a launch seems to begin before it.
    """
    return instance.created_at.replace(microsecond=0)


def billed_at(
    prices: Sequence[Price], tenant_id: str, billing: Billing, ended_at: datetime
) -> tuple[Billing, str | None]:
    """How usage is billed that ended at this time, and the id of its price: without a price nothing is charged."""
    if billing is Billing.INFORMATIVE:
        return billing, None
    price = price_at(prices, tenant_id, ended_at)
    if price is None:
        return Billing.INFORMATIVE if billing is Billing.CHARGED else billing, None
    return billing, price.id


def _check(context: DecisionContext, loaded: UsageContext, report: UsageReport, path: str) -> None:
    if report.ended_at < report.started_at:
        raise invalid(f"{path}/ended_at", "a time that is not before `started_at`")
    if report.started_at < earliest_start(loaded.instance) or report.ended_at > context.now:
        raise invalid(f"{path}/started_at", "an interval between the instance's creation and now")
    attached = report.attached_project_id
    if attached is None or attached == loaded.instance.project_id:
        return
    if loaded.instance.control_plane_scope == ControlPlaneScope.PROJECT:
        raise invalid(f"{path}/attached_project_id", "none: the instance serves its own project alone")
    if attached not in loaded.projects:
        raise Refusal(Code.NOT_FOUND, f"{path}/attached_project_id: no such project is attached, or was")


def _record(context: DecisionContext, loaded: UsageContext, report: UsageReport, billing: Billing) -> UsageRecord:
    instance = loaded.instance
    billing, price_id = billed_at(loaded.prices.get(report.unit, ()), instance.tenant_id, billing, report.ended_at)
    return UsageRecord(
        id=context.mint(Prefix.USAGE_RECORD),
        tenant_id=instance.tenant_id,
        project_id=instance.project_id,
        instance_id=instance.id,
        record_id=report.record_id,
        unit=report.unit,
        started_at=report.started_at,
        ended_at=report.ended_at,
        quantity=report.quantity,
        attached_project_id=report.attached_project_id,
        usage_source=APP_RUNTIME,
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
    )
