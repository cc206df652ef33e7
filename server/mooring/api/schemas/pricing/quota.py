"""Request and response bodies for quotas."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.catalog.app import Reason
from mooring.api.schemas.kernel.fields import Revision, Shown, Strict, Time, allowed
from mooring.core.kernel.permissions import Authority, Place
from mooring.core.pricing.price import AMOUNT_MAX
from mooring.core.pricing.quota import COUNT_MAX, Quota, QuotaSpec

Currency = Annotated[str, Meta(pattern="^[A-Z]{3}$", description="Three letters, such as EUR.")]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]


class PutQuota(Strict):
    """All limits of a tenant or project; an omitted one is not limited."""

    reason: Reason
    gpus_max: Annotated[Count, Meta(description="GPUs that are requested or in use at once.")] | None = None
    instances_max: Annotated[Count, Meta(description="Instances that are not stopped.")] | None = None
    minor_per_hour_max: (
        Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="What everything together may cost per hour.")] | None
    ) = None
    currency: Currency | None = None
    revision: Revision | None = None


class QuotaView(Shown):
    """The limits of a tenant or project; null means not limited. Without any it has no id yet."""

    id: str | None
    tenant_id: str
    project_id: str | None
    gpus_max: int | None
    instances_max: int | None
    minor_per_hour_max: int | None
    currency: str | None
    updated_at: Time | None
    revision: int
    etag: str
    allowed_actions: list[str]


def quota_spec(body: PutQuota) -> QuotaSpec:
    return QuotaSpec(body.gpus_max, body.instances_max, body.minor_per_hour_max, body.currency, body.reason)


def quota_view(
    authority: Authority, place: Place, quota: Quota | None, *, tenant_id: str, project_id: str | None
) -> QuotaView:
    revision = 0 if quota is None else quota.revision
    return QuotaView(
        id=None if quota is None else quota.id,
        tenant_id=tenant_id,
        project_id=project_id,
        gpus_max=None if quota is None else quota.gpus_max,
        instances_max=None if quota is None else quota.instances_max,
        minor_per_hour_max=None if quota is None else quota.minor_per_hour_max,
        currency=None if quota is None else quota.currency,
        updated_at=None if quota is None else quota.updated_at,
        revision=revision,
        etag=str(revision),
        allowed_actions=allowed(authority, place, ("billing.quota.update",)),
    )
