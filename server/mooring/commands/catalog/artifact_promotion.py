"""Use cases for promoting artifacts, and for holds.

Before a transition that makes an artifact available to more projects, its trust is evaluated again. Staging needs a
recent passed smoke check: if there is none, it creates one and waits briefly; for a large artifact, the caller repeats
the request when the check has ended.
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
"""The triggers that make an artifact available to more projects: the artifact must be trusted now."""

OUT: Final = frozenset({PromotionTrigger.WITHDRAW, PromotionTrigger.RETIRE})
"""The triggers that end the use of an artifact: its unfinished checks are cancelled."""

Snapshot = tuple[Artifact, Trust, tuple[Evidence, ...], ArtifactFacts, list[ArtifactCheck]]


async def promote(
    work: Work[EvaluatedArtifact], place: Any, artifact_id: str, request: PromotionRequest, wait_seconds: float
) -> Answered:
    """Promote an artifact one step; staging waits up to `wait_seconds` for its check."""
    checked: list[ArtifactCheck] = []

    async def load() -> Snapshot:
        artifact = await own_artifact(work, place, artifact_id)
        PROMOTION.step(
            PromotionState(artifact.promotion), request.trigger
        )  # refuse an illegal transition before fetching anything
        evaluator = await trust_context(work.services, work.acting, place.project_id)
        evidence = (await artifacts.evidence(work.database, work.acting, [artifact.id]))[artifact.id]
        trust = evaluator.evaluate(artifact, evidence)
        if request.trigger in TOWARDS_PROJECTS:
            refusal = trust.refusal(artifact)
            if refusal is not None:
                raise refusal
            if request.trigger is PromotionTrigger.STAGE and not checked:
                checked.append(await _smoked(work, artifact, wait_seconds))  # before anything is stored
            artifact = await _with_stored_trust(work, artifact, trust)
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
    """Hold digests on behalf of a project; refused if one is retired or not visible."""
    tenant_id = work.acting.tenant_id
    if tenant_id is None:
        raise ValueError("only something in a tenant's project can hold a digest")

    async def load() -> list[Hold]:
        return holds

    return await work.execute(
        load, lambda loaded: take_holds(work.context, loaded, tenant_id=tenant_id, project_id=project_id)
    )


async def drop(
    work: Work[tuple[ArtifactHold, ...]], holder_noun: str, holder_id: str, digests: list[str] | None = None
) -> Answered:
    """Drop the holds of a holder: on some digests, or on all."""
    return await work.execute(
        lambda: artifacts.holds_of(work.database, work.acting, holder_noun, holder_id, digests),
        lambda holds: drop_holds(work.context, holds),
    )


async def _with_stored_trust(work: Work[Any], artifact: Artifact, trust: Trust) -> Artifact:
    """Store the trust that was just derived, because versions rely on it; returns the updated artifact."""
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
    """A smoke check that allows staging; a Refusal when it failed, or takes longer than `wait_seconds`."""
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
