"""Quotas: how many GPUs and instances a tenant or a project may have at once, and what it may spend per hour.

A quota of a tenant is the platform's; a quota of a project is its tenant's. Both count: what one of them refuses is
refused (`core/pricing/spending.py`). A field that is not set is not limited.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.pricing.price import AMOUNT_MAX, require_currency

COUNT_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    id: str
    tenant_id: str
    project_id: str | None  # None: of the whole tenant
    gpus_max: int | None
    instances_max: int | None
    minor_per_hour_max: int | None
    currency: str | None  # of `minor_per_hour_max`
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """All limits of one place, and the reason for them."""

    gpus_max: int | None = None
    instances_max: int | None = None
    minor_per_hour_max: int | None = None
    currency: str | None = None
    reason: str = ""

    @property
    def limits(self) -> dict[str, int | str | None]:
        return {
            "gpus_max": self.gpus_max,
            "instances_max": self.instances_max,
            "minor_per_hour_max": self.minor_per_hour_max,
            "currency": self.currency,
        }


def set_quota(
    context: DecisionContext,
    before: Quota | None,
    spec: QuotaSpec,
    *,
    tenant_id: str,
    project_id: str | None,
    revision_seen: int | None,
) -> Decision[Quota]:
    """Replace the limits of a place; they hold from the next request on, and nothing that runs is ended."""
    _check(spec)
    require_revision(0 if before is None else before.revision, revision_seen)
    if before is None:
        quota = Quota(
            context.mint(Prefix.QUOTA),
            tenant_id,
            project_id,
            spec.gpus_max,
            spec.instances_max,
            spec.minor_per_hour_max,
            spec.currency,
            0,
            context.now,
            context.now,
        )
        write: Insert | Update = Insert("quota", asdict(quota))
    else:
        changed = spec.limits | {"updated_at": context.now}
        quota = replace(before, revision=before.revision + 1, **changed)  # type: ignore[arg-type]
        write = Update("quota", before.id, before.revision, changed)
    old = None if before is None else {name: getattr(before, name) for name in spec.limits}
    place = (quota.tenant_id, quota.project_id)
    return Decision(
        quota,
        (write,),
        (EventRecord(EventType.QUOTA_CHANGED, "quota", quota.id, *place, data=spec.limits),),
        (
            AuditRecord(
                "billing.quota.update",
                "quota",
                quota.id,
                *place,
                before=old,
                after=spec.limits,
                reason=validation.reason(spec.reason),
            ),
        ),
    )


def _check(spec: QuotaSpec) -> None:
    for name in ("gpus_max", "instances_max"):
        if not 0 <= (getattr(spec, name) or 0) <= COUNT_MAX:
            raise validation.invalid(name, f"0 to {COUNT_MAX}")
    if not 0 <= (spec.minor_per_hour_max or 0) <= AMOUNT_MAX:
        raise validation.invalid("minor_per_hour_max", f"0 to {AMOUNT_MAX}")
    if (spec.minor_per_hour_max is None) != (spec.currency is None):
        raise validation.invalid("currency", "the currency of `minor_per_hour_max`, and only together with it")
    if spec.currency is not None:
        require_currency(spec.currency)
