"""Endpoints for artifacts on the platform, in tenants and in projects.

A place can read the artifacts of the platform, of its tenant and its own; it can change only its own.
"""

import base64
from dataclasses import replace

import msgspec

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.catalog.artifact import (
    ArtifactEvidenceView,
    ArtifactQuery,
    ArtifactView,
    HistoryView,
    ImpactView,
    PromoteArtifact,
    PublishArtifact,
    PublishView,
    RegisterArtifact,
    RevokeArtifact,
    UploadArtifact,
    artifact_view,
    evidence_view,
    history_view,
    impact_view,
    publish_view,
)
from mooring.api.schemas.catalog.artifact_check import Answer, CheckWaitQuery
from mooring.api.wait import WaitQuery, waited
from mooring.commands.catalog import artifact as commands
from mooring.commands.catalog import artifact_check as check_commands
from mooring.commands.catalog import artifact_promotion as promotions
from mooring.commands.catalog.artifact_evaluation import evaluate_artifacts
from mooring.commands.catalog.artifact_impact import impact
from mooring.commands.catalog.artifact_upload import upload
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact import Artifact, ArtifactSpec
from mooring.core.catalog.artifact_check import CONCLUSIONS
from mooring.core.catalog.artifact_evidence import EvaluatedArtifact
from mooring.core.catalog.artifact_promotion import PromotionRequest
from mooring.core.catalog.artifact_upload import read_upload
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.storage.catalog import artifact as artifacts

PLACES = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)
OF_TENANTS = (Scope.TENANT, Scope.PROJECT)
PATH = "/artifacts"
ONE = PATH + "/{artifact_id}"
OF_SOURCES = (
    Code.ADDRESS_REFUSED, Code.ARTIFACT_NOT_FOUND_AT_SOURCE, Code.DIGEST_MISMATCH, Code.POLICY_DENIED,
    Code.REDIRECT_REFUSED, Code.REGISTRY_AUTH_REFUSED, Code.SOURCE_DENIED, Code.SOURCE_ENDLESS, Code.SOURCE_MALFORMED,
    Code.SOURCE_PATH_REFUSED, Code.SOURCE_STALLED, Code.SOURCE_TOO_LARGE, Code.SOURCE_TOO_SLOW, Code.SOURCE_UNREACHABLE,
)  # fmt: skip
"""What can be wrong with a source."""
OF_CHECKS = (Code.CHECK_CANCELLED, Code.CHECK_RUNNING, Code.LIMIT_REACHED)
"""Why the result of a check is not available."""
OF_TRUST = (
    Code.ARTIFACT_REVOKED, Code.ARTIFACT_UNVERIFIED, Code.SIGNATURE_INVALID, Code.SIGNATURE_KEY_UNKNOWN,
    Code.SIGNATURE_MISSING, Code.SIGNATURE_REPLAYED,
)  # fmt: skip
"""Why an artifact must not be used."""


def _showing(request: RequestContext) -> Work[EvaluatedArtifact]:
    return request.work(lambda verified: artifact_view(request.caller.authority, verified))


async def _visible(request: RequestContext, artifact_id: str) -> Artifact:
    row = await artifacts.find(request.services.database, request.acting, request.place.project_id, artifact_id)
    return require(row, "artifact")


async def _evaluated(request: RequestContext, artifact_id: str) -> EvaluatedArtifact:
    artifact = await _visible(request, artifact_id)
    return (await evaluate_artifacts(request.services, request.acting, request.place.project_id, [artifact]))[0]


def _seconds(request: RequestContext, query: CheckWaitQuery) -> float:
    return request.services.settings.check_wait_seconds if query.wait is None else query.wait


async def _settled(
    request: RequestContext, answered: Answered, query: CheckWaitQuery, *, registering: bool = False
) -> Answered:
    """The answer after the requested check has ended, or after the caller has waited long enough.

    A repeated request with the same key waits for the same check. A conclusion about the bytes is a normal answer for a
    verification, but refuses a registration.
    """
    named = msgspec.json.decode(answered.body, type=Answer)
    if named.check is None:
        return answered
    check = await check_commands.settle(request.services, named.check.id, _seconds(request, query))
    refusal = check.refusal()
    if refusal is not None and (registering or refusal.code not in CONCLUSIONS):
        raise refusal
    view = artifact_view(request.caller.authority, await _evaluated(request, named.id))
    return replace(answered, body=encode_json(view))


@route_in(PLACES, "GET", PATH, RouteSpec("artifact", "list", "artifact.read", answer=Page[ArtifactView]))
async def list_artifacts(request: RequestContext, query: ArtifactQuery) -> Page[ArtifactView]:
    """List the artifacts that this place sees: the platform's, its tenant's and its own."""
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    wanted = artifacts.ArtifactFilter(
        digest=query.digest,
        promotion=query.promotion and query.promotion.value,
        kind=query.kind and query.kind.value,
    )
    window = page_window(pages, "artifact")
    rows = await artifacts.page(request.services.database, request.acting, request.place.project_id, wanted, window)
    shown = await evaluate_artifacts(request.services, request.acting, request.place.project_id, rows[: query.limit])
    by_id = {each.artifact.id: each for each in shown}
    return page(rows, pages, "artifact", lambda row: artifact_view(request.caller.authority, by_id[row.id]))


@route_in(
    PLACES,
    "POST",
    PATH,
    RouteSpec(
        "artifact",
        "register",
        "artifact.create",
        201,
        ArtifactView,
        errors=(*OF_CHECKS, Code.NAME_TAKEN, *OF_SOURCES),
    ),
)
async def register_artifact(request: RequestContext, body: RegisterArtifact, query: CheckWaitQuery) -> Answered:
    """Register a digest, which the source must have.

    The platform reads and hashes the manifests of an image; for a blob, a check reads and hashes every byte. The
    request waits briefly for the check; if it takes longer, `check` shows its progress. The artifact starts as a draft.
    Registering it again after a failed check starts another one.
    """
    spec = ArtifactSpec(
        kind=body.kind,
        location=body.location,
        digest=body.digest,
        size_bytes=0,
        visibility=commands.visibility_of(request.place),
        labels=body.labels,
    )
    answered = await commands.register(_showing(request), request.place, spec)
    return await _settled(request, answered, query, registering=True)


@route_in(
    PLACES,
    "POST",
    PATH + "/publish",
    RouteSpec("artifact", "publish", "artifact.create", 201, PublishView, one_time_secret=True),
)
async def publish_artifact(request: RequestContext, body: PublishArtifact) -> Answered:
    """Get a token to push to one repository of this place in the platform's own registry.

    Push with it, then register the digest. The token is shown only once and is valid for some minutes.
    """
    return await commands.publish(request.work(publish_view), request.place, body.name)


@route_in(
    OF_TENANTS,
    "POST",
    PATH + "/upload",
    RouteSpec(
        "artifact",
        "upload",
        "artifact.create",
        201,
        ArtifactView,
        errors=(Code.DIGEST_MISMATCH, Code.LIMIT_REACHED, Code.POLICY_DENIED, Code.SOURCE_DENIED),
    ),
)
async def upload_artifact(request: RequestContext, body: UploadArtifact) -> Answered:
    """Upload a small blob, such as a script: the platform keeps its bytes and registers them as an artifact.

    It needs no source and no admin of the platform. Uploading the same bytes again returns the same artifact. An upload
    that no version uses for some time is deleted, and so is one whose artifact is retired.
    """
    try:
        content = base64.b64decode(body.content_base64, validate=True)
    except ValueError as error:
        raise invalid("content_base64", "the bytes in base64, with padding") from error
    uploaded = read_upload(request.acting.tenant_id, request.place.project_id, content, body.digest)
    return await upload(_showing(request), request.place, uploaded, body.labels)


@route_in(PLACES, "GET", ONE, RouteSpec("artifact", "get", "artifact.read", answer=ArtifactView))
async def get_artifact(request: RequestContext, artifact_id: str, query: WaitQuery) -> ArtifactView:
    """Read an artifact; its trust is derived when it is read."""

    async def read() -> ArtifactView:
        return artifact_view(request.caller.authority, await _evaluated(request, artifact_id))

    return await waited(request, query, artifact_id, read)


@route_in(
    PLACES, "GET", ONE + "/evidence", RouteSpec("artifact", "evidence", "artifact.read", answer=ArtifactEvidenceView)
)
async def get_artifact_evidence(request: RequestContext, artifact_id: str) -> ArtifactEvidenceView:
    """Read the evidence about an artifact, its checks, and the trust that follows from them now."""
    verified = await _evaluated(request, artifact_id)
    checks = await artifacts.checks(request.services.database, request.acting, artifact_id)
    return evidence_view(verified, checks)


@route_in(
    PLACES,
    "POST",
    ONE + "/verify",
    RouteSpec(
        "artifact",
        "verify",
        "artifact.verify",
        answer=ArtifactView,
        errors=(*OF_CHECKS, *OF_SOURCES),
    ),
)
async def verify_artifact(request: RequestContext, artifact_id: str, query: CheckWaitQuery) -> Answered:
    """Inspect the source again, collect the signatures, and derive the trust.

    The request starts a check, or joins one that has not finished, and waits briefly for it. The check stores all that
    it finds, good or bad; `trust` and `doubts` of the answer show the conclusion.
    """
    return await _settled(request, await commands.verify(_showing(request), request.place, artifact_id), query)


@route_in(
    PLACES,
    "POST",
    ONE + "/promote",
    RouteSpec(
        "artifact",
        "promote",
        "artifact.promote",
        answer=ArtifactView,
        errors=(
            Code.GRACE_PERIOD,
            Code.HOLD_PRESENT,
            Code.ILLEGAL_TRANSITION,
            Code.PROMOTION_REFUSED,
            Code.SMOKE_FAILED,
            *OF_CHECKS,
            Code.CONTENT_EXPANDS_TOO_FAR,
            Code.LAYER_MISMATCH,
            Code.VERSION_AHEAD_OF_ARTIFACT,
            *OF_TRUST,
            *OF_SOURCES,
        ),
    ),
)
async def promote_artifact(
    request: RequestContext, artifact_id: str, body: PromoteArtifact, query: CheckWaitQuery
) -> Answered:
    """Promote an artifact one step: stage, canary, activate, rollback, deprecate, retire or withdraw.

    Staging needs a smoke check, which fetches and hashes every layer. If the check takes longer than the request waits,
    the request is refused with `check_running`; repeat it when the check has ended. To stage, canary and activate, the
    artifact must be verified at that moment; to retire it, nothing may hold its digest.
    """
    promotion = PromotionRequest(
        body.move, body.reason, superseded_by=body.superseded_by, no_successor_because=body.no_successor_because
    )
    return await promotions.promote(_showing(request), request.place, artifact_id, promotion, _seconds(request, query))


@route_in(
    PLACES,
    "POST",
    ONE + "/revoke",
    RouteSpec("artifact", "revoke", "artifact.revoke", answer=ArtifactView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def revoke_artifact(request: RequestContext, artifact_id: str, body: RevokeArtifact) -> Answered:
    """Withdraw an artifact permanently: every later use is refused."""
    return await commands.revoke(_showing(request), request.place, artifact_id, body.reason)


@route_in(PLACES, "GET", ONE + "/history", RouteSpec("artifact", "history", "artifact.read", answer=HistoryView))
async def get_artifact_history(request: RequestContext, artifact_id: str) -> HistoryView:
    """Read every transition of an artifact, with who made it and why."""
    artifact = await _visible(request, artifact_id)
    return history_view(await artifacts.history(request.services.database, request.acting, artifact))


@route_in(PLACES, "GET", ONE + "/impact", RouteSpec("artifact", "impact", "artifact.read", answer=ImpactView))
async def get_artifact_impact(request: RequestContext, artifact_id: str) -> ImpactView:
    """Read what a revocation would affect: the versions, instances and members that use its digest, and the reactions.

    Tenants and projects see the names of their own. The platform sees numbers only; a tenant's names need break-glass
    into that tenant.
    """
    artifact = await _visible(request, artifact_id)
    return impact_view(await impact(request.services, request.acting, artifact, request.place.project_id))
