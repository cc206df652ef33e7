"""What the endpoints of artifact checks take and show."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time, allowed
from mooring.core.catalog.artifact_check import ArtifactCheck, CheckName, CheckState
from mooring.core.kernel.permissions import Authority, Place, Scope


class CheckWaitQuery(Strict):
    """How long to wait for the check that a request asks for."""

    wait: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=60,
                description="Seconds to wait for the check; without it as long as `MOORING_CHECK_WAIT_SECONDS` says.",
            ),
        ]
        | None
    ) = None


class ArtifactCheckView(Shown):
    """A check of an artifact's bytes: how far it is, or what came of it."""

    id: str
    artifact_id: str
    name: CheckName
    subject: Annotated[str, Meta(description="The digest of what is checked.")]
    status: CheckState
    bytes_done: int
    bytes_total: Annotated[
        int | None, Meta(description="What the source states, until everything was read; null where it states nothing.")
    ]
    attempts: Annotated[int, Meta(description="How often reading began; it begins anew when a process is lost.")]
    created_at: Time
    started_at: Time | None
    progressed_at: Annotated[Time | None, Meta(description="When bytes last came.")]
    finished_at: Time | None
    passed: bool | None
    failure_code: Annotated[str | None, Meta(description="A code of the catalogue of errors.")]
    detail: str
    findings: Annotated[list[dict[str, Any]], Meta(description="Of a smoke check: what was looked at, and where.")]
    correlation_id: Annotated[str, Meta(description="Empty in what another place asked for.")]
    etag: str
    allowed_actions: list[str]


def check_view(authority: Authority, check: ArtifactCheck) -> ArtifactCheckView:
    """A check as the caller sees it."""
    place = _place(check)
    actions = allowed(authority, place, ("artifact.verify",)) if check.is_under_way else []
    is_own = "artifact.read" in authority.at(place)
    return ArtifactCheckView(
        id=check.id,
        artifact_id=check.artifact_id,
        name=CheckName(check.name),
        subject=check.subject,
        status=CheckState(check.status),
        bytes_done=check.bytes_done,
        bytes_total=check.bytes_total,
        attempts=check.attempts,
        created_at=check.created_at,
        started_at=check.started_at,
        progressed_at=check.progressed_at,
        finished_at=check.finished_at,
        passed=check.passed,
        failure_code=check.failure_code,
        detail=check.detail,
        findings=check.findings,
        correlation_id=check.correlation_id if is_own else "",
        etag=f"{check.generation}.{check.bytes_done}",
        allowed_actions=actions,
    )


def _place(check: ArtifactCheck) -> Place:
    if check.tenant_id is None:
        return Place(Scope.PLATFORM)
    if check.project_id is None:
        return Place(Scope.TENANT, check.tenant_id)
    return Place(Scope.PROJECT, check.tenant_id, check.project_id)


class CheckNamed(msgspec.Struct):
    """The check that an answer names, read back from it."""

    id: str


class Answer(msgspec.Struct):
    """As much of an artifact's view as says which check it waits for."""

    id: str
    check: CheckNamed | None = None
