"""Allocation groups: several allocations that are requested together, with one state derived from theirs.

With `same_node` all allocations are placed on one machine at once, or not at all, because the network of slices ends
at their machine. Without it each is placed on its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.allocation import (
    GROUP_MAX,
    Allocation,
    AllocationContext,
    AllocationRequest,
    AllocationState,
    request_allocations,
)
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

NAME_LENGTH_MAX: Final = 36
"""Shorter than a slug: an allocation's name is the group's name and a number."""


class GroupState(StrEnum):
    """The state of a group, derived from the states of its allocations."""

    EMPTY = "empty"
    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    FAILED = "failed"
    RELEASING = "releasing"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class AllocationGroup:
    id: str
    tenant_id: str
    project_id: str
    name: str
    same_node: bool
    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class GroupWithAllocations:
    group: AllocationGroup
    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class AllocationGroupRequest:
    """Equal allocations, named by the group's name and a number."""

    name: str
    count: int
    same_node: bool
    each: AllocationRequest


def state_of(statuses: Iterable[str]) -> GroupState:
    """The state of the slowest allocation; but failed or releasing as soon as one allocation is."""
    states = {AllocationState(each) for each in statuses}
    if not states:
        return GroupState.EMPTY
    if states == {AllocationState.RELEASED}:
        return GroupState.RELEASED
    if AllocationState.FAILED in states:
        return GroupState.FAILED
    if states & {AllocationState.RELEASING, AllocationState.RELEASE_FAILED, AllocationState.RELEASED}:
        return GroupState.RELEASING
    if AllocationState.REQUESTED in states:
        return GroupState.REQUESTED
    return GroupState.PROVISIONING if AllocationState.PROVISIONING in states else GroupState.ACTIVE


def create_group(
    context: DecisionContext, requester: AllocationContext, request: AllocationGroupRequest
) -> Decision[GroupWithAllocations]:
    """Create the group with all of its allocations, or refuse all of it."""
    name = validation.slug(request.name, "name")
    if len(name) > NAME_LENGTH_MAX:
        raise validation.invalid("name", f"at most {NAME_LENGTH_MAX} characters: each allocation adds its number")
    if not 1 <= request.count <= GROUP_MAX:
        raise validation.invalid("count", f"1 to {GROUP_MAX}")
    if request.same_node and request.each.shape is CapacityShape.BAREMETAL and request.count > 1:
        raise validation.invalid("same_node", "whole machines do not share one machine")
    group = AllocationGroup(
        context.mint(Prefix.ALLOCATION_GROUP),
        requester.tenant_id,
        requester.project_id,
        name,
        request.same_node,
        0,
        context.now,
    )
    names: list[str | None] = [f"{name}-{number}" for number in range(1, request.count + 1)]
    made = request_allocations(context, requester, request.each, names, group.id)
    summary = {"name": name, "count": request.count, "same_node": request.same_node}
    place = (group.tenant_id, group.project_id)
    return Decision(
        result=GroupWithAllocations(group, made.result),
        writes=(Insert("allocation_group", asdict(group)), *made.writes),
        events=(
            EventRecord(EventType.ALLOCATION_GROUP_CREATED, "allocation_group", group.id, *place, data=summary),
            *made.events,
        ),
        audits=(AuditRecord("allocation.create", "allocation_group", group.id, *place, after=summary), *made.audits),
    )


def require_room(group: AllocationGroup, shape: CapacityShape, members: Sequence[Allocation]) -> None:
    """Refuse one more allocation where the group is full or the machine cannot be shared."""
    left = [each for each in members if each.status != AllocationState.RELEASED]
    if len(left) >= GROUP_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a group has at most {GROUP_MAX} allocations", {"limit": GROUP_MAX})
    whole = shape is CapacityShape.BAREMETAL or any(each.shape == CapacityShape.BAREMETAL for each in left)
    if group.same_node and left and whole:
        raise validation.invalid("group_id", "the group shares one machine, and a whole machine is not shared")
