"""The view of what would lose its trust without a signer key."""

from mooring.api.schemas.catalog.artifact import ImpactedInstance, ImpactReactions
from mooring.api.schemas.kernel.fields import Shown
from mooring.commands.runtime.instance_trust import KeyImpact
from mooring.core.catalog.artifact_trust import SignerKey


class SignerKeyImpactCounts(Shown):
    """How much would lose its trust, without names."""

    tenants: int
    projects: int
    instances: int


class SignerKeyImpactView(Shown):
    """What would lose its trust without this key, as far as this place may know."""

    signer_key_id: str
    fingerprint: str
    counts: SignerKeyImpactCounts
    reactions: ImpactReactions
    instances: list[ImpactedInstance]


def key_impact_view(key: SignerKey, impact: KeyImpact) -> SignerKeyImpactView:
    return SignerKeyImpactView(
        signer_key_id=key.id,
        fingerprint=key.fingerprint,
        counts=SignerKeyImpactCounts(tenants=impact.tenants, projects=impact.projects, instances=impact.instances),
        reactions=ImpactReactions(**{each.name.lower(): count for each, count in impact.running.items()}),
        instances=[
            ImpactedInstance(
                id=each.id,
                tenant_id=each.tenant_id,
                project_id=each.project_id,
                status=each.status,
                name=each.name,
                app_slug=each.app_slug,
                version=each.version,
            )
            for each in impact.named
        ],
    )
