"""The command of the reconcile worker: apply the next step of one instance.

Each step is one decision in one statement, under the correlation of the request that led to it. If the worker loses a
race, to another worker, an adapter or a caller, nothing has changed, and it will read the instance again.
"""

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Final

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.work import system_context
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code
from mooring.core.runtime.instance_reconcile import reconcile
from mooring.core.runtime.instance_snapshot import InstanceSnapshot, TimeLimits
from mooring.gateways.telemetry.instruments import bound
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM

log = logging.getLogger("mooring.instances")

RACE_CODES: Final = frozenset(
    {
        Code.CLOSING_RECORD_MISSING,  # an adapter has just created a task, or an agent claimed one
        Code.OPERATION_IN_PROGRESS,  # a caller has just started an operation
        Code.ILLEGAL_TRANSITION,  # somebody was faster
        Code.CONFLICT,
    }
)
"""What the database refuses when somebody else was faster; the worker then reads the instance again."""


def limits_of(settings: Settings) -> TimeLimits:
    return TimeLimits(
        operation=timedelta(seconds=settings.operation_seconds),
        step=timedelta(seconds=settings.step_seconds),
        claim=timedelta(seconds=settings.claim_seconds),
        cancel=timedelta(seconds=settings.cancel_seconds),
        lease=timedelta(seconds=settings.adapter_lease_seconds),
    )


async def step(services: Services, snapshot: InstanceSnapshot) -> bool:
    """Apply the next step of one instance; False if there is none, or somebody else was faster."""
    base = system_context(services)
    decision = reconcile(base, limits_of(services.settings), snapshot)
    if decision is None:
        return False
    subject = decision.result
    context = replace(base, correlation_id=subject.correlation_id, trace_id=subject.trace_id)
    with bound(
        correlation_id=subject.correlation_id,
        trace_id=subject.trace_id,
        org_id=subject.tenant_id,
        project_id=subject.project_id,
        app_slug=snapshot.instance.app_slug,
        app_instance_id=snapshot.instance.id,
    ):
        if not await apply_once(services, PLATFORM, context, decision, lost_codes=RACE_CODES):
            return False
        events = [f"{each.type.value} {each.data.get('status', '')}".strip() for each in decision.events[:5]]
        log.info("applied the next step", extra={"instance": snapshot.instance.id, "events": events})
    return True
