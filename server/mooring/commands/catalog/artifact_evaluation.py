"""The evaluation of artifacts: their evidence under the current sources, keys and policy.

Every use of an artifact is evaluated here. So the removal of a key or a source, or a narrower policy, takes effect with
the next use, whatever the stored conclusion says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_evidence import EvaluatedArtifact
from mooring.core.catalog.artifact_location import ArtifactSource, Location, SourceType, source_of
from mooring.core.catalog.artifact_source import may_read
from mooring.core.catalog.artifact_trust import ArtifactTrust, Evidence, SignerKey, Trust, derive_trust
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.catalog.policy import PolicyChain
from mooring.core.catalog.policy_change import layers_of
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.artifact_reader import ArtifactReader, namespace
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_check as checks
from mooring.storage.catalog import policy as policies
from mooring.storage.catalog.trust_context import TrustRows, trust_rows, trust_rows_of
from mooring.storage.kernel.database import Acting


@dataclass(frozen=True, slots=True)
class TrustContext:
    """What the trust in artifacts depends on in one place: sources, keys and policy."""

    reader: ArtifactReader
    sources: Sequence[ArtifactSource]
    keys: Sequence[SignerKey]
    policy: PolicyChain

    def source(self, location: Location, owner: tuple[str | None, str | None]) -> tuple[bool, ArtifactSource | None]:
        """Whether an artifact of this owner (tenant, project) may come from this location, and the source for it.

        The platform's own registry is on no list: there each place has the repositories below its own namespace. Nor
        are uploads, which only the place that they belong to has.
        """
        if location.source_type is SourceType.UPLOAD:
            return location.rest.rpartition("/")[0] == namespace(*owner), None
        if self.reader.is_own(location):
            repository = location.rest.partition("/")[2]
            return repository.startswith(f"{namespace(*owner)}/"), None
        found = source_of(location, self.sources, owner[0])
        return found is not None and may_read(found, location.source_type), found

    def evaluate(self, artifact: Artifact, evidence: Sequence[Evidence]) -> Trust:
        """The trust that follows from the evidence now."""
        allowed, _ = self.source(location_of(artifact), (artifact.tenant_id, artifact.project_id))
        return derive_trust(artifact, evidence, self.keys, self.policy, source_allowed=allowed)

    def allowed_source(self, location: Location, owner: tuple[str | None, str | None]) -> ArtifactSource | None:
        """The source that allows this location, None for what the platform keeps; a Refusal when none does."""
        allowed, found = self.source(location, owner)
        if not allowed:
            raise Refusal(
                Code.SOURCE_DENIED, f"no source on the list matches {location.text}", {"location": location.text}
            )
        return found


async def trust_context(services: Services, acting: Acting, project_id: str | None) -> TrustContext:
    """The current sources, keys and policy of a place."""
    return _context(services, await trust_rows(services.database, acting, project_id))


async def trust_contexts(
    services: Services, acting: Acting, places: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], TrustContext]:
    """The current sources, keys and policy of each of these places (tenant, project), read in one statement."""
    wanted = sorted(set(places))
    tenant_ids = sorted({tenant_id for tenant_id, _ in wanted})
    rows = await trust_rows_of(services.database, acting, tenant_ids, [project_id for _, project_id in wanted])
    return {place: _context(services, rows.at(*place)) for place in wanted}


def _context(services: Services, rows: TrustRows) -> TrustContext:
    return TrustContext(services.artifacts, rows.sources, rows.keys, PolicyChain(layers_of(rows.policies)))


async def policy_of(services: Services, acting: Acting, project_id: str | None) -> PolicyChain:
    return PolicyChain(layers_of(await policies.chain(services.database, acting, project_id)))


async def evaluate_artifacts(
    services: Services, acting: Acting, project_id: str | None, found: Sequence[Artifact]
) -> list[EvaluatedArtifact]:
    """These artifacts, each with its current trust, its evidence and its newest check."""
    if not found:
        return []
    evaluator = await trust_context(services, acting, project_id)
    ids = [each.id for each in found]
    evidence = await artifacts.evidence(services.database, acting, ids)
    newest = await checks.newest(services.database, acting, ids)
    return [
        EvaluatedArtifact(
            each, evaluator.evaluate(each, evidence[each.id]), tuple(evidence[each.id]), newest.get(each.id)
        )
        for each in found
    ]


async def evaluate_under(
    services: Services,
    acting: Acting,
    evaluator: TrustContext,
    entitled: Entitlement | None,
    registered: Sequence[Artifact],
) -> list[ArtifactTrust]:
    """These artifacts, each with its trust under the project's policy, narrowed by the entitlement."""
    if not registered:
        return []
    if entitled is not None:
        evaluator = replace(evaluator, policy=evaluator.policy.narrowed(*entitled.layer))
    evidence = await artifacts.evidence(services.database, acting, [each.id for each in registered])
    return [ArtifactTrust(each, evaluator.evaluate(each, evidence[each.id])) for each in registered]


def location_of(artifact: Artifact) -> Location:
    return Location(SourceType(artifact.source_type), artifact.location)
