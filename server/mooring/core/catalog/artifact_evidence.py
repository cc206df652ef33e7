"""What a look at an artifact's source leaves behind: evidence, which is only ever added.

The conclusion from the evidence is drawn in `artifact_trust`; here it is written down, with the conclusion's own move
where it changed.
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
    """A signature at the source, whole where it was found to hold."""

    evidence: Evidence
    form: str = ""
    found_in: str = ""
    payload: bytes | None = None
    signature: bytes | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedArtifact:
    """An artifact and what follows from its evidence."""

    artifact: Artifact
    trust: Trust
    evidence: tuple[Evidence, ...] = ()
    check: ArtifactCheck | None = None  # the newest, where it was looked for


def presence(context: DecisionContext, artifact: Artifact, digest: str | None, size_bytes: int | None) -> Evidence:
    """What was at the source: these bytes, or none."""
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
    """The row of one piece of evidence."""
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
    """Store what was found, and the conclusion where it changed."""
    concluded = record_trust(context, artifact, derived)
    told = {
        "trust": derived.state.value,
        "evidence": [f"{each.evidence.kind}:{each.evidence.fault or 'held'}" for each in found],
    }
    place = (artifact.tenant_id, artifact.project_id)
    looked = AuditRecord("artifact.verify", "artifact", artifact.id, *place, after=told)
    return Decision(
        result=concluded.result,
        writes=(*(evidence_insert(artifact, each) for each in found), *concluded.writes),
        events=concluded.events,
        audits=concluded.audits or (looked,),
    )


def add_presence(decision: Decision[Artifact], seen: Evidence) -> Decision[Artifact]:
    """A registration, with the look at the source that it rests on."""
    insert = evidence_insert(decision.result, FoundSignature(evidence=seen))
    return replace(decision, writes=(*decision.writes, insert))


def measured(decision: Decision[Artifact], artifact: Artifact, size_bytes: int) -> Decision[Artifact]:
    """A decision about an artifact, with the size that reading all of it told; it is stated once."""
    if artifact.size_bytes == size_bytes:
        return decision
    stated = {"size_bytes": size_bytes}
    moves = [write for write in decision.writes if isinstance(write, StateChange) and write.noun == "artifact"]
    own = moves[0] if moves else Update("artifact", artifact.id, artifact.revision, {})
    others = tuple(write for write in decision.writes if write is not own)
    revision = artifact.revision + (0 if moves else 1)
    after = replace(decision.result, size_bytes=size_bytes, revision=revision)
    return replace(decision, result=after, writes=(*others, replace(own, set={**own.set, **stated})))


@dataclass(frozen=True, slots=True)
class ArtifactTransition:
    """One transition of an artifact, in one of its two dimensions."""

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
