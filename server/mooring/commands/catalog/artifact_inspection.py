"""What a check reads, and what it makes of it: evidence about the bytes, or why there is none.

A failure that says something about the artifact (its bytes are gone, or others are in their place) is evidence like
any other; a source that cannot be asked says nothing, and leaves what is known as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

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
from mooring.gateways.signing.cosign import CosignVerdict
from mooring.gateways.signing.cosign_claims import SignatureRefusalReason
from mooring.gateways.signing.cosign_keys import read_trusted_key
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import Acting, Database

READ: Final = "every byte was fetched and hashed"
FAULT_OF: Final = {
    SignatureRefusalReason.UNKNOWN_KEY: SignatureFault.UNKNOWN_KEY,
    SignatureRefusalReason.OTHER_DIGEST: SignatureFault.OTHER_DIGEST,
    SignatureRefusalReason.OTHER_REPOSITORY: SignatureFault.OTHER_REPOSITORY,
    SignatureRefusalReason.NO_REPOSITORY: SignatureFault.NO_REPOSITORY,
}
"""Why a signature does not count; every other reason is that it is malformed."""


@dataclass(frozen=True, slots=True)
class InspectionResult:
    """What reading brought."""

    outcome: CheckOutcome
    found: tuple[FoundSignature, ...] = ()
    size_bytes: int | None = None
    is_conclusive: bool = False  # whether trust follows from it


async def read_content(
    reader: ArtifactReader, context: DecisionContext, artifact: Artifact, measure: TrustContext, tally: ByteCounter
) -> InspectionResult:
    """What is at the source now: the bytes, and signatures beside them."""
    location = location_of(artifact)
    try:
        source = measure.allowed_source(location, (artifact.tenant_id, artifact.project_id))
    except Refusal as refusal:  # nobody reads from there any more; the conclusion says so
        return InspectionResult(_failed(refusal, tally), is_conclusive=True)
    try:
        seen = await reader.read(ArtifactKind(artifact.kind), location, artifact.digest, source, tally)
    except Refusal as refusal:
        return _unread(context, artifact, refusal, tally)
    there = FoundSignature(evidence=presence(context, artifact, seen.digest, seen.size_bytes))
    try:
        beside = await _signatures_beside(reader, context, artifact, measure, source)
    except Refusal as refusal:
        return InspectionResult(_failed(refusal, tally))
    found = (there, *beside)
    done = max(tally.bytes_done, seen.size_bytes) if artifact.kind == ArtifactKind.BLOB else tally.bytes_done
    return InspectionResult(CheckOutcome(READ, done), found, seen.size_bytes, is_conclusive=True)


async def read_smoke(
    reader: ArtifactReader, artifact: Artifact, measure: TrustContext, tally: ByteCounter
) -> InspectionResult:
    """Everything is there, is what it says it is, and could be started."""
    location = location_of(artifact)
    try:
        source = measure.allowed_source(location, (artifact.tenant_id, artifact.project_id))
        if location.source_type is SourceType.OCI and artifact.kind == ArtifactKind.OCI:
            return await _smoked(reader, artifact, location, source, tally)
        await reader.read(ArtifactKind(artifact.kind), location, artifact.digest, source, tally)
    except Refusal as refusal:
        return InspectionResult(_failed(refusal, tally))
    return InspectionResult(CheckOutcome(READ, tally.bytes_done))


async def fresh_evidence(
    database: Database, acting: Acting, artifact: Artifact, found: Sequence[FoundSignature]
) -> list[FoundSignature]:
    """What of this is not stored yet; a presence is always new."""
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
    """A look that was refused; evidence where it says something about the bytes."""
    seen = None
    if refusal.code is Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
        seen = presence(context, artifact, None, None)
    if refusal.code is Code.DIGEST_MISMATCH:
        other = refusal.details.get("found")
        if isinstance(other, str) and other.startswith("sha256:"):
            seen = presence(context, artifact, other, None)
        if isinstance(other, int):
            seen = presence(context, artifact, artifact.digest, other)
    if seen is None:
        return InspectionResult(_failed(refusal, tally))
    return InspectionResult(_failed(refusal, tally), (FoundSignature(evidence=seen),), is_conclusive=True)


async def _signatures_beside(
    reader: ArtifactReader,
    context: DecisionContext,
    artifact: Artifact,
    measure: TrustContext,
    source: ArtifactSource | None,
) -> list[FoundSignature]:
    location = location_of(artifact)
    if location.source_type is not SourceType.OCI:
        return []
    keys = [
        read_trusted_key(key.public_key, key.id) for key in measure.keys if key.tenant_id in (None, artifact.tenant_id)
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
    """By what a signature that is stored already is known."""
    each = found.evidence
    if each.kind is not EvidenceKind.SIGNATURE:
        return None
    return (each.key_fingerprint, each.fault, found.found_in, each.digest, each.repository)
