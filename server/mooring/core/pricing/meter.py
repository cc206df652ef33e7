"""Meters: which unit of which app is charged, which one the allocation already pays for, and which one only informs.

The platform knows the units of `UNITS`; a manifest may add its own. A unit of an app is charged only after an admin has
set its meter to `charged`, and that needs a price. Without a meter a unit is `covered` if the manifest says that the
allocation pays for it, otherwise `informative`. Usage in an unknown unit, or in one whose meter is disabled, is
refused: nothing is stored that nobody can explain later.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid, slug

UNITS: Final[Mapping[str, str]] = {
    "gpu_hour": "one GPU for one hour",
    "runtime_uptime_hour": "one app running for one hour",
    "job_hour": "one job running for one hour",
    "request": "one request",
    "token_in": "one token of a prompt",
    "token_out": "one token of an answer",
    "model_second": "one loaded model for one second",
}
"""The units that the platform knows; a manifest may declare others. An allocation counts GPU-seconds."""


_UNIT: Final = re.compile("[a-z][a-z0-9_]{0,63}")


class Billing(StrEnum):
    """What usage of a meter does to the bill."""

    CHARGED = "charged"
    COVERED = "covered"  # the allocation pays for it: rated to zero, with a shadow amount that shows who used what
    INFORMATIVE = "informative"


class MeterStatus(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Meter:
    """What the platform decided about one unit of one app."""

    id: str
    app_slug: str
    unit: str
    billing: str
    status: str
    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MeterSpec:
    app_slug: str
    unit: str
    billing: Billing
    status: MeterStatus


def set_meter(
    context: DecisionContext, spec: MeterSpec, present: Meter | None, *, has_list_price: bool
) -> Decision[Meter]:
    """Decide how a unit of an app is billed from now on; what is stored already keeps what it was stored with."""
    if not _UNIT.fullmatch(spec.unit):
        raise invalid("unit", "a lower-case name such as token_out")
    if spec.billing is Billing.CHARGED and not has_list_price:
        raise invalid("billing", f"`charged` needs a list price of {spec.app_slug}/{spec.unit} that holds now")
    values = {"billing": spec.billing.value, "status": spec.status.value}
    before = None if present is None else {"billing": present.billing, "status": present.status}
    if present is not None and before == values:
        return Decision(present)
    if present is None:
        meter = Meter(
            context.mint(Prefix.METER),
            slug(spec.app_slug, "app"),
            spec.unit,
            **values,
            revision=0,
            created_at=context.now,
        )
        write: Insert | Update = Insert("meter", asdict(meter))
    else:
        changed = replace(present, billing=spec.billing.value, status=spec.status.value)
        meter = replace(changed, revision=present.revision + 1)
        write = Update("meter", present.id, present.revision, values)
    after = {"app": meter.app_slug, "unit": meter.unit, **values}
    audit = AuditRecord("billing.meter.update", "meter", meter.id, None, before=before, after=after)
    event = EventRecord(EventType.METER_SET, "meter", meter.id, None, data=after)
    return Decision(meter, (write,), (event,), (audit,))


def billing_of(unit: str, declared: Mapping[str, bool], meter: Meter | None, path: str = "unit") -> Billing:
    """How usage in this unit is billed; `declared` says for each unit of the manifest whether it is covered.

    Raises a refusal for a unit that the manifest does not declare, and for one whose meter is disabled.
    """
    if unit not in declared:
        raise invalid(path, f"a unit of the pinned manifest: {_listed(declared)}")
    if meter is None:
        return Billing.COVERED if declared[unit] else Billing.INFORMATIVE
    if meter.status != MeterStatus.ENABLED:
        raise invalid(path, f"a unit that is metered: the meter {meter.app_slug}/{unit} is disabled")
    return Billing(meter.billing)


def _listed(units: Collection[str]) -> str:
    return ", ".join(sorted(units)) or "none"
