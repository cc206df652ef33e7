"""Checks open connections again from time to time: a revoked permission ends the connections that it allowed."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from mooring.commands.runtime import visit as commands
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import Visit

CHECK_SECONDS: Final = 30.0

log = logging.getLogger("mooring.visit")


@dataclass(slots=True)
class OpenVisit:
    """A visit in use, and the address from which it is now."""

    visit: Visit
    remote_address: str | None


async def while_admitted(
    services: Services, visit: OpenVisit, seconds: float, *coroutines: Coroutine[Any, Any, None]
) -> Refusal | None:
    """Run these coroutines until one of them ends or the visit is no longer allowed, then cancel the others.

    Returns why the visit is no longer allowed, or None. An error of a coroutine is raised.
    """
    tasks = [asyncio.create_task(each) for each in coroutines]
    watching = asyncio.create_task(_refused(services, visit, seconds))
    try:
        finished, _ = await asyncio.wait((*tasks, watching), return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in finished:
                task.result()
        return watching.result() if watching in finished else None
    finally:
        for each in (*tasks, watching):
            each.cancel()
        await asyncio.gather(*tasks, watching, return_exceptions=True)


async def _refused(services: Services, used: OpenVisit, seconds: float) -> Refusal:
    visit = used.visit
    while True:
        await asyncio.sleep(seconds)
        try:
            await commands.still_admitted(services, visit, used.remote_address)
        except Refusal as refusal:
            if refusal.code is Code.TEMPORARILY_UNAVAILABLE:
                log.warning(
                    "cannot check whether visit %s is still allowed; keeping it until the next check: %s",
                    visit.id,
                    refusal.detail,
                    extra={"visit_id": visit.id, "correlation_id": visit.correlation_id},
                )
                continue
            return refusal
