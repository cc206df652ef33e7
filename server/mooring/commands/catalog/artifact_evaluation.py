"""What an artifact is worth at this moment: its evidence under the sources, keys and policy of now.

Every use asks here, so that a key that was removed, a source that was taken off the list or a policy that was narrowed
counts from the next use on, whatever is stored as the last conclusion.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_evidence import EvaluatedArtifact
from mooring.core.catalog.artifact_location import ArtifactSource, Location, SourceType, source_of
from mooring.core.catalog.artifact_source import may_read
from mooring.core.catalog.artifact_trust import Evidence, SignerKey, Trust, derive_trust
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.catalog.policy import PolicyChain
from mooring.core.catalog.policy_change import layers_of
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.artifact_reader import ArtifactReader, namespace
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_check as checks
from mooring.storage.catalog import policy as policies
from mooring.storage.catalog.trust_context import trust_rows
from mooring.storage.kernel.database import Acting


@dataclass(frozen=True, slots=True)
class TrustContext:
    """What artifacts are measured by in one place."""

    reader: ArtifactReader
    sources: Sequence[ArtifactSource]
    keys: Sequence[SignerKey]
    policy: PolicyChain

    def source(self, location: Location, owner: tuple[str | None, str | None]) -> tuple[bool, ArtifactSource | None]:
        """Whether an artifact of this owner may come from there, and the source that says so.

        The platform's own registry is on no list: there each place has the repositories that begin with its name.
        """
        if self.reader.is_own(location):
            repository = location.rest.partition("/")[2]
            return repository.startswith(f"{namespace(*owner)}/"), None
        found = source_of(location, self.sources, owner[0])
        return found is not None and may_read(found, location.source_type), found

    def evaluate(self, artifact: Artifact, evidence: Sequence[Evidence]) -> Trust:
        """What the evidence proves now."""
        allowed, _ = self.source(location_of(artifact), (artifact.tenant_id, artifact.project_id))
        return derive_trust(artifact, evidence, self.keys, self.policy, source_allowed=allowed)

    def allowed_source(self, location: Location, owner: tuple[str | None, str | None]) -> ArtifactSource | None:
        """The source to read by, none for the platform's own registry; a Refusal where no list and policy allows it."""
        allowed, found = self.source(location, owner)
        if not allowed:
            raise Refusal(
                Code.SOURCE_DENIED, f"no source on the list names {location.text}", {"location": location.text}
            )
        return found


async def trust_context(services: Services, acting: Acting, project_id: str | None) -> TrustContext:
    """Sources, keys and policy of a place, as they are now."""
    found = await trust_rows(services.database, acting, project_id)
    return TrustContext(services.artifacts, found.sources, found.keys, PolicyChain(layers_of(found.policies)))


async def policy_of(services: Services, acting: Acting, project_id: str | None) -> PolicyChain:
    """The policy of a place."""
    return PolicyChain(layers_of(await policies.chain(services.database, acting, project_id)))


async def evaluate_artifacts(
    services: Services, acting: Acting, project_id: str | None, found: Sequence[Artifact]
) -> list[EvaluatedArtifact]:
    """These artifacts, each with what follows from its evidence now."""
    if not found:
        return []
    measure = await trust_context(services, acting, project_id)
    ids = [each.id for each in found]
    evidence = await artifacts.evidence(services.database, acting, ids)
    newest = await checks.newest(services.database, acting, ids)
    return [
        EvaluatedArtifact(
            each, measure.evaluate(each, evidence[each.id]), tuple(evidence[each.id]), newest.get(each.id)
        )
        for each in found
    ]


async def evaluate_under(
    services: Services, acting: Acting, measure: TrustContext, entitled: Entitlement | None, found_: Sequence[Artifact]
) -> list[tuple[Artifact, Trust]]:
    """These artifacts, each with its trust under the project's policy as the entitlement narrows it."""
    if not found_:
        return []
    if entitled is not None:
        measure = replace(measure, policy=measure.policy.narrowed(*entitled.layer))
    evidence = await artifacts.evidence(services.database, acting, [each.id for each in found_])
    return [(each, measure.evaluate(each, evidence[each.id])) for each in found_]


def location_of(artifact: Artifact) -> Location:
    """Where an artifact lies."""
    return Location(SourceType(artifact.source_type), artifact.location)
