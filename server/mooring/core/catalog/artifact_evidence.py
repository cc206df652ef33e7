"""Evidence: what an inspection of an artifact's source observed. Evidence is only ever added.

`artifact_trust` draws the conclusion from the evidence. This module stores the evidence, together with the transition
of trust when the conclusion changed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_check import ArtifactCheck
from mooring.core.catalog.artifact_trust import Evidence, EvidenceKind, Trust, record_trust
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Insert, StateChange, Update
from mooring.core.kernel.ids import Prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSignature:
    """A signature at the source; the payload and the signature are stored only when it is valid."""

    evidence: Evidence
    form: str = ""
    found_in: str = ""
    payload: bytes | None = None
    signature: bytes | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedArtifact:
    """An artifact, and the trust that follows from its evidence."""

    artifact: Artifact
    trust: Trust
    evidence: tuple[Evidence, ...] = ()
    check: ArtifactCheck | None = None  # the newest check, if the caller asked for it


def presence(context: DecisionContext, artifact: Artifact, digest: str | None, size_bytes: int | None) -> Evidence:
    """Evidence that the source has these bytes; a digest of None means that it has none."""
    return Evidence(
        id=context.mint(Prefix.ARTIFACT_EVIDENCE),
        artifact_id=artifact.id,
        kind=EvidenceKind.PRESENCE,
        digest=digest or artifact.digest,
        observed_at=context.now,
        present=digest is not None,
        size_bytes=size_bytes,
    )


def evidence_insert(artifact: Artifact, found: FoundSignature) -> Insert:
    row = asdict(found.evidence) | {
        "tenant_id": artifact.tenant_id,
        "kind": found.evidence.kind.value,
        "fault": None if found.evidence.fault is None else found.evidence.fault.value,
        "form": found.form or None,
        "found_in": found.found_in or None,
        "payload": found.payload,
        "signature": found.signature,
    }
    return Insert("artifact_evidence", row)


def add_evidence(
    context: DecisionContext, artifact: Artifact, found: Sequence[FoundSignature], derived: Trust
) -> Decision[Artifact]:
    """Store the evidence, and the conclusion if it changed."""
    concluded = record_trust(context, artifact, derived)
    after = {
        "trust": derived.state.value,
        "evidence": [f"{each.evidence.kind}:{each.evidence.fault or 'held'}" for each in found],
    }
    place = (artifact.tenant_id, artifact.project_id)
    verified = AuditRecord("artifact.verify", "artifact", artifact.id, *place, after=after)
    return Decision(
        result=concluded.result,
        writes=(*(evidence_insert(artifact, each) for each in found), *concluded.writes),
        events=concluded.events,
        audits=concluded.audits or (verified,),
    )


def add_presence(decision: Decision[Artifact], evidence: Evidence) -> Decision[Artifact]:
    """Add the evidence that the bytes are at the source to the decision that registers an artifact."""
    insert = evidence_insert(decision.result, FoundSignature(evidence=evidence))
    return replace(decision, writes=(*decision.writes, insert))


def measured(decision: Decision[Artifact], artifact: Artifact, size_bytes: int) -> Decision[Artifact]:
    """Add the measured size to a decision about an artifact, unless the artifact has it already."""
    if artifact.size_bytes == size_bytes:
        return decision
    measured_size = {"size_bytes": size_bytes}
    moves = [write for write in decision.writes if isinstance(write, StateChange) and write.noun == "artifact"]
    own = moves[0] if moves else Update("artifact", artifact.id, artifact.revision, {})
    others = tuple(write for write in decision.writes if write is not own)
    revision = artifact.revision + (0 if moves else 1)
    after = replace(decision.result, size_bytes=size_bytes, revision=revision)
    return replace(decision, result=after, writes=(*others, replace(own, set={**own.set, **measured_size})))


@dataclass(frozen=True, slots=True)
class ArtifactTransition:
    """One transition of an artifact, of its promotion or of its trust."""

    machine: str
    generation: int
    source: str
    trigger: str
    target: str
    occurred_at: datetime
    correlation_id: str
    actor_kind: str | None = None
    actor_id: str | None = None
    reason: str | None = None
