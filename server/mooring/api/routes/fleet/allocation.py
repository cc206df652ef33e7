"""Endpoints for allocations: a request names shape, SKU, GPUs and region; the platform chooses the machine."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.fleet.allocation import (
    AllocationGroupView,
    AllocationQuery,
    AllocationView,
    CreateAllocation,
    CreateAllocationGroup,
    ExplainAllocation,
    ExplanationView,
    OccupancyQuery,
    OccupancyView,
    allocation_view,
    explanation_view,
    group_request_of,
    group_view,
    occupancy_view,
    request_of,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.fleet import allocation as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.allocation_group import GroupWithAllocations
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.fleet import allocation as allocations

PLACES = (Scope.PROJECT,)
PATH = "/allocations"
ONE = PATH + "/{allocation_id}"
GROUPS = "/allocation-groups"
ONE_GROUP = GROUPS + "/{group_id}"
SPENDING_ERRORS = (Code.QUOTA_EXCEEDED, Code.BUDGET_EXCEEDED, Code.BALANCE_TOO_LOW)
REQUEST_ERRORS = (Code.LIMIT_REACHED, Code.NAME_TAKEN, Code.POLICY_DENIED, *SPENDING_ERRORS)


def _work(request: RequestContext) -> Work[Allocation]:
    return request.work(lambda made: allocation_view(request.caller.authority, made))


def _work_group(request: RequestContext) -> Work[GroupWithAllocations]:
    return request.work(lambda made: group_view(request.caller.authority, made.group, list(made.allocations)))


@route_in(PLACES, "GET", PATH, RouteSpec("allocation", "list", "allocation.read", answer=Page[AllocationView]))
async def list_allocations(request: RequestContext, query: AllocationQuery) -> Page[AllocationView]:
    """List a project's allocations, the oldest first, with the released ones."""
    wanted = allocations.AllocationFilter(None if query.status is None else query.status.value, query.group_id)
    window = page_window(query, "allocation")
    rows = await allocations.page(
        request.services.database, request.acting, str(request.place.project_id), wanted, window
    )
    return page(rows, query, "allocation", lambda row: allocation_view(request.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    PATH,
    RouteSpec("allocation", "create", "allocation.create", 201, AllocationView, errors=REQUEST_ERRORS),
)
async def create_allocation(request: RequestContext, body: CreateAllocation) -> Answered:
    """Request capacity.

    It is placed as soon as there is room, and charged from the moment its sandbox is ready. While there is no room,
    `blocker` says why and what would help; at its deadline it fails with `no_capacity`.
    """
    return await commands.create(_work(request), str(request.place.project_id), request_of(body), body.group_id)


@route_in(
    PLACES,
    "POST",
    PATH + "/explain",
    RouteSpec("allocation", "explain", "allocation.read", answer=ExplanationView, read_only=True),
)
async def explain_allocation(request: RequestContext, body: ExplainAllocation) -> ExplanationView:
    """Say whether a request would fit now and, if not, why, and the smallest change that would make it fit."""
    project_id = str(request.place.project_id)
    explanation = await commands.explained(
        request.services, request.acting, project_id, request_of(body), count=body.count, same_node=body.same_node
    )
    return explanation_view(explanation)


@route_in(PLACES, "GET", ONE, RouteSpec("allocation", "get", "allocation.read", answer=AllocationView))
async def get_allocation(request: RequestContext, allocation_id: str, query: WaitQuery) -> AllocationView:
    """Read an allocation: where it is, what it waits for, and what proves its end."""
    database, project_id = request.services.database, str(request.place.project_id)

    async def read() -> AllocationView:
        row = require(await allocations.find(database, request.acting, project_id, allocation_id), "allocation")
        return allocation_view(request.caller.authority, row)

    return await waited(request, query, allocation_id, read)


@route_in(
    PLACES,
    "POST",
    ONE + "/release",
    RouteSpec("allocation", "release", "allocation.release", answer=AllocationView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def release_allocation(request: RequestContext, allocation_id: str) -> Answered:
    """Release an allocation: charging stops now, and it ends when its node has checked that nothing is left."""
    return await commands.release(_work(request), str(request.place.project_id), allocation_id)


@route_in(
    PLACES,
    "POST",
    ONE + "/retry",
    RouteSpec("allocation", "retry", "allocation.release", answer=AllocationView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def retry_allocation(request: RequestContext, allocation_id: str) -> Answered:
    """Retry at once a teardown that left something; the platform retries by itself after a pause."""
    return await commands.retry(_work(request), str(request.place.project_id), allocation_id)


@route_in(
    PLACES, "GET", GROUPS, RouteSpec("allocation_group", "list", "allocation.read", answer=Page[AllocationGroupView])
)
async def list_allocation_groups(request: RequestContext, query: PageQuery) -> Page[AllocationGroupView]:
    """List a project's allocation groups with their allocations."""
    database, project_id = request.services.database, str(request.place.project_id)
    window = page_window(query, "allocation_group")
    rows = await allocations.page_groups(database, request.acting, project_id, window)
    members = await allocations.of_groups(database, request.acting, project_id, [each.id for each in rows])
    return page(rows, query, "allocation_group", lambda row: group_view(request.caller.authority, row, members[row.id]))


@route_in(
    PLACES,
    "POST",
    GROUPS,
    RouteSpec("allocation_group", "create", "allocation.create", 201, AllocationGroupView, errors=REQUEST_ERRORS),
)
async def create_allocation_group(request: RequestContext, body: CreateAllocationGroup) -> Answered:
    """Request several equal allocations at once.

    With `same_node` they share one machine and its network: they are placed there together, or not at all.
    """
    return await commands.create_grouped(_work_group(request), str(request.place.project_id), group_request_of(body))


@route_in(PLACES, "GET", ONE_GROUP, RouteSpec("allocation_group", "get", "allocation.read", answer=AllocationGroupView))
async def get_allocation_group(request: RequestContext, group_id: str) -> AllocationGroupView:
    """Read a group, its allocations, and the state derived from theirs."""
    database, project_id = request.services.database, str(request.place.project_id)
    group = require(await allocations.find_group(database, request.acting, project_id, group_id), "allocation_group")
    members = await allocations.of_groups(database, request.acting, project_id, [group_id])
    return group_view(request.caller.authority, group, members[group_id])


@route_in(
    PLACES,
    "POST",
    ONE_GROUP + "/release",
    RouteSpec("allocation_group", "release", "allocation.release", answer=AllocationGroupView),
)
async def release_allocation_group(request: RequestContext, group_id: str) -> Answered:
    """Release every allocation of a group that is not released yet."""
    return await commands.release_group(_work_group(request), str(request.place.project_id), group_id)


@route_in(
    (Scope.PLATFORM,), "GET", PATH, RouteSpec("platform_allocation", "list", "node.read", answer=Page[OccupancyView])
)
async def list_platform_allocations(request: RequestContext, query: OccupancyQuery) -> Page[OccupancyView]:
    """List the allocations on nodes, their owners, and what blocks their release; nothing of their content."""
    status = None if query.status is None else query.status.value
    window = page_window(query, "platform_allocation")
    rows = await allocations.on_nodes(
        request.services.database, request.acting, window, node_id=query.node_id, status=status
    )
    return page(rows, query, "platform_allocation", occupancy_view)
