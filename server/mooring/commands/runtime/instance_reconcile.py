"""Commands that the runtime worker gives about instances: the next step of one, whatever it is.

Each is one decision in one statement, under the correlation of whoever asked for what it is about. Who loses a race,
to another worker, an adapter or a caller, has changed nothing: the instance is looked at again.
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

LOST: Final = frozenset(
    {
        Code.CLOSING_RECORD_MISSING,  # an adapter made a task a moment ago, or an agent took one
        Code.OPERATION_IN_PROGRESS,  # a caller asked for something a moment ago
        Code.ILLEGAL_TRANSITION,  # somebody was faster
        Code.CONFLICT,
    }
)
"""What the database refuses to the slower of two: it looks again."""


def limits_of(settings: Settings) -> TimeLimits:
    """How long things may take on this platform."""
    return TimeLimits(
        operation=timedelta(seconds=settings.operation_seconds),
        step=timedelta(seconds=settings.step_seconds),
        claim=timedelta(seconds=settings.claim_seconds),
        cancel=timedelta(seconds=settings.cancel_seconds),
        lease=timedelta(seconds=settings.adapter_lease_seconds),
    )


async def step(services: Services, snapshot: InstanceSnapshot) -> bool:
    """The next step of one instance; False when there is none, or somebody else took it."""
    base = system_context(services)
    decision = reconcile(base, limits_of(services.settings), snapshot)
    if decision is None:
        return False
    about = decision.result
    context = replace(base, correlation_id=about.correlation_id, trace_id=about.trace_id)
    with bound(
        correlation_id=about.correlation_id,
        trace_id=about.trace_id,
        org_id=about.tenant_id,
        project_id=about.project_id,
        app_slug=snapshot.instance.app_slug,
        app_instance_id=snapshot.instance.id,
    ):
        if not await apply_once(services, PLATFORM, context, decision, lost_codes=LOST):
            return False
        events = [f"{each.type.value} {each.data.get('status', '')}".strip() for each in decision.events[:5]]
        log.info("took the next step of an instance", extra={"instance": snapshot.instance.id, "events": events})
    return True
