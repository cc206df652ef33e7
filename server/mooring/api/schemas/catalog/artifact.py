"""Request and response bodies for artifacts."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.page import Cursor, Limit
from mooring.api.schemas.catalog.artifact_check import ArtifactCheckView, check_view
from mooring.api.schemas.kernel.fields import Shown, Strict, Time, allowed
from mooring.commands.catalog.artifact import PublishIntent
from mooring.commands.catalog.artifact_impact import Impact
from mooring.core.catalog.artifact import LABEL_LENGTH_MAX, LABELS_MAX, Artifact, ArtifactKind, Visibility
from mooring.core.catalog.artifact_evidence import ArtifactTransition, EvaluatedArtifact
from mooring.core.catalog.artifact_location import LOCATION_LENGTH_MAX, SourceType
from mooring.core.catalog.artifact_promotion import CheckResult
from mooring.core.catalog.artifact_upload import UPLOAD_BYTES_MAX
from mooring.core.catalog.manifest_schema import DIGEST_PATTERN
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope

Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN, description="`sha256:` and 64 hexadecimal digits; never a tag.")]
LocationText = Annotated[
    str,
    Meta(
        min_length=6,
        max_length=LOCATION_LENGTH_MAX,
        description="Where the bytes are: `oci://registry/repository`, `https://…`, `s3://bucket/key`, "
        "`huggingface://owner/name@commit/file` or `file:path`. What was uploaded has `upload:place/digest`.",
    ),
]
UPLOAD_BASE64_MAX = -(-UPLOAD_BYTES_MAX // 3) * 4
ArtifactId = Annotated[str, Meta(pattern=pattern(Prefix.ARTIFACT))]
Reason = Annotated[str, Meta(min_length=10, max_length=1000, description="The reason, at least 10 characters.")]
Label = Annotated[str, Meta(max_length=LABEL_LENGTH_MAX)]


class PublishArtifact(Strict):
    """A request to push an image or another payload to the platform's own registry."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=150,
            pattern="^[a-z0-9]+([._/-][a-z0-9]+)*$",
            description="The repository's name below this place's namespace.",
        ),
    ]


class PublishView(Shown):
    """Where to push, and a token that allows it for a short time."""

    registry: str
    repository: str
    location: str
    registry_token: Annotated[str, Meta(description="A bearer token for pushing to this repository only; shown once.")]
    expires_at: Time


class RegisterArtifact(Strict):
    """A digest to register, with the location of its bytes."""

    kind: ArtifactKind
    location: LocationText
    digest: Digest
    labels: Annotated[dict[str, Label], Meta(max_length=LABELS_MAX)] = msgspec.field(default_factory=dict)


class UploadArtifact(Strict):
    """A small blob, whose bytes the platform keeps."""

    content_base64: Annotated[
        str,
        Meta(
            min_length=4,
            max_length=UPLOAD_BASE64_MAX,
            description=f"The bytes, at most {UPLOAD_BYTES_MAX}, in base64.",
        ),
    ]
    digest: Annotated[Digest | None, Meta(description="If given, other bytes are refused.")] = None
    labels: Annotated[dict[str, Label], Meta(max_length=LABELS_MAX)] = msgspec.field(default_factory=dict)


class PromoteArtifact(Strict):
    """One step of the promotion, with the reason for it."""

    move: PromotionTrigger
    reason: Reason
    superseded_by: ArtifactId | None = None
    no_successor_because: Reason | None = None


class RevokeArtifact(Strict):
    """Why an artifact is permanently withdrawn."""

    reason: Reason


class ArtifactQuery(Strict):
    """Which artifacts to list."""

    cursor: Cursor | None = None
    limit: Limit = 100
    digest: Digest | None = None
    promotion: PromotionState | None = None
    kind: ArtifactKind | None = None


class DoubtView(Shown):
    """One reason why an artifact is not verified."""

    code: str
    reason: str


class ArtifactView(Shown):
    """Bytes with a digest; `trust` is derived from the evidence when the artifact is read."""

    id: str
    tenant_id: str | None
    project_id: str | None
    visibility: Visibility
    kind: ArtifactKind
    source_type: SourceType
    location: str
    digest: str
    algorithm: str
    size_bytes: int
    media_type: str
    labels: dict[str, str]
    promotion: PromotionState
    trust: TrustState
    doubts: list[DoubtView]
    check: Annotated[
        ArtifactCheckView | None,
        Meta(description="The newest check of its bytes; null if there is none, or if the answer does not include it."),
    ]
    created_at: Time
    deprecated_at: Time | None
    retired_at: Time | None
    superseded_by: str | None
    deprecation_reason: str | None
    revoked_at: Time | None
    revocation_reason: str | None
    revision: int
    etag: str
    allowed_moves: list[PromotionTrigger]
    allowed_actions: list[str]


class EvidenceView(Shown):
    """One observation about an artifact's bytes."""

    id: str
    kind: str
    digest: str
    observed_at: Time
    present: bool
    size_bytes: int | None
    repository: str | None
    key_fingerprint: str | None
    fault: str | None
    relied_on: bool


class CheckView(Shown):
    """The result of a check."""

    name: str
    subject: str
    passed: bool
    detail: str


class ArtifactEvidenceView(Shown):
    """All evidence about an artifact's bytes, and the trust that follows from it now."""

    trust: TrustState
    doubts: list[DoubtView]
    evidence: list[EvidenceView]
    checks: list[CheckView]


class StepView(Shown):
    """One transition, with who made it and why if the caller may know."""

    machine: str
    generation: int
    before: str
    trigger: str
    after: str
    occurred_at: Time
    correlation_id: str
    actor_kind: str | None
    actor_id: str | None
    reason: str | None


class HistoryView(Shown):
    """Every transition of an artifact, oldest first."""

    items: list[StepView]


class ImpactedInstance(Shown):
    """An instance that is pinned to the digest, or is being upgraded or rolled back to it."""

    id: str
    tenant_id: str
    project_id: str
    status: str
    name: str
    app_slug: str
    version: str


class ImpactedMember(Shown):
    """A member of such an instance, and the version that the member runs."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    status: str
    name: str
    component_key: str
    version: str


class ImpactedVersion(Shown):
    """A version that needs the digest."""

    id: str
    app_slug: str
    version: str
    promotion: PromotionState


class ImpactCounts(Shown):
    """How much a revocation would affect in this place, without names."""

    tenants: int
    projects: int
    instances: Annotated[int, Meta(description="That hold the digest, be it only for a rollback.")]
    members: Annotated[int, Meta(description="Of those instances.")]
    versions: int


class ImpactReactions(Shown):
    """How many instances run the digest now, by what the policy of their project would do to them."""

    notify: int
    refuse: int
    drain: int
    stop: int


class ImpactView(Shown):
    """What a revocation would affect, as far as this place may know; the platform sees no names of tenants."""

    digest: str
    holds_count: int
    counts: ImpactCounts
    reactions: ImpactReactions
    versions: list[ImpactedVersion]
    instances: list[ImpactedInstance]
    members: list[ImpactedMember]


def publish_view(intent: PublishIntent) -> PublishView:
    return PublishView(
        registry=intent.registry,
        repository=intent.repository,
        location=intent.location,
        registry_token=intent.token,
        expires_at=intent.expires_at,
    )


def artifact_view(authority: Authority, verified: EvaluatedArtifact) -> ArtifactView:
    artifact, trust = verified.artifact, verified.trust
    held = allowed(authority, _place(artifact), ("artifact.verify", "artifact.promote", "artifact.revoke"))
    state = PromotionState(artifact.promotion)
    moves = [edge.trigger for edge in PROMOTION.edges if edge.source is state]
    return ArtifactView(
        id=artifact.id,
        tenant_id=artifact.tenant_id,
        project_id=artifact.project_id,
        visibility=Visibility(artifact.visibility),
        kind=ArtifactKind(artifact.kind),
        source_type=SourceType(artifact.source_type),
        location=artifact.location,
        digest=artifact.digest,
        algorithm=artifact.algorithm,
        size_bytes=artifact.size_bytes,
        media_type=artifact.media_type,
        labels=dict(artifact.labels),
        promotion=state,
        trust=trust.state,
        doubts=_doubts(verified),
        check=None if verified.check is None else check_view(authority, verified.check),
        created_at=artifact.created_at,
        deprecated_at=artifact.deprecated_at,
        retired_at=artifact.retired_at,
        superseded_by=artifact.superseded_by,
        deprecation_reason=artifact.deprecation_reason,
        revoked_at=artifact.revoked_at,
        revocation_reason=artifact.revocation_reason,
        revision=artifact.revision,
        etag=f"{artifact.revision}.{artifact.promotion_generation}.{artifact.trust_generation}",
        allowed_moves=moves if "artifact.promote" in held else [],
        allowed_actions=held,
    )


def evidence_view(verified: EvaluatedArtifact, checks: list[CheckResult]) -> ArtifactEvidenceView:
    return ArtifactEvidenceView(
        trust=verified.trust.state,
        doubts=_doubts(verified),
        evidence=[
            EvidenceView(
                id=each.id,
                kind=each.kind.value,
                digest=each.digest,
                observed_at=each.observed_at,
                present=each.present,
                size_bytes=each.size_bytes,
                repository=each.repository,
                key_fingerprint=each.key_fingerprint,
                fault=None if each.fault is None else each.fault.value,
                relied_on=each.id in verified.trust.evidence_ids,
            )
            for each in verified.evidence
        ],
        checks=[
            CheckView(name=each.name, subject=each.subject, passed=each.passed, detail=each.detail) for each in checks
        ],
    )


def history_view(steps: list[ArtifactTransition]) -> HistoryView:
    return HistoryView(
        items=[
            StepView(
                machine=each.machine,
                generation=each.generation,
                before=each.source,
                trigger=each.trigger,
                after=each.target,
                occurred_at=each.occurred_at,
                correlation_id=each.correlation_id,
                actor_kind=each.actor_kind,
                actor_id=each.actor_id,
                reason=each.reason,
            )
            for each in steps
        ]
    )


def impact_view(impact: Impact) -> ImpactView:
    return ImpactView(
        digest=impact.digest,
        holds_count=impact.holds,
        counts=ImpactCounts(
            tenants=impact.tenants,
            projects=impact.projects,
            instances=impact.instances,
            members=impact.members,
            versions=impact.versions.count,
        ),
        reactions=ImpactReactions(**{each.name.lower(): count for each, count in impact.running.items()}),
        versions=[
            ImpactedVersion(id=each.version_id, app_slug=each.app_slug, version=each.version, promotion=each.promotion)
            for each in impact.versions.named
        ],
        instances=[ImpactedInstance(**dict(row.items())) for row in impact.names.instances],
        members=[ImpactedMember(**dict(row.items())) for row in impact.names.members],
    )


def _doubts(verified: EvaluatedArtifact) -> list[DoubtView]:
    return [DoubtView(code=each.code.value, reason=each.reason) for each in verified.trust.doubts]


def _place(artifact: Artifact) -> Place:
    if artifact.project_id is not None:
        return Place(Scope.PROJECT, artifact.tenant_id, artifact.project_id)
    return Place(Scope.PLATFORM) if artifact.tenant_id is None else Place(Scope.TENANT, artifact.tenant_id)
