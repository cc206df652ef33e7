"""`log.read`: a bounded part of the log of a service or container, and waiting for more of it.

It only reads, and runs beside its owner's other tasks: a read that waits for new bytes delays nothing. Waiting is
polling of a local file; no other process is involved.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from mooring_agent.hosts.contract import Host, HostFailure, LogPart, LogRequest
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.handlers import ResultFields, TaskContext, TaskHandler
from mooring_agent.tasks.secret_masks import SecretMask

POLL_SECONDS: Final = 0.2
PLACES_MAX: Final = 8
RAW_RATIO: Final = 4
"""How much longer a container's log is than its text, at most for usual lines."""

LogReader = Callable[[], Awaitable[LogPart | None]]
LogFinder = Callable[[TaskContext, task_arguments.LogRead, LogRequest], Awaitable[LogReader]]
"""Finds a container's log once and returns a reader for it; raises `HostFailure` if there is no container."""


class LogReadHandler:
    def __init__(self, find_container: LogFinder | None = None) -> None:
        self._find_container = find_container

    def handlers(self) -> dict[str, TaskHandler]:
        return {"log.read": TaskHandler(self.read, unordered=True, room="read")}

    async def read(self, host: Host, context: TaskContext, arguments: task_arguments.LogRead) -> ResultFields:
        part = await _wait_for_content(await self._masked_reader(host, context, arguments), arguments)
        return _log_fields(part)

    async def _masked_reader(self, host: Host, context: TaskContext, arguments: task_arguments.LogRead) -> LogReader:
        """A reader that hides the allocation's secrets, also one that reaches into the part from outside."""
        tail_lines = arguments.tail_lines or (task_arguments.TAIL_LINES if arguments.offset is None else 0)
        request = LogRequest(arguments.offset, tail_lines, arguments.max_bytes, arguments.log)
        reader = await self._reader(host, context, arguments, request)
        mask = context.mask
        if not mask.patterns:
            return reader

        async def read_masked() -> LogPart | None:
            part = await reader()
            if part is None or not part.content:
                return part
            margin = mask.margin
            before = margin * (RAW_RATIO if arguments.kind == "container" else 1)
            begin = max(0, part.offset - before)
            size = part.offset - begin + len(part.content) + margin
            wide_request = LogRequest(begin, 0, size, part.log or arguments.log)
            wide = await (await self._reader(host, context, arguments, wide_request))()
            return masked_part(mask, part, wide)

        return read_masked

    async def _reader(
        self, host: Host, context: TaskContext, arguments: task_arguments.LogRead, request: LogRequest
    ) -> LogReader:
        if arguments.kind == "container":
            if self._find_container is None:
                raise HostFailure("not_found", "this host has no containers")
            return await self._find_container(context, arguments, request)
        if (await host.inspect_service(context.owner, arguments.name)).state == "absent":
            kept = await host.read_log_part(context.owner, arguments.name, request)
            if kept is None:
                raise HostFailure("not_found", f"{context.owner.name} has no service {arguments.name!r}")
        return lambda: host.read_log_part(context.owner, arguments.name, request)


def masked_part(mask: SecretMask, part: LogPart, wide: LogPart | None) -> LogPart:
    """The part with its secrets hidden; `wide` has the same bytes and those around them, where they still exist.

    Offsets of a container's log count the headers of its entries too, so the place of the part within `wide` is not
    their difference: the part is looked for, and what is a secret at any place where it fits is hidden.
    """
    hidden = bytearray(mask.hide(part.content))
    if wide is not None and wide.log == part.log and wide.offset <= part.offset:
        spans = mask.spans(wide.content)
        for begin in _places(wide, part) if spans else ():
            for span in spans:
                first, end = max(0, span.begin - begin), min(len(hidden), span.end - begin)
                if first < end:
                    hidden[first:end] = span.mask[first + begin - span.begin : end + begin - span.begin]
    # A secret that is not written to its end yet: the next part shows the rest of it, and hides that by this margin.
    unfinished = mask.unfinished(bytes(hidden))
    hidden[len(hidden) - unfinished :] = b"*" * unfinished
    return replace(part, content=bytes(hidden))


def _places(wide: LogPart, part: LogPart) -> list[int]:
    """The offsets in `wide.content` at which the part may begin; a log without headers has only one."""
    exact = part.offset - wide.offset
    if wide.content.startswith(part.content, exact) and part.next_offset - part.offset == len(part.content):
        return [exact]
    places: list[int] = []
    begin = wide.content.find(part.content)
    while 0 <= begin <= exact and len(places) < PLACES_MAX:
        places.append(begin)
        begin = wide.content.find(part.content, begin + 1)
    last = wide.content.rfind(part.content)
    return [*places, last] if last >= 0 else places


async def _wait_for_content(read_part: LogReader, arguments: task_arguments.LogRead) -> LogPart:
    """The part as soon as it has content, or as it is when the time is over."""
    deadline = time.monotonic() + arguments.wait_seconds
    while True:
        part = await read_part()
        has_more = part is not None and (bool(part.content) or part.truncated_before)
        left = deadline - time.monotonic()
        if has_more or arguments.offset is None or left <= 0:
            return part or LogPart(b"", 0, 0, 0)
        await asyncio.sleep(min(POLL_SECONDS, left))


def _log_fields(part: LogPart) -> ResultFields:
    fields: ResultFields = {
        "content_base64": base64.b64encode(part.content).decode("ascii"),
        "offset": part.offset,
        "next_offset": part.next_offset,
        "size": part.size,
        "truncated_before": part.truncated_before,
        "log": part.log,
    }
    return fields if part.dropped_bytes is None else {**fields, "dropped_bytes": part.dropped_bytes}
