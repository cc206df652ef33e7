"""Promotion, with its conditions: what a move needs besides being in the table.

A version is never further than its artifacts, and that holds in both directions: `NEEDS` says which states of an
artifact each state of a version bears. A version's move is refused where an artifact is behind it, with the artifacts
named; an artifact's move is refused where it would leave a version ahead, with the versions named.

Staging needs checks that passed, of these very bytes. Whatever leads to `retired` needs that nothing holds the
digest; from `deprecated` it also needs the grace period over, so that those who use it can leave. The functions here
look at a snapshot; that nothing changes between the look and the write (a new hold, a version that is staged) is kept
by the lock that these writes share in the database.
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
"""For each state of a version the states that each of its artifacts may be in."""


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
    version_id: str | None = None  # the version through which it uses it, where there is one


@dataclass(frozen=True, slots=True)
class VersionUse:
    """A version that needs an artifact, as far as the artifact's moves are concerned."""

    version_id: str
    app_slug: str
    version: str
    promotion: PromotionState


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """A move that is asked for; what else is said belongs to one trigger each."""

    trigger: PromotionTrigger
    reason: str
    canary_percentage: Decimal | int | float | str | None = None  # of a version's canary
    superseded_by: str | None = None  # of a deprecation: what takes its place
    no_successor_because: str | None = None  # of a deprecation: why nothing does


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """All that an artifact's move looks at."""

    versions: Sequence[VersionUse] = ()
    checks: Sequence[CheckResult] = ()
    holds: Sequence[Hold] = ()
    successor: Artifact | None = None  # what `superseded_by` names, where it was found
    grace_period: timedelta = field(default=GRACE_PERIOD)


def why_checks_missing(checks: Iterable[CheckResult], subject: str, required: Sequence[str]) -> Refusal | None:
    """Why the stored checks do not allow staging; a check of other bytes says nothing about these."""
    own = {check.name: check for check in checks if check.subject == subject}  # the last one of a name counts
    missing = [
        {"check": name, "detail": own[name].detail if name in own else "it was not run for this content"}
        for name in required
        if name not in own or not own[name].passed
    ]
    if not missing:
        return None
    listed = "; ".join(f"{each['check']}: {each['detail']}" for each in missing)
    return Refusal(Code.PROMOTION_REFUSED, f"staging needs checks that passed: {listed}", {"missing": missing})


def why_artifact_behind(target: PromotionState, versions: Iterable[VersionUse]) -> Refusal | None:
    """Why the artifact may not come to `target`: the versions that would then be ahead of it."""
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
    """Why nothing with these holds is retired or withdrawn."""
    if not holds:
        return None
    listed = ", ".join(f"{hold.holder_noun} {hold.holder_id}" for hold in holds[:NAMED_MAX])
    more = f" and {len(holds) - NAMED_MAX} more" if len(holds) > NAMED_MAX else ""
    holders = [{"digest": hold.digest, "noun": hold.holder_noun, "id": hold.holder_id} for hold in holds[:NAMED_MAX]]
    return Refusal(
        Code.HOLD_PRESENT, f"still used by {listed}{more}", {"holders": holders, "holders_count": len(holds)}
    )


def why_in_grace(deprecated_at: datetime | None, now: datetime, grace_period: timedelta) -> Refusal | None:
    """Why what was deprecated then is not retired now."""
    if deprecated_at is None:
        raise ValueError("what is deprecated says since when")
    ready_at = deprecated_at + grace_period
    if now >= ready_at:
        return None
    return Refusal(
        Code.GRACE_PERIOD,
        f"it was deprecated at {deprecated_at.isoformat()} and stays until {ready_at.isoformat()}",
        {"deprecated_at": deprecated_at.isoformat(), "ready_at": ready_at.isoformat()},
    )


def supersession(request: PromotionRequest) -> tuple[str | None, str | None]:
    """What a deprecation says: the successor, or why there is none; never both, never neither."""
    if (request.superseded_by is None) == (request.no_successor_because is None):
        raise validation.invalid("superseded_by", "the successor, or in `no_successor_because` why there is none")
    if request.no_successor_because is not None:
        return None, validation.reason(request.no_successor_because, "no_successor_because")
    return request.superseded_by, None


def no_successor(superseded_by: str | None, why: str) -> Refusal:
    """The refusal of a successor that cannot be one."""
    missing = [{"successor": superseded_by, "detail": why}]
    return Refusal(Code.PROMOTION_REFUSED, f"{superseded_by} does not take its place: {why}", {"missing": missing})


def move_artifact(
    context: DecisionContext, artifact: Artifact, request: PromotionRequest, facts: ArtifactFacts
) -> Decision[Artifact]:
    """One move of an artifact, with everything that it needs; or a refusal that names what is in the way."""
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
    told = {
        "digest": artifact.digest,
        "trigger": request.trigger.value,
        "before": artifact.promotion,
        "after": edge.target.value,
        "reason": reason,
    }
    return Decision(
        result=after,
        writes=(StateChange("artifact", artifact.id, PROMOTION, edge, generation, artifact.tenant_id, set=changed),),
        events=(EventRecord(EventType.ARTIFACT_PROMOTED, "artifact", artifact.id, *place, data=told),),
        audits=(
            AuditRecord(
                "artifact.promote",
                "artifact",
                artifact.id,
                *place,
                before={"promotion": artifact.promotion},
                after={"promotion": edge.target.value, **_told(changed)},
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


def _told(changed: Mapping[str, object]) -> dict[str, object]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in changed.items()}
