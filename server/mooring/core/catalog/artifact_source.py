"""Changes of the list of allowed sources: the registries, buckets and hosts that artifacts may come from.

The platform's sources apply to all tenants and may be in private networks if they say so; a tenant's sources apply to
that tenant and reach only the public internet. A tenant's source may have a credential for a private registry: a secret
of one of its projects. Files are on the platform's own disk, so only the platform may allow
them.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from mooring.core.catalog.artifact_location import EVERYWHERE, ArtifactSource, SourceTier, SourceType, read_pattern
from mooring.core.identity.project_secret import ProjectSecret
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Remove
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

SOURCES_MAX: Final = 200
HOST_PATTERN: Final = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[0-9]{1,5})?$"
USERNAME_PATTERN: Final = r"^[!-9;-~]([ -9;-~]{0,253}[!-9;-~])?$"
_HOST: Final = re.compile(HOST_PATTERN)
_USERNAME: Final = re.compile(USERNAME_PATTERN)
_ONE_REGISTRY: Final = re.compile(r"oci://[^/*]+/")


@dataclass(frozen=True, slots=True)
class SourceCredential:
    """How a private registry is read: a user name, and a secret of one of the tenant's projects as the password."""

    username: str
    secret: ProjectSecret
    token_host: str | None = None


@dataclass(frozen=True, slots=True)
class ArtifactSourceSpec:
    """A source that a caller asks to allow."""

    name: str
    pattern: str
    reaches_private: bool = False
    credential: SourceCredential | None = None


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
    credential = _checked_credential(tenant_id, pattern, spec.credential)
    source = ArtifactSource(
        id=context.mint(Prefix.ARTIFACT_SOURCE),
        tenant_id=tenant_id,
        name=validation.display_name(spec.name, "name"),
        pattern=pattern,
        revision=0,
        created_at=context.now,
        reaches_private=spec.reaches_private,
        username=None if credential is None else credential.username,
        project_secret_id=None if credential is None else credential.secret.id,
        token_host=None if credential is None else credential.token_host,
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


def _checked_credential(
    tenant_id: str | None, pattern: str, credential: SourceCredential | None
) -> SourceCredential | None:
    """Refuse a credential that could go to another host than the one registry that the source names."""
    if credential is None:
        return None
    if tenant_id is None:
        raise validation.invalid("credential", "only for the sources of a tenant, whose projects have secrets")
    if not _ONE_REGISTRY.match(pattern):
        raise validation.invalid("pattern", "a registry by its name: a credential is for one, oci://host/…")
    if not _USERNAME.fullmatch(credential.username):
        raise validation.invalid("credential.username", "1 to 255 printable characters without a colon")
    if credential.token_host is not None and not _HOST.fullmatch(credential.token_host):
        raise validation.invalid("credential.token_host", "a host such as auth.example, or host:port")
    return credential


def _audit_data(source: ArtifactSource) -> dict[str, object]:
    data = {"name": source.name, "pattern": source.pattern, "reaches_private": source.reaches_private}
    if source.username is None:
        return data
    login = {"username": source.username, "secret_id": source.project_secret_id, "token_host": source.token_host}
    return {**data, "credential": login}


def _happened(source: ArtifactSource, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(EventType.ARTIFACT_SOURCE_CHANGED, "artifact_source", source.id, source.tenant_id, data=data)
