"""Commands on artifacts: publish, register, verify, revoke.

The source is asked before the transaction, once, however often the decision is taken anew. What takes long, reading
every byte, is not done here: a check is accepted with the change that needs it, and read by `artifact_check`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from mooring.commands.catalog.artifact_evaluation import TrustContext, trust_context
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact import (
    Artifact,
    ArtifactKind,
    ArtifactSpec,
    Visibility,
    read_digest,
    read_source,
    register_artifact,
)
from mooring.core.catalog.artifact_check import (
    ArtifactCheck,
    CheckName,
    CheckState,
    accept_check,
    cancel_check,
    require_room,
)
from mooring.core.catalog.artifact_evidence import EvaluatedArtifact, add_evidence, add_presence, presence
from mooring.core.catalog.artifact_location import ArtifactSource, Location, read_location
from mooring.core.catalog.artifact_trust import Evidence, Trust, revoke_artifact
from mooring.core.catalog.policy import PolicyRequest
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.permissions import Place
from mooring.gateways.registry.artifact_reader import HashedBytes, StatedContent, namespace
from mooring.gateways.registry.registry_token import RepositoryAccess
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_check as checks
from mooring.storage.identity import project as projects


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
        issued = own.issuer.issue(work.context.actor.id, [RepositoryAccess(repository, ("pull", "push"))])
        expires_at = issued.issued_at + timedelta(seconds=issued.expires_in)
        return PublishIntent(own.authority, repository, location.text, issued.token, expires_at)

    def decide(intent: PublishIntent) -> Decision[PublishIntent]:
        told = {"location": intent.location, "expires_at": intent.expires_at.isoformat()}
        happened = EventRecord(EventType.ARTIFACT_PUSH_ALLOWED, "artifact", intent.repository, *owner, data=told)
        audited = AuditRecord("artifact.create", "artifact", intent.repository, *owner, after=told)
        return Decision(result=intent, events=(happened,), audits=(audited,))

    return await work.execute(load, decide)


async def register(work: Work[EvaluatedArtifact], place: Place, spec: ArtifactSpec) -> Answered:
    """Register a digest that is at its source: an image with its manifests read, a blob with a check of its bytes."""
    if spec.kind is ArtifactKind.BLOB:
        return await _register_blob(work, place, spec)
    owner = _owner(work, place)
    location = read_source(spec.kind, spec.location)
    digest = read_digest(spec.digest)
    seen: list[HashedBytes] = []

    async def load() -> tuple[TrustContext, HashedBytes]:
        measure, source = await _readable(work, place, location)
        if not seen:
            seen.append(await work.services.artifacts.look(spec.kind, location, digest, source))
        return measure, seen[0]

    def decide(snapshot: tuple[TrustContext, HashedBytes]) -> Decision[EvaluatedArtifact]:
        measure, there = snapshot
        asked = replace(spec, size_bytes=there.size_bytes, media_type=there.media_type)
        made = register_artifact(work.context, owner, asked)
        look = presence(work.context, made.result, there.digest, there.size_bytes)
        whole = add_presence(made, look)
        return _verified(whole, measure.evaluate(made.result, [look]), (look,))

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _Blob:
    """What is known of a blob before its bytes are read."""

    measure: TrustContext
    stated: StatedContent | None = None
    earlier: Artifact | None = None  # it was registered before, and its bytes were never all read
    check: ArtifactCheck | None = None  # which is under way


async def _register_blob(work: Work[EvaluatedArtifact], place: Place, spec: ArtifactSpec) -> Answered:
    """Register a blob whose source says that it has it; what is there is found out by a check.

    Whoever registers again what could not be read tries again.
    """
    owner = _owner(work, place)
    location = read_source(spec.kind, spec.location)
    digest = read_digest(spec.digest)
    stated: list[StatedContent] = []

    async def load() -> _Blob:
        measure, source = await _readable(work, place, location)
        earlier = await artifacts.find_at(
            work.database, work.acting, place.project_id, location=location.text, digest=digest
        )
        if earlier is not None and earlier.promotion == PromotionState.DRAFT and earlier.trust != TrustState.REVOKED:
            last = await checks.last(work.database, work.acting, earlier.id, CheckName.CONTENT)
            if last is not None and last.status != CheckState.SUCCEEDED:
                await _require_room(work, last)
                return _Blob(measure, None, earlier, last if last.is_under_way else None)
        await _require_room(work)
        if not stated:
            stated.append(await work.services.artifacts.state(spec.kind, location, digest, source))
        return _Blob(measure, stated[0])

    def decide(blob: _Blob) -> Decision[EvaluatedArtifact]:
        if blob.earlier is not None or blob.stated is None:
            return _asked(work, require(blob.earlier, "artifact"), (blob.measure, []), blob.check, "artifact.create")
        there = blob.stated
        size = there.size_bytes if there.is_hashed else None
        asked = replace(spec, size_bytes=size or 0, media_type=there.media_type)
        made = register_artifact(work.context, owner, asked)
        check = accept_check(
            work.context, made.result, CheckName.CONTENT, action="artifact.create", bytes_total=there.size_bytes
        )
        whole = Decision(made.result, (*made.writes, *check.writes), made.events, made.audits)
        return _verified(whole, blob.measure.evaluate(made.result, []), (), check.result)

    return await work.execute(load, decide)


def visibility_of(place: Place) -> Visibility:
    """Who sees what is registered in a place."""
    if place.project_id is not None:
        return Visibility.PROJECT
    return Visibility.PLATFORM if place.tenant_id is None else Visibility.TENANT


async def verify(work: Work[EvaluatedArtifact], place: Place, artifact_id: str) -> Answered:
    """Ask for a check that looks at the source again, or join the one that is under way."""

    async def load() -> tuple[Artifact, list[Evidence], TrustContext, ArtifactCheck | None]:
        artifact = await own_artifact(work, place, artifact_id)
        measure = await trust_context(work.services, work.acting, place.project_id)
        stored = await artifacts.evidence(work.database, work.acting, [artifact.id])
        last = await checks.last(work.database, work.acting, artifact.id, CheckName.CONTENT)
        await _require_room(work, last)
        return artifact, stored[artifact.id], measure, last if last is not None and last.is_under_way else None

    def decide(
        snapshot: tuple[Artifact, list[Evidence], TrustContext, ArtifactCheck | None],
    ) -> Decision[EvaluatedArtifact]:
        artifact, stored, measure, under_way = snapshot
        if artifact.trust == TrustState.REVOKED:
            trust = measure.evaluate(artifact, stored)
            return _verified(add_evidence(work.context, artifact, [], trust), trust, tuple(stored))
        return _asked(work, artifact, (measure, stored), under_way, "artifact.verify")

    try:
        return await work.execute(load, decide)
    except Refusal as refusal:
        if refusal.code is not Code.CHECK_RUNNING:
            raise
        return await work.execute(load, decide)  # somebody else asked at the same moment: join that one


async def revoke(work: Work[EvaluatedArtifact], place: Place, artifact_id: str, reason: str) -> Answered:
    """Withdraw an artifact for ever."""

    async def load() -> tuple[Artifact, list[Evidence], TrustContext, list[ArtifactCheck]]:
        artifact = await own_artifact(work, place, artifact_id)
        stored = await artifacts.evidence(work.database, work.acting, [artifact.id])
        under_way = await checks.under_way(work.database, work.acting, artifact.id)
        measure = await trust_context(work.services, work.acting, place.project_id)
        return artifact, stored[artifact.id], measure, under_way

    def decide(
        snapshot: tuple[Artifact, list[Evidence], TrustContext, list[ArtifactCheck]],
    ) -> Decision[EvaluatedArtifact]:
        artifact, evidence, measure, under_way = snapshot
        decision = revoke_artifact(work.context, artifact, reason)
        decision = without_checks(work.context, decision, under_way, "the artifact was revoked")
        return _verified(decision, measure.evaluate(decision.result, evidence), tuple(evidence))

    return await work.execute(load, decide)


async def own_artifact(work: Work[Any], place: Place, artifact_id: str) -> Artifact:
    """An artifact that belongs to this very place; of one that is only seen from here, it is said whose it is."""
    own = await artifacts.find_own(work.database, work.acting, place.project_id, artifact_id)
    if own is not None:
        return own
    seen = require(await artifacts.find(work.database, work.acting, place.project_id, artifact_id), "artifact")
    owner = "platform" if seen.tenant_id is None else "tenant"
    detail = f"this place reads the artifact, and the {owner} has it: it is changed there"
    raise Refusal(Code.NOT_FOUND, detail, {"noun": "artifact", "owner": owner})


def without_checks(
    context: DecisionContext, decision: Decision[Artifact], under_way: Sequence[ArtifactCheck], why: str
) -> Decision[Artifact]:
    """A decision after which nobody needs these checks any more."""
    ended = [cancel_check(context, each, why) for each in under_way]
    return replace(
        decision,
        writes=(*decision.writes, *(write for each in ended for write in each.writes)),
        events=(*decision.events, *(event for each in ended for event in each.events)),
        audits=(*decision.audits, *(audit for each in ended for audit in each.audits)),
    )


def _asked(
    work: Work[Any],
    artifact: Artifact,
    known: tuple[TrustContext, list[Evidence]],
    under_way: ArtifactCheck | None,
    action: str,
) -> Decision[EvaluatedArtifact]:
    """A check of what the source has, new or joined."""
    measure, evidence = known
    place = (artifact.tenant_id, artifact.project_id)
    if under_way is None:
        asked = accept_check(work.context, artifact, CheckName.CONTENT, action=action)
    else:
        told = {"check": under_way.name, "check_id": under_way.id, "joined": True}
        asked = Decision(under_way, audits=(AuditRecord(action, "artifact", artifact.id, *place, after=told),))
    shown = EvaluatedArtifact(artifact, measure.evaluate(artifact, evidence), tuple(evidence), asked.result)
    return Decision(shown, asked.writes, asked.events, asked.audits)


async def _readable(work: Work[Any], place: Place, location: Location) -> tuple[TrustContext, ArtifactSource | None]:
    """What is measured by here, and the source by which this location is read; a Refusal where it is not."""
    await _require_project(work, place)
    measure = await trust_context(work.services, work.acting, place.project_id)
    source = measure.allowed_source(location, _owner(work, place))
    denied = measure.policy.decide(PolicyRequest(source=location.text)).refusal()
    if denied is not None:
        raise denied
    return measure, source


def _verified(
    decision: Decision[Artifact], trust: Trust, evidence: tuple[Evidence, ...], check: ArtifactCheck | None = None
) -> Decision[EvaluatedArtifact]:
    shown = EvaluatedArtifact(decision.result, trust, evidence, check)
    return Decision(shown, decision.writes, decision.events, decision.audits)


def _owner(work: Work[Any], place: Place) -> tuple[str | None, str | None]:
    return work.acting.tenant_id, place.project_id


async def _require_room(work: Work[Any], last: ArtifactCheck | None = None) -> None:
    """Refuse a check too many; to join the one that is under way takes no room."""
    if last is None or not last.is_under_way:
        require_room(await checks.count_under_way(work.database, work.acting))


async def _require_project(work: Work[Any], place: Place) -> None:
    if place.project_id is not None:
        require(await projects.find(work.database, work.acting, place.project_id), "project")
