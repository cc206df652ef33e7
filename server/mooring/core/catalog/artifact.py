"""Artifacts: immutable bytes that an app needs, identified by their digest.

An artifact is an `oci` image or a `blob` (weights, a dataset, a script) from a named source. It is visible to all
tenants, to one tenant or to one project. Tags are only labels for people; nothing refers to an artifact by a tag. An
artifact has two independent states: promotion (`artifact_promotion`) says how far it is offered, and trust
(`artifact_trust`) says what the stored evidence proves.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.catalog.artifact_location import Location, SourceType, read_location
from mooring.core.catalog.manifest_schema import DIGEST_PATTERN
from mooring.core.catalog.promotion_lifecycle import PROMOTION
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

SIZE_BYTES_MAX: Final = 1024**5
LABELS_MAX: Final = 64
LABEL_LENGTH_MAX: Final = 200

_DIGEST: Final = re.compile(DIGEST_PATTERN[1:-1])
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])?")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")


class ArtifactKind(StrEnum):
    """What the bytes are."""

    OCI = "oci"
    BLOB = "blob"


class Algorithm(StrEnum):
    """The hash algorithm of a digest; so far there is one."""

    SHA256 = "sha256"


class Visibility(StrEnum):
    """Who may use an artifact."""

    PLATFORM = "platform"
    TENANT = "tenant"
    PROJECT = "project"


SOURCES_OF: Final[Mapping[ArtifactKind, frozenset[SourceType]]] = {
    ArtifactKind.OCI: frozenset({SourceType.OCI}),
    ArtifactKind.BLOB: frozenset(SourceType),
}
"""The source types of each kind: an image is always in a registry, a blob may be anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Bytes with a digest, at one location, with a visibility."""

    id: str
    tenant_id: str | None
    project_id: str | None
    visibility: str
    kind: str
    source_type: str
    location: str
    digest: str
    algorithm: str
    size_bytes: int
    media_type: str
    labels: dict[str, str]
    promotion: str
    promotion_generation: int
    trust: str
    trust_generation: int
    revision: int
    created_at: datetime
    deprecated_at: datetime | None = None
    retired_at: datetime | None = None
    superseded_by: str | None = None
    deprecation_reason: str | None = None
    rejection_reason: str | None = None
    revoked_at: datetime | None = None
    revocation_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ArtifactSpec:
    """An artifact to register; its size and media type come from the source."""

    kind: ArtifactKind
    location: str
    digest: str
    size_bytes: int
    media_type: str = "application/octet-stream"
    visibility: Visibility = Visibility.PROJECT
    labels: Mapping[str, str] | None = None


def read_digest(text: str, path: str = "digest") -> str:
    """Validate a digest; any other spelling than the canonical one is refused and not corrected."""
    if not _DIGEST.fullmatch(text):
        raise validation.invalid(path, "`sha256:` and 64 lower-case hexadecimal digits; a tag is not accepted")
    return text


def algorithm_of(digest: str) -> Algorithm:
    return Algorithm(digest.partition(":")[0])


def read_source(kind: ArtifactKind, location: str, source_type: SourceType | None = None) -> Location:
    """Parse the location of an artifact of this kind; a stated source type must match the location."""
    parsed = read_location(location)
    if source_type is not None and source_type is not parsed.source_type:
        raise validation.invalid("source_type", f"{parsed.source_type}, as the location says")
    if parsed.source_type not in SOURCES_OF[kind]:
        allowed = ", ".join(sorted(SOURCES_OF[kind]))
        raise validation.invalid("location", f"an artifact of kind {kind} comes from {allowed}")
    return parsed


def owner_of(visibility: Visibility, tenant_id: str | None, project_id: str | None) -> tuple[str | None, str | None]:
    """The tenant and the project that own an artifact of this visibility, registered at this place."""
    if visibility is Visibility.PLATFORM:
        if tenant_id is not None:
            raise validation.invalid("visibility", "tenant or project: only the platform can publish for everybody")
        return None, None
    if tenant_id is None:
        raise validation.invalid("visibility", "platform: the platform's artifacts are for everybody")
    if visibility is Visibility.TENANT:
        return tenant_id, None
    if project_id is None:
        raise validation.invalid("visibility", "tenant: no project was named")
    return tenant_id, project_id


def is_visible(artifact: Artifact, tenant_id: str | None, project_id: str | None) -> bool:
    """Whether a caller at this place may use the artifact; without tenant and project, the place is the platform."""
    if artifact.visibility == Visibility.PLATFORM:
        return True
    if artifact.tenant_id != tenant_id:
        return False
    return artifact.visibility == Visibility.TENANT or artifact.project_id == project_id


def serves_owner(artifact: Artifact, owner_tenant_id: str | None) -> bool:
    """Whether everybody who may see an app of this owner may also see the artifact.

    An app belongs to the platform or to a tenant, never to a project, so an artifact that only one project sees never
    qualifies.
    """
    if artifact.visibility == Visibility.PLATFORM:
        return True
    return artifact.visibility == Visibility.TENANT and artifact.tenant_id == owner_tenant_id


def register_artifact(
    context: DecisionContext, spec: ArtifactSpec, *, tenant_id: str | None, project_id: str | None
) -> Decision[Artifact]:
    """Register an artifact at a place, as an unverified draft."""
    tenant_id, project_id = owner_of(spec.visibility, tenant_id, project_id)
    source = read_source(spec.kind, spec.location)
    digest = read_digest(spec.digest)
    artifact = Artifact(
        id=context.mint(Prefix.ARTIFACT),
        tenant_id=tenant_id,
        project_id=project_id,
        visibility=spec.visibility.value,
        kind=spec.kind.value,
        source_type=source.source_type.value,
        location=source.text,
        digest=digest,
        algorithm=algorithm_of(digest).value,
        size_bytes=_size(spec.size_bytes),
        media_type=_media_type(spec.media_type),
        labels=_labels(spec.labels or {}),
        promotion=PROMOTION.initial.value,
        promotion_generation=0,
        trust=TRUST.initial.value,
        trust_generation=0,
        revision=0,
        created_at=context.now,
    )
    data = {"digest": digest, "kind": artifact.kind, "location": artifact.location, "size_bytes": artifact.size_bytes}
    return Decision(
        result=artifact,
        writes=(Insert("artifact", asdict(artifact), born=(PROMOTION, TRUST)),),
        events=(EventRecord(EventType.ARTIFACT_REGISTERED, "artifact", artifact.id, tenant_id, project_id, data=data),),
        audits=(AuditRecord("artifact.create", "artifact", artifact.id, tenant_id, project_id, after=data),),
    )


def _size(size_bytes: int) -> int:
    if not 0 <= size_bytes <= SIZE_BYTES_MAX:
        raise validation.invalid("size_bytes", f"0 to {SIZE_BYTES_MAX}")
    return size_bytes


def _media_type(text: str) -> str:
    if not _MEDIA_TYPE.fullmatch(text):
        raise validation.invalid("media_type", "a media type such as application/octet-stream")
    return text


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    if len(labels) > LABELS_MAX:
        raise validation.invalid("labels", f"at most {LABELS_MAX} labels")
    for key in labels:
        if not _LABEL.fullmatch(key):
            raise validation.invalid("labels", "keys of at most 63 lower-case letters, digits and . _ / -")
    return {key: validation.remark(text, f"labels.{key}", LABEL_LENGTH_MAX) for key, text in sorted(labels.items())}
