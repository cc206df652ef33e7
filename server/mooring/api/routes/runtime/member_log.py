"""The endpoint for reading members' logs."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.runtime.instance import PLACES, at
from mooring.api.routes.runtime.member import ONE_MEMBER
from mooring.api.schemas.runtime.member_log import MemberLogQuery, MemberLogView, log_request, member_log_view
from mooring.api.stream import require_still_allowed
from mooring.commands.kernel.work import Work
from mooring.commands.runtime import member_log as commands
from mooring.core.fleet.task import Task
from mooring.core.kernel.errors import Code


@route_in(
    PLACES,
    "GET",
    ONE_MEMBER + "/log",
    RouteSpec(
        "member",
        "log",
        "task.read",
        answer=MemberLogView,
        errors=(Code.CONFLICT, Code.NOT_SUPPORTED, Code.TEMPORARILY_UNAVAILABLE),
    ),
)
async def get_member_log(
    request: RequestContext, instance_id: str, member_id: str, query: MemberLogQuery
) -> MemberLogView:
    """Read the log of a service or a container of a member: its last lines, or what follows an offset.

    The node is asked, which takes a moment; with `wait` the response comes as soon as there is more. If the node cannot
    be asked, `details.last_lines` of the error has the last known lines.
    """
    read_request = log_request(query)
    work: Work[Task] = request.work(lambda made: None)
    target = await commands.choose(work, at(request, instance_id), member_id, query.service)
    request.tools.log_reads.take(target.member.id)
    part = await commands.read(work, target, read_request, request.tools.logs, lambda: require_still_allowed(request))
    return member_log_view(target.member.id, target.program, part)
