"""The checks that this process reads at this moment.

Any process may read checks: the one that accepted a check begins it at once when it has room, so that a small artifact
is checked before its request is answered; what is left over, or lost, is taken up by the workers.

One owner (a tenant, or the platform) has at most half of the room, so that slow sources of one hold up no other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mooring.core.catalog.artifact_check import ArtifactCheck
from mooring.core.kernel.errors import Refusal

log = logging.getLogger("mooring.check")


class CheckRunner:
    """A bounded number of tasks, each reading one check; and which leases they hold."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str | None] = {}
        self._closing = False
        self.held: dict[str, ArtifactCheck] = {}

    def room(self, most: int) -> int:
        """How many more may begin."""
        return 0 if self._closing else max(0, most - len(self._tasks))

    def begin(self, check: ArtifactCheck, run: Callable[[], Awaitable[None]], most: int) -> bool:
        """Read a check here, unless that is so already; False where there is no room."""
        if check.id in self._tasks:
            return True
        taken = sum(owner == check.tenant_id for owner in self._owners.values())
        if not self.room(most) or taken >= max(1, most // 2):
            return False
        self._owners[check.id] = check.tenant_id
        self._tasks[check.id] = asyncio.create_task(self._run(check.id, run))
        return True

    async def wait(self, check_id: str, seconds: float) -> bool:
        """Wait until this process no longer reads the check; False when it does not read it, or still does."""
        task = self._tasks.get(check_id)
        if task is None:
            return False
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return bool(done)

    async def wait_or_sleep(self, check_id: str, seconds: float) -> None:
        """Let time pass, and no more than it takes this process to end the check."""
        if check_id in self._tasks:
            await self.wait(check_id, seconds)
        else:
            await asyncio.sleep(seconds)

    async def drain(self) -> None:
        """Wait until nothing is read."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> list[ArtifactCheck]:
        """Stop reading; returns what is still held, to be handed back."""
        self._closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        held, self.held = list(self.held.values()), {}
        return held

    async def _run(self, check_id: str, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Refusal as refusal:  # the database does not answer: the lease runs out, and another begins
            log.warning("the check %s has to wait: %s", check_id, refusal.detail)
        except Exception:  # one check must not end the others; the log has its cause
            log.exception("the check %s has to wait", check_id)
        finally:
            self._tasks.pop(check_id, None)
            self._owners.pop(check_id, None)
