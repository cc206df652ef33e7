"""Use cases for artifact checks: starting, reading under a lease, concluding, waiting and cancelling.

A holder reports its progress every second, which also renews its lease. Its reports are fenced by the generation of its
own start: when the check has another generation by now (the lease expired, somebody cancelled), the holder stops
reading and writes nothing. The conclusion is one decision: evidence, trust, size and the end of the check are stored
together.
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
POLL_SECONDS: Final = 0.5  # how often a waiter polls a check that another process runs

log = logging.getLogger("mooring.check")


def begin(services: Services, check: ArtifactCheck) -> bool:
    """Run a check in this process if it is due and there is capacity; otherwise the workers start it later."""
    if check.status != CheckState.ACCEPTED or check.due_at > services.clock.now():
        return False
    return services.checks.begin(check, lambda: run(services, check), services.settings.checks_at_once)


async def settle(services: Services, check_id: str, seconds: float) -> ArtifactCheck:
    """Wait until the check has ended or the time is over, and return it; start it here if nobody has."""
    deadline = time.monotonic() + min(seconds, services.settings.wait_seconds_max)
    while True:
        check = require(await checks.find_by_id(services.database, check_id), "artifact_check")
        begin(services, check)
        left = deadline - time.monotonic()
        if not check.is_under_way or left <= 0 or services.hub.closed:
            return check
        await services.checks.wait_or_sleep(check_id, min(left, POLL_SECONDS))


async def cancel(work: Work[ArtifactCheck], place: Place, artifact_id: str, check_id: str) -> Answered:
    async def load() -> ArtifactCheck:
        artifact = await own_artifact(work, place, artifact_id)
        return require(await checks.find(work.database, work.acting, artifact.id, check_id), "artifact_check")

    return await work.execute(load, lambda check: cancel_check(work.context, check, "a caller cancelled it"))


async def give_up_lost(services: Services) -> int:
    """Take checks away from holders whose leases expired; returns how many."""
    count = 0
    for check in await checks.lost(services.database, services.clock.now()):
        count += await _try(services, check, lose_check) is not None
    return count


async def hand_back(services: Services, held: list[ArtifactCheck]) -> int:
    """Release the checks of this process so that others can run them; returns how many."""
    count = 0
    for check in held:
        count += await _try(services, check, hand_back_check) is not None
    return count


async def run(services: Services, check: ArtifactCheck) -> None:
    """Start a check, read, and conclude; does nothing if another process was faster."""
    lease = timedelta(seconds=services.settings.check_lease_seconds)
    started = await _try(services, check, lambda context, check: start_check(context, check, context.now + lease))
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
            await _read_under_lease(services, started)
        except asyncio.CancelledError:
            raise  # the process stops, and hands back its checks
        except Exception:  # a bug of ours: another attempt may succeed
            log.exception("check %s failed unexpectedly; queueing it again if it has attempts left", check.id)
            await _try(services, started, lose_check)
        services.checks.held.pop(check.id, None)


async def _read_under_lease(services: Services, check: ArtifactCheck) -> None:
    """Read while this process holds the lease, then conclude."""
    tally = ByteCounter()
    reading = asyncio.create_task(_read(services, check, tally))
    beating = asyncio.create_task(_beat(services, check, tally))
    try:
        await asyncio.wait({reading, beating}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            log.warning("lost the lease of check %s; stopped working on it", check.id)
            return
        await _conclude(services, check, reading.result())
    finally:
        for task in (reading, beating):
            task.cancel()
        await asyncio.gather(reading, beating, return_exceptions=True)


async def _beat(services: Services, check: ArtifactCheck, tally: ByteCounter) -> None:
    """Report the progress until the lease is lost; without the database, until the lease expires."""
    lease = services.settings.check_lease_seconds
    until = time.monotonic() + lease
    while time.monotonic() < until:
        await asyncio.sleep(BEAT_SECONDS)
        now = services.clock.now()
        try:
            renewed = await checks.beat(services.database, check, tally.bytes_done, now, now + timedelta(seconds=lease))
        except Refusal as refusal:
            log.warning("cannot report the progress of check %s; retrying: %s", check.id, refusal.detail)
            continue
        if not renewed:
            return
        until = time.monotonic() + lease


async def _read(services: Services, check: ArtifactCheck, tally: ByteCounter) -> InspectionResult:
    acting = Acting(check.tenant_id)
    artifact = await _artifact(services, check)
    evaluator = await trust_context(services, acting, check.project_id)
    context = _context(services, check)
    if check.name == CheckName.SMOKE:
        return await read_smoke(services.artifacts, artifact, evaluator, tally)
    return await read_content(services.artifacts, context, artifact, evaluator, tally)


async def _conclude(services: Services, check: ArtifactCheck, reading: InspectionResult) -> None:
    """Store the result; decide again if the artifact changed, and write nothing once the lease is lost."""
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
        why = artifact.revocation_reason or "it was permanently withdrawn"
        outcome = CheckOutcome(why, outcome.bytes_done, Refusal(Code.ARTIFACT_REVOKED, why, {"reason": why}))
    elif check.name == CheckName.CONTENT and reading.is_conclusive:
        return await _evaluated(services, context, artifact, check, reading)
    return end_check(context, check, outcome)


async def _evaluated(
    services: Services, context: DecisionContext, artifact: Artifact, check: ArtifactCheck, reading: InspectionResult
) -> Decision[Any]:
    """Evidence, trust, size and the end of the check, in one decision."""
    acting = Acting(check.tenant_id)
    evaluator = await trust_context(services, acting, check.project_id)
    fresh = await fresh_evidence(services.database, acting, artifact, reading.found)
    stored = (await artifacts.evidence(services.database, acting, [artifact.id]))[artifact.id]
    size = reading.size_bytes if reading.size_bytes is not None and not artifact.size_bytes else artifact.size_bytes
    trust = evaluator.evaluate(replace(artifact, size_bytes=size), [*stored, *(each.evidence for each in fresh)])
    made = measured(add_evidence(context, artifact, fresh, trust), artifact, size)
    ended = end_check(context, check, reading.outcome)
    return Decision(made.result, (*made.writes, *ended.writes), (*made.events, *ended.events), made.audits)


async def _artifact(services: Services, check: ArtifactCheck) -> Artifact:
    acting = Acting(check.tenant_id)
    return require(await artifacts.find_own(services.database, acting, check.project_id, check.artifact_id), "artifact")


def _context(services: Services, check: ArtifactCheck) -> DecisionContext:
    """A context in the name of the caller who asked for the check, with their correlation id."""
    return replace(
        system_context(services), actor=check.actor, correlation_id=check.correlation_id, trace_id=check.trace_id
    )


async def _try(
    services: Services,
    check: ArtifactCheck,
    decide: Callable[[DecisionContext, ArtifactCheck], Decision[ArtifactCheck]],
) -> ArtifactCheck | None:
    """Apply a transition of the check in the name of the platform; None when another process was faster."""
    context = replace(system_context(services), correlation_id=check.correlation_id, trace_id=check.trace_id)
    decision = decide(context, check)
    won = await apply_once(services, Acting(check.tenant_id), context, decision)
    return decision.result if won else None
