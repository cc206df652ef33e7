"""Commands on artifacts: publish, register, verify, revoke.

The source is asked before the transaction, once, however often the decision is taken anew.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.commands.artifact_judgement import Yardstick, location_of, yardstick
from mooring.commands.found import found
from mooring.commands.work import Answered, Work
from mooring.core.artifact import (
    Artifact,
    ArtifactKind,
    ArtifactWish,
    Visibility,
    read_digest,
    read_source,
    register_artifact,
)
from mooring.core.artifact_evidence import Found, Verified, add_evidence, add_presence, presence
from mooring.core.artifact_location import SourceType, read_location
from mooring.core.artifact_trust import Evidence, EvidenceKind, SignatureFault, Trust, revoke_artifact
from mooring.core.decision import Audited, Decision, Happened
from mooring.core.errors import Code, Refusal
from mooring.core.events import EventType
from mooring.core.ids import Prefix
from mooring.core.permissions import Place
from mooring.core.policy import Request
from mooring.core.trust import TrustState
from mooring.gateways.artifact_reader import Seen, namespace
from mooring.gateways.cosign import Verdict
from mooring.gateways.cosign_claims import Reason
from mooring.gateways.cosign_keys import read_trusted_key
from mooring.gateways.registry_token import Access
from mooring.storage import artifact as artifacts
from mooring.storage import project as projects

FAULT_OF: Final = {
    Reason.UNKNOWN_KEY: SignatureFault.UNKNOWN_KEY,
    Reason.OTHER_DIGEST: SignatureFault.OTHER_DIGEST,
    Reason.OTHER_REPOSITORY: SignatureFault.OTHER_REPOSITORY,
    Reason.NO_REPOSITORY: SignatureFault.NO_REPOSITORY,
}
"""Why a signature does not count; every other reason is that it is malformed."""


@dataclass(frozen=True, slots=True)
class PublishIntent:
    """Where to push, and the right to do so for a short time."""

    registry: str
    repository: str
    location: str
    token: str
    expires_at: datetime


async def publish(work: Work[PublishIntent], place: Place, name: str) -> Answered:
    """Give the right to push to one repository of this place."""
    own = work.services.artifacts.own
    if own is None:
        raise Refusal(Code.VALIDATION_FAILED, "this platform has no registry of its own; push to yours and register")
    owner = _owner(work, place)
    repository = f"{namespace(*owner)}/{name}"
    location = read_location(f"oci://{own.authority}/{repository}", "name")

    async def load() -> PublishIntent:
        await _require_project(work, place)
        issued = own.issuer.issue(work.context.actor.id, [Access(repository, ("pull", "push"))])
        expires_at = issued.issued_at + timedelta(seconds=issued.expires_in)
        return PublishIntent(own.authority, repository, location.text, issued.token, expires_at)

    def decide(intent: PublishIntent) -> Decision[PublishIntent]:
        told = {"location": intent.location, "expires_at": intent.expires_at.isoformat()}
        happened = Happened(EventType.ARTIFACT_PUSH_ALLOWED, "artifact", intent.repository, *owner, data=told)
        audited = Audited("artifact.create", "artifact", intent.repository, *owner, after=told)
        return Decision(result=intent, events=(happened,), audits=(audited,))

    return await work.execute(load, decide)


async def register(work: Work[Verified], place: Place, wish: ArtifactWish) -> Answered:
    """Register a digest that is at its source; of a blob every byte is read and hashed."""
    owner = _owner(work, place)
    location = read_source(wish.kind, wish.location)
    digest = read_digest(wish.digest)
    seen: list[Seen] = []

    async def load() -> tuple[Yardstick, Seen]:
        await _require_project(work, place)
        measure = await yardstick(work.services, work.acting, place.project_id)
        source = measure.allowed_source(location, owner)
        denied = measure.policy.decide(Request(source=location.text)).refusal()
        if denied is not None:
            raise denied
        if not seen:
            seen.append(await work.services.artifacts.look(wish.kind, location, digest, source))
        return measure, seen[0]

    def decide(snapshot: tuple[Yardstick, Seen]) -> Decision[Verified]:
        measure, there = snapshot
        asked = replace(wish, size_bytes=there.size_bytes, media_type=there.media_type)
        made = register_artifact(work.context, owner, asked)
        look = presence(work.context, made.result, there.digest, there.size_bytes)
        whole = add_presence(made, look)
        return _verified(whole, measure.judge(made.result, [look]), (look,))

    return await work.execute(load, decide)


def visibility_of(place: Place) -> Visibility:
    """Who sees what is registered in a place."""
    if place.project_id is not None:
        return Visibility.PROJECT
    return Visibility.PLATFORM if place.tenant_id is None else Visibility.TENANT


async def verify(work: Work[Verified], place: Place, artifact_id: str) -> Answered:
    """Look at the source again, collect signatures, store what was found, and conclude."""
    looked: list[Found] = []

    async def load() -> tuple[Artifact, list[Found], list[Evidence], Yardstick]:
        artifact = await own_artifact(work, place, artifact_id)
        measure = await yardstick(work.services, work.acting, place.project_id)
        if not looked and artifact.trust != TrustState.REVOKED:
            looked.extend(await _look(work, artifact, measure))
        known = await artifacts.signatures(work.database, work.acting, artifact.id)
        fresh = [each for each in looked if _mark(each) not in known]
        stored = await artifacts.evidence(work.database, work.acting, [artifact.id])
        return artifact, fresh, stored[artifact.id], measure

    def decide(snapshot: tuple[Artifact, list[Found], list[Evidence], Yardstick]) -> Decision[Verified]:
        artifact, fresh, stored, measure = snapshot
        evidence = [*stored, *(each.evidence for each in fresh)]
        trust = measure.judge(artifact, evidence)
        return _verified(add_evidence(work.context, artifact, fresh, trust), trust, tuple(evidence))

    return await work.execute(load, decide)


async def revoke(work: Work[Verified], place: Place, artifact_id: str, reason: str) -> Answered:
    """Withdraw an artifact for ever."""

    async def load() -> tuple[Artifact, list[Evidence], Yardstick]:
        artifact = await own_artifact(work, place, artifact_id)
        stored = await artifacts.evidence(work.database, work.acting, [artifact.id])
        return artifact, stored[artifact.id], await yardstick(work.services, work.acting, place.project_id)

    def decide(snapshot: tuple[Artifact, list[Evidence], Yardstick]) -> Decision[Verified]:
        artifact, evidence, measure = snapshot
        decision = revoke_artifact(work.context, artifact, reason)
        return _verified(decision, measure.judge(decision.result, evidence), tuple(evidence))

    return await work.execute(load, decide)


async def own_artifact(work: Work[Any], place: Place, artifact_id: str) -> Artifact:
    """An artifact that belongs to this very place."""
    return found(await artifacts.find_own(work.database, work.acting, place.project_id, artifact_id), "artifact")


async def _look(work: Work[Any], artifact: Artifact, measure: Yardstick) -> list[Found]:
    """What is at the source now: the bytes, and signatures beside them."""
    location = location_of(artifact)
    allowed, source = measure.source(location, (artifact.tenant_id, artifact.project_id))
    if not allowed:
        return []  # nobody reads from there any more; the conclusion says so
    reader, context = work.services.artifacts, work.context
    try:
        seen = await reader.look(ArtifactKind(artifact.kind), location, artifact.digest, source)
    except Refusal as refusal:
        return [Found(evidence=_absence(work, artifact, refusal))]
    there = [Found(evidence=presence(context, artifact, seen.digest, seen.size_bytes))]
    if location.source_type is not SourceType.OCI:
        return there
    keys = [
        read_trusted_key(key.public_key, key.id) for key in measure.keys if key.tenant_id in (None, artifact.tenant_id)
    ]
    try:
        verdict = await reader.signatures(location, artifact.digest, source, keys, context.now)
    except Refusal as refusal:
        if artifact.kind != ArtifactKind.BLOB or refusal.code is not Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
            raise
        return there  # a blob without a manifest: nothing can refer to it
    return there + _signatures(work, artifact, verdict)


def _absence(work: Work[Any], artifact: Artifact, refusal: Refusal) -> Evidence:
    """The evidence that a refused look is; what says nothing about the bytes is no evidence and goes up."""
    if refusal.code is Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
        return presence(work.context, artifact, None, None)
    if refusal.code is Code.DIGEST_MISMATCH:
        other = refusal.details.get("found")
        if isinstance(other, str) and other.startswith("sha256:"):
            return presence(work.context, artifact, other, None)
        if isinstance(other, int):
            return presence(work.context, artifact, artifact.digest, other)
    raise refusal


def _signatures(work: Work[Any], artifact: Artifact, verdict: Verdict) -> list[Found]:
    made = [
        Found(
            evidence=_signature(work, artifact, each.artifact_digest, each.repository, each.key_fingerprint),
            form=each.form.value,
            found_in=each.found_in,
            payload=each.payload,
            signature=each.signature,
        )
        for each in verdict.evidence
    ]
    for failure in verdict.failures:
        fault = FAULT_OF.get(failure.reason, SignatureFault.MALFORMED)
        bad = replace(_signature(work, artifact, artifact.digest, None, None), fault=fault)
        made.append(Found(evidence=bad, form=failure.form.value, found_in=failure.where))
    return made


def _signature(
    work: Work[Any], artifact: Artifact, digest: str, repository: str | None, fingerprint: str | None
) -> Evidence:
    return Evidence(
        id=work.context.mint(Prefix.ARTIFACT_EVIDENCE),
        artifact_id=artifact.id,
        kind=EvidenceKind.SIGNATURE,
        digest=digest,
        observed_at=work.context.now,
        repository=repository,
        key_fingerprint=fingerprint,
    )


def _mark(found_: Found) -> tuple[str | None, ...] | None:
    """By what a signature that is stored already is known; a presence is always new."""
    each = found_.evidence
    if each.kind is not EvidenceKind.SIGNATURE:
        return None
    return (each.key_fingerprint, each.fault, found_.found_in, each.digest, each.repository)


def _verified(decision: Decision[Artifact], trust: Trust, evidence: tuple[Evidence, ...]) -> Decision[Verified]:
    return Decision(Verified(decision.result, trust, evidence), decision.writes, decision.events, decision.audits)


def _owner(work: Work[Any], place: Place) -> tuple[str | None, str | None]:
    return work.acting.tenant_id, place.project_id


async def _require_project(work: Work[Any], place: Place) -> None:
    if place.project_id is not None:
        found(await projects.find(work.database, work.acting, place.project_id), "project")
