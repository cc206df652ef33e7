"""The conditions of promotion: what a transition needs in addition to being in the table.

A version is never promoted further than its artifacts. `NEEDS` says which states of an artifact each state of a version
allows, and it applies in both directions: the transition of a version is refused when an artifact is behind, and names
these artifacts; the transition of an artifact is refused when it would leave a version ahead, and names these versions.

Staging needs passed checks of exactly these bytes. Every transition to `retired` needs that nothing holds the digest;
from `deprecated` it also needs the grace period to be over, so that users can move away. The functions here evaluate a
snapshot. A lock in the database ensures that nothing changes between that evaluation and the write (a new hold, a
version that is staged).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from mooring.core.catalog.artifact import Artifact, is_visible
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, StateChange
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType

S, T = PromotionState, PromotionTrigger

GRACE_PERIOD: Final = timedelta(days=30)
NAMED_MAX: Final = 20

NEEDS: Final[Mapping[PromotionState, frozenset[PromotionState]]] = {
    S.DRAFT: frozenset(PromotionState),
    S.STAGED: frozenset({S.STAGED, S.CANARY, S.ACTIVE}),
    S.CANARY: frozenset({S.CANARY, S.ACTIVE}),
    S.ACTIVE: frozenset({S.ACTIVE}),
    S.DEPRECATED: frozenset({S.ACTIVE, S.DEPRECATED}),
    S.RETIRED: frozenset(PromotionState),
}
"""For each state of a version, the states that each of its artifacts may have."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The stored result of a check, such as lint or smoke."""

    name: str
    subject: str  # the digest of what was checked
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """Something that still uses a digest."""

    digest: str
    holder_noun: str
    holder_id: str
    version_id: str | None = None  # the version through which the holder uses the digest, if any


@dataclass(frozen=True, slots=True)
class VersionUse:
    """A version that needs an artifact, with what the promotion of the artifact depends on."""

    version_id: str
    app_slug: str
    version: str
    promotion: PromotionState


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """A requested transition; each of the optional fields belongs to one trigger."""

    trigger: PromotionTrigger
    reason: str
    canary_percentage: Decimal | int | float | str | None = None  # for the canary of a version
    superseded_by: str | None = None  # for a deprecation: the successor
    no_successor_because: str | None = None  # for a deprecation: why there is no successor


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """All facts that the promotion of an artifact depends on."""

    versions: Sequence[VersionUse] = ()
    checks: Sequence[CheckResult] = ()
    holds: Sequence[Hold] = ()
    successor: Artifact | None = None  # the artifact that `superseded_by` names, if it exists
    grace_period: timedelta = field(default=GRACE_PERIOD)


def why_checks_missing(checks: Iterable[CheckResult], subject: str, required: Sequence[str]) -> Refusal | None:
    """Why the stored checks do not allow staging; None when they do. Only checks of this digest count."""
    own = {check.name: check for check in checks if check.subject == subject}  # the last one of each name wins
    missing = [
        {"check": name, "detail": own[name].detail if name in own else "it has not run for this content"}
        for name in required
        if name not in own or not own[name].passed
    ]
    if not missing:
        return None
    listed = "; ".join(f"{each['check']}: {each['detail']}" for each in missing)
    return Refusal(Code.PROMOTION_REFUSED, f"staging needs passed checks: {listed}", {"missing": missing})


def why_artifact_behind(target: PromotionState, versions: Iterable[VersionUse]) -> Refusal | None:
    """Why the artifact cannot become `target`: the versions that would be ahead of it; None when it can."""
    ahead = [each for each in versions if target not in NEEDS[each.promotion]]
    if not ahead:
        return None
    listed = ", ".join(f"{each.app_slug} {each.version} ({each.promotion})" for each in ahead[:NAMED_MAX])
    more = f" and {len(ahead) - NAMED_MAX} more" if len(ahead) > NAMED_MAX else ""
    return Refusal(
        Code.VERSION_AHEAD_OF_ARTIFACT,
        f"with the artifact {target}, these versions would be ahead of it: {listed}{more}",
        {
            "target": target.value,
            "versions": [
                {
                    "version_id": each.version_id,
                    "app_slug": each.app_slug,
                    "version": each.version,
                    "promotion": each.promotion.value,
                }
                for each in ahead[:NAMED_MAX]
            ],
        },
    )


def why_held(holds: Sequence[Hold]) -> Refusal | None:
    """Why something with these holds cannot be retired or withdrawn; None when there are no holds."""
    if not holds:
        return None
    listed = ", ".join(f"{hold.holder_noun} {hold.holder_id}" for hold in holds[:NAMED_MAX])
    more = f" and {len(holds) - NAMED_MAX} more" if len(holds) > NAMED_MAX else ""
    holders = [{"digest": hold.digest, "noun": hold.holder_noun, "id": hold.holder_id} for hold in holds[:NAMED_MAX]]
    return Refusal(
        Code.HOLD_PRESENT, f"still used by {listed}{more}", {"holders": holders, "holders_count": len(holds)}
    )


def why_in_grace(deprecated_at: datetime | None, now: datetime, grace_period: timedelta) -> Refusal | None:
    """Why something cannot be retired yet; None when its grace period is over."""
    if deprecated_at is None:
        raise ValueError("something deprecated must have the time of its deprecation")
    ready_at = deprecated_at + grace_period
    if now >= ready_at:
        return None
    return Refusal(
        Code.GRACE_PERIOD,
        f"it was deprecated at {deprecated_at.isoformat()} and cannot be retired before {ready_at.isoformat()}",
        {"deprecated_at": deprecated_at.isoformat(), "ready_at": ready_at.isoformat()},
    )


def supersession(request: PromotionRequest) -> tuple[str | None, str | None]:
    """The successor, or the reason why there is none; a deprecation must give exactly one of them."""
    if (request.superseded_by is None) == (request.no_successor_because is None):
        raise validation.invalid("superseded_by", "give the successor, or a reason in `no_successor_because`")
    if request.no_successor_because is not None:
        return None, validation.reason(request.no_successor_because, "no_successor_because")
    return request.superseded_by, None


def no_successor(superseded_by: str | None, why: str) -> Refusal:
    """The refusal of an invalid successor."""
    missing = [{"successor": superseded_by, "detail": why}]
    return Refusal(Code.PROMOTION_REFUSED, f"{superseded_by} cannot be the successor: {why}", {"missing": missing})


def move_artifact(
    context: DecisionContext, artifact: Artifact, request: PromotionRequest, facts: ArtifactFacts
) -> Decision[Artifact]:
    """Promote an artifact one step; a Refusal names the condition that is not met."""
    edge = PROMOTION.step(S(artifact.promotion), request.trigger)
    reason = validation.reason(request.reason)
    changed = _artifact_changes(context, artifact, request, facts)
    for why in (
        why_checks_missing(facts.checks, artifact.digest, ("smoke",)) if request.trigger is T.STAGE else None,
        why_artifact_behind(edge.target, facts.versions),
        why_in_grace(artifact.deprecated_at, context.now, facts.grace_period) if request.trigger is T.RETIRE else None,
        why_held([hold for hold in facts.holds if hold.digest == artifact.digest])
        if edge.target is S.RETIRED
        else None,
    ):
        if why is not None:
            raise why
    generation = artifact.promotion_generation
    after = Artifact(
        **{**asdict(artifact), **changed, "promotion": edge.target.value, "promotion_generation": generation + 1}
    )
    place = (artifact.tenant_id, artifact.project_id)
    data = {
        "digest": artifact.digest,
        "trigger": request.trigger.value,
        "before": artifact.promotion,
        "after": edge.target.value,
        "reason": reason,
    }
    return Decision(
        result=after,
        writes=(StateChange("artifact", artifact.id, PROMOTION, edge, generation, artifact.tenant_id, set=changed),),
        events=(EventRecord(EventType.ARTIFACT_PROMOTED, "artifact", artifact.id, *place, data=data),),
        audits=(
            AuditRecord(
                "artifact.promote",
                "artifact",
                artifact.id,
                *place,
                before={"promotion": artifact.promotion},
                after={"promotion": edge.target.value, **_plain_values(changed)},
                reason=reason,
            ),
        ),
    )


def _artifact_changes(
    context: DecisionContext, artifact: Artifact, request: PromotionRequest, facts: ArtifactFacts
) -> dict[str, object]:
    if request.trigger in (T.RETIRE, T.WITHDRAW):
        return {"retired_at": context.now}
    if request.trigger is not T.DEPRECATE:
        return {}
    superseded_by, because = supersession(request)
    successor = facts.successor
    if superseded_by is not None:
        if (
            successor is None
            or successor.id != superseded_by
            or not is_visible(successor, artifact.tenant_id, artifact.project_id)
        ):
            raise no_successor(superseded_by, "there is no such artifact")
        if successor.id == artifact.id or successor.promotion != S.ACTIVE:
            raise no_successor(superseded_by, "it is not another active artifact")
    return {"deprecated_at": context.now, "superseded_by": superseded_by, "deprecation_reason": because}


def _plain_values(changed: Mapping[str, object]) -> dict[str, object]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in changed.items()}
