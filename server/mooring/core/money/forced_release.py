"""What ends because its money is used up: by a budget that stops, or a balance that is depleted.

It goes the way of a person: an instance is stopped and torn down with receipts, an allocation is released. The
operation and the event of the allocation name the cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation, LostBy, allocation_event, release_allocation
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.instance_change import InstanceContext, stop_instance
from mooring.core.runtime.instance_launch import OperationBounds
from mooring.core.runtime.operation import Operation, OperationKind

REASONS: Final[Mapping[LostBy, str]] = {
    LostBy.BUDGET: "the budget is used up, and its threshold says stop",
    LostBy.BALANCE: "the prepaid balance is used up",
}


@dataclass(frozen=True, slots=True)
class MoneyEnd:
    """Where the money is used up, and by what."""

    tenant_id: str
    project_id: str | None  # None: in the whole tenant
    cause: LostBy


def stop_unpaid(
    context: DecisionContext, current: InstanceContext, bounds: OperationBounds, cause: LostBy
) -> Decision[Operation] | None:
    """Stop an instance; None if it is being stopped already."""
    if any(each.kind == OperationKind.DECOMMISSION for each in current.operations):
        return None
    request: dict[str, Any] = {"reason": REASONS[cause], "unpaid": cause.value}
    return _because(stop_instance(context, current, bounds, request), cause)


def release_unpaid(context: DecisionContext, allocation: Allocation, cause: LostBy) -> Decision[Allocation]:
    """Release an allocation that no instance uses any more."""
    decision = _because(release_allocation(context, allocation), cause)
    lost = allocation_event(EventType.ALLOCATION_LOST, decision.result, {"cause": cause.value})
    return replace(decision, events=(*decision.events, lost))


def _because(decision: Decision[Any], cause: LostBy) -> Decision[Any]:
    """The same decision; its audit rows say why the platform took it."""
    return replace(decision, audits=tuple(replace(each, reason=REASONS[cause]) for each in decision.audits))
