"""Reading the log of a whole instance: each program's next part, at once, filtered and merged."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Work
from mooring.commands.live.log_watch import LogWatch
from mooring.commands.runtime import member_log
from mooring.commands.runtime.member_log import LogTarget
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.instance_log import (
    PROGRAMS_MAX,
    LineFilter,
    LogLine,
    LogPlace,
    LogProgram,
    cursor_of,
    lines_of,
    merged,
    places_of,
)
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_log import LogReadRequest, known_programs
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime import member_log as logs

ROUND_WAIT_SECONDS: Final = 1.5
"""How long one program is waited for at its node while others may have output; then everything that came is shown."""
SEARCH_SECONDS: Final = 8.0
PART_BYTES: Final = 65_536
SEARCH_BYTES_MAX: Final = 4 * 1_048_576
LINES_MAX: Final = 10_000
ENDS_REQUEST: Final = frozenset({Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.CALLER_ADDRESS_DENIED})


@dataclass(frozen=True, slots=True)
class InstanceLogRequest:
    """Which lines: of these members and this program, from a cursor or the last ones, those that a filter takes."""

    members: Sequence[str] = ()
    service: str | None = None
    cursor: str | None = None
    tail: int = 100
    wait_seconds: float = 0.0
    lines: LineFilter = field(default_factory=LineFilter)


@dataclass(frozen=True, slots=True)
class LogGap:
    """What is missing before the lines of a program: output that is no longer stored."""

    source: LogProgram
    dropped_bytes: int | None


@dataclass(frozen=True, slots=True)
class UnreadLog:
    """A member whose log cannot be read now, why, and the last lines that the platform knows."""

    member: Member
    refusal: Refusal


@dataclass(slots=True)
class InstanceLog:
    """The lines that were read, and from where to go on."""

    lines: list[LogLine]
    cursor: str
    at_end: bool
    gaps: list[LogGap]
    unread: list[UnreadLog]
    scanned_bytes: int


@dataclass(slots=True)
class _Source:
    """One program's log while it is read."""

    target: LogTarget
    program: LogProgram
    place: LogPlace | None
    at_end: bool = False
    lines: list[LogLine] = field(default_factory=list)
    gap: LogGap | None = None
    refusal: Refusal | None = None
    scanned: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class OpenedLogs:
    """The programs of an export, and the members that have none."""

    sources: Sequence[_Source]
    unread: Sequence[UnreadLog]


@dataclass(frozen=True, slots=True)
class LogReading:
    """How the nodes are asked for one request."""

    work: Work[Any]
    ref: InstanceRef
    watch: LogWatch
    still_allowed: Callable[[], Awaitable[object]]
    take_rate: Callable[[str], object]

    async def read(self, request: InstanceLogRequest) -> InstanceLog:
        """The next lines of all programs; waits a while for some if there are none."""
        places = places_of(request.cursor) if request.cursor else {}
        sources, unread = await self._sources(request, places)
        started, wait = time.monotonic(), 0.0
        while True:
            await asyncio.gather(*(self._next(each, request, wait) for each in sources))
            readable = [each for each in sources if each.refusal is None]
            shown = sum(len(each.lines) for each in sources)
            scanned = sum(each.scanned for each in sources)
            if any(not each.at_end for each in readable):
                is_long = time.monotonic() - started > SEARCH_SECONDS or scanned >= SEARCH_BYTES_MAX
                if request.lines.is_spent and scanned == 0:
                    raise invalid("grep", "matching it costs too much; use a simpler pattern")
                if shown >= LINES_MAX or is_long or request.lines.is_spent or not request.lines.text:
                    break
                continue
            left = request.wait_seconds - (time.monotonic() - started)
            if shown or left <= 0 or not readable or self.work.services.hub.closed:
                break
            wait = left if len(readable) == 1 else min(left, ROUND_WAIT_SECONDS)
        return self._log(sources, unread, places)

    async def open(self, request: InstanceLogRequest) -> OpenedLogs:
        """The programs of which everything is to be read."""
        return OpenedLogs(*await self._sources(request, {}))

    async def export(
        self, request: InstanceLogRequest, opened: OpenedLogs
    ) -> AsyncIterator[list[LogLine] | LogGap | UnreadLog]:
        """Everything that is stored, one program after the other, as far as it was written when its turn came."""
        sources = opened.sources
        for each in opened.unread:
            yield each
        for source in sources:
            source.place, end = LogPlace(0), 1
            while source.refusal is None and source.place.offset < end:
                before, is_first = source.place, source.scanned == 0
                await self._next(source, request, 0.0)
                if is_first:
                    end = source.size
                if source.gap is not None:
                    yield source.gap
                yield source.lines
                source.gap, source.lines = None, []
                if source.place == before:
                    break
            if source.refusal is not None:
                yield UnreadLog(source.target.member, source.refusal)

    async def _next(self, source: _Source, request: InstanceLogRequest, wait: float) -> None:
        """Read one program's next part, and keep the lines of it that are shown."""
        if source.refusal is not None or (wait == 0.0 and source.at_end):
            return
        place = source.place or (LogPlace(0) if request.lines.text else None)
        asked = LogReadRequest(tail=request.tail)
        if place is not None:
            asked = LogReadRequest(place.offset, None, PART_BYTES, wait, place.log)
        try:
            part = await member_log.read(self.work, source.target, asked, self.watch, self.still_allowed)
        except Refusal as refusal:
            if refusal.code in ENDS_REQUEST:
                raise
            source.refusal = refusal
            return
        lines = request.lines.of(lines_of(source.program, part))
        if lines is None:
            source.place = place
            return
        source.lines += lines
        source.scanned += len(part.content)
        source.size = part.size
        if part.truncated_before or (place is None and part.offset > 0):
            source.gap = LogGap(source.program, part.dropped_bytes if place else part.offset)
        source.place = LogPlace(part.next_offset, part.log)
        source.at_end = part.next_offset >= part.size

    async def _sources(
        self, request: InstanceLogRequest, places: dict[str, LogPlace]
    ) -> tuple[list[_Source], list[UnreadLog]]:
        work = self.work
        require(await instances.find(work.database, work.acting, self.ref.project_id, self.ref.instance_id), "instance")
        members = (await instances.members_of(work.database, work.acting, [self.ref.instance_id]))[self.ref.instance_id]
        if request.members:
            found = {each.id: each for each in members}
            members = [
                found.get(each)
                or require(await instances.find_member(work.database, work.acting, self.ref, each), "member")
                for each in dict.fromkeys(request.members)
            ]
        sources, unread = [], []
        for member in members:
            known = known_programs(await logs.concerning(work.database, work.acting, member.id))
            chosen = [each for each in known.programs if request.service in (None, each.name)]
            for each in chosen:
                program = LogProgram(member, each)
                sources.append(_Source(LogTarget(member, known, each), program, places.get(program.key)))
            if not chosen:
                what = f"no service or container {request.service or ''}".rstrip()
                lines = {"last_lines": list(member.last_lines or ())}
                unread.append(UnreadLog(member, Refusal(Code.CONFLICT, f"{what} of {member.name} was started", lines)))
        if len(sources) > PROGRAMS_MAX:
            raise invalid(
                "member", f"the instance has {len(sources)} programs; at most {PROGRAMS_MAX} are read at once"
            )
        for member_id in {each.target.member.id for each in sources}:
            self.take_rate(member_id)
        return sources, unread

    def _log(self, sources: Sequence[_Source], unread: Sequence[UnreadLog], places: dict[str, LogPlace]) -> InstanceLog:
        now = self.work.services.clock.now()
        reached = places | {each.program.key: each.place for each in sources if each.place is not None}
        return InstanceLog(
            lines=merged((each.lines for each in sources), now),
            cursor=cursor_of(reached),
            at_end=all(each.at_end or each.refusal is not None for each in sources),
            gaps=[each.gap for each in sources if each.gap is not None],
            unread=[*unread, *(UnreadLog(each.target.member, each.refusal) for each in sources if each.refusal)],
            scanned_bytes=sum(each.scanned for each in sources),
        )
