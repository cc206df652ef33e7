"""The holder: one long poll for each account, which is heartbeat, claim and news in one.

A claim lives while polls name it. What the platform calls lost is dropped at once, and so is everything when no poll
came through for as long as a lease lasts: somebody else may hold it by then.
"""

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from typing import Final

from mooring_adapter.adapter import Adapter
from mooring_adapter.instance_controller import InstanceController
from mooring_adapter.platform_client import ClaimResponse, InstanceClaim, PlatformClient
from mooring_sdk import MooringError, UnexpectedAnswer

WAIT_SECONDS: Final = 20.0
CLAIMS_AT_ONCE: Final = 100
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 15.0
LEASE_SHARE: Final = 0.8

log = logging.getLogger("mooring.adapter")


@dataclass(slots=True)
class ClaimedInstance:
    """A claim, and who keeps the instance."""

    held: InstanceClaim
    keeper: InstanceController
    work: asyncio.Task[None]


@dataclass(slots=True)
class ClaimLoop:
    """All claims under one account."""

    adapter: Adapter
    platform: PlatformClient
    most: int = 2_000
    wait_seconds: float = WAIT_SECONDS
    kept: dict[str, ClaimedInstance] = field(default_factory=dict)
    lease_seconds: float = 45.0
    is_answered: bool = False  # whether the platform itself has answered a poll, be it with a refusal
    _cursor: str | None = None
    _heard_at: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """Hold until cancelled; then let go of everything, cleanly where the platform can be reached."""
        failures = 0
        try:
            while True:
                try:
                    await self._poll()
                    failures = 0
                    self.is_answered = True
                except MooringError as error:
                    failures += 1
                    self.is_answered |= not error.retryable and not isinstance(error, UnexpectedAnswer)
                    log.warning("no claims: %s", error, extra={"code": error.code})
                    self._forget_late()
                    longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS)
                    await asyncio.sleep(random.uniform(longest / 2, longest))
        finally:
            await self._let_go()

    async def _poll(self) -> None:
        self._forget_over()
        held = [each.held for each in self.kept.values()]
        asked_at = time.monotonic()
        wait = min(self.wait_seconds, self.lease_seconds / 3)
        free = min(max(self.most - len(held), 0), CLAIMS_AT_ONCE)
        answer = await self.platform.claim(held, free, wait, self._cursor)
        self._heard_at = asked_at
        self.lease_seconds = answer.lease_seconds
        await self._take(answer)

    async def _take(self, answer: ClaimResponse) -> None:
        self._cursor = answer.cursor or self._cursor
        await asyncio.gather(*(self._drop(each) for each in answer.lost))
        for each in answer.claims:
            await self._claim(each)
        for instance_id in answer.changed:
            if (kept := self.kept.get(instance_id)) is not None:
                kept.keeper.wake.set()

    async def _claim(self, held: InstanceClaim) -> None:
        known = self.kept.get(held.instance_id)
        if known is not None:
            if held.fence <= known.held.fence:
                return  # told twice, or late
            await self._drop(known.held)
        keeper = InstanceController(self.adapter, self.platform, held)
        work = asyncio.create_task(keeper.run(), name=f"keeper {held.instance_id}")
        self.kept[held.instance_id] = ClaimedInstance(held, keeper, work)
        log.info("claimed", extra={"app_instance_id": held.instance_id, "fence": held.fence})

    async def _drop(self, held: InstanceClaim) -> None:
        kept = self.kept.get(held.instance_id)
        if kept is None or kept.held.fence > held.fence:
            return
        del self.kept[held.instance_id]
        kept.work.cancel()
        await asyncio.gather(kept.work, return_exceptions=True)
        log.warning("lost", extra={"app_instance_id": held.instance_id, "fence": held.fence})

    def _forget_over(self) -> None:
        """Keepers that ended by themselves have lost their claim; one that came to an error gets another try."""
        for instance_id, kept in list(self.kept.items()):
            if kept.work.done():
                del self.kept[instance_id]
                if not kept.work.cancelled() and (error := kept.work.exception()) is not None:
                    log.error("a keeper came to an error", exc_info=error, extra={"app_instance_id": instance_id})

    def _forget_late(self) -> None:
        """Without a heartbeat for most of a lease's time nothing is ours any more."""
        if time.monotonic() - self._heard_at < self.lease_seconds * LEASE_SHARE:
            return
        for kept in self.kept.values():
            kept.work.cancel()
        if self.kept:
            log.warning("no heartbeat came through: %d claims are dropped", len(self.kept))
        self.kept.clear()

    async def _let_go(self) -> None:
        held = [each.held for each in self.kept.values()]
        for kept in self.kept.values():
            kept.work.cancel()
        await asyncio.gather(*(each.work for each in self.kept.values()), return_exceptions=True)
        self.kept.clear()
        if held:
            try:
                async with asyncio.timeout(10):
                    await self.platform.release(held)
                log.info("gave back %d claims", len(held))
            except (MooringError, TimeoutError) as error:
                log.warning("the claims could not be given back, they run out by themselves: %s", error)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not self.kept
