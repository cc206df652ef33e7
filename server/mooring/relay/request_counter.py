"""Counts the requests that the proxy passes to apps, and reports them every `REPORT_SECONDS`.

A request counts when the app begins to answer it, whatever the answer; one that the relay refuses does not. The count
of an endpoint only grows and is reported as a reading: a failed report is contained in the next one, a repeated one
adds nothing. What was counted since the last report is lost if the process is killed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.commands.money.proxy_requests import RequestCount, report_requests
from mooring.commands.services import Services
from mooring.core.kernel.ids import Prefix

REPORT_SECONDS: Final = 30.0
LAST_REPORT_SECONDS: Final = 5.0
AT_ONCE: Final = 200
ENDPOINTS_MAX: Final = 20_000

log = logging.getLogger("mooring.relay")


@dataclass(slots=True)
class _Count:
    began_at: datetime
    requests: int = 0
    reported: int = 0
    seq: int = 0
    idle: int = 0  # reports without a new request


class RequestCounter:
    """The counts of one process."""

    report_seconds = REPORT_SECONDS
    idle_reports_max = 120

    def __init__(self, services: Services) -> None:
        self._services = services
        self._process_id = services.clock.mint(Prefix.CORRELATION)
        self._counts: dict[str, _Count] = {}

    def count(self, endpoint_id: str) -> None:
        """Count one request to an endpoint."""
        found = self._counts.get(endpoint_id)
        if found is None:
            if len(self._counts) >= ENDPOINTS_MAX:
                log.warning("the proxy counts requests at %s endpoints; more are not counted", ENDPOINTS_MAX)
                return
            found = self._counts[endpoint_id] = _Count(self._services.clock.now())
        found.requests += 1

    async def report(self) -> None:
        """Report what is new, and forget endpoints whose requests are not metered, or had none for an hour."""
        due = [name for name, each in self._counts.items() if each.requests > each.reported]
        for name, each in list(self._counts.items()):
            each.idle = 0 if each.requests > each.reported else each.idle + 1
            if each.idle > self.idle_reports_max:
                del self._counts[name]  # the next request begins a new epoch
        for start in range(0, len(due), AT_ONCE):
            await self._report(due[start : start + AT_ONCE])

    async def _report(self, names: list[str]) -> None:
        counts = {}
        for name in names:
            each = self._counts[name]
            each.seq += 1
            counts[name] = RequestCount(name, self._process_id, each.began_at, each.seq, each.requests)
        metered = await report_requests(self._services, counts)
        for name, sent in counts.items():
            if name in metered:
                self._counts[name].reported = sent.requests
            else:
                del self._counts[name]

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Report in the background, and once more at the end."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            try:
                async with asyncio.timeout(LAST_REPORT_SECONDS):
                    await self.report()
            except Exception:
                log.exception("could not report the last requests of the proxy; they are lost")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.report_seconds)
            try:
                await self.report()
            except Exception:  # the counts stay: the next report contains them
                log.exception("could not report the requests of the proxy; retrying in %.0f s", self.report_seconds)
