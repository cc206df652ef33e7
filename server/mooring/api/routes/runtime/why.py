"""Endpoints that explain: why an instance, a member or an operation is as it is, and who can do what about it."""

import re
from typing import Final

from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
from mooring.api.schemas.runtime.why import CausesView, why_view
from mooring.commands.kernel.lookup import found
from mooring.commands.runtime import instance as commands
from mooring.commands.runtime.instance import At
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.circuit_breaker import WINDOW, why_open
from mooring.core.runtime.instance import Instance, InstanceState
from mooring.core.runtime.why import Facts, why_instance, why_member, why_operation
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime import launch
from mooring.storage.runtime import why as whys

PLACE = (Scope.PROJECT,)
AT = "/app-instances/{instance_id}"
_SUBJECT: Final = re.compile("[a-z0-9_-]{3,60}")


@route_in(
    PLACE, "GET", f"{AT}/why", Declared("why", "get", "instance.read", name="explain_instance", answer=CausesView)
)
async def explain_instance(call: Call, instance_id: str) -> CausesView:
    """Say why an instance is as it is: the chain of causes, and the one next step."""
    return await _instance(call, instance_id)


@route_in(
    PLACE,
    "GET",
    f"{AT}/members/{{member_id}}/why",
    Declared("why", "get", "member.read", name="explain_member", answer=CausesView),
)
async def explain_member(call: Call, instance_id: str, member_id: str) -> CausesView:
    """Say why a member is as it is: the chain of causes, and the one next step."""
    return await _member(call, instance_id, member_id)


@route_in(
    PLACE,
    "GET",
    f"{AT}/operations/{{operation_id}}/why",
    Declared("why", "get", "operation.read", name="explain_operation", answer=CausesView),
)
async def explain_operation(call: Call, instance_id: str, operation_id: str) -> CausesView:
    """Say why an operation is as it is: the chain of causes, and the one next step."""
    return await _operation(call, instance_id, operation_id)


@route_in(
    PLACE,
    "GET",
    "/why/{subject}",
    Declared("why", "find", "instance.read", name="explain_anything", answer=CausesView, family=True),
)
async def explain_anything(call: Call, subject: str) -> CausesView:
    """Say why an instance, a member or an operation is as it is, by its id, the beginning of its id, or its name."""
    project_id = call.place.project_id or ""
    meant: list[whys.Named] = []
    if _SUBJECT.fullmatch(subject):
        meant = await whys.named(call.services.database, call.acting, project_id, subject)
    if len(meant) > 1:
        raise invalid("subject", f"it stands for {', '.join(each.id for each in meant)}: say more of it")
    one = found(next(iter(meant), None), "instance, member or operation")
    at, authority = At(project_id, one.instance_id), call.caller.authority
    await commands.find(call.services, call.acting, authority, at)
    needed = f"{one.noun}.read"
    if one.noun != "instance" and needed not in authority.at(call.place):
        raise Refusal(Code.PERMISSION_DENIED, f"{needed} is not allowed to this caller here", {"action": needed})
    if one.noun == "member":
        return await _member(call, one.instance_id, one.id)
    if one.noun == "operation":
        return await _operation(call, one.instance_id, one.id)
    return await _instance(call, one.instance_id)


async def _instance(call: Call, instance_id: str) -> CausesView:
    at = At(call.place.project_id or "", instance_id)
    await commands.find(call.services, call.acting, call.caller.authority, at)  # a part of them may be his to see
    return why_view(why_instance(await _facts(call, instance_id)))


async def _member(call: Call, instance_id: str, member_id: str) -> CausesView:
    facts = await _facts(call, instance_id)
    place = (call.place.project_id or "", instance_id)
    member = found(await instances.find_member(call.services.database, call.acting, place, member_id), "member")
    return why_view(why_member(facts, member))


async def _operation(call: Call, instance_id: str, operation_id: str) -> CausesView:
    facts = await _facts(call, instance_id)
    place = (call.place.project_id or "", instance_id)
    operation = await instances.find_operation(call.services.database, call.acting, place, operation_id)
    return why_view(why_operation(facts, found(operation, "operation")))


async def _facts(call: Call, instance_id: str) -> Facts:
    database = call.services.database
    instance = found(await instances.find(database, call.acting, call.place.project_id or "", instance_id), "instance")
    return found(await whys.facts(database, instance, call.context.now, await _circuit(call, instance)), "instance")


async def _circuit(call: Call, instance: Instance) -> str | None:
    """Why no launch of its version is begun now, which matters where it failed."""
    if instance.status != InstanceState.FAILED:
        return None
    asked = (instance.version_id, instance.bound_capacity_shape, call.context.now - WINDOW)
    deploys = await launch.deploys(call.services.database, instance.tenant_id, *asked)
    refusal = why_open(deploys, call.context.now)
    return None if refusal is None else refusal.detail
