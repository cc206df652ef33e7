"""`log.read`: a bounded part of the log of a service or container, and waiting for more of it.

It only reads, and runs beside its owner's other tasks: a read that waits for new bytes delays nothing. Waiting is
polling of a local file; no other process is involved.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mooring_agent.hosts.contract import Host, HostFailure, LogPart, LogRequest
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.handlers import ResultFields, TaskContext, TaskHandler

POLL_SECONDS: Final = 0.2
READS_MAX: Final = 128
"""How many reads may be active at once; the next one fails with `capacity`."""

LogReader = Callable[[], Awaitable[LogPart | None]]
LogFinder = Callable[[TaskContext, task_arguments.LogRead, LogRequest], Awaitable[LogReader]]
"""Finds a container's log once and returns a reader for it; raises `HostFailure` if there is no container."""


class LogReadHandler:
    def __init__(self, find_container: LogFinder | None = None) -> None:
        self._find_container = find_container
        self._active = 0

    def handlers(self) -> dict[str, TaskHandler]:
        return {"log.read": TaskHandler(self.read, unordered=True)}

    async def read(self, host: Host, context: TaskContext, arguments: task_arguments.LogRead) -> ResultFields:
        if self._active >= READS_MAX:
            raise HostFailure("capacity", f"{READS_MAX} logs are already being read here")
        self._active += 1
        try:
            part = await _wait_for_content(await self._reader(host, context, arguments), arguments)
        finally:
            self._active -= 1
        return _log_fields(part)

    async def _reader(self, host: Host, context: TaskContext, arguments: task_arguments.LogRead) -> LogReader:
        tail_lines = arguments.tail_lines or (task_arguments.TAIL_LINES if arguments.offset is None else 0)
        request = LogRequest(arguments.offset, tail_lines, arguments.max_bytes, arguments.log)
        if arguments.kind == "container":
            if self._find_container is None:
                raise HostFailure("not_found", "this host has no containers")
            return await self._find_container(context, arguments, request)
        if (await host.inspect_service(context.owner, arguments.name)).state == "absent":
            kept = await host.read_log_part(context.owner, arguments.name, request)
            if kept is None:
                raise HostFailure("not_found", f"{context.owner.name} has no service {arguments.name!r}")
        return lambda: host.read_log_part(context.owner, arguments.name, request)


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
