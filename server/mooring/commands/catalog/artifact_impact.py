"""The blast radius of a revocation: how many instances it affects, and what the policy would do to each of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from mooring.commands.catalog.artifact_evaluation import trust_contexts
from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.policy import Layer, Reaction
from mooring.core.catalog.policy_change import read_rules
from mooring.storage.catalog import artifact_impact
from mooring.storage.catalog.artifact_impact import HeldNames, VersionUses
from mooring.storage.kernel.database import Acting


@dataclass(frozen=True, slots=True)
class Impact:
    """What a revocation would affect, as far as this place may know."""

    digest: str
    holds: int
    versions: VersionUses
    names: HeldNames
    tenants: int
    projects: int
    instances: int
    members: int
    running: Mapping[Reaction, int]  # how many instances run the digest now, by what the policy does to them


async def impact(services: Services, acting: Acting, artifact: Artifact, project_id: str | None) -> Impact:
    """What revoking this artifact would affect in this place; the platform gets numbers and no names."""
    database = services.database
    groups = await artifact_impact.groups(database, acting, artifact, project_id)
    contexts = await trust_contexts(services, acting, (each.place for each in groups))
    running = dict.fromkeys(Reaction, 0)
    for each in groups:
        policy = contexts[each.place].policy
        if each.entitlement_rules:
            policy = policy.narrowed(Layer.ENTITLEMENT, read_rules(each.entitlement_rules))
        running[policy.reaction.reaction] += each.running
    return Impact(
        artifact.digest,
        await artifact_impact.holds_count(database, acting, artifact, project_id),
        await artifact_impact.versions(database, acting, artifact),
        await artifact_impact.names(database, acting, artifact, project_id),
        tenants=len({each.tenant_id for each in groups}),
        projects=len({each.place for each in groups}),
        instances=sum(each.instances for each in groups),
        members=sum(each.members for each in groups),
        running=running,
    )
