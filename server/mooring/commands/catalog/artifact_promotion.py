"""Commands that move artifacts through their promotion, and that hold what is used.

Before a move towards projects the artifact is judged anew. Staging needs a smoke check that passed not long ago: where
there is none it asks for one and waits a moment; whoever has a large artifact stages it again when that has ended.
"""

from datetime import timedelta
from typing import Any, Final

from mooring.commands.catalog.artifact import own_artifact, without_checks
from mooring.commands.catalog.artifact_check import settle
from mooring.commands.catalog.artifact_evaluation import trust_context
from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_check import (
    ArtifactCheck,
    CheckName,
    accept_check,
    counts_for_staging,
    require_room,
    running,
)
from mooring.core.catalog.artifact_evidence import EvaluatedArtifact
from mooring.core.catalog.artifact_hold import ArtifactHold, drop_holds, take_holds
from mooring.core.catalog.artifact_promotion import ArtifactFacts, Hold, PromotionRequest, move_artifact
from mooring.core.catalog.artifact_trust import Evidence, Trust, record_trust
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.kernel.decision import Decision
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_check as checks

TOWARDS_PROJECTS: Final = frozenset({PromotionTrigger.STAGE, PromotionTrigger.CANARY, PromotionTrigger.ACTIVATE})
"""The moves after which more may use an artifact: they need that it is trusted now."""

OUT: Final = frozenset({PromotionTrigger.WITHDRAW, PromotionTrigger.RETIRE})
"""The moves after which nobody needs to know more about an artifact."""

Snapshot = tuple[Artifact, Trust, tuple[Evidence, ...], ArtifactFacts, list[ArtifactCheck]]


async def promote(
    work: Work[EvaluatedArtifact], place: Any, artifact_id: str, request: PromotionRequest, wait_seconds: float
) -> Answered:
    """Make one move; staging waits so long for its check."""
    checked: list[ArtifactCheck] = []

    async def load() -> Snapshot:
        artifact = await own_artifact(work, place, artifact_id)
        PROMOTION.step(PromotionState(artifact.promotion), request.trigger)  # before anything is fetched for it
        measure = await trust_context(work.services, work.acting, place.project_id)
        evidence = (await artifacts.evidence(work.database, work.acting, [artifact.id]))[artifact.id]
        trust = measure.evaluate(artifact, evidence)
        if request.trigger in TOWARDS_PROJECTS:
            refusal = trust.refusal(artifact)
            if refusal is not None:
                raise refusal
            if request.trigger is PromotionTrigger.STAGE and not checked:
                checked.append(await _smoked(work, artifact, wait_seconds))  # before anything is concluded from it
            artifact = await _settled(work, artifact, trust)
        under_way = await checks.under_way(work.database, work.acting, artifact.id) if request.trigger in OUT else []
        return artifact, trust, tuple(evidence), await _facts(work, place, artifact, request), under_way

    def decide(snapshot: Snapshot) -> Decision[EvaluatedArtifact]:
        artifact, trust, evidence, facts, under_way = snapshot
        made = move_artifact(work.context, artifact, request, facts)
        made = without_checks(work.context, made, under_way, f"the artifact is {made.result.promotion}")
        check = checked[0] if checked else None
        return Decision(EvaluatedArtifact(made.result, trust, evidence, check), made.writes, made.events, made.audits)

    return await work.execute(load, decide)


async def take(work: Work[tuple[ArtifactHold, ...]], project_id: str, holds: list[Hold]) -> Answered:
    """Hold digests for something in a project; refused where one is retired or not in sight."""
    tenant_id = work.acting.tenant_id
    if tenant_id is None:
        raise ValueError("what holds a digest is in a tenant's project")

    async def load() -> list[Hold]:
        return holds

    return await work.execute(load, lambda seen: take_holds(work.context, (tenant_id, project_id), seen))


async def drop(
    work: Work[tuple[ArtifactHold, ...]], holder: tuple[str, str], digests: list[str] | None = None
) -> Answered:
    """Let go of what a holder (noun and id) holds: of some digests, or of all."""
    return await work.execute(
        lambda: artifacts.holds_of(work.database, work.acting, holder, digests),
        lambda seen: drop_holds(work.context, seen),
    )


async def _settled(work: Work[Any], artifact: Artifact, trust: Trust) -> Artifact:
    """The artifact with the conclusion that was just drawn stored: versions rely on it."""
    decision = record_trust(work.context, artifact, trust)
    if decision.writes:
        await apply_and_notify(work.services, work.acting, work.context, decision, origin=work.origin)
    return decision.result


async def _facts(work: Work[Any], place: Any, artifact: Artifact, request: PromotionRequest) -> ArtifactFacts:
    successor = None
    if request.superseded_by is not None:
        successor = await artifacts.find(work.database, work.acting, place.project_id, request.superseded_by)
    return ArtifactFacts(
        versions=await artifacts.versions(work.database, artifact),
        checks=await artifacts.checks(work.database, work.acting, artifact.id),
        holds=await artifacts.holds(work.database, artifact),
        successor=successor,
        grace_period=timedelta(days=work.services.settings.promotion_grace_days),
    )


async def _smoked(work: Work[Any], artifact: Artifact, wait_seconds: float) -> ArtifactCheck:
    """A smoke check that allows staging; a Refusal when it failed, or goes on for longer than is waited."""
    last = await checks.last(work.database, work.acting, artifact.id, CheckName.SMOKE)
    if last is not None and counts_for_staging(last, work.context.now):
        return last
    if last is None or not last.is_under_way:
        require_room(await checks.count_under_way(work.database, work.acting))
        decision = accept_check(work.context, artifact, CheckName.SMOKE, action="artifact.promote")
        await apply_and_notify(work.services, work.acting, work.context, decision, origin=work.origin)
        last = decision.result
    ended = await settle(work.services, last.id, wait_seconds)
    refusal = running(ended) if ended.is_under_way else ended.refusal()
    if refusal is not None:
        raise refusal
    return ended
