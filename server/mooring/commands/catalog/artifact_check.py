"""Commands on artifact checks: starting one, reading under its lease, concluding, waiting, cancelling.

A holder says every second how far it is, which also keeps its lease; what it says is fenced by the generation that its
own start made. When that is no longer the present one (the lease ran out, somebody cancelled) it stops reading and
writes nothing. The conclusion is one decision: evidence, trust, size and the end of the check become true together.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.commands.catalog.artifact import own_artifact
from mooring.commands.catalog.artifact_evaluation import trust_context
from mooring.commands.catalog.artifact_inspection import InspectionResult, fresh_evidence, read_content, read_smoke
from mooring.commands.kernel.apply import apply_once, apply_with_retry
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_check import (
    ArtifactCheck,
    CheckName,
    CheckOutcome,
    CheckState,
    cancel_check,
    end_check,
    hand_back_check,
    lose_check,
    start_check,
)
from mooring.core.catalog.artifact_evidence import add_evidence, measured
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place
from mooring.gateways.registry.artifact_reader import ByteCounter
from mooring.gateways.telemetry.instruments import bound, span
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.catalog import artifact_check as checks
from mooring.storage.kernel.database import Acting

BEAT_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 0.5  # how often a check that another process reads is looked at by whoever waits for it

log = logging.getLogger("mooring.check")


def begin(services: Services, check: ArtifactCheck) -> bool:
    """Read a check in this process, when it is due and there is room; the workers see to the rest."""
    if check.status != CheckState.ACCEPTED or check.due_at > services.clock.now():
        return False
    return services.checks.begin(check, lambda: run(services, check), services.settings.checks_at_once)


async def settle(services: Services, check_id: str, seconds: float) -> ArtifactCheck:
    """The check as soon as it has ended, or as it is when the time is over; begun here if nobody has."""
    deadline = time.monotonic() + min(seconds, services.settings.wait_seconds_max)
    while True:
        check = require(await checks.find_by_id(services.database, check_id), "artifact_check")
        begin(services, check)
        left = deadline - time.monotonic()
        if not check.is_under_way or left <= 0 or services.hub.closed:
            return check
        await services.checks.wait_or_sleep(check_id, min(left, LOOK_SECONDS))


async def cancel(work: Work[ArtifactCheck], place: Place, artifact_id: str, check_id: str) -> Answered:
    """End a check early."""

    async def load() -> ArtifactCheck:
        artifact = await own_artifact(work, place, artifact_id)
        return require(await checks.find(work.database, work.acting, artifact.id, check_id), "artifact_check")

    return await work.execute(load, lambda seen: cancel_check(work.context, seen, "somebody asked for it"))


async def give_up_lost(services: Services) -> int:
    """Take checks from holders whose leases ran out; how many."""
    count = 0
    for check in await checks.lost(services.database, services.clock.now()):
        count += await _try(services, check, lose_check) is not None
    return count


async def hand_back(services: Services, held: list[ArtifactCheck]) -> int:
    """Let others read what this process no longer does; how many."""
    count = 0
    for check in held:
        count += await _try(services, check, hand_back_check) is not None
    return count


async def run(services: Services, check: ArtifactCheck) -> None:
    """Start a check, read, and conclude; another who was faster has it instead."""
    lease = timedelta(seconds=services.settings.check_lease_seconds)
    started = await _try(services, check, lambda context, seen: start_check(context, seen, context.now + lease))
    if started is None:
        return
    services.checks.held[check.id] = started
    with (
        bound(
            correlation_id=check.correlation_id,
            trace_id=check.trace_id,
            org_id=check.tenant_id,
            project_id=check.project_id,
        ),
        span("check an artifact", check_id=check.id),
    ):
        try:
            await _held(services, started)
        except asyncio.CancelledError:
            raise  # the process stops, and hands back what it holds
        except Exception:  # an error of ours: the log has its cause, and another attempt may go better
            log.exception("the check %s was interrupted", check.id)
            await _try(services, started, lose_check)
        services.checks.held.pop(check.id, None)


async def _held(services: Services, check: ArtifactCheck) -> None:
    """Read while the lease is held, then conclude."""
    tally = ByteCounter()
    reading = asyncio.create_task(_read(services, check, tally))
    beating = asyncio.create_task(_beat(services, check, tally))
    try:
        await asyncio.wait({reading, beating}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            log.warning("the check %s is no longer held here: reading stops", check.id)
            return
        await _conclude(services, check, reading.result())
    finally:
        for task in (reading, beating):
            task.cancel()
        await asyncio.gather(reading, beating, return_exceptions=True)


async def _beat(services: Services, check: ArtifactCheck, tally: ByteCounter) -> None:
    """Say how far it is, until somebody else has it; without the database as long as the lease lasts."""
    lease = services.settings.check_lease_seconds
    until = time.monotonic() + lease
    while time.monotonic() < until:
        await asyncio.sleep(BEAT_SECONDS)
        now = services.clock.now()
        try:
            kept = await checks.beat(services.database, check, tally.bytes_done, now, now + timedelta(seconds=lease))
        except Refusal as refusal:
            log.warning("how far the check %s is cannot be told now: %s", check.id, refusal.detail)
            continue
        if not kept:
            return
        until = time.monotonic() + lease


async def _read(services: Services, check: ArtifactCheck, tally: ByteCounter) -> InspectionResult:
    acting = Acting(check.tenant_id)
    artifact = await _artifact(services, check)
    measure = await trust_context(services, acting, check.project_id)
    context = _context(services, check)
    if check.name == CheckName.SMOKE:
        return await read_smoke(services.artifacts, artifact, measure, tally)
    return await read_content(services.artifacts, context, artifact, measure, tally)


async def _conclude(services: Services, check: ArtifactCheck, reading: InspectionResult) -> None:
    """Write down what came of it, decided anew while others change the artifact; nothing once it is no longer held."""
    context = _context(services, check)

    async def decide() -> Decision[Any] | None:
        present = await checks.find_by_id(services.database, check.id)
        if present is None or present.generation != check.generation:
            return None
        return await _concluded(services, context, present, reading)

    await apply_with_retry(services, Acting(check.tenant_id), context, decide)


async def _concluded(
    services: Services, context: DecisionContext, check: ArtifactCheck, reading: InspectionResult
) -> Decision[Any]:
    artifact = await _artifact(services, check)
    outcome = reading.outcome
    if artifact.trust == TrustState.REVOKED:
        why = artifact.revocation_reason or "it was withdrawn for ever"
        outcome = CheckOutcome(why, outcome.bytes_done, Refusal(Code.ARTIFACT_REVOKED, why, {"reason": why}))
    elif check.name == CheckName.CONTENT and reading.is_conclusive:
        return await _judged(services, context, (artifact, check), reading)
    return end_check(context, check, outcome)


async def _judged(
    services: Services, context: DecisionContext, about: tuple[Artifact, ArtifactCheck], reading: InspectionResult
) -> Decision[Any]:
    """Evidence, trust, size and the end of the check, together."""
    (artifact, check), acting = about, Acting(about[1].tenant_id)
    measure = await trust_context(services, acting, check.project_id)
    fresh = await fresh_evidence(services.database, acting, artifact, reading.found)
    stored = (await artifacts.evidence(services.database, acting, [artifact.id]))[artifact.id]
    size = reading.size_bytes if reading.size_bytes is not None and not artifact.size_bytes else artifact.size_bytes
    trust = measure.evaluate(replace(artifact, size_bytes=size), [*stored, *(each.evidence for each in fresh)])
    made = measured(add_evidence(context, artifact, fresh, trust), artifact, size)
    ended = end_check(context, check, reading.outcome)
    return Decision(made.result, (*made.writes, *ended.writes), (*made.events, *ended.events), made.audits)


async def _artifact(services: Services, check: ArtifactCheck) -> Artifact:
    acting = Acting(check.tenant_id)
    return require(await artifacts.find_own(services.database, acting, check.project_id, check.artifact_id), "artifact")


def _context(services: Services, check: ArtifactCheck) -> DecisionContext:
    """In the name of whoever asked, under his correlation id."""
    return replace(
        system_context(services), actor=check.actor, correlation_id=check.correlation_id, trace_id=check.trace_id
    )


async def _try(
    services: Services,
    check: ArtifactCheck,
    decide: Callable[[DecisionContext, ArtifactCheck], Decision[ArtifactCheck]],
) -> ArtifactCheck | None:
    """One step of a check's own, by the platform; none when another was faster."""
    context = replace(system_context(services), correlation_id=check.correlation_id, trace_id=check.trace_id)
    decision = decide(context, check)
    won = await apply_once(services, Acting(check.tenant_id), context, decision)
    return decision.result if won else None
