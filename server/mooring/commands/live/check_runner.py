"""The artifact checks that run in this process.

Any process may run checks. The one that accepted a check starts it at once when it has room, so that a small artifact
is checked before its request is answered; the workers start the others, and those whose process was lost.

One owner (a tenant, or the platform) gets at most half of the room, so that slow sources of one delay no other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mooring.core.catalog.artifact_check import ArtifactCheck
from mooring.core.kernel.errors import Refusal

log = logging.getLogger("mooring.check")


class CheckRunner:
    """Runs a bounded number of checks as asyncio tasks; `held` has the leases of the started ones."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str | None] = {}
        self._closing = False
        self.held: dict[str, ArtifactCheck] = {}

    def room(self, most: int) -> int:
        """How many more checks may start."""
        return 0 if self._closing else max(0, most - len(self._tasks))

    def begin(self, check: ArtifactCheck, run: Callable[[], Awaitable[None]], most: int) -> bool:
        """Start a check unless it runs here already; False when there is no room."""
        if check.id in self._tasks:
            return True
        taken = sum(owner == check.tenant_id for owner in self._owners.values())
        if not self.room(most) or taken >= max(1, most // 2):
            return False
        self._owners[check.id] = check.tenant_id
        self._tasks[check.id] = asyncio.create_task(self._run(check.id, run))
        return True

    async def wait(self, check_id: str, seconds: float) -> bool:
        """Wait until the check ends here; False when it does not run here, or still runs after `seconds`."""
        task = self._tasks.get(check_id)
        if task is None:
            return False
        done, _ = await asyncio.wait({task}, timeout=seconds)
        return bool(done)

    async def wait_or_sleep(self, check_id: str, seconds: float) -> None:
        """Wait for `seconds`, or until this process ends the check, whichever is first."""
        if check_id in self._tasks:
            await self.wait(check_id, seconds)
        else:
            await asyncio.sleep(seconds)

    async def drain(self) -> None:
        """Wait until no check runs."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> list[ArtifactCheck]:
        """Cancel all checks; returns those whose leases have to be handed back."""
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
        except Refusal as refusal:  # the database does not answer: the lease expires, and another process starts it
            log.warning(
                "stopped check %s early; another process retries it when its lease expires: %s",
                check_id,
                refusal.detail,
            )
        except Exception:  # one check must not stop the others
            log.exception("check %s failed; another process retries it when its lease expires", check_id)
        finally:
            self._tasks.pop(check_id, None)
            self._owners.pop(check_id, None)
