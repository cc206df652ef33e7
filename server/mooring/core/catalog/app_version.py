"""App versions: each has a semantic version and a manifest, which is immutable once the version is staged.

A version is published as a draft; a draft may have errors, and its manifest can be replaced. Staging requires that lint
and smoke passed for exactly this manifest; after that neither the manifest nor the digests in it can change. One field
is excepted: `required_actions` of a staged version that nothing uses can be corrected, because a missing action shows
only when the adapter is tried. Nobody gets a right by it: what an operator account may do is what an admin agreed to.

This module decides the promotion of a version with the rules of `artifact_promotion`: a version is never promoted
further than its artifacts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from mooring.core.catalog.app import App
from mooring.core.catalog.artifact import Artifact, serves_owner
from mooring.core.catalog.artifact_promotion import (
    GRACE_PERIOD,
    NAMED_MAX,
    NEEDS,
    CheckResult,
    Hold,
    PromotionRequest,
    no_successor,
    supersession,
    why_checks_missing,
    why_held,
    why_in_grace,
)
from mooring.core.catalog.artifact_trust import Trust
from mooring.core.catalog.channel import Candidate, check_percentage
from mooring.core.catalog.manifest import Manifest, ManifestReading, manifest_digest, normal
from mooring.core.catalog.manifest_lint import AppContext, examine, refuse_errors
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.catalog.semver import read_version
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    StateChange,
    Update,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

S, T = PromotionState, PromotionTrigger

CHECKS_TO_STAGE: Final = ("lint", "smoke")
REQUIRED_ACTIONS: Final = "required_actions"
_MUST_NOT_BE_REVOKED: Final = frozenset({S.STAGED, S.CANARY, S.ACTIVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class AppVersion:
    id: str
    tenant_id: str | None
    app_id: str
    app_slug: str
    version: str
    version_order: str  # text that sorts bytewise in the order of versions
    manifest: dict[str, Any]
    manifest_digest: str
    digests: list[str]
    promotion: str
    promotion_generation: int
    revision: int
    created_at: datetime
    staged_digest: str | None = (
        None  # the digest of the checked manifest; the database enforces that the manifest stays the same
    )
    canary_percentage: Decimal | None = None
    superseded_by: str | None = None
    deprecation_reason: str | None = None
    deprecated_at: datetime | None = None
    retired_at: datetime | None = None

    def candidate(self) -> Candidate:
        """The properties of the version that channels need."""
        return Candidate(
            self.id, read_version(self.version), S(self.promotion), self.canary_percentage, self.superseded_by
        )


@dataclass(frozen=True, slots=True)
class VersionPart:
    """The current artifact for one role of the manifest; None when no artifact with this digest is registered."""

    role: str
    digest: str
    artifact: Artifact | None
    trust: Trust | None = None


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """All facts that the promotion of a version depends on."""

    parts: Sequence[VersionPart]
    checks: Sequence[CheckResult] = ()
    holds: Sequence[Hold] = ()
    successor: AppVersion | None = None  # the version that `superseded_by` names, if it exists
    grace_period: timedelta = field(default=GRACE_PERIOD)


def create_version(
    context: DecisionContext, app: App, plain: object, reading: ManifestReading | None = None
) -> Decision[AppVersion]:
    """Publish a draft. Its manifest must fit the schema and this app; other lint errors only prevent staging.

    `reading` is the examined manifest, from callers that examine it in another thread.
    """
    manifest, document = _readable(app, plain, reading)
    number = read_version(manifest.version)
    version = AppVersion(
        id=context.mint(Prefix.APP_VERSION),
        tenant_id=app.tenant_id,
        app_id=app.id,
        app_slug=app.slug,
        version=str(number),
        version_order=number.order,
        manifest=document,
        manifest_digest=manifest_digest(document),
        digests=list(manifest.digests),
        promotion=PROMOTION.initial.value,
        promotion_generation=0,
        revision=0,
        created_at=context.now,
    )
    data = {"app_id": app.id, "version": version.version, "manifest_digest": version.manifest_digest}
    return Decision(
        result=version,
        writes=(Insert("app_version", asdict(version), born=(PROMOTION,)),),
        events=(_happened(EventType.APP_VERSION_CREATED, version, data),),
        audits=(_audited("app_version.create", version, None, data, None),),
    )


def replace_manifest(
    context: DecisionContext,
    app: App,
    version: AppVersion,
    plain: object,
    revision_seen: int | None,
    *,
    reading: ManifestReading | None = None,
    holds: Sequence[Hold] = (),
) -> Decision[AppVersion]:
    """Replace the manifest of a draft, or correct `required_actions` of a staged version that nothing uses.

    The version number stays, because scripts may refer to it already. `holds` are those through this version.
    """
    require_revision(version.revision, revision_seen)
    if version.promotion not in (S.DRAFT, S.STAGED):
        raise _immutable(version, "only a draft can change")
    reading = reading or examine(plain, AppContext(app.slug, app.category))
    manifest, document = _readable(app, plain, reading)
    if version.promotion == S.STAGED:
        _require_correction(version, document, reading, holds)
    if str(read_version(manifest.version)) != version.version:
        raise validation.invalid(
            "manifest.version", f"{version.version}: a manifest with another number is another version"
        )
    digest = manifest_digest(document)
    changed: dict[str, object] = {
        "manifest": document,
        "manifest_digest": digest,
        "digests": list(manifest.digests),
    }
    if version.promotion == S.STAGED:
        changed["staged_digest"] = digest
    after = replace(version, revision=version.revision + 1, **changed)  # type: ignore[arg-type]
    before = {"manifest_digest": version.manifest_digest}
    return Decision(
        result=after,
        writes=(Update("app_version", version.id, version.revision, changed),),
        events=(_happened(EventType.APP_VERSION_UPDATED, after, {"change": "manifest", "manifest_digest": digest}),),
        audits=(_audited("app_version.update", version, before, {"manifest_digest": digest}, None),),
    )


def _require_correction(
    version: AppVersion, document: Mapping[str, Any], reading: ManifestReading, holds: Sequence[Hold]
) -> None:
    """Refuse a new manifest for a staged version, unless only `required_actions` differ and nothing uses it."""
    keys = document.keys() | version.manifest.keys()
    others = sorted(key for key in keys if document.get(key) != version.manifest.get(key) and key != REQUIRED_ACTIONS)
    if others:
        raise _immutable(version, f"only {REQUIRED_ACTIONS} can still change, not {', '.join(others[:NAMED_MAX])}")
    refuse_errors(reading.findings)
    held = why_held(holds)
    if held is not None:
        raise held


def _immutable(version: AppVersion, why: str) -> Refusal:
    return Refusal(
        Code.VERSION_IMMUTABLE,
        f"version {version.version} is {version.promotion}: {why}",
        {"version_id": version.id, "promotion": version.promotion},
    )


def set_canary_percentage(
    context: DecisionContext, version: AppVersion, percentage: Decimal | int | float | str, reason: str
) -> Decision[AppVersion]:
    """Change the share of projects that get a canary; a higher percentage only adds projects."""
    wanted = check_percentage(percentage)
    if version.promotion != S.CANARY:
        raise Refusal(
            Code.PROMOTION_REFUSED,
            f"version {version.version} is {version.promotion}, and only a canary has a percentage",
            {"missing": [{"state": S.CANARY.value, "detail": f"it is {version.promotion}"}]},
        )
    if wanted == version.canary_percentage:
        return Decision(result=version)
    stated = validation.reason(reason)
    after = replace(version, canary_percentage=wanted, revision=version.revision + 1)
    before, now = {"canary_percentage": str(version.canary_percentage)}, {"canary_percentage": str(wanted)}
    return Decision(
        result=after,
        writes=(Update("app_version", version.id, version.revision, {"canary_percentage": wanted}),),
        events=(_happened(EventType.APP_VERSION_UPDATED, after, {"change": "canary_percentage", **now}),),
        audits=(_audited("app_version.update", version, before, now, stated),),
    )


def move_version(
    context: DecisionContext, version: AppVersion, request: PromotionRequest, facts: VersionFacts
) -> Decision[AppVersion]:
    """Promote a version one step; a Refusal names every condition that is not met."""
    edge = PROMOTION.step(S(version.promotion), request.trigger)
    reason = validation.reason(request.reason)
    changed = _changes(context, version, request, facts)
    staging, retiring = request.trigger is T.STAGE, request.trigger is T.RETIRE
    # Other versions may use the same digests: only holds through this version block it.
    holds = [hold for hold in facts.holds if hold.version_id in (None, version.id) and hold.digest in version.digests]
    for why in (
        why_checks_missing(facts.checks, version.manifest_digest, CHECKS_TO_STAGE) if staging else None,
        why_version_ahead(version, edge.target, facts.parts),
        why_in_grace(version.deprecated_at, context.now, facts.grace_period) if retiring else None,
        why_held(holds) if edge.target is S.RETIRED else None,
    ):
        if why is not None:
            raise why
    generation = version.promotion_generation
    after = AppVersion(
        **{**asdict(version), **changed, "promotion": edge.target.value, "promotion_generation": generation + 1}
    )
    plain_changes = {key: _plain(value) for key, value in changed.items()}
    data = {
        "version": version.version,
        "trigger": request.trigger.value,
        "before": version.promotion,
        "after": edge.target.value,
        "reason": reason,
        **plain_changes,
    }
    before, now = {"promotion": version.promotion}, {"promotion": edge.target.value, **plain_changes}
    return Decision(
        result=after,
        writes=(StateChange("app_version", version.id, PROMOTION, edge, generation, version.tenant_id, set=changed),),
        events=(_happened(EventType.APP_VERSION_PROMOTED, after, data),),
        audits=(_audited("app_version.promote", version, before, now, reason),),
    )


def why_version_ahead(version: AppVersion, target: PromotionState, parts: Sequence[VersionPart]) -> Refusal | None:
    """Why the version cannot become `target`: the artifacts that are not promoted far enough; None when it can."""
    behind = [
        {"role": part.role, "digest": part.digest, "detail": detail}
        for part in parts
        if (detail := _behind(version, target, part)) is not None
    ]
    known = {part.digest for part in parts}
    if missing := [digest for digest in version.digests if digest not in known]:
        raise ValueError(f"the snapshot lacks {missing[0]}")
    if not behind:
        return None
    listed = "; ".join(f"{each['role']}: {each['detail']}" for each in behind[:NAMED_MAX])
    return Refusal(
        Code.VERSION_AHEAD_OF_ARTIFACT,
        f"version {version.version} cannot be {target} before its artifacts: {listed}",
        {"target": target.value, "artifacts": behind[:NAMED_MAX]},
    )


def _behind(version: AppVersion, target: PromotionState, part: VersionPart) -> str | None:
    if target in (S.DRAFT, S.RETIRED):
        return None
    artifact = part.artifact
    if artifact is None:
        return "no such artifact is registered"
    if not serves_owner(artifact, version.tenant_id):
        return f"its visibility is {artifact.visibility}, so not everybody who sees the app may use it"
    if S(artifact.promotion) not in NEEDS[target]:
        needed = " or ".join(state for state in S if state in NEEDS[target])
        return f"it is {artifact.promotion}, and {needed} is needed"
    state = TrustState(artifact.trust) if part.trust is None else part.trust.state
    if target in _MUST_NOT_BE_REVOKED and state is TrustState.REVOKED:
        return "it is revoked"
    if target is S.ACTIVE and state is not TrustState.VERIFIED:
        doubts = "" if part.trust is None else "; ".join(doubt.reason for doubt in part.trust.doubts)
        return f"it is {state}, and verified is needed" + (f" ({doubts})" if doubts else "")
    return None


def _changes(
    context: DecisionContext, version: AppVersion, request: PromotionRequest, facts: VersionFacts
) -> dict[str, Any]:
    if request.trigger is T.STAGE:
        return {"staged_digest": version.manifest_digest}
    if request.trigger is T.CANARY:
        if request.canary_percentage is None:
            raise validation.invalid("canary_percentage", "the percentage of projects that get the version first")
        return {"canary_percentage": check_percentage(request.canary_percentage)}
    if request.trigger in (T.ACTIVATE, T.ROLLBACK):
        return {"canary_percentage": None}
    if request.trigger in (T.RETIRE, T.WITHDRAW):
        return {"retired_at": context.now}
    superseded_by, because = supersession(request)
    successor = facts.successor
    if superseded_by is not None:
        if successor is None or successor.id != superseded_by or successor.app_id != version.app_id:
            raise no_successor(superseded_by, "the app has no such version")
        if successor.id == version.id or successor.promotion != S.ACTIVE:
            raise no_successor(superseded_by, "it is not another active version")
    return {"deprecated_at": context.now, "superseded_by": superseded_by, "deprecation_reason": because}


def _readable(app: App, plain: object, reading: ManifestReading | None) -> tuple[Manifest, dict[str, Any]]:
    reading = reading or examine(plain, AppContext(app.slug, app.category))
    if reading.manifest is None or not isinstance(plain, dict):
        refuse_errors(reading.findings)
        raise ValueError("an unreadable manifest must have findings")
    refuse_errors(tuple(each for each in reading.findings if each.rule == "app_other"))
    return reading.manifest, normal(plain)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _happened(type_: EventType, version: AppVersion, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "app_version", version.id, version.tenant_id, data=data, app_slug=version.app_slug)


def _audited(
    action: str,
    version: AppVersion,
    before: Mapping[str, object] | None,
    after: Mapping[str, object],
    reason: str | None,
) -> AuditRecord:
    return AuditRecord(action, "app_version", version.id, version.tenant_id, before=before, after=after, reason=reason)
