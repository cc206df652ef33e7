"""The query and the view of the endpoint for members' logs."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict
from mooring.core.fleet.task_schema import LOG_BYTES_MAX, NAME_PATTERN
from mooring.core.runtime.member_log import (
    LIMIT_BYTES,
    WAIT_SECONDS_MAX,
    LogPart,
    LogReadRequest,
    MemberProgram,
    check_request,
)


class MemberLogQuery(Strict):
    """Which log, and which part of it."""

    service: (
        Annotated[
            str, Meta(pattern=NAME_PATTERN, description="The service or container; required if there are several.")
        ]
        | None
    ) = None
    offset: (
        Annotated[int, Meta(ge=0, le=2**53, description="Where to start; without it, the last lines are read.")] | None
    ) = None
    tail: Annotated[int, Meta(ge=1, le=10_000, description="How many of the last lines.")] | None = None
    limit: Annotated[int, Meta(ge=1_024, le=LOG_BYTES_MAX, description="Most bytes.")] = LIMIT_BYTES
    wait: Annotated[
        float, Meta(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for more if nothing follows yet.")
    ] = 0
    log: Annotated[
        str,
        Meta(max_length=32, pattern="^[0-9a-z]*$", description="The `log` that was returned together with the offset."),
    ] = ""


class MemberLogView(Shown):
    """A part of a log; continue from `next_offset` with the same `log`."""

    member_id: str
    service: str
    kind: str
    offset: int
    next_offset: int
    size: int
    text: str
    truncated_before: bool
    dropped_bytes: int | None
    log: str


def log_request(query: MemberLogQuery) -> LogReadRequest:
    return check_request(LogReadRequest(query.offset, query.tail, query.limit, query.wait, query.log))


def member_log_view(member_id: str, program: MemberProgram, read: LogPart) -> MemberLogView:
    """The part that was read, as text."""
    return MemberLogView(
        member_id=member_id,
        service=program.name,
        kind=program.kind,
        offset=read.offset,
        next_offset=read.next_offset,
        size=read.size,
        text=read.content.decode(errors="replace"),
        truncated_before=read.truncated_before,
        dropped_bytes=read.dropped_bytes,
        log=read.log,
    )
