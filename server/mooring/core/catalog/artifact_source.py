"""Changes of the list of allowed sources: the registries, buckets and hosts that artifacts may come from.

The platform's sources apply to all tenants and may be in private networks if they say so; a tenant's sources apply to
that tenant and reach only the public internet. Files are on the platform's own disk, so only the platform may allow
them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from mooring.core.catalog.artifact_location import EVERYWHERE, ArtifactSource, SourceTier, SourceType, read_pattern
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Remove
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

SOURCES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ArtifactSourceSpec:
    """A source that a caller asks to allow."""

    name: str
    pattern: str
    reaches_private: bool = False


def create_source(
    context: DecisionContext, tenant_id: str | None, spec: ArtifactSourceSpec, source_count: int
) -> Decision[ArtifactSource]:
    """Add a source to the list of a tenant, or of the platform when `tenant_id` is None."""
    if source_count >= SOURCES_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a list has at most {SOURCES_MAX} sources", {"limit": SOURCES_MAX})
    pattern = read_pattern(spec.pattern)
    if tenant_id is not None:
        if spec.reaches_private:
            raise validation.invalid(
                "reaches_private", "false: only the platform can allow sources in private networks"
            )
        if pattern.startswith(f"{SourceType.FILE}:"):
            raise validation.invalid("pattern", "no files: only the platform can allow files")
    elif spec.reaches_private and pattern == EVERYWHERE:
        raise validation.invalid("pattern", "a specific pattern: a source in a private network must be named")
    source = ArtifactSource(
        id=context.mint(Prefix.ARTIFACT_SOURCE),
        tenant_id=tenant_id,
        name=validation.display_name(spec.name, "name"),
        pattern=pattern,
        revision=0,
        created_at=context.now,
        reaches_private=spec.reaches_private,
    )
    data = _audit_data(source)
    return Decision(
        result=source,
        writes=(Insert("artifact_source", asdict(source)),),
        events=(_happened(source, {"change": "added", **data}),),
        audits=(
            AuditRecord(
                "artifact_source.update", "artifact_source", source.id, tenant_id, after={"change": "added", **data}
            ),
        ),
    )


def delete_source(context: DecisionContext, source: ArtifactSource) -> Decision[ArtifactSource]:
    """Remove a source from its list; artifacts from it are not trusted at their next use."""
    data = _audit_data(source)
    return Decision(
        result=source,
        writes=(Remove("artifact_source", source.id, source.revision),),
        events=(_happened(source, {"change": "removed", **data}),),
        audits=(AuditRecord("artifact_source.update", "artifact_source", source.id, source.tenant_id, before=data),),
    )


def may_read(source: ArtifactSource, source_type: SourceType) -> bool:
    """Whether a source allows this source type: only sources of the platform allow files."""
    return source_type is not SourceType.FILE or source.tier is SourceTier.PLATFORM


def _audit_data(source: ArtifactSource) -> dict[str, object]:
    return {"name": source.name, "pattern": source.pattern, "reaches_private": source.reaches_private}


def _happened(source: ArtifactSource, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(EventType.ARTIFACT_SOURCE_CHANGED, "artifact_source", source.id, source.tenant_id, data=data)
