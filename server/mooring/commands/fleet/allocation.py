"""Commands on allocations and their groups: request, release, retry, explain."""

from dataclasses import dataclass, replace
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.pricing import spending
from mooring.commands.services import Services
from mooring.core.catalog.policy import PolicyChain, PolicyRequest
from mooring.core.catalog.policy_change import layers_of
from mooring.core.fleet.allocation import (
    Allocation,
    AllocationContext,
    AllocationRequest,
    AllocationState,
    gpu_count_of,
    regions_of,
    release_allocation,
    request_allocation,
    retry_release,
    spend_request,
)
from mooring.core.fleet.allocation_group import (
    AllocationGroup,
    AllocationGroupRequest,
    GroupWithAllocations,
    create_group,
    require_room,
)
from mooring.core.fleet.placement import PlacementBoard
from mooring.core.fleet.placement_explanation import PlacementExplanation
from mooring.core.fleet.placement_forecast import allowed_choices, explain_batch, placement_batch
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Refusal
from mooring.core.pricing.spending import spending_refusals
from mooring.storage.catalog import policy as policies
from mooring.storage.fleet import allocation as allocations
from mooring.storage.fleet import placement
from mooring.storage.identity import project as projects
from mooring.storage.kernel.database import Acting, Database

ALREADY_RELEASED = frozenset({AllocationState.RELEASING, AllocationState.RELEASE_FAILED, AllocationState.RELEASED})


@dataclass(frozen=True, slots=True)
class _GroupJoin:
    """What a request is decided on; `group` None: it joins no group."""

    requester: AllocationContext
    group: AllocationGroup | None
    members: list[Allocation]


async def create(work: Work[Allocation], project_id: str, request: AllocationRequest, group_id: str | None) -> Answered:
    """Request one allocation, in a group or alone."""

    async def load() -> _GroupJoin:
        requester = await _requester(work.services, work.acting, project_id, request.sku)
        if group_id is None:
            return _GroupJoin(requester, None, [])
        group = require(
            await allocations.find_group(work.database, work.acting, project_id, group_id), "allocation_group"
        )
        members = await allocations.of_groups(work.database, work.acting, project_id, [group_id])
        return _GroupJoin(requester, group, members[group_id])

    def decide(loaded: _GroupJoin) -> Decision[Allocation]:
        if loaded.group is not None:
            require_room(loaded.group, request.shape, loaded.members)
        return request_allocation(work.context, loaded.requester, request, group_id)

    return await work.execute(load, decide)


async def create_grouped(
    work: Work[GroupWithAllocations], project_id: str, request: AllocationGroupRequest
) -> Answered:
    return await work.execute(
        lambda: _requester(work.services, work.acting, project_id, request.each.sku),
        lambda requester: create_group(work.context, requester, request),
    )


async def release(work: Work[Allocation], project_id: str, allocation_id: str) -> Answered:
    return await work.execute(
        lambda: _load(work, project_id, allocation_id), lambda loaded: release_allocation(work.context, loaded)
    )


async def retry(work: Work[Allocation], project_id: str, allocation_id: str) -> Answered:
    return await work.execute(
        lambda: _load(work, project_id, allocation_id), lambda loaded: retry_release(work.context, loaded)
    )


async def release_group(work: Work[GroupWithAllocations], project_id: str, group_id: str) -> Answered:
    """Release every allocation of a group that is not released yet."""

    async def load() -> GroupWithAllocations:
        group = require(
            await allocations.find_group(work.database, work.acting, project_id, group_id), "allocation_group"
        )
        members = await allocations.of_groups(work.database, work.acting, project_id, [group_id])
        return GroupWithAllocations(group, tuple(members[group_id]))

    def decide(loaded: GroupWithAllocations) -> Decision[GroupWithAllocations]:
        steps = [
            release_allocation(work.context, each)
            for each in loaded.allocations
            if AllocationState(each.status) not in ALREADY_RELEASED
        ]
        after = {step.result.id: step.result for step in steps}
        return Decision(
            result=replace(loaded, allocations=tuple(after.get(each.id, each) for each in loaded.allocations)),
            writes=tuple(write for step in steps for write in step.writes),
            events=tuple(event for step in steps for event in step.events),
            audits=tuple(audit for step in steps for audit in step.audits),
        )

    return await work.execute(load, decide)


async def explained(
    services: Services, acting: Acting, project_id: str, request: AllocationRequest, *, count: int, same_node: bool
) -> PlacementExplanation:
    """Whether a request would fit now; if not, why, and the smallest change that would make it fit."""
    requester = await _requester(services, acting, project_id, request.sku)
    try:
        gpus = gpu_count_of(request, requester.terms)
        regions = tuple(regions_of(request, requester.terms, requester.chain))
        refusal = requester.chain.decide(PolicyRequest(gpus=requester.holding.gpus + gpus * count)).refusal()
        if refusal is not None:
            raise refusal
        if requester.spending is not None:
            for exceeded in spending_refusals(requester.spending, spend_request(requester.terms, gpus, count)):
                raise exceeded
    except Refusal as refused:
        return PlacementExplanation(False, refused.detail, _change_of(refused, requester))
    sized = replace(request, gpu_count=gpus)
    batch = placement_batch(project_id, requester.terms, sized, regions=regions, count=count, same_node=same_node)
    board = PlacementBoard(await placement.snapshot(services.database, with_facts=False))
    return explain_batch(board, batch, allowed_choices(requester.terms, requester.chain))


def _change_of(refused: Refusal, requester: AllocationContext) -> str:
    """What would help where a policy or a limit, not the fleet, refuses the request."""
    if "smallest_change" in refused.details:
        return str(refused.details["smallest_change"])
    most = requester.chain.gpus_max
    if refused.details.get("subject") == "gpus" and most is not None:
        available = max(0, most - requester.holding.gpus)
        return f"at most {available} GPUs, or a higher maximum in the {refused.details['layer']} policy"
    return refused.detail


async def _requester(services: Services, acting: Acting, project_id: str, sku: str) -> AllocationContext:
    database = services.database
    require(await projects.find(database, acting, project_id), "project")
    terms = require(await allocations.terms(database, acting, sku), "sku")
    chain = await _chain(database, acting, project_id)
    holding = await allocations.holding(database, acting, project_id)
    return AllocationContext(
        str(acting.tenant_id),
        project_id,
        terms,
        chain,
        holding,
        services.settings.allocation_place_seconds,
        await spending.load(services, acting, project_id),
    )


async def _chain(database: Database, acting: Acting, project_id: str) -> PolicyChain:
    return PolicyChain(layers_of(await policies.chain(database, acting, project_id)))


async def _load(work: Work[Any], project_id: str, allocation_id: str) -> Allocation:
    return require(await allocations.find(work.database, work.acting, project_id, allocation_id), "allocation")
