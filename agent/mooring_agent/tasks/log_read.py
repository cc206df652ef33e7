"""`log.read`: a bounded part of what a service or a container of one owner has written, and a wait for more of it.

It only looks, and stands beside its owner's other tasks: a read that waits for new bytes holds up nothing. What waits
here looks at a file now and then; nobody else is asked.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mooring_agent.hosts.contract import Host, HostFailure, LogPart, LogWish
from mooring_agent.tasks import arguments as taken
from mooring_agent.tasks.handlers import Doing, Family, Fields

LOOK_SECONDS: Final = 0.2
READS_MAX: Final = 128
"""How many reads are under way at once; the next one fails with `capacity`."""

Looker = Callable[[], Awaitable[LogPart | None]]
Find = Callable[[Doing, taken.LogRead, LogWish], Awaitable[Looker]]
"""Finds the log of a container, once, and says how a part of it is read; a failure where there is no container."""


class LogReads:
    """The reads of one agent."""

    def __init__(self, find_container: Find | None = None) -> None:
        self._find_container = find_container
        self._under_way = 0

    def families(self) -> dict[str, Family]:
        """The family `log.read`."""
        return {"log.read": Family(self.read, beside=True)}

    async def read(self, host: Host, doing: Doing, wanted: taken.LogRead) -> Fields:
        """`log.read`."""
        if self._under_way >= READS_MAX:
            raise HostFailure("capacity", f"{READS_MAX} logs are being read here already")
        self._under_way += 1
        try:
            part = await _awaited(await self._looker(host, doing, wanted), wanted)
        finally:
            self._under_way -= 1
        return _told(part)

    async def _looker(self, host: Host, doing: Doing, wanted: taken.LogRead) -> Looker:
        tail_lines = wanted.tail_lines or (taken.TAIL_LINES if wanted.offset is None else 0)
        wish = LogWish(wanted.offset, tail_lines, wanted.max_bytes, wanted.log)
        if wanted.kind == "container":
            if self._find_container is None:
                raise HostFailure("not_found", "this host has no containers")
            return await self._find_container(doing, wanted, wish)
        if (await host.inspect_service(doing.owner, wanted.name)).state == "absent":
            kept = await host.read_log_part(doing.owner, wanted.name, wish)
            if kept is None:
                raise HostFailure("not_found", f"{doing.owner.name} has no service {wanted.name!r}")
        return lambda: host.read_log_part(doing.owner, wanted.name, wish)


async def _awaited(look: Looker, wanted: taken.LogRead) -> LogPart:
    """The part as soon as there is something in it, or as it is when the time is over."""
    deadline = time.monotonic() + wanted.wait_seconds
    while True:
        part = await look()
        has_more = part is not None and (bool(part.content) or part.truncated_before)
        left = deadline - time.monotonic()
        if has_more or wanted.offset is None or left <= 0:
            return part or LogPart(b"", 0, 0, 0)
        await asyncio.sleep(min(LOOK_SECONDS, left))


def _told(part: LogPart) -> Fields:
    fields: Fields = {
        "content_base64": base64.b64encode(part.content).decode("ascii"),
        "offset": part.offset,
        "next_offset": part.next_offset,
        "size": part.size,
        "truncated_before": part.truncated_before,
        "log": part.log,
    }
    return fields if part.dropped_bytes is None else {**fields, "dropped_bytes": part.dropped_bytes}
