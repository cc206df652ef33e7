"""The endpoint of members' logs."""

from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
from mooring.api.routes.runtime.instance import PLACES, at
from mooring.api.routes.runtime.member import ONE_MEMBER
from mooring.api.schemas.runtime.member_log import MemberLogQuery, MemberLogView, log_ask, member_log_view
from mooring.api.stream import require_still_allowed
from mooring.commands.kernel.work import Work
from mooring.commands.runtime import member_log as commands
from mooring.core.fleet.task import Task
from mooring.core.kernel.errors import Code


@route_in(
    PLACES,
    "GET",
    ONE_MEMBER + "/log",
    Declared(
        "member", "log", "task.read", answer=MemberLogView,
        errors=(Code.CONFLICT, Code.NOT_SUPPORTED, Code.TEMPORARILY_UNAVAILABLE),
    ),
)  # fmt: skip
async def get_member_log(call: Call, instance_id: str, member_id: str, query: MemberLogQuery) -> MemberLogView:
    """Read what a service or a container of a member wrote: its last lines, or what follows on an offset.

    The node is asked, which takes a moment; with `wait` the answer comes as soon as there is more. When the node cannot
    be asked, `details.last_lines` of the error are the last lines that are known.
    """
    wanted = log_ask(query)
    work: Work[Task] = call.work(lambda made: None)
    about = await commands.choose(work, at(call, instance_id).place, member_id, query.service)
    call.tools.log_reads.take(about[0].id)
    read = await commands.read(work, about, wanted, call.tools.logs, lambda: require_still_allowed(call))
    return member_log_view(about[0].id, about[2], read)
