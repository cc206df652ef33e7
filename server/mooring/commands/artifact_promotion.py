"""Commands that move artifacts through their promotion, and that hold what is used.

Before a move towards projects the artifact is judged anew; before staging it is checked, and the result is kept
whether the move is made or not.
"""

from datetime import timedelta
from typing import Any, Final

from mooring.commands.artifact import own_artifact
from mooring.commands.artifact_judgement import Yardstick, location_of, yardstick
from mooring.commands.work import Answered, Work
from mooring.core.artifact import Artifact, ArtifactKind
from mooring.core.artifact_evidence import Verified, add_check
from mooring.core.artifact_hold import ArtifactHold, drop_holds, take_holds
from mooring.core.artifact_location import SourceType
from mooring.core.artifact_promotion import ArtifactFacts, CheckResult, Hold, PromotionWish, move_artifact
from mooring.core.artifact_trust import Evidence, Trust, record_trust
from mooring.core.decision import Decision
from mooring.core.errors import Refusal
from mooring.core.promotion import PROMOTION, PromotionState, PromotionTrigger
from mooring.gateways.registry_smoke import OF_CONTENT
from mooring.storage import artifact as artifacts
from mooring.storage.unit_of_work import apply

TOWARDS_PROJECTS: Final = frozenset({PromotionTrigger.STAGE, PromotionTrigger.CANARY, PromotionTrigger.ACTIVATE})
"""The moves after which more may use an artifact: they need that it is trusted now."""

Snapshot = tuple[Artifact, Trust, tuple[Evidence, ...], ArtifactFacts]


async def promote(work: Work[Verified], place: Any, artifact_id: str, wish: PromotionWish) -> Answered:
    """Make one move."""
    checked: list[Refusal | None] = []

    async def load() -> Snapshot:
        artifact = await own_artifact(work, place, artifact_id)
        PROMOTION.step(PromotionState(artifact.promotion), wish.trigger)  # before anything is fetched for it
        measure = await yardstick(work.services, work.acting, place.project_id)
        evidence = (await artifacts.evidence(work.database, work.acting, [artifact.id]))[artifact.id]
        trust = measure.judge(artifact, evidence)
        if wish.trigger in TOWARDS_PROJECTS:
            refusal = trust.refusal(artifact)
            if refusal is not None:
                raise refusal
            artifact = await _settled(work, artifact, trust)
        if wish.trigger is PromotionTrigger.STAGE:
            if not checked:
                checked.append(await _check(work, artifact, measure))
            if checked[0] is not None:
                raise checked[0]
        return artifact, trust, tuple(evidence), await _facts(work, place, artifact, wish)

    def decide(snapshot: Snapshot) -> Decision[Verified]:
        artifact, trust, evidence, facts = snapshot
        made = move_artifact(work.context, artifact, wish, facts)
        return Decision(Verified(made.result, trust, evidence), made.writes, made.events, made.audits)

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
        await apply(work.database, work.acting, work.context, decision, origin=work.origin)
        work.services.hub.poke(event.type for event in decision.events)
    return decision.result


async def _facts(work: Work[Any], place: Any, artifact: Artifact, wish: PromotionWish) -> ArtifactFacts:
    successor = None
    if wish.superseded_by is not None:
        successor = await artifacts.find(work.database, work.acting, place.project_id, wish.superseded_by)
    return ArtifactFacts(
        versions=await artifacts.versions(work.database, artifact),
        checks=await artifacts.checks(work.database, work.acting, artifact.id),
        holds=await artifacts.holds(work.database, artifact),
        successor=successor,
        grace_period=timedelta(days=work.services.settings.promotion_grace_days),
    )


async def _check(work: Work[Any], artifact: Artifact, measure: Yardstick) -> Refusal | None:
    """Run the smoke check and store its result; why it failed, or none."""
    location = location_of(artifact)
    source = measure.allowed_source(location, (artifact.tenant_id, artifact.project_id))
    reader, findings, refusal = work.services.artifacts, [], None
    if location.source_type is SourceType.OCI and artifact.kind == ArtifactKind.OCI:
        result = await reader.smoke(location, artifact.digest, source)
        refusal = result.refusal()
        findings = [
            {"name": each.name, "subject": each.subject, "outcome": each.outcome.value, "detail": each.detail}
            for each in result.checks
        ]
    else:
        try:
            await reader.look(ArtifactKind(artifact.kind), location, artifact.digest, source)
        except Refusal as failed:
            if failed.code not in OF_CONTENT:
                raise
            refusal = failed
    detail = "every byte was fetched and hashed" if refusal is None else refusal.detail
    check = CheckResult("smoke", artifact.digest, refusal is None, detail)
    decision = add_check(work.context, artifact, check, findings)
    await apply(work.database, work.acting, work.context, decision, origin=work.origin)
    return refusal
