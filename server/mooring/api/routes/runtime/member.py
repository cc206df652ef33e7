"""Endpoints for members, operations and app actions of an instance."""

import msgspec

from mooring.api.page import AFTER_ALL, Page, page, page_window
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.runtime.instance import CHANGED, ONE, PLACES, REFUSED, UNTRUSTED, at, operation_work
from mooring.api.schemas.runtime.instance import (
    ActionQuery,
    AddMembers,
    CancelOperation,
    DrainMember,
    MemberQuery,
    MemberView,
    OperationQuery,
    OperationView,
    RemoveMember,
    ReplaceMember,
    StartAction,
    TenantOperationQuery,
)
from mooring.api.schemas.runtime.instance_view import member_view, operation_view
from mooring.api.schemas.runtime.launch import placement_spec
from mooring.api.wait import WaitQuery, wait_for_read_only, waited
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import app_action
from mooring.commands.runtime import instance as commands
from mooring.commands.runtime import member as members
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.instance_launch import LaunchedInstance
from mooring.core.runtime.instance_trust import distrust_of
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_change import AddMembersRequest, RemoveMemberRequest, ReplaceMemberRequest
from mooring.core.runtime.operation import OPERATION
from mooring.storage.runtime import instance as instances

MEMBERS = ONE + "/members"
ONE_MEMBER = MEMBERS + "/{member_id}"
OPERATIONS = ONE + "/operations"
ONE_OPERATION = OPERATIONS + "/{operation_id}"
OVER = ",".join(sorted(OPERATION.final))


def _launch_work(request: RequestContext) -> Work[LaunchedInstance]:
    return request.work(lambda made: operation_view(request.caller, made.operation))


@route_in(PLACES, "GET", MEMBERS, RouteSpec("member", "list", "member.read", answer=Page[MemberView]))
async def list_members(request: RequestContext, instance_id: str, query: MemberQuery) -> Page[MemberView]:
    """List the members of an instance, including removed ones."""
    database, ref = request.services.database, at(request, instance_id)
    owner = require(await instances.find(database, request.acting, ref.project_id, ref.instance_id), "instance")
    distrust = distrust_of(owner.distrust)
    criteria = instances.InstanceFilter(None if query.status is None else query.status.value, query.component)
    window = page_window(query, "member")
    rows = await instances.page_members(database, request.acting, ref, criteria, window)
    bound = await instances.bindings(database, [each.allocation_id for each in rows if each.allocation_id])
    return page(
        rows,
        query,
        "member",
        lambda row: member_view(request.caller.authority, row, bound.get(row.allocation_id or ""), distrust),
    )


@route_in(PLACES, "GET", ONE_MEMBER, RouteSpec("member", "get", "member.read", answer=MemberView))
async def get_member(request: RequestContext, instance_id: str, member_id: str, query: WaitQuery) -> MemberView:
    """Read a member: its node, its version, its holds, and its health."""
    database, ref = request.services.database, at(request, instance_id)

    async def read() -> MemberView:
        row = require(await instances.find_member(database, request.acting, ref, member_id), "member")
        owner = require(await instances.find(database, request.acting, ref.project_id, ref.instance_id), "instance")
        bound = await instances.bindings(database, [row.allocation_id] if row.allocation_id else [])
        distrust = distrust_of(owner.distrust)
        return member_view(request.caller.authority, row, bound.get(row.allocation_id or ""), distrust)

    return await waited(request, query, member_id, read)


@route_in(
    PLACES, "POST", MEMBERS, RouteSpec("member", "add", "member.add", 202, OperationView, errors=(*CHANGED, *REFUSED))
)
async def add_members(request: RequestContext, instance_id: str, body: AddMembers) -> Answered:
    """Add members to a component; each gets an allocation before the adapter sees it."""
    ref, placement = at(request, instance_id), placement_spec(body.placement)
    return await members.add(_launch_work(request), ref, AddMembersRequest(body.component, body.count), placement)


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/drain",
    RouteSpec("member", "drain", "member.drain", 202, OperationView, errors=(*CHANGED, Code.LIMIT_REACHED)),
)
async def drain_member(request: RequestContext, instance_id: str, member_id: str, body: DrainMember) -> Answered:
    """Ask a member to finish its work and accept no more; it is drained once it is observed idle."""
    ref, work = at(request, instance_id), operation_work(request)
    return await members.drain(work, ref, member_id, timeout_seconds=body.timeout_seconds, reason=body.reason)


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/resume",
    RouteSpec("member", "resume", "member.drain", 200, MemberView, errors=(*CHANGED, *UNTRUSTED, Code.CONFLICT)),
)
async def resume_member(request: RequestContext, instance_id: str, member_id: str) -> Answered:
    """Put a member back to work; a hold of its adapter stays until the adapter drops it."""
    database, ref = request.services.database, at(request, instance_id)
    row = require(await instances.find_member(database, request.acting, ref, member_id), "member")
    bound = await instances.bindings(database, [row.allocation_id] if row.allocation_id else [])
    work: Work[Member] = request.work(
        lambda made: member_view(request.caller.authority, made, bound.get(made.allocation_id or ""))
    )
    return await members.resume(work, ref, member_id)


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/remove",
    RouteSpec("member", "remove", "member.remove", 202, OperationView, errors=CHANGED),
)
async def remove_member(request: RequestContext, instance_id: str, member_id: str, body: RemoveMember) -> Answered:
    """Remove a member: its work may finish within a time limit, then it is torn down and verified."""
    removal = RemoveMemberRequest(body.timeout_seconds, body.force, body.keep_allocation)
    return await members.remove(operation_work(request), at(request, instance_id), member_id, removal)


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/replace",
    RouteSpec("member", "replace", "member.replace", 202, OperationView, errors=(*CHANGED, *REFUSED)),
)
async def replace_member(request: RequestContext, instance_id: str, member_id: str, body: ReplaceMember) -> Answered:
    """Replace a member by a new one; with `surge` the new one joins before the old one leaves."""
    replacement, placement = ReplaceMemberRequest(body.surge, body.timeout_seconds), placement_spec(body.placement)
    return await members.replace(_launch_work(request), at(request, instance_id), member_id, replacement, placement)


@route_in(PLACES, "GET", OPERATIONS, RouteSpec("operation", "list", "operation.read", answer=Page[OperationView]))
async def list_operations(request: RequestContext, instance_id: str, query: OperationQuery) -> Page[OperationView]:
    """List the operations of an instance, newest first, without read-only actions."""
    database, ref = request.services.database, at(request, instance_id)
    require(await instances.find(database, request.acting, ref.project_id, ref.instance_id), "instance")
    criteria = instances.InstanceFilter(
        None if query.status is None else query.status.value, None if query.kind is None else query.kind.value
    )
    window = page_window(query, "operation", AFTER_ALL)
    rows = await instances.page_operations(database, request.acting, ref, criteria, window)
    return page(rows, query, "operation", lambda row: operation_view(request.caller, row))


@route_in(
    (Scope.TENANT,),
    "GET",
    "/operations",
    RouteSpec("operation", "list", "operation.read", answer=Page[OperationView]),
)
async def list_tenant_operations(request: RequestContext, query: TenantOperationQuery) -> Page[OperationView]:
    """List the operations in all projects of a tenant, newest first, without read-only actions."""
    criteria = instances.InstanceFilter(
        None if query.status is None else query.status.value,
        None if query.kind is None else query.kind.value,
        open_only=query.open,
    )
    window = page_window(query, "tenant_operation", AFTER_ALL)
    rows = await instances.page_operations_of_tenant(
        request.services.database, request.acting, str(request.place.tenant_id), criteria, window
    )
    return page(rows, query, "tenant_operation", lambda row: operation_view(request.caller, row))


@route_in(PLACES, "GET", ONE_OPERATION, RouteSpec("operation", "get", "operation.read", answer=OperationView))
async def get_operation(
    request: RequestContext, instance_id: str, operation_id: str, query: WaitQuery
) -> OperationView:
    """Read an operation: its steps, its blocker, its deadline, its outcome and the evidence."""
    view = await _operation(request, instance_id, operation_id)
    if view.read_only:
        seconds = query.wait if query.until or query.changed_from else 0
        return await wait_for_read_only(
            request, instance_id, seconds, lambda: _operation(request, instance_id, operation_id)
        )
    return await waited(request, query, operation_id, lambda: _operation(request, instance_id, operation_id))


@route_in(
    PLACES,
    "POST",
    ONE_OPERATION + "/cancel",
    RouteSpec("operation", "cancel", "operation.cancel", 202, OperationView, errors=CHANGED),
)
async def cancel_operation(
    request: RequestContext, instance_id: str, operation_id: str, body: CancelOperation
) -> Answered:
    """Ask an operation to end early; past the point of no return it may still succeed or fail."""
    return await commands.cancel(operation_work(request), at(request, instance_id), operation_id, body.reason)


@route_in(
    PLACES,
    "POST",
    ONE + "/actions/{action_name}",
    RouteSpec(
        "instance",
        "act",
        "instance.read",
        202,
        OperationView,
        errors=(*CHANGED, *UNTRUSTED, Code.LIMIT_REACHED),
        name="start_instance_action",
        family=True,
    ),
)
async def start_action(
    request: RequestContext, instance_id: str, action_name: str, body: StartAction, query: ActionQuery
) -> Response:
    """Ask the app's adapter for an action of its manifest.

    The caller needs the action's own key. With `wait` the response is 200 with the outcome if it is available in time;
    otherwise it is 202, and the caller reads the operation until it has ended.
    """
    answered = await app_action.start(
        operation_work(request), at(request, instance_id), action_name, body.input, body.member_id
    )
    headers = {"idempotency-replayed": "true"} if answered.replayed else {}
    view = msgspec.json.decode(answered.body, type=OperationView)
    if query.wait and view.status not in OPERATION.final:
        if view.read_only:
            view = await wait_for_read_only(
                request, instance_id, query.wait, lambda: _operation(request, instance_id, view.id)
            )
        else:
            wait_query = WaitQuery(wait=query.wait, until=OVER)
            view = await waited(request, wait_query, view.id, lambda: _operation(request, instance_id, view.id))
    return Response(200 if view.status in OPERATION.final else 202, encode_json(view), headers=headers)


async def _operation(request: RequestContext, instance_id: str, operation_id: str) -> OperationView:
    ref = at(request, instance_id)
    row = await instances.find_operation(request.services.database, request.acting, ref, operation_id)
    return operation_view(request.caller, require(row, "operation"))
