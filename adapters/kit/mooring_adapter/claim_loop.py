"""The claim loop: one long poll per account, which is heartbeat, claim and notification at once.

A claim lives while polls name it. A claim that the platform reports as lost is dropped at once. All claims are dropped
when no poll succeeded for most of a lease's time, because another replica may hold them by then.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Final

from mooring_adapter.adapter import Adapter
from mooring_adapter.backoff import RetryBackoff
from mooring_adapter.instance_controller import InstanceController
from mooring_adapter.platform_client import ClaimResponse, HeldClaim, PlatformClient
from mooring_sdk import MooringError, UnexpectedAnswer

WAIT_SECONDS: Final = 20.0
CLAIMS_AT_ONCE: Final = 100
RELEASE_SECONDS: Final = 10.0
LEASE_SHARE: Final = 0.8

log = logging.getLogger("mooring.adapter")


@dataclass(slots=True)
class ClaimedInstance:
    """A claim, and the controller that works under it."""

    claim: HeldClaim
    controller: InstanceController
    work: asyncio.Task[None]


@dataclass(slots=True)
class ClaimLoop:
    """All claims of one account."""

    adapter: Adapter
    platform: PlatformClient
    most: int = 2_000
    wait_seconds: float = WAIT_SECONDS
    claimed: dict[str, ClaimedInstance] = field(default_factory=dict)
    lease_seconds: float = 45.0
    is_answered: bool = False  # whether the platform itself has answered a poll, even with a refusal
    _cursor: str | None = None
    _renewed_at: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """Poll until cancelled, then release all claims if the platform can be reached."""
        backoff = RetryBackoff()
        try:
            while True:
                try:
                    await self._poll()
                    backoff.reset()
                    self.is_answered = True
                except MooringError as error:
                    self.is_answered |= not error.retryable and not isinstance(error, UnexpectedAnswer)
                    log.warning("poll for claims failed; retrying: %s", error, extra={"code": error.code})
                    self._drop_expired()
                    await asyncio.sleep(backoff.next_pause())
        finally:
            await self._release_all()

    async def _poll(self) -> None:
        self._forget_ended()
        held = [each.claim for each in self.claimed.values()]
        asked_at = time.monotonic()
        wait = min(self.wait_seconds, self.lease_seconds / 3)
        free = min(max(self.most - len(held), 0), CLAIMS_AT_ONCE)
        response = await self.platform.claim(held, free, wait, self._cursor)
        self._renewed_at = asked_at
        self.lease_seconds = response.lease_seconds
        await self._apply(response)

    async def _apply(self, response: ClaimResponse) -> None:
        self._cursor = response.cursor or self._cursor
        await asyncio.gather(*(self._drop(each) for each in response.lost))
        for each in response.claims:
            await self._start(each)
        for instance_id in response.changed:
            if (known := self.claimed.get(instance_id)) is not None:
                known.controller.wake.set()

    async def _start(self, claim: HeldClaim) -> None:
        known = self.claimed.get(claim.instance_id)
        if known is not None:
            if claim.fence <= known.claim.fence:
                return  # a repeated or late response
            await self._drop(known.claim)
        controller = InstanceController(self.adapter, self.platform, claim)
        work = asyncio.create_task(controller.run(), name=f"controller {claim.instance_id}")
        self.claimed[claim.instance_id] = ClaimedInstance(claim, controller, work)
        log.info("claimed the instance", extra={"app_instance_id": claim.instance_id, "fence": claim.fence})

    async def _drop(self, claim: HeldClaim) -> None:
        known = self.claimed.get(claim.instance_id)
        if known is None or known.claim.fence > claim.fence:
            return
        del self.claimed[claim.instance_id]
        known.work.cancel()
        await asyncio.gather(known.work, return_exceptions=True)
        log.warning(
            "lost the claim; stopped work on the instance",
            extra={"app_instance_id": claim.instance_id, "fence": claim.fence},
        )

    def _forget_ended(self) -> None:
        """Forget controllers that ended: their claim is lost, or they crashed and the next claim starts another."""
        for instance_id, known in list(self.claimed.items()):
            if known.work.done():
                del self.claimed[instance_id]
                if not known.work.cancelled() and (error := known.work.exception()) is not None:
                    extra = {"app_instance_id": instance_id}
                    log.error(
                        "the controller of an instance crashed; claiming the instance again",
                        exc_info=error,
                        extra=extra,
                    )

    def _drop_expired(self) -> None:
        """Without a heartbeat for most of a lease's time the claims may already belong to another replica."""
        if time.monotonic() - self._renewed_at < self.lease_seconds * LEASE_SHARE:
            return
        for known in self.claimed.values():
            known.work.cancel()
        if self.claimed:
            log.warning("no heartbeat succeeded within the lease; dropped %d claims", len(self.claimed))
        self.claimed.clear()

    async def _release_all(self) -> None:
        held = [each.claim for each in self.claimed.values()]
        for known in self.claimed.values():
            known.work.cancel()
        await asyncio.gather(*(each.work for each in self.claimed.values()), return_exceptions=True)
        self.claimed.clear()
        if held:
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self.platform.release(held)
                log.info("released %d claims", len(held))
            except (MooringError, TimeoutError) as error:
                log.warning("could not release the claims; they expire with their lease: %s", error)

    @property
    def is_idle(self) -> bool:
        return not self.claimed
