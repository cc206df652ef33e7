"""Endpoints that return the state of an instance at a point in time, and its history of transitions."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.records.replay import (
    InstanceReplayView,
    ReplayQuery,
    TransitionView,
    replay_view,
    transition_view,
)
from mooring.commands.kernel.lookup import require
from mooring.core.kernel.permissions import Scope
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.instance import Instance
from mooring.storage.records import replay as replays
from mooring.storage.runtime import instance as instances

PLACE = (Scope.PROJECT,)
AT = "/app-instances/{instance_id}"
TRANSITIONS = "instance_transitions"


@route_in(
    PLACE,
    "GET",
    f"{AT}/replay",
    RouteSpec("replay", "get", "event.read", name="replay_instance", answer=InstanceReplayView),
)
async def replay_instance(request: RequestContext, instance_id: str, query: ReplayQuery) -> InstanceReplayView:
    """Read an instance, its members and operations as they were at a moment, from the log of transitions.

    The times are those of the decisions. `previous_at` and `next_at` are the neighbouring moments, to step through.
    """
    instance = await _instance(request, instance_id)
    at = query.at or request.context.now
    found = await replays.replay(request.services.database, request.acting, instance_id, at)
    if found is None:
        raise invalid("at", f"a time that is not before the instance's creation, {instance.created_at.isoformat()}")
    return replay_view(found)


@route_in(
    PLACE,
    "GET",
    f"{AT}/transitions",
    RouteSpec("replay", "list", "event.read", name="list_instance_transitions", answer=Page[TransitionView]),
)
async def list_instance_transitions(
    request: RequestContext, instance_id: str, query: PageQuery
) -> Page[TransitionView]:
    """List every transition of an instance, its members and operations, oldest first."""
    await _instance(request, instance_id)
    window = page_window(query, TRANSITIONS)
    found = await replays.transitions(request.services.database, request.acting, instance_id, window)
    return page(found, query, TRANSITIONS, transition_view)


async def _instance(request: RequestContext, instance_id: str) -> Instance:
    project_id = request.place.project_id or ""
    return require(await instances.find(request.services.database, request.acting, project_id, instance_id), "instance")
