"""The list of allowed sources, changed: which registries, buckets and hosts artifacts may come from.

The platform's sources are for everybody and may lie in private networks, where they say so; a tenant's are for that
tenant and reach the public internet alone. Files are the platform's own, so only the platform puts them on its list.
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
    """A source that somebody asks to allow."""

    name: str
    pattern: str
    reaches_private: bool = False


def create_source(
    context: DecisionContext, tenant_id: str | None, spec: ArtifactSourceSpec, sources_there: int
) -> Decision[ArtifactSource]:
    """Put a source on the platform's list (no tenant) or on a tenant's."""
    if sources_there >= SOURCES_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a list has at most {SOURCES_MAX} sources", {"limit": SOURCES_MAX})
    pattern = read_pattern(spec.pattern)
    if tenant_id is not None:
        if spec.reaches_private:
            raise validation.invalid("reaches_private", "false: only the platform allows what lies in private networks")
        if pattern.startswith(f"{SourceType.FILE}:"):
            raise validation.invalid("pattern", "no files: only the platform allows those below its directory")
    elif spec.reaches_private and pattern == EVERYWHERE:
        raise validation.invalid("pattern", "a place: what reaches private networks is named")
    source = ArtifactSource(
        id=context.mint(Prefix.ARTIFACT_SOURCE),
        tenant_id=tenant_id,
        name=validation.display_name(spec.name, "name"),
        pattern=pattern,
        revision=0,
        created_at=context.now,
        reaches_private=spec.reaches_private,
    )
    told = _told(source)
    return Decision(
        result=source,
        writes=(Insert("artifact_source", asdict(source)),),
        events=(_happened(source, {"change": "added", **told}),),
        audits=(
            AuditRecord(
                "artifact_source.update", "artifact_source", source.id, tenant_id, after={"change": "added", **told}
            ),
        ),
    )


def delete_source(context: DecisionContext, source: ArtifactSource) -> Decision[ArtifactSource]:
    """Take a source off its list: what came from it is no longer trusted, from the next use on."""
    told = _told(source)
    return Decision(
        result=source,
        writes=(Remove("artifact_source", source.id, source.revision),),
        events=(_happened(source, {"change": "removed", **told}),),
        audits=(AuditRecord("artifact_source.update", "artifact_source", source.id, source.tenant_id, before=told),),
    )


def may_read(source: ArtifactSource, source_type: SourceType) -> bool:
    """Whether a source that names the place also allows this way of reading: files are the platform's."""
    return source_type is not SourceType.FILE or source.tier is SourceTier.PLATFORM


def _told(source: ArtifactSource) -> dict[str, object]:
    return {"name": source.name, "pattern": source.pattern, "reaches_private": source.reaches_private}


def _happened(source: ArtifactSource, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(EventType.ARTIFACT_SOURCE_CHANGED, "artifact_source", source.id, source.tenant_id, data=data)
