"""The queries and the views of the log of a whole instance."""

from typing import Annotated, Literal

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.commands.runtime.instance_log import InstanceLog, InstanceLogRequest, LogGap, UnreadLog
from mooring.core.fleet.task_schema import NAME_PATTERN
from mooring.core.kernel.safe_regex import PATTERN_LENGTH_MAX
from mooring.core.runtime.instance_log import PROGRAMS_MAX, LineFilter, LogLine
from mooring.core.runtime.member_log import WAIT_SECONDS_MAX

GREP_MAX = PATTERN_LENGTH_MAX - 20


class LogSearchQuery(Strict, kw_only=True):
    """Which lines of which programs."""

    member: Annotated[
        str,
        Meta(
            pattern=r"^(mem_[0-9a-z]{26}(,mem_[0-9a-z]{26}){0,11})?$",
            description="Ids of members, with commas; else all.",
        ),
    ] = ""
    service: Annotated[str, Meta(pattern=NAME_PATTERN, description="Only this service or container.")] | None = None
    grep: Annotated[str, Meta(max_length=GREP_MAX, description="Only lines that contain this text.")] = ""
    regex: Annotated[bool, Meta(description="Whether `grep` is a regular expression, of the safe subset.")] = False
    ignore_case: Annotated[bool, Meta(description="Whether capitals do not matter; of text, not of a pattern.")] = False


class InstanceLogQuery(LogSearchQuery, kw_only=True):
    """Where to begin, and how long to wait."""

    tail: Annotated[int, Meta(ge=1, le=2_000, description="How many of the last lines of each program.")] = 100
    cursor: Annotated[str, Meta(max_length=3_000, pattern="^[A-Za-z0-9_-]*$", description="`next_cursor`.")] = ""
    wait: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX, description="Seconds to wait for the first line.")] = 0


class LogExportQuery(LogSearchQuery, kw_only=True):
    """In which form."""

    format: Annotated[Literal["text", "ndjson"], Meta(description="Lines of text, or of JSON.")] = "text"


class LogLineView(Shown):
    """A line of one program; `at` is the time that it or a line before it begins with."""

    member_id: str
    member: str
    service: str
    offset: int
    at: Time | None
    text: str
    ends: Annotated[
        bool, Meta(description="Whether the line is complete; otherwise the program's next one continues it.")
    ]


class LogGapView(Shown):
    """Output before the lines of a program that is not shown, or no longer stored."""

    member_id: str
    member: str
    service: str
    bytes: int | None


class UnreadLogView(Shown):
    """A member whose log cannot be read now, and its last known lines."""

    member_id: str
    member: str
    code: str
    detail: str
    last_lines: list[str]


class InstanceLogView(Shown):
    """Lines of all programs, merged; continue with `next_cursor`."""

    items: list[LogLineView]
    next_cursor: str
    at_end: Annotated[bool, Meta(description="Whether everything that is written now was read.")]
    gaps: list[LogGapView]
    unread: list[UnreadLogView]
    scanned_bytes: int


def filter_of(query: LogSearchQuery) -> LineFilter:
    return LineFilter(query.grep, is_pattern=query.regex and bool(query.grep), ignores_case=query.ignore_case)


def members_of(query: LogSearchQuery) -> tuple[str, ...]:
    return tuple(query.member.split(",")[:PROGRAMS_MAX]) if query.member else ()


def log_request(query: InstanceLogQuery) -> InstanceLogRequest:
    return InstanceLogRequest(
        members_of(query), query.service, query.cursor or None, query.tail, query.wait, filter_of(query)
    )


def line_view(line: LogLine) -> LogLineView:
    source = line.source
    return LogLineView(
        member_id=source.member.id,
        member=source.member.name,
        service=source.program.name,
        offset=line.offset,
        at=line.at,
        text=line.text,
        ends=line.ends,
    )


def gap_view(gap: LogGap) -> LogGapView:
    member, program = gap.source.member, gap.source.program
    return LogGapView(member_id=member.id, member=member.name, service=program.name, bytes=gap.dropped_bytes)


def unread_view(unread: UnreadLog) -> UnreadLogView:
    lines = unread.refusal.details.get("last_lines", [])
    return UnreadLogView(
        member_id=unread.member.id,
        member=unread.member.name,
        code=unread.refusal.code.value,
        detail=unread.refusal.detail,
        last_lines=[str(each) for each in lines] if isinstance(lines, list) else [],
    )


def instance_log_view(log: InstanceLog) -> InstanceLogView:
    return InstanceLogView(
        items=[line_view(each) for each in log.lines],
        next_cursor=log.cursor,
        at_end=log.at_end,
        gaps=[gap_view(each) for each in log.gaps],
        unread=[unread_view(each) for each in log.unread],
        scanned_bytes=log.scanned_bytes,
    )
