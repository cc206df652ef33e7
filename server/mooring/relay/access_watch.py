"""What stands open is looked at again: a right that was taken ends the connections that were made with it."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from mooring.commands.runtime import visit as commands
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import Visit

LOOK_SECONDS: Final = 30.0

log = logging.getLogger("mooring.relay")


async def while_admitted(
    services: Services, visit: Visit, seconds: float, *going: Coroutine[Any, Any, None]
) -> Refusal | None:
    """Carry on until one of these ends, or the visit does; then none of them goes on. Why it ended, if for a reason.

    What one of them raises is raised.
    """
    tasks = [asyncio.create_task(each) for each in going]
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


async def _refused(services: Services, visit: Visit, seconds: float) -> Refusal:
    while True:
        await asyncio.sleep(seconds)
        try:
            await commands.still_admitted(services, visit)
        except Refusal as refusal:
            if refusal.code is Code.TEMPORARILY_UNAVAILABLE:
                log.warning("whether visits still count cannot be asked just now: %s", refusal.detail)
                continue
            return refusal
