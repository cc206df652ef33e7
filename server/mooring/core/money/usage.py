"""Usage that apps report: intervals with a quantity, each stored once under an id of the adapter's.

What a unit means is the manifest's word. A record that comes again as it was is accepted and not stored again; one
that differs from what is stored under its id is refused, with all that came beside it: a figure that was counted is
not changed, it is corrected by a record of its own. Charging is not decided here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from mooring.core.catalog.manifest import Manifest
from mooring.core.catalog.operating_mode import ControlPlaneScope
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance

RECORDS_MAX: Final = 500
APP_RUNTIME: Final = "app_runtime"


@dataclass(frozen=True, slots=True)
class UsageReport:
    """One interval of use."""

    record_id: str
    unit: str
    started_at: datetime
    ended_at: datetime
    quantity: Decimal
    attached_project_id: str | None = None


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """A stored interval."""

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
    covered_by_allocation: bool = False  # it shows who used what the allocation pays, and repeats no charge

    @property
    def told(self) -> UsageReport:
        """What the adapter said."""
        return UsageReport(
            self.record_id, self.unit, self.started_at, self.ended_at, self.quantity, self.attached_project_id
        )


@dataclass(frozen=True, slots=True)
class UsageContext:
    """What usage is held against."""

    claim: InstanceClaim
    instance: Instance
    manifest: Manifest
    stored: Mapping[str, UsageRecord]  # those of the ids that are there
    projects: frozenset[str]  # those of the projects that are, or were, attached to the instance


def store_usage(context: DecisionContext, seen: UsageContext, told: Sequence[UsageReport]) -> Decision[tuple[int, int]]:
    """The new records; how many are new, and how many were there."""
    if len({each.record_id for each in told}) != len(told):
        raise invalid("records", "each record_id once")
    units = {each.unit: each.covered_by_allocation for each in seen.manifest.usage_units}
    fresh = []
    for index, each in enumerate(told):
        before = seen.stored.get(each.record_id)
        if before is not None:
            if before.told != each:
                raise Refusal(
                    Code.CONFLICT,
                    f"the record {each.record_id} is stored with another content",
                    {"record_id": each.record_id},
                )
            continue
        _check(context, seen, each, units, f"records/{index}")
        fresh.append(_record(context, seen.instance, each, covered=units[each.unit]))
    if not fresh:
        return Decision((0, len(told)))
    instance = seen.instance
    audit = AuditRecord(
        "usage.report",
        "instance",
        instance.id,
        *instance.place,
        after={"records": len(fresh)},
        app_instance_id=instance.id,
    )
    rows = tuple(Insert("usage_record", asdict(each)) for each in fresh)
    return Decision((len(fresh), len(told) - len(fresh)), (guard_of(seen.claim), *rows), (), (audit,))


def _check(
    context: DecisionContext, seen: UsageContext, report: UsageReport, units: Collection[str], path: str
) -> None:
    if report.unit not in units:
        known = ", ".join(sorted(units)) or "none"
        raise invalid(f"{path}/unit", f"a unit of the pinned manifest: {known}")
    if report.ended_at < report.started_at:
        raise invalid(f"{path}/ended_at", "a time that is not before `started_at`")
    if report.started_at < seen.instance.created_at or report.ended_at > context.now:
        raise invalid(f"{path}/started_at", "an interval between the instance's creation and now")
    attached = report.attached_project_id
    if attached is None or attached == seen.instance.project_id:
        return
    if seen.instance.control_plane_scope == ControlPlaneScope.PROJECT:
        raise invalid(f"{path}/attached_project_id", "none: the instance serves its own project alone")
    if attached not in seen.projects:
        raise Refusal(Code.NOT_FOUND, f"{path}/attached_project_id: no such project is attached, or was")


def _record(context: DecisionContext, instance: Instance, report: UsageReport, *, covered: bool) -> UsageRecord:
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
        covered_by_allocation=covered,
    )
