"""Use cases for uploads: keeping the bytes together with the artifact that they are, and reading them again."""

from dataclasses import dataclass

from mooring.commands.catalog.artifact_evaluation import TrustContext, trust_context
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact import Artifact, ArtifactKind, ArtifactSpec, Visibility, register_artifact
from mooring.core.catalog.artifact_evidence import EvaluatedArtifact, add_presence, presence
from mooring.core.catalog.artifact_location import Location, read_location
from mooring.core.catalog.artifact_trust import Evidence
from mooring.core.catalog.artifact_upload import Upload, UploadUse, keep_upload
from mooring.core.catalog.policy import PolicyRequest
from mooring.core.kernel.decision import AuditRecord, Decision
from mooring.core.kernel.permissions import Place
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_upload as uploads
from mooring.storage.identity import project as projects
from mooring.storage.kernel.database import Acting, Database


@dataclass(frozen=True, slots=True)
class _UploadContext:
    """What is known about an upload before it is decided."""

    evaluator: TrustContext
    use: UploadUse
    is_kept: bool
    earlier: Artifact | None
    evidence: tuple[Evidence, ...]


async def upload(
    work: Work[EvaluatedArtifact], place: Place, uploaded: Upload, labels: dict[str, str] | None
) -> Answered:
    """Keep the bytes and register them as an artifact of this place; repeating it returns the same artifact."""
    location = read_location(uploaded.location)

    async def load() -> _UploadContext:
        if place.project_id is not None:
            require(await projects.find(work.database, work.acting, place.project_id), "project")
        evaluator = await trust_context(work.services, work.acting, place.project_id)
        denied = evaluator.policy.decide(PolicyRequest(source=location.text)).refusal()
        if denied is not None:
            raise denied
        earlier = await artifacts.find_at(
            work.database, work.acting, place.project_id, location=location.text, digest=uploaded.digest
        )
        evidence = await artifacts.evidence(work.database, work.acting, [] if earlier is None else [earlier.id])
        return _UploadContext(
            evaluator,
            await uploads.use(work.database, work.acting, place.project_id),
            await uploads.is_kept(work.database, work.acting, location.text),
            earlier,
            () if earlier is None else tuple(evidence[earlier.id]),
        )

    def decide(loaded: _UploadContext) -> Decision[EvaluatedArtifact]:
        kept = () if loaded.is_kept else (keep_upload(work.context, uploaded, loaded.use),)
        if loaded.earlier is not None:
            trust = loaded.evaluator.evaluate(loaded.earlier, loaded.evidence)
            again = EvaluatedArtifact(loaded.earlier, trust, loaded.evidence)
            owner = (uploaded.tenant_id, uploaded.project_id)
            data = {"digest": uploaded.digest, "repeated": True}
            return Decision(
                again,
                kept,
                audits=(AuditRecord("artifact.create", "artifact", loaded.earlier.id, *owner, after=data),),
            )
        made = _registered(work, uploaded, labels)
        evidence = presence(work.context, made.result, uploaded.digest, len(uploaded.content))
        whole = add_presence(made, evidence)
        trust = loaded.evaluator.evaluate(made.result, [evidence])
        shown = EvaluatedArtifact(made.result, trust, (evidence,))
        return Decision(shown, (*kept, *whole.writes), whole.events, whole.audits)

    return await work.execute(load, decide)


def _registered(work: Work[EvaluatedArtifact], uploaded: Upload, labels: dict[str, str] | None) -> Decision[Artifact]:
    spec = ArtifactSpec(
        kind=ArtifactKind.BLOB,
        location=uploaded.location,
        digest=uploaded.digest,
        size_bytes=len(uploaded.content),
        visibility=Visibility.TENANT if uploaded.project_id is None else Visibility.PROJECT,
        labels=labels,
    )
    return register_artifact(work.context, spec, tenant_id=uploaded.tenant_id, project_id=uploaded.project_id)


class UploadStore:
    """Finds the bytes of uploads for the reader of artifacts, each as the tenant that its location names."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def content(self, location: Location) -> bytes | None:
        """The bytes at this location; None if there are none."""
        return await uploads.content(self._database, Acting(location.rest.partition("/")[0]), location.text)
