"""Request and response bodies for artifact checks."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time, allowed
from mooring.core.catalog.artifact_check import ArtifactCheck, CheckName, CheckState
from mooring.core.kernel.permissions import Authority, Place, Scope


class CheckWaitQuery(Strict):
    """How long to wait for the check that a request needs."""

    wait: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=60,
                description="Seconds to wait for the check; the default is `MOORING_CHECK_WAIT_SECONDS`.",
            ),
        ]
        | None
    ) = None


class ArtifactCheckView(Shown):
    """A check of an artifact's bytes, with its progress and its result."""

    id: str
    artifact_id: str
    name: CheckName
    subject: Annotated[str, Meta(description="The digest of the checked artifact.")]
    status: CheckState
    bytes_done: int
    bytes_total: Annotated[
        int | None, Meta(description="The size that the source announces, until everything is read; null if unknown.")
    ]
    attempts: Annotated[int, Meta(description="How often reading was started; it restarts when a process is lost.")]
    created_at: Time
    started_at: Time | None
    progressed_at: Annotated[Time | None, Meta(description="When the last bytes arrived.")]
    finished_at: Time | None
    passed: bool | None
    failure_code: Annotated[str | None, Meta(description="A code of the error catalogue.")]
    detail: str
    findings: Annotated[
        list[dict[str, Any]], Meta(description="For a smoke check: what was inspected, and the results.")
    ]
    correlation_id: Annotated[str, Meta(description="Empty if another place asked for the check.")]
    etag: str
    allowed_actions: list[str]


def check_view(authority: Authority, check: ArtifactCheck) -> ArtifactCheckView:
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
    """The check in a stored answer."""

    id: str


class Answer(msgspec.Struct):
    """The part of a stored artifact view that names its check."""

    id: str
    check: CheckNamed | None = None
