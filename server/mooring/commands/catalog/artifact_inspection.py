"""The inspection of an artifact's source by a check: it yields evidence about the bytes, or why there is none.

A failure that says something about the artifact (its bytes are missing or different) is stored as evidence. A source
that does not answer proves nothing, so the stored evidence stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mooring.commands.catalog.artifact_evaluation import TrustContext, location_of
from mooring.core.catalog.artifact import Artifact, ArtifactKind
from mooring.core.catalog.artifact_check import CheckOutcome
from mooring.core.catalog.artifact_evidence import FoundSignature, presence
from mooring.core.catalog.artifact_location import ArtifactSource, Location, SourceType
from mooring.core.catalog.artifact_trust import Evidence, EvidenceKind, SignatureFault
from mooring.core.kernel.decision import DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.registry.artifact_reader import ArtifactReader, ByteCounter
from mooring.gateways.signing.cosign_claims import SignatureRefusalReason
from mooring.gateways.signing.cosign_keys import read_trusted_key
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import Acting, Database

if TYPE_CHECKING:
    from mooring.gateways.signing.cosign import CosignVerdict

READ: Final = "every byte was fetched and hashed"
FAULT_OF: Final = {
    SignatureRefusalReason.UNKNOWN_KEY: SignatureFault.UNKNOWN_KEY,
    SignatureRefusalReason.OTHER_DIGEST: SignatureFault.OTHER_DIGEST,
    SignatureRefusalReason.OTHER_REPOSITORY: SignatureFault.OTHER_REPOSITORY,
    SignatureRefusalReason.NO_REPOSITORY: SignatureFault.NO_REPOSITORY,
}
"""The fault of a refused signature; for every other reason it is "malformed"."""


@dataclass(frozen=True, slots=True)
class InspectionResult:
    outcome: CheckOutcome
    found: tuple[FoundSignature, ...] = ()
    size_bytes: int | None = None
    is_conclusive: bool = False  # whether the trust of the artifact can be derived from it


async def read_content(
    reader: ArtifactReader, context: DecisionContext, artifact: Artifact, evaluator: TrustContext, tally: ByteCounter
) -> InspectionResult:
    """Read the bytes at the source, and the signatures for them."""
    location = location_of(artifact)
    try:
        source = evaluator.allowed_source(location, (artifact.tenant_id, artifact.project_id))
    except Refusal as refusal:  # the source is not allowed any more, which is a conclusion too
        return InspectionResult(_failed(refusal, tally), is_conclusive=True)
    try:
        content = await reader.read(ArtifactKind(artifact.kind), location, artifact.digest, source, tally)
    except Refusal as refusal:
        return _unread(context, artifact, refusal, tally)
    present = FoundSignature(evidence=presence(context, artifact, content.digest, content.size_bytes))
    try:
        signatures = await _signatures_at_source(reader, context, artifact, evaluator, source)
    except Refusal as refusal:
        return InspectionResult(_failed(refusal, tally))
    found = (present, *signatures)
    done = max(tally.bytes_done, content.size_bytes) if artifact.kind == ArtifactKind.BLOB else tally.bytes_done
    return InspectionResult(CheckOutcome(READ, done), found, content.size_bytes, is_conclusive=True)


async def read_smoke(
    reader: ArtifactReader, artifact: Artifact, evaluator: TrustContext, tally: ByteCounter
) -> InspectionResult:
    """Check that the artifact is complete, matches its digests, and could be started."""
    location = location_of(artifact)
    try:
        source = evaluator.allowed_source(location, (artifact.tenant_id, artifact.project_id))
        if location.source_type is SourceType.OCI and artifact.kind == ArtifactKind.OCI:
            return await _smoked(reader, artifact, location, source, tally)
        await reader.read(ArtifactKind(artifact.kind), location, artifact.digest, source, tally)
    except Refusal as refusal:
        return InspectionResult(_failed(refusal, tally))
    return InspectionResult(CheckOutcome(READ, tally.bytes_done))


async def fresh_evidence(
    database: Database, acting: Acting, artifact: Artifact, found: Sequence[FoundSignature]
) -> list[FoundSignature]:
    """The evidence that is not stored yet; a presence is always new."""
    known = await artifacts.signatures(database, acting, artifact.id)
    return [each for each in found if _mark(each) not in known]


async def _smoked(
    reader: ArtifactReader, artifact: Artifact, location: Location, source: ArtifactSource | None, tally: ByteCounter
) -> InspectionResult:
    result = await reader.smoke(location, artifact.digest, source, tally)
    refusal = result.refusal()
    findings = [
        {"name": each.name, "subject": each.subject, "outcome": each.outcome.value, "detail": each.detail}
        for each in result.checks
    ]
    detail = READ if refusal is None else refusal.detail
    return InspectionResult(CheckOutcome(detail, tally.bytes_done, refusal, findings))


def _failed(refusal: Refusal, tally: ByteCounter) -> CheckOutcome:
    return CheckOutcome(refusal.detail, tally.bytes_done, refusal)


def _unread(context: DecisionContext, artifact: Artifact, refusal: Refusal, tally: ByteCounter) -> InspectionResult:
    """The result of a failed inspection, with evidence if the failure says something about the bytes."""
    evidence = None
    if refusal.code is Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
        evidence = presence(context, artifact, None, None)
    if refusal.code is Code.DIGEST_MISMATCH:
        other = refusal.details.get("found")
        if isinstance(other, str) and other.startswith("sha256:"):
            evidence = presence(context, artifact, other, None)
        if isinstance(other, int):
            evidence = presence(context, artifact, artifact.digest, other)
    if evidence is None:
        return InspectionResult(_failed(refusal, tally))
    return InspectionResult(_failed(refusal, tally), (FoundSignature(evidence=evidence),), is_conclusive=True)


async def _signatures_at_source(
    reader: ArtifactReader,
    context: DecisionContext,
    artifact: Artifact,
    evaluator: TrustContext,
    source: ArtifactSource | None,
) -> list[FoundSignature]:
    location = location_of(artifact)
    if location.source_type is not SourceType.OCI:
        return []
    keys = [
        read_trusted_key(key.public_key, key.id)
        for key in evaluator.keys
        if key.tenant_id in (None, artifact.tenant_id)
    ]
    try:
        verdict = await reader.signatures(location, artifact.digest, source, keys, context.now)
    except Refusal as refusal:
        if artifact.kind != ArtifactKind.BLOB or refusal.code is not Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
            raise
        return []  # a blob without a manifest: nothing can refer to it
    return _signatures(context, artifact, verdict)


def _signatures(context: DecisionContext, artifact: Artifact, verdict: CosignVerdict) -> list[FoundSignature]:
    made = [
        FoundSignature(
            evidence=_signature(context, artifact, each.artifact_digest, each.repository, each.key_fingerprint),
            form=each.form.value,
            found_in=each.found_in,
            payload=each.payload,
            signature=each.signature,
        )
        for each in verdict.evidence
    ]
    for failure in verdict.failures:
        fault = FAULT_OF.get(failure.reason, SignatureFault.MALFORMED)
        bad = replace(_signature(context, artifact, artifact.digest, None, None), fault=fault)
        made.append(FoundSignature(evidence=bad, form=failure.form.value, found_in=failure.where))
    return made


def _signature(
    context: DecisionContext, artifact: Artifact, digest: str, repository: str | None, fingerprint: str | None
) -> Evidence:
    return Evidence(
        id=context.mint(Prefix.ARTIFACT_EVIDENCE),
        artifact_id=artifact.id,
        kind=EvidenceKind.SIGNATURE,
        digest=digest,
        observed_at=context.now,
        repository=repository,
        key_fingerprint=fingerprint,
    )


def _mark(found: FoundSignature) -> tuple[str | None, ...] | None:
    """The key by which stored signatures are recognised; None for other evidence."""
    each = found.evidence
    if each.kind is not EvidenceKind.SIGNATURE:
        return None
    return (each.key_fingerprint, each.fault, found.found_in, each.digest, each.repository)
