"""The endpoint that creates a task in an allocation of the caller's project."""

from datetime import timedelta
from functools import partial

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.fleet.allocation_task import MakeTask
from mooring.api.schemas.fleet.task import TaskView, task_view
from mooring.commands.fleet import task as commands
from mooring.commands.fleet.task_source import within_sources
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.fleet.allocation import AllocationState
from mooring.core.fleet.task_creation import TaskRequest
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Scope
from mooring.storage.fleet import allocation as allocations


@route_in(
    (Scope.PROJECT,),
    "POST",
    "/allocations/{allocation_id}/tasks",
    RouteSpec(
        "task",
        "create",
        "task.create",
        201,
        TaskView,
        errors=(
            Code.CONFLICT,
            Code.TOO_MANY_OPEN_TASKS,
            Code.VALIDATION_FAILED,
            Code.PERMISSION_DENIED,
            Code.SOURCE_DENIED,
            Code.ARTIFACT_NOT_REGISTERED,
            Code.ARTIFACT_UNVERIFIED,
            Code.ARTIFACT_REVOKED,
            Code.SIGNATURE_MISSING,
            Code.SIGNATURE_INVALID,
            Code.SIGNATURE_KEY_UNKNOWN,
            Code.SIGNATURE_REPLAYED,
            Code.DIGEST_MISMATCH,
            Code.ARTIFACT_NOT_FOUND_AT_SOURCE,
        ),
    ),
)
async def create_allocation_task(request: RequestContext, allocation_id: str, body: MakeTask) -> Answered:
    """Run a task in an active allocation: write files, run a program, start a service or a container.

    It may fetch only the digest of an artifact that the project can see and that is trusted now. A task is named by its
    step; creating it again under the same step returns the first one.
    """
    project_id = str(request.place.project_id)
    row = await allocations.find(request.services.database, request.acting, project_id, allocation_id)
    allocation = require(row, "allocation")
    if allocation.status != AllocationState.ACTIVE or allocation.node_id is None:
        raise Refusal(Code.CONFLICT, f"the allocation is {allocation.status}; tasks need an active one")
    task_request = TaskRequest(
        tenant_id=allocation.tenant_id,
        project_id=project_id,
        allocation_id=allocation_id,
        node_id=allocation.node_id,
        type=body.type,
        step=body.step or f"by-hand/{request.context.mint(Prefix.CORRELATION)}",
        label=body.label,
        arguments=body.arguments,
        lifetime=timedelta(seconds=body.lifetime_seconds),
        maker=request.caller.actor.id,
    )
    allowed = await within_sources(request.services, request.acting, task_request)
    return await commands.make(request.work(partial(task_view, request.caller.authority)), allowed)
