"""The endpoints for the log of a whole instance: merged, searched, and exported."""

from collections.abc import AsyncIterator

from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import StreamingResponse
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.runtime.instance import ONE, PLACES, at
from mooring.api.schemas.runtime.instance_log import (
    InstanceLogQuery,
    InstanceLogView,
    LogExportQuery,
    filter_of,
    gap_view,
    instance_log_view,
    line_view,
    log_request,
    members_of,
    unread_view,
)
from mooring.api.stream import require_room, require_still_allowed
from mooring.commands.kernel.work import Work
from mooring.commands.runtime.instance_log import InstanceLogRequest, LogGap, LogReading, UnreadLog
from mooring.core.fleet.task import Task
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.instance_log import LogLine

Exported = list[LogLine] | LogGap | UnreadLog
MEDIA = {"text": "text/plain; charset=utf-8", "ndjson": "application/x-ndjson"}


@route_in(
    PLACES,
    "GET",
    ONE + "/log",
    RouteSpec("instance", "log", "task.read", answer=InstanceLogView, errors=(Code.CURSOR_INVALID,)),
)
async def get_instance_log(request: RequestContext, instance_id: str, query: InstanceLogQuery) -> InstanceLogView:
    """Read the logs of all members of an instance as one, by the times that their lines begin with.

    Without a cursor these are the last lines of each program; with `grep`, the first ones that match. A search stops
    after a bounded time and number of bytes: go on with `next_cursor` until `at_end`.
    """
    return instance_log_view(await _reading(request, instance_id).read(log_request(query)))


@route_in(
    PLACES,
    "GET",
    ONE + "/log/export",
    RouteSpec(
        "instance",
        "log_export",
        "task.read",
        media_type="text/plain",
        other_media_type="application/x-ndjson",
        unlimited=True,
    ),
)
async def export_instance_log(request: RequestContext, instance_id: str, query: LogExportQuery) -> StreamingResponse:
    """Download everything that the nodes store of an instance's logs, program by program, as text or as NDJSON."""
    require_room(request)
    exported = InstanceLogRequest(members_of(query), query.service, lines=filter_of(query))
    name = f'attachment; filename="{instance_id}.{"log" if query.format == "text" else "ndjson"}"'
    reading = _reading(request, instance_id)
    found = reading.export(exported, await reading.open(exported))
    pieces = _exported(request, found, as_text=query.format == "text")
    return StreamingResponse(pieces, MEDIA[query.format], {"content-disposition": name})


def _reading(request: RequestContext, instance_id: str) -> LogReading:
    work: Work[Task] = request.work(lambda made: None)
    tools = request.tools
    return LogReading(
        work, at(request, instance_id), tools.logs, lambda: require_still_allowed(request), tools.log_reads.take
    )


async def _exported(request: RequestContext, found: AsyncIterator[Exported], *, as_text: bool) -> AsyncIterator[bytes]:
    """The pieces of an export. It counts as an open stream of the caller; a refusal in the middle is its last line."""
    streams, caller = request.tools.streams, request.caller.actor.id
    streams[caller] = streams.get(caller, 0) + 1
    try:
        async for piece in found:
            if isinstance(piece, LogGap):
                text = f"[{piece.source.member.name}: {piece.dropped_bytes or 'some'} bytes are no longer stored]\n"
                yield text.encode() if as_text else _json({"gap": gap_view(piece)})
            elif isinstance(piece, UnreadLog):
                text = f"[{piece.member.name}: {piece.refusal.detail}]\n"
                yield text.encode() if as_text else _json({"unread": unread_view(piece)})
            elif as_text:
                yield "".join(f"{each.source.member.name} | {each.text}\n" for each in piece).encode()
            else:
                yield b"".join(_json(line_view(each)) for each in piece)
    except Refusal as refusal:
        yield f"[the export ends: {refusal.detail}]\n".encode() if as_text else _json({"ended": refusal.detail})
    finally:
        streams[caller] -= 1
        if streams[caller] <= 0:
            del streams[caller]


def _json(value: object) -> bytes:
    return encode_json(value) + b"\n"
