"""Commands of the allocation reconciler: place what waits, and take the next step of everything else.

Each applies one decision in one statement, under the correlation id of the request that made the allocation. A lost
race changes nothing, and the next pass reads the row again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.work import system_context
from mooring.commands.services import Services
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.allocation_reconcile import (
    AllocationPlacement,
    AllocationSnapshot,
    give_up_placing,
    place_allocations,
    reconcile,
    wait_for,
)
from mooring.core.fleet.placement import Plan
from mooring.core.fleet.project_network import plan_network, pool_of
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code
from mooring.storage.fleet import placement
from mooring.storage.kernel.database import PLATFORM

LOST: Final = frozenset({Code.CONFLICT})
"""How the database refuses an allocation on a node that takes no more work: an operator was faster."""


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    done: bool  # False: another writer was faster, or the node is full or gone
    full: bool = False  # the node has no network or address left


async def claim(services: Services, waiting: Sequence[Allocation], plan: Plan) -> ApplyOutcome:
    """Claim the slots of a plan for its allocations, all of them or none."""
    node_id = plan[0].node_id
    node = await placement.node_facts(services.database, node_id)
    if node is None:
        return ApplyOutcome(False)
    context = _context(services, waiting[0])
    network = plan_network(
        context,
        await placement.networks(services.database, node_id),
        pool_of(node.network_pool),
        len(plan),
        node_id=node_id,
        tenant_id=waiting[0].tenant_id,
        project_id=waiting[0].project_id,
        single=node.host == "process",
    )
    if network is None:
        return ApplyOutcome(False, full=True)
    by_id = {each.id: each for each in waiting}
    placed = [AllocationPlacement(by_id[pick.request.id], pick) for pick in plan]
    return ApplyOutcome(await _apply(services, context, place_allocations(context, placed, node, network)))


async def step(services: Services, snapshot: AllocationSnapshot) -> bool:
    """Take the next step of one allocation; False when there is none, or another worker took it."""
    context = _context(services, snapshot.allocation)
    decision = reconcile(context, snapshot)
    return decision is not None and await _apply(services, context, decision)


async def keep_waiting(services: Services, allocation: Allocation, because: str) -> bool:
    """Record why it has no place, or fail it at its deadline; True when something was written."""
    context = _context(services, allocation)
    if allocation.deadline_at <= context.now:
        return await _apply(services, context, give_up_placing(context, allocation, because))
    decision = wait_for(context, allocation, because)
    return decision is not None and await _apply(services, context, decision)


def _context(services: Services, allocation: Allocation) -> DecisionContext:
    return replace(system_context(services), correlation_id=allocation.correlation_id, trace_id=allocation.trace_id)


async def _apply(services: Services, context: DecisionContext, decision: Decision[Any]) -> bool:
    return await apply_once(services, PLATFORM, context, decision, lost_codes=LOST)
