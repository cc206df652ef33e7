"""Request and response bodies for meters."""

from mooring.api.schemas.kernel.fields import Shown, Strict, Time, allowed
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.core.pricing.meter import Billing, Meter, MeterStatus


class PutMeter(Strict):
    """How the unit is billed from now on; usage that is already stored keeps its billing."""

    billing: Billing
    status: MeterStatus = MeterStatus.ENABLED


class MeterView(Shown):
    """What the platform decided about one unit of one app."""

    id: str
    app: str
    unit: str
    billing: Billing
    status: MeterStatus
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


def meter_view(authority: Authority, meter: Meter) -> MeterView:
    return MeterView(
        id=meter.id,
        app=meter.app_slug,
        unit=meter.unit,
        billing=Billing(meter.billing),
        status=MeterStatus(meter.status),
        created_at=meter.created_at,
        revision=meter.revision,
        etag=str(meter.revision),
        allowed_actions=allowed(authority, Place(Scope.PLATFORM), ("billing.meter.update",)),
    )
