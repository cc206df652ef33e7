"""Endpoints of members, operations and app actions of an instance."""

import msgspec

from mooring.api.page import Page, page, start
from mooring.api.request_context import Call, encode_json
from mooring.api.response import Reply
from mooring.api.route import Declared, route_in
from mooring.api.routes.runtime.instance import CHANGED, ONE, PLACES, REFUSED, at, doing
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
)
from mooring.api.schemas.runtime.instance_view import member_view, operation_view
from mooring.api.schemas.runtime.launch import placement_wish
from mooring.api.wait import WaitQuery, quietly_over, waited
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import app_action
from mooring.commands.runtime import instance as commands
from mooring.commands.runtime import member as members
from mooring.core.kernel.errors import Code
from mooring.core.runtime.instance_launch import Launched
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_change import AddWish, RemoveWish, ReplaceWish
from mooring.core.runtime.operation import OPERATION
from mooring.storage.runtime import instance as instances

MEMBERS = ONE + "/members"
ONE_MEMBER = MEMBERS + "/{member_id}"
OPERATIONS = ONE + "/operations"
ONE_OPERATION = OPERATIONS + "/{operation_id}"
OVER = ",".join(sorted(OPERATION.final))
AFTER_ALL = "~"
"""Sorts after every id: operations are listed from the newest on."""


def _launching(call: Call) -> Work[Launched]:
    return call.work(lambda made: operation_view(call.caller, made.operation))


@route_in(PLACES, "GET", MEMBERS, Declared("member", "list", "member.read", answer=Page[MemberView]))
async def list_members(call: Call, instance_id: str, query: MemberQuery) -> Page[MemberView]:
    """List the members of an instance, those that were removed among them."""
    database, where = call.services.database, at(call, instance_id)
    found(await instances.find(database, call.acting, *where.place), "instance")
    wanted = instances.Filter(None if query.status is None else query.status.value, query.component)
    window = (start(query, "member"), query.limit + 1)
    rows = await instances.page_members(database, call.acting, where.place, wanted, window)
    bound = await instances.bindings(database, [each.allocation_id for each in rows if each.allocation_id])
    return page(
        rows, query, "member", lambda row: member_view(call.caller.authority, row, bound.get(row.allocation_id or ""))
    )


@route_in(PLACES, "GET", ONE_MEMBER, Declared("member", "get", "member.read", answer=MemberView))
async def get_member(call: Call, instance_id: str, member_id: str, query: WaitQuery) -> MemberView:
    """Read a member: where it is, which version it runs, who holds it, and how it does."""
    database, where = call.services.database, at(call, instance_id)

    async def read() -> MemberView:
        row = found(await instances.find_member(database, call.acting, where.place, member_id), "member")
        bound = await instances.bindings(database, [row.allocation_id] if row.allocation_id else [])
        return member_view(call.caller.authority, row, bound.get(row.allocation_id or ""))

    return await waited(call, query, member_id, read)


@route_in(
    PLACES, "POST", MEMBERS, Declared("member", "add", "member.add", 202, OperationView, errors=(*CHANGED, *REFUSED))
)  # fmt: skip
async def add_members(call: Call, instance_id: str, body: AddMembers) -> Answered:
    """Add members of a component; each is bound to a place before the adapter sees it."""
    wish = AddWish(body.component, body.count)
    return await members.add(_launching(call), at(call, instance_id), wish, placement_wish(body.placement))


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/drain",
    Declared("member", "drain", "member.drain", 202, OperationView, errors=(*CHANGED, Code.LIMIT_REACHED)),
)
async def drain_member(call: Call, instance_id: str, member_id: str, body: DrainMember) -> Answered:
    """Ask a member to finish its work and take no more; drained is what is observed to be quiet."""
    asked = (body.timeout_seconds, body.reason)
    return await members.drain(doing(call), at(call, instance_id), member_id, asked)


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/resume",
    Declared("member", "resume", "member.drain", 200, MemberView, errors=(*CHANGED, Code.CONFLICT)),
)
async def resume_member(call: Call, instance_id: str, member_id: str) -> Answered:
    """Put a member back to work; a hold of its adapter's stays until the adapter lets go."""
    database, where = call.services.database, at(call, instance_id)
    row = found(await instances.find_member(database, call.acting, where.place, member_id), "member")
    bound = await instances.bindings(database, [row.allocation_id] if row.allocation_id else [])
    work: Work[Member] = call.work(
        lambda made: member_view(call.caller.authority, made, bound.get(made.allocation_id or ""))
    )
    return await members.resume(work, where, member_id)


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/remove",
    Declared("member", "remove", "member.remove", 202, OperationView, errors=CHANGED),
)
async def remove_member(call: Call, instance_id: str, member_id: str, body: RemoveMember) -> Answered:
    """Take a member out: its work finishes within a bound, then it is torn down, and looked for."""
    wish = RemoveWish(body.timeout_seconds, body.force, body.keep_allocation)
    return await members.remove(doing(call), at(call, instance_id), member_id, wish)


@route_in(
    PLACES,
    "POST",
    ONE_MEMBER + "/replace",
    Declared("member", "replace", "member.replace", 202, OperationView, errors=(*CHANGED, *REFUSED)),
)
async def replace_member(call: Call, instance_id: str, member_id: str, body: ReplaceMember) -> Answered:
    """Put a new member in place of one; with `surge` it joins before the old one goes."""
    wish, placement = ReplaceWish(body.surge, body.timeout_seconds), placement_wish(body.placement)
    return await members.exchange(_launching(call), at(call, instance_id), member_id, wish, placement)


@route_in(PLACES, "GET", OPERATIONS, Declared("operation", "list", "operation.read", answer=Page[OperationView]))
async def list_operations(call: Call, instance_id: str, query: OperationQuery) -> Page[OperationView]:
    """List the operations of an instance, the newest first; actions that only read are not among them."""
    database, where = call.services.database, at(call, instance_id)
    found(await instances.find(database, call.acting, *where.place), "instance")
    wanted = instances.Filter(
        None if query.status is None else query.status.value, None if query.kind is None else query.kind.value
    )
    window = (start(query, "operation", AFTER_ALL), query.limit + 1)
    rows = await instances.page_operations(database, call.acting, where.place, wanted, window)
    return page(rows, query, "operation", lambda row: operation_view(call.caller, row))


@route_in(PLACES, "GET", ONE_OPERATION, Declared("operation", "get", "operation.read", answer=OperationView))
async def get_operation(call: Call, instance_id: str, operation_id: str, query: WaitQuery) -> OperationView:
    """Read an operation: its steps, its blocker, its deadline, its outcome and the evidence."""
    view = await _operation(call, instance_id, operation_id)
    if view.read_only:
        seconds = query.wait if query.until or query.changed_from else 0
        return await quietly_over(call, instance_id, seconds, lambda: _operation(call, instance_id, operation_id))
    return await waited(call, query, operation_id, lambda: _operation(call, instance_id, operation_id))


@route_in(
    PLACES,
    "POST",
    ONE_OPERATION + "/cancel",
    Declared("operation", "cancel", "operation.cancel", 202, OperationView, errors=CHANGED),
)
async def cancel_operation(call: Call, instance_id: str, operation_id: str, body: CancelOperation) -> Answered:
    """Ask an operation to end early; what is past stopping may still succeed or fail."""
    return await commands.cancel(doing(call), at(call, instance_id), operation_id, body.reason)


@route_in(
    PLACES,
    "POST",
    ONE + "/actions/{action_name}",
    Declared(
        "instance",
        "act",
        "instance.read",
        202,
        OperationView,
        errors=(*CHANGED, Code.LIMIT_REACHED),
        name="start_instance_action",
        family=True,
    ),
)
async def start_action(call: Call, instance_id: str, action_name: str, body: StartAction, query: ActionQuery) -> Reply:
    """Ask the app's adapter for an action of its manifest.

    Who may is said by the action's own key. With `wait` the answer is 200 and has the outcome if it is there in time;
    otherwise it is 202, and the operation is read until it is over.
    """
    answered = await app_action.start(doing(call), at(call, instance_id), action_name, body.input, body.member_id)
    headers = {"idempotency-replayed": "true"} if answered.replayed else {}
    view = msgspec.json.decode(answered.body, type=OperationView)
    if query.wait and view.status not in OPERATION.final:
        if view.read_only:
            view = await quietly_over(
                call, instance_id, query.wait, lambda: _operation(call, instance_id, view.id)
            )  # fmt: skip
        else:
            asked = WaitQuery(wait=query.wait, until=OVER)
            view = await waited(call, asked, view.id, lambda: _operation(call, instance_id, view.id))
    return Reply(200 if view.status in OPERATION.final else 202, encode_json(view), headers=headers)


async def _operation(call: Call, instance_id: str, operation_id: str) -> OperationView:
    where = at(call, instance_id)
    row = await instances.find_operation(call.services.database, call.acting, where.place, operation_id)
    return operation_view(call.caller, found(row, "operation"))
