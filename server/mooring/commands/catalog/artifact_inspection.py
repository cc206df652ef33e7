"""What a check reads, and what it makes of it: evidence about the bytes, or why there is none.

A failure that says something about the artifact (its bytes are gone, or others are in their place) is evidence like
any other; a source that cannot be asked says nothing, and leaves what is known as it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from mooring.commands.catalog.artifact_evaluation import Yardstick, location_of
from mooring.core.catalog.artifact import Artifact, ArtifactKind
from mooring.core.catalog.artifact_check import CheckOutcome
from mooring.core.catalog.artifact_evidence import Found, presence
from mooring.core.catalog.artifact_location import ArtifactSource, Location, SourceType
from mooring.core.catalog.artifact_trust import Evidence, EvidenceKind, SignatureFault
from mooring.core.kernel.decision import Context
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.registry.artifact_reader import ArtifactReader, Tally
from mooring.gateways.signing.cosign import Verdict
from mooring.gateways.signing.cosign_claims import Reason
from mooring.gateways.signing.cosign_keys import read_trusted_key
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import Acting, Database

READ: Final = "every byte was fetched and hashed"
FAULT_OF: Final = {
    Reason.UNKNOWN_KEY: SignatureFault.UNKNOWN_KEY,
    Reason.OTHER_DIGEST: SignatureFault.OTHER_DIGEST,
    Reason.OTHER_REPOSITORY: SignatureFault.OTHER_REPOSITORY,
    Reason.NO_REPOSITORY: SignatureFault.NO_REPOSITORY,
}
"""Why a signature does not count; every other reason is that it is malformed."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading brought."""

    outcome: CheckOutcome
    found: tuple[Found, ...] = ()
    size_bytes: int | None = None
    is_conclusive: bool = False  # whether trust follows from it


async def read_content(
    reader: ArtifactReader, context: Context, artifact: Artifact, measure: Yardstick, tally: Tally
) -> Reading:
    """What is at the source now: the bytes, and signatures beside them."""
    location = location_of(artifact)
    try:
        source = measure.allowed_source(location, (artifact.tenant_id, artifact.project_id))
    except Refusal as refusal:  # nobody reads from there any more; the conclusion says so
        return Reading(_failed(refusal, tally), is_conclusive=True)
    try:
        seen = await reader.read(ArtifactKind(artifact.kind), location, artifact.digest, source, tally)
    except Refusal as refusal:
        return _unread(context, artifact, refusal, tally)
    there = Found(evidence=presence(context, artifact, seen.digest, seen.size_bytes))
    try:
        beside = await _signatures_beside(reader, context, artifact, measure, source)
    except Refusal as refusal:
        return Reading(_failed(refusal, tally))
    found = (there, *beside)
    done = max(tally.bytes_done, seen.size_bytes) if artifact.kind == ArtifactKind.BLOB else tally.bytes_done
    return Reading(CheckOutcome(READ, done), found, seen.size_bytes, is_conclusive=True)


async def read_smoke(reader: ArtifactReader, artifact: Artifact, measure: Yardstick, tally: Tally) -> Reading:
    """Everything is there, is what it says it is, and could be started."""
    location = location_of(artifact)
    try:
        source = measure.allowed_source(location, (artifact.tenant_id, artifact.project_id))
        if location.source_type is SourceType.OCI and artifact.kind == ArtifactKind.OCI:
            return await _smoked(reader, artifact, location, source, tally)
        await reader.read(ArtifactKind(artifact.kind), location, artifact.digest, source, tally)
    except Refusal as refusal:
        return Reading(_failed(refusal, tally))
    return Reading(CheckOutcome(READ, tally.bytes_done))


async def fresh_evidence(database: Database, acting: Acting, artifact: Artifact, found: Sequence[Found]) -> list[Found]:
    """What of this is not stored yet; a presence is always new."""
    known = await artifacts.signatures(database, acting, artifact.id)
    return [each for each in found if _mark(each) not in known]


async def _smoked(
    reader: ArtifactReader, artifact: Artifact, location: Location, source: ArtifactSource | None, tally: Tally
) -> Reading:
    result = await reader.smoke(location, artifact.digest, source, tally)
    refusal = result.refusal()
    findings = [
        {"name": each.name, "subject": each.subject, "outcome": each.outcome.value, "detail": each.detail}
        for each in result.checks
    ]
    detail = READ if refusal is None else refusal.detail
    return Reading(CheckOutcome(detail, tally.bytes_done, refusal, findings))


def _failed(refusal: Refusal, tally: Tally) -> CheckOutcome:
    return CheckOutcome(refusal.detail, tally.bytes_done, refusal)


def _unread(context: Context, artifact: Artifact, refusal: Refusal, tally: Tally) -> Reading:
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
        return Reading(_failed(refusal, tally))
    return Reading(_failed(refusal, tally), (Found(evidence=seen),), is_conclusive=True)


async def _signatures_beside(
    reader: ArtifactReader, context: Context, artifact: Artifact, measure: Yardstick, source: ArtifactSource | None
) -> list[Found]:
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


def _signatures(context: Context, artifact: Artifact, verdict: Verdict) -> list[Found]:
    made = [
        Found(
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
        made.append(Found(evidence=bad, form=failure.form.value, found_in=failure.where))
    return made


def _signature(
    context: Context, artifact: Artifact, digest: str, repository: str | None, fingerprint: str | None
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


def _mark(found: Found) -> tuple[str | None, ...] | None:
    """By what a signature that is stored already is known."""
    each = found.evidence
    if each.kind is not EvidenceKind.SIGNATURE:
        return None
    return (each.key_fingerprint, each.fault, found.found_in, each.digest, each.repository)
