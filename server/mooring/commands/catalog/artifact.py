"""Use cases for artifacts: publishing, registering, verifying and revoking.

The source is contacted before the transaction, and only once, even when the decision is repeated. Reading every byte
takes long and does not happen here: the change creates a check, and `artifact_check` runs it.
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
    """Issue a token to push to one repository of this place."""
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
        data = {"location": intent.location, "expires_at": intent.expires_at.isoformat()}
        happened = EventRecord(EventType.ARTIFACT_PUSH_ALLOWED, "artifact", intent.repository, *owner, data=data)
        audited = AuditRecord("artifact.create", "artifact", intent.repository, *owner, after=data)
        return Decision(result=intent, events=(happened,), audits=(audited,))

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _FoundImage:
    """An image as the source has it, and what its trust is measured by."""

    evaluator: TrustContext
    content: HashedBytes


async def register(work: Work[EvaluatedArtifact], place: Place, spec: ArtifactSpec) -> Answered:
    """Register a digest that the source has: an image after reading its manifests, a blob with a check."""
    if spec.kind is ArtifactKind.BLOB:
        return await _register_blob(work, place, spec)
    owner = _owner(work, place)
    location = read_source(spec.kind, spec.location)
    digest = read_digest(spec.digest)
    content: list[HashedBytes] = []

    async def load() -> _FoundImage:
        evaluator, source = await _readable(work, place, location)
        if not content:
            content.append(await work.services.artifacts.look(spec.kind, location, digest, source))
        return _FoundImage(evaluator, content[0])

    def decide(image: _FoundImage) -> Decision[EvaluatedArtifact]:
        found = image.content
        complete = replace(spec, size_bytes=found.size_bytes, media_type=found.media_type)
        made = register_artifact(work.context, complete, tenant_id=owner[0], project_id=owner[1])
        evidence = presence(work.context, made.result, found.digest, found.size_bytes)
        whole = add_presence(made, evidence)
        return _verified(whole, image.evaluator.evaluate(made.result, [evidence]), (evidence,))

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _Blob:
    """What is known about a blob before its bytes are read."""

    evaluator: TrustContext
    stated: StatedContent | None = None
    earlier: Artifact | None = None  # registered before, but its bytes were never read completely
    check: ArtifactCheck | None = None  # the unfinished check, if any


async def _register_blob(work: Work[EvaluatedArtifact], place: Place, spec: ArtifactSpec) -> Answered:
    """Register a blob that the source claims to have; a check then reads its bytes.

    Registering a blob again that could not be read starts another check.
    """
    owner = _owner(work, place)
    location = read_source(spec.kind, spec.location)
    digest = read_digest(spec.digest)
    stated: list[StatedContent] = []

    async def load() -> _Blob:
        evaluator, source = await _readable(work, place, location)
        earlier = await artifacts.find_at(
            work.database, work.acting, place.project_id, location=location.text, digest=digest
        )
        if earlier is not None and earlier.promotion == PromotionState.DRAFT and earlier.trust != TrustState.REVOKED:
            last = await checks.last(work.database, work.acting, earlier.id, CheckName.CONTENT)
            if last is not None and last.status != CheckState.SUCCEEDED:
                await _require_room(work, last)
                return _Blob(evaluator, None, earlier, last if last.is_under_way else None)
        await _require_room(work)
        if not stated:
            stated.append(await work.services.artifacts.state(spec.kind, location, digest, source))
        return _Blob(evaluator, stated[0])

    def decide(blob: _Blob) -> Decision[EvaluatedArtifact]:
        if blob.earlier is not None or blob.stated is None:
            artifact = require(blob.earlier, "artifact")
            trust = blob.evaluator.evaluate(artifact, [])
            return _with_check(work, EvaluatedArtifact(artifact, trust), blob.check, "artifact.create")
        stated_content = blob.stated
        size = stated_content.size_bytes if stated_content.is_hashed else None
        complete = replace(spec, size_bytes=size or 0, media_type=stated_content.media_type)
        made = register_artifact(work.context, complete, tenant_id=owner[0], project_id=owner[1])
        check = accept_check(
            work.context,
            made.result,
            CheckName.CONTENT,
            action="artifact.create",
            bytes_total=stated_content.size_bytes,
        )
        whole = Decision(made.result, (*made.writes, *check.writes), made.events, made.audits)
        return _verified(whole, blob.evaluator.evaluate(made.result, []), (), check.result)

    return await work.execute(load, decide)


def visibility_of(place: Place) -> Visibility:
    """The visibility of artifacts that are registered in a place."""
    if place.project_id is not None:
        return Visibility.PROJECT
    return Visibility.PLATFORM if place.tenant_id is None else Visibility.TENANT


@dataclass(frozen=True, slots=True)
class _ArtifactSnapshot:
    """A registered artifact with its stored evidence, and its unfinished checks."""

    artifact: Artifact
    evidence: tuple[Evidence, ...]
    evaluator: TrustContext
    under_way: tuple[ArtifactCheck, ...]

    def evaluate(self) -> EvaluatedArtifact:
        return EvaluatedArtifact(self.artifact, self.evaluator.evaluate(self.artifact, self.evidence), self.evidence)


async def verify(work: Work[EvaluatedArtifact], place: Place, artifact_id: str) -> Answered:
    """Create a check that inspects the source again, or join the unfinished one."""

    async def load() -> _ArtifactSnapshot:
        artifact = await own_artifact(work, place, artifact_id)
        evaluator = await trust_context(work.services, work.acting, place.project_id)
        stored = await artifacts.evidence(work.database, work.acting, [artifact.id])
        last = await checks.last(work.database, work.acting, artifact.id, CheckName.CONTENT)
        await _require_room(work, last)
        under_way = (last,) if last is not None and last.is_under_way else ()
        return _ArtifactSnapshot(artifact, tuple(stored[artifact.id]), evaluator, under_way)

    def decide(snapshot: _ArtifactSnapshot) -> Decision[EvaluatedArtifact]:
        artifact, evaluated = snapshot.artifact, snapshot.evaluate()
        if artifact.trust == TrustState.REVOKED:
            decision = add_evidence(work.context, artifact, [], evaluated.trust)
            return _verified(decision, evaluated.trust, snapshot.evidence)
        return _with_check(work, evaluated, next(iter(snapshot.under_way), None), "artifact.verify")

    try:
        return await work.execute(load, decide)
    except Refusal as refusal:
        if refusal.code is not Code.CHECK_RUNNING:
            raise
        return await work.execute(load, decide)  # another request created a check at the same time: join it


async def revoke(work: Work[EvaluatedArtifact], place: Place, artifact_id: str, reason: str) -> Answered:
    """Withdraw an artifact permanently."""

    async def load() -> _ArtifactSnapshot:
        artifact = await own_artifact(work, place, artifact_id)
        stored = await artifacts.evidence(work.database, work.acting, [artifact.id])
        under_way = await checks.under_way(work.database, work.acting, artifact.id)
        evaluator = await trust_context(work.services, work.acting, place.project_id)
        return _ArtifactSnapshot(artifact, tuple(stored[artifact.id]), evaluator, tuple(under_way))

    def decide(snapshot: _ArtifactSnapshot) -> Decision[EvaluatedArtifact]:
        decision = revoke_artifact(work.context, snapshot.artifact, reason)
        decision = without_checks(work.context, decision, snapshot.under_way, "the artifact was revoked")
        trust = snapshot.evaluator.evaluate(decision.result, snapshot.evidence)
        return _verified(decision, trust, snapshot.evidence)

    return await work.execute(load, decide)


async def own_artifact(work: Work[Any], place: Place, artifact_id: str) -> Artifact:
    """An artifact that belongs to exactly this place; the refusal for a visible one says where it belongs."""
    own = await artifacts.find_own(work.database, work.acting, place.project_id, artifact_id)
    if own is not None:
        return own
    visible = require(await artifacts.find(work.database, work.acting, place.project_id, artifact_id), "artifact")
    owner = "platform" if visible.tenant_id is None else "tenant"
    detail = f"this place can only read the artifact: it belongs to the {owner} and must be changed there"
    raise Refusal(Code.NOT_FOUND, detail, {"noun": "artifact", "owner": owner})


def without_checks(
    context: DecisionContext, decision: Decision[Artifact], under_way: Sequence[ArtifactCheck], why: str
) -> Decision[Artifact]:
    """The decision, which also cancels these checks because nobody needs them any more."""
    ended = [cancel_check(context, each, why) for each in under_way]
    return replace(
        decision,
        writes=(*decision.writes, *(write for each in ended for write in each.writes)),
        events=(*decision.events, *(event for each in ended for event in each.events)),
        audits=(*decision.audits, *(audit for each in ended for audit in each.audits)),
    )


def _with_check(
    work: Work[Any], evaluated: EvaluatedArtifact, under_way: ArtifactCheck | None, action: str
) -> Decision[EvaluatedArtifact]:
    """Create a content check for the artifact, or join the unfinished one."""
    artifact = evaluated.artifact
    place = (artifact.tenant_id, artifact.project_id)
    if under_way is None:
        check = accept_check(work.context, artifact, CheckName.CONTENT, action=action)
    else:
        data = {"check": under_way.name, "check_id": under_way.id, "joined": True}
        check = Decision(under_way, audits=(AuditRecord(action, "artifact", artifact.id, *place, after=data),))
    return Decision(replace(evaluated, check=check.result), check.writes, check.events, check.audits)


async def _readable(work: Work[Any], place: Place, location: Location) -> tuple[TrustContext, ArtifactSource | None]:
    """The trust context of this place, and the source that allows this location; a Refusal when none does."""
    await _require_project(work, place)
    evaluator = await trust_context(work.services, work.acting, place.project_id)
    source = evaluator.allowed_source(location, _owner(work, place))
    denied = evaluator.policy.decide(PolicyRequest(source=location.text)).refusal()
    if denied is not None:
        raise denied
    return evaluator, source


def _verified(
    decision: Decision[Artifact], trust: Trust, evidence: tuple[Evidence, ...], check: ArtifactCheck | None = None
) -> Decision[EvaluatedArtifact]:
    shown = EvaluatedArtifact(decision.result, trust, evidence, check)
    return Decision(shown, decision.writes, decision.events, decision.audits)


def _owner(work: Work[Any], place: Place) -> tuple[str | None, str | None]:
    return work.acting.tenant_id, place.project_id


async def _require_room(work: Work[Any], last: ArtifactCheck | None = None) -> None:
    """Refuse a new check when there are too many; joining the unfinished one is always possible."""
    if last is None or not last.is_under_way:
        require_room(await checks.count_under_way(work.database, work.acting))


async def _require_project(work: Work[Any], place: Place) -> None:
    if place.project_id is not None:
        require(await projects.find(work.database, work.acting, place.project_id), "project")
