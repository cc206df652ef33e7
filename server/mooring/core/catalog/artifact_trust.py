"""The derivation of trust: from the artifact, its evidence, the trusted keys and the policy to "verified" or why not.

These functions are stateless. Each use of an artifact derives its trust again, so removing a key, denying a source or
revoking the artifact takes effect with the next use and not with the next sweep. The stored state of trust is the last
conclusion, for people and for the database's constraints; `trust_step` gives the transition that updates it.

Evidence is what was observed and is never deleted: that the source had bytes with this digest, and the signatures that
were found. A signature is valid evidence when its key is trusted now and it was made for this digest in this
repository. Without the repository, somebody could copy the signature along with the bytes to another location.

The platform's keys apply to every artifact; a tenant's keys apply only to the artifacts of that tenant.

When no signature is required, invalid ones are ignored: otherwise anybody who may push could get an artifact rejected
by adding one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from mooring.core.catalog.artifact import Artifact, ArtifactKind
from mooring.core.catalog.artifact_location import Location, SourceType
from mooring.core.catalog.policy import PolicyChain, PolicyRequest, PolicyVerdict
from mooring.core.catalog.trust_lifecycle import TRUST, TrustState, TrustTrigger
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, StateChange
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.lifecycle import Transition


class EvidenceKind(StrEnum):
    """The kind of an observation."""

    PRESENCE = "presence"
    SIGNATURE = "signature"


class SignatureFault(StrEnum):
    """Why a signature was not valid when it was checked."""

    UNKNOWN_KEY = "unknown_key"
    OTHER_DIGEST = "other_digest"
    OTHER_REPOSITORY = "other_repository"
    NO_REPOSITORY = "no_repository"
    MALFORMED = "malformed"


CODE_OF_FAULT: Final = {
    SignatureFault.UNKNOWN_KEY: Code.SIGNATURE_KEY_UNKNOWN,
    SignatureFault.OTHER_DIGEST: Code.SIGNATURE_REPLAYED,
    SignatureFault.OTHER_REPOSITORY: Code.SIGNATURE_REPLAYED,
    SignatureFault.NO_REPOSITORY: Code.SIGNATURE_REPLAYED,
    SignatureFault.MALFORMED: Code.SIGNATURE_INVALID,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation about an artifact's bytes."""

    id: str
    artifact_id: str
    kind: EvidenceKind
    digest: str  # of the bytes at the source, or of the bytes that were signed
    observed_at: datetime
    present: bool = True  # for a presence: whether the source had the bytes
    size_bytes: int | None = None  # for a presence
    repository: str | None = None  # for a signature: the `<registry>/<repository>` it was made for
    key_fingerprint: str | None = None  # for a valid signature: the key that made it
    fault: SignatureFault | None = None  # for an invalid signature


@dataclass(frozen=True, slots=True, kw_only=True)
class SignerKey:
    """A public key whose signatures are trusted; to rotate it, add the new one and remove the old one."""

    id: str
    tenant_id: str | None  # None: a key of the platform, which is trusted for every artifact
    fingerprint: str
    removed_at: datetime | None = None
    name: str = ""
    algorithm: str = ""
    public_key: str = ""  # in PEM form
    revision: int = 0
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TrustDoubt:
    """One reason why an artifact is not verified."""

    code: Code
    reason: str
    denied_by: PolicyVerdict | None = None  # the verdict of the policy that causes the doubt


@dataclass(frozen=True, slots=True)
class Trust:
    """The conclusion from the evidence at this moment."""

    state: TrustState
    doubts: tuple[TrustDoubt, ...] = ()
    evidence_ids: tuple[str, ...] = ()  # the evidence that the conclusion relies on

    @property
    def is_verified(self) -> bool:
        """Whether the artifact may be used."""
        return self.state is TrustState.VERIFIED

    def refusal(self, artifact: Artifact) -> Refusal | None:
        """Why the artifact may not be used; None when it may."""
        if self.is_verified:
            return None
        first = self.doubts[0]
        doubts = [{"code": each.code.value, "reason": each.reason} for each in self.doubts]
        denial = None if first.denied_by is None else first.denied_by.refusal()
        details = {"artifact_id": artifact.id, "digest": artifact.digest, "trust": self.state.value, "reasons": doubts}
        return Refusal(
            first.code,
            f"artifact {artifact.digest} is {self.state}: {first.reason}",
            details if denial is None else {**denial.details, **details},
        )


_STATE_OF: Final = {
    Code.ARTIFACT_REVOKED: TrustState.REVOKED,
    Code.SOURCE_DENIED: TrustState.REJECTED,
    Code.DIGEST_MISMATCH: TrustState.REJECTED,
    Code.SIGNATURE_REPLAYED: TrustState.REJECTED,
    Code.SIGNATURE_INVALID: TrustState.REJECTED,
    Code.SIGNATURE_KEY_UNKNOWN: TrustState.UNVERIFIED,
    Code.SIGNATURE_MISSING: TrustState.UNVERIFIED,
    Code.ARTIFACT_NOT_FOUND_AT_SOURCE: TrustState.UNVERIFIED,
    Code.ARTIFACT_UNVERIFIED: TrustState.UNVERIFIED,
}
"""The state that follows from each doubt, the worst first: false evidence rejects, missing evidence does not verify."""


def derive_trust(
    artifact: Artifact,
    evidence: Sequence[Evidence],
    keys: Iterable[SignerKey],
    policy: PolicyChain,
    *,
    source_allowed: bool = True,
    known_as: Iterable[str] = (),
) -> Trust:
    """What the evidence proves under these keys and this policy.

    `source_allowed` says whether a source on the list matches the location; `known_as` are other names under which
    publishers know the repository. Evidence of another artifact is ignored.
    """
    if artifact.trust == TrustState.REVOKED:
        reason = artifact.revocation_reason or "it was permanently withdrawn"
        return Trust(TrustState.REVOKED, (TrustDoubt(Code.ARTIFACT_REVOKED, reason),))
    doubts: list[TrustDoubt] = []
    if not source_allowed:
        doubts.append(TrustDoubt(Code.SOURCE_DENIED, f"no source on the list matches {artifact.location}"))
    verdict = policy.decide(PolicyRequest(source=artifact.location))
    if not verdict.allowed:
        doubts.append(TrustDoubt(Code.SOURCE_DENIED, f"the {verdict.layer} policy denies {artifact.location}", verdict))
    own = [each for each in evidence if each.artifact_id == artifact.id]
    presence, presence_doubt = _presence(artifact, own)
    relied = [] if presence is None else [presence.id]
    if presence_doubt is not None:
        doubts.append(presence_doubt)
    required = policy.decide(PolicyRequest(signed=False, image=artifact.kind == ArtifactKind.OCI))
    if not required.allowed:
        signature, signature_doubt = _signature(artifact, own, keys, known_as)
        if signature is not None:
            relied.append(signature.id)
        if signature_doubt is not None:
            reason = f"{signature_doubt.reason}; the {required.layer} policy requires a signature"
            doubts.append(replace(signature_doubt, reason=reason, denied_by=required))
    if not doubts:
        return Trust(TrustState.VERIFIED, (), tuple(relied))
    doubts.sort(key=lambda each: list(_STATE_OF).index(each.code))
    return Trust(_STATE_OF[doubts[0].code], tuple(doubts), tuple(relied))


class ArtifactTrust(NamedTuple):
    """An artifact, and the trust in it at this moment."""

    artifact: Artifact
    trust: Trust


def trust_of_digests(evaluated: Iterable[ArtifactTrust]) -> dict[str, ArtifactTrust]:
    """The artifact that decides for each digest; several owners may have registered the same bytes.

    A revocation is about the bytes, so it counts even if others registered them too: otherwise a tenant could go on
    using what the platform revoked. Without one, any verified artifact is enough.
    """
    order = {TrustState.REVOKED: 0, TrustState.VERIFIED: 1, TrustState.REJECTED: 2, TrustState.UNVERIFIED: 3}
    found: dict[str, ArtifactTrust] = {}
    for each in sorted(evaluated, key=lambda one: (order[one.trust.state], one.artifact.id)):
        found.setdefault(each.artifact.digest, each)
    return found


def trust_step(stored: TrustState, derived: Trust) -> Transition[TrustState, TrustTrigger] | None:
    """The transition from the stored state to the derived one; None when there is none.

    A rejected artifact does not become unverified: it stays rejected until better evidence verifies it. Every use of an
    artifact relies on the derived state and not on the stored one.
    """
    for edge in TRUST.edges:
        if edge.source is stored and edge.target is derived.state and edge.trigger is not TrustTrigger.REVOKE:
            return edge
    return None


def record_trust(context: DecisionContext, artifact: Artifact, derived: Trust) -> Decision[Artifact]:
    """Store the conclusion if it changed; storing it again writes nothing."""
    edge = trust_step(TrustState(artifact.trust), derived)
    if edge is None:
        return Decision(result=artifact)
    reason = "; ".join(each.reason for each in derived.doubts) or edge.why
    changed: dict[str, object] = {"rejection_reason": reason if edge.target is TrustState.REJECTED else None}
    return _moved(context, artifact, edge, changed, action="artifact.verify", reason=reason)


def revoke_artifact(context: DecisionContext, artifact: Artifact, reason: str) -> Decision[Artifact]:
    """Withdraw the artifact permanently, whatever the evidence says; every later use is refused."""
    edge = TRUST.step(TrustState(artifact.trust), TrustTrigger.REVOKE)
    stated = validation.reason(reason)
    changed: dict[str, object] = {"revoked_at": context.now, "revocation_reason": stated}
    return _moved(context, artifact, edge, changed, action="artifact.revoke", reason=stated)


def _presence(artifact: Artifact, evidence: Sequence[Evidence]) -> tuple[Evidence | None, TrustDoubt | None]:
    """The newest observation of the source decides, because the bytes may have been removed or replaced since."""
    observations = [each for each in evidence if each.kind is EvidenceKind.PRESENCE]
    last = max(observations, key=lambda each: (each.observed_at, each.id), default=None)
    if last is None:
        return None, TrustDoubt(Code.ARTIFACT_UNVERIFIED, "its bytes have not been checked at the source yet")
    if not last.present:
        return last, TrustDoubt(
            Code.ARTIFACT_NOT_FOUND_AT_SOURCE, "its bytes were missing at the source at the last check"
        )
    if last.digest != artifact.digest:
        return last, TrustDoubt(Code.DIGEST_MISMATCH, f"the source has {last.digest} instead")
    if last.size_bytes is not None and last.size_bytes != artifact.size_bytes:
        reason = f"the source has {last.size_bytes} bytes, not {artifact.size_bytes}"
        return last, TrustDoubt(Code.DIGEST_MISMATCH, reason)
    return last, None


def _signature(
    artifact: Artifact, evidence: Sequence[Evidence], keys: Iterable[SignerKey], known_as: Iterable[str]
) -> tuple[Evidence | None, TrustDoubt | None]:
    trusted = {
        key.fingerprint for key in keys if key.removed_at is None and key.tenant_id in (None, artifact.tenant_id)
    }
    repositories = frozenset({Location(SourceType(artifact.source_type), artifact.location).rest, *known_as})
    faults = set()
    for each in evidence:
        if each.kind is EvidenceKind.SIGNATURE:
            fault = _fault(artifact, each, trusted, repositories)
            if fault is None:
                return each, None
            faults.add(fault)
    for code, reason in _SIGNATURE_DOUBTS:
        if code in faults:
            return None, TrustDoubt(code, reason)
    return None, TrustDoubt(Code.SIGNATURE_MISSING, "a signature is required, and none was found")


_SIGNATURE_DOUBTS: Final = (
    (Code.SIGNATURE_REPLAYED, "a trusted key signed another digest, or this one for another repository"),
    (Code.SIGNATURE_KEY_UNKNOWN, "no signature was made by a key that is trusted here now"),
    (Code.SIGNATURE_INVALID, "the signature is not valid"),
)
"""The worst first: a misused signature of a trusted key matters more than a signature of an unknown key."""


def _fault(artifact: Artifact, signature: Evidence, trusted: set[str], repositories: frozenset[str]) -> Code | None:
    if signature.fault is not None:
        return CODE_OF_FAULT[signature.fault]
    if signature.key_fingerprint is None:
        return Code.SIGNATURE_INVALID
    if signature.key_fingerprint not in trusted:
        return Code.SIGNATURE_KEY_UNKNOWN
    if signature.digest != artifact.digest or signature.repository not in repositories:
        return Code.SIGNATURE_REPLAYED
    return None


def _moved(
    context: DecisionContext,
    artifact: Artifact,
    edge: Transition[TrustState, TrustTrigger],
    changed: dict[str, object],
    *,
    action: str,
    reason: str,
) -> Decision[Artifact]:
    after = Artifact(
        **{**asdict(artifact), **changed, "trust": edge.target.value, "trust_generation": artifact.trust_generation + 1}
    )
    place = (artifact.tenant_id, artifact.project_id)
    before, now = {"trust": artifact.trust}, {"trust": edge.target.value}
    data = {"digest": artifact.digest, "before": artifact.trust, "after": edge.target.value, "reason": reason}
    return Decision(
        result=after,
        writes=(
            StateChange(
                "artifact", artifact.id, TRUST, edge, artifact.trust_generation, artifact.tenant_id, set=changed
            ),
        ),
        events=(EventRecord(EventType.ARTIFACT_TRUST_CHANGED, "artifact", artifact.id, *place, data=data),),
        audits=(AuditRecord(action, "artifact", artifact.id, *place, before=before, after=now, reason=reason),),
    )
