"""Endpoints that explain why an instance, a member or an operation is in its state, and who can do what about it."""

import re
from dataclasses import replace
from typing import Final

from mooring.api.category_access import require_instance_category
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.runtime.why import CausesView, why_view
from mooring.commands.kernel.lookup import require
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.instance import Instance, InstanceRef, InstanceState
from mooring.core.runtime.instance_trust import distrust_of
from mooring.core.runtime.launch_history import WINDOW, why_open
from mooring.core.runtime.why import WhyFacts, why_instance, why_member, why_operation
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime import launch
from mooring.storage.runtime import why as whys

PLACE = (Scope.PROJECT,)
AT = "/app-instances/{instance_id}"
_SUBJECT: Final = re.compile("[a-z0-9_-]{3,60}")


@route_in(
    PLACE, "GET", f"{AT}/why", RouteSpec("why", "get", "instance.read", name="explain_instance", answer=CausesView)
)
async def explain_instance(request: RequestContext, instance_id: str) -> CausesView:
    """Explain why an instance is in its state: the chain of causes, and the one next step."""
    return await _instance(request, instance_id)


@route_in(
    PLACE,
    "GET",
    f"{AT}/members/{{member_id}}/why",
    RouteSpec("why", "get", "member.read", name="explain_member", answer=CausesView),
)
async def explain_member(request: RequestContext, instance_id: str, member_id: str) -> CausesView:
    """Explain why a member is in its state: the chain of causes, and the one next step."""
    return await _member(request, instance_id, member_id)


@route_in(
    PLACE,
    "GET",
    f"{AT}/operations/{{operation_id}}/why",
    RouteSpec("why", "get", "operation.read", name="explain_operation", answer=CausesView),
)
async def explain_operation(request: RequestContext, instance_id: str, operation_id: str) -> CausesView:
    """Explain why an operation is in its state: the chain of causes, and the one next step."""
    return await _operation(request, instance_id, operation_id)


@route_in(
    PLACE,
    "GET",
    "/why/{subject}",
    RouteSpec(
        "why",
        "find",
        "instance.read",
        name="explain_anything",
        answer=CausesView,
        family=True,
        also=("member.read", "operation.read"),
    ),
)
async def explain_anything(request: RequestContext, subject: str) -> CausesView:
    """Explain an instance, a member or an operation by its id, the beginning of its id, or its name."""
    project_id = request.place.project_id or ""
    subjects: list[whys.ExplainableSubject] = []
    if _SUBJECT.fullmatch(subject):
        subjects = await whys.named(request.services.database, request.acting, project_id, subject)
    if len(subjects) > 1:
        raise invalid(
            "subject", f"ambiguous: it matches {', '.join(each.id for each in subjects)}; give more of the id"
        )
    found = require(next(iter(subjects), None), "instance, member or operation")
    await require_instance_category(request, found.instance_id)
    if found.noun != "instance":
        request.require_also(f"{found.noun}.read")
    if found.noun == "member":
        return await _member(request, found.instance_id, found.id)
    if found.noun == "operation":
        return await _operation(request, found.instance_id, found.id)
    return await _instance(request, found.instance_id)


async def _instance(request: RequestContext, instance_id: str) -> CausesView:
    return why_view(why_instance(await _facts(request, instance_id)))


async def _member(request: RequestContext, instance_id: str, member_id: str) -> CausesView:
    facts = await _facts(request, instance_id)
    ref = InstanceRef(request.place.project_id or "", instance_id)
    member = require(await instances.find_member(request.services.database, request.acting, ref, member_id), "member")
    return why_view(why_member(facts, member))


async def _operation(request: RequestContext, instance_id: str, operation_id: str) -> CausesView:
    facts = await _facts(request, instance_id)
    ref = InstanceRef(request.place.project_id or "", instance_id)
    operation = await instances.find_operation(request.services.database, request.acting, ref, operation_id)
    return why_view(why_operation(facts, require(operation, "operation")))


async def _facts(request: RequestContext, instance_id: str) -> WhyFacts:
    database = request.services.database
    instance = require(
        await instances.find(database, request.acting, request.place.project_id or "", instance_id), "instance"
    )
    facts = require(
        await whys.facts(database, instance, request.context.now, await _circuit(request, instance)), "instance"
    )
    return replace(facts, distrusted_by=await _distrusted_by(request, instance))


async def _distrusted_by(request: RequestContext, instance: Instance) -> str | None:
    """Who withdrew the trust in its first untrusted artifact; of another owner's people only the owner is named."""
    distrust = distrust_of(instance.distrust)
    if distrust is None or distrust.artifacts[0].artifact_id is None:
        return None
    first, database = distrust.artifacts[0], request.services.database
    artifact = await artifacts.find(database, request.acting, instance.project_id, first.artifact_id or "")
    if artifact is None:
        return None
    steps = [each for each in await artifacts.history(database, request.acting, artifact) if each.machine == "trust"]
    if not steps or steps[-1].target != first.trust:
        return None  # it follows from a key, a source or a policy, which nobody concluded about this artifact yet
    return steps[-1].actor_id or f"the {first.owner}"


async def _circuit(request: RequestContext, instance: Instance) -> str | None:
    """Why the circuit breaker forbids launches of its version now, which matters if its launch failed."""
    if instance.status != InstanceState.FAILED:
        return None
    arguments = (instance.version_id, instance.bound_capacity_shape, request.context.now - WINDOW)
    deploys = await launch.deploys(request.services.database, instance.tenant_id, *arguments)
    refusal = why_open(deploys, request.context.now)
    return None if refusal is None else refusal.detail
