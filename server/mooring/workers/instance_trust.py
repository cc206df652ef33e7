"""The worker of trust: brings what was concluded about artifacts to the instances that run them.

It compares everything that runs with the current evidence, keys, sources and policies: when one of those changed, once
more a while later, and every few minutes. The second pass sees what was launched at the same moment as the change. Then
it drains or stops what the policy says, a few at a time, and goes on whenever one of those operations ends.

A process that starts makes a whole pass first, so a hint that was lost with a dead process costs nothing.
"""

import time
from typing import Final

from mooring.commands.runtime.trust_reaction import mark_all, react_all
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType
from mooring.workers.loop import WakePace

PACE_SECONDS: Final = 0.2
AGAIN_SECONDS: Final = 30.0  # longer than a request takes that was decided before the change
EVERY_SECONDS: Final = 300.0
CHANGES: Final = frozenset(
    {
        EventType.ARTIFACT_TRUST_CHANGED, EventType.ARTIFACT_REGISTERED, EventType.ARTIFACT_CHECK_ENDED,
        EventType.ARTIFACT_SOURCE_CHANGED, EventType.SIGNER_KEY_CHANGED, EventType.ENTITLEMENT_CHANGED,
        EventType.POLICY_CHANGED,
    }
)  # fmt: skip
"""What trust, or the reaction to its loss, depends on."""
PROGRESS: Final = frozenset({EventType.OPERATION_CHANGED, EventType.INSTANCE_RUNNING, EventType.MEMBER_ADDED})
"""What may make room for the next reaction, or something to react to."""


class TrustWorker:
    """Marks instances that lost or regained their trust, and reacts."""

    name = "instance_trust"
    poll_interval_seconds = 60.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pace = WakePace(PACE_SECONDS, ratio=2.0, rest_seconds=1.0)
        self._pass_at = 0.0  # by the monotonic clock: when the next whole pass is due
        self._again = False  # whether that pass is the second one after a change

    def wants(self, event: Event) -> bool:
        """Changes of trust make a whole pass due; the progress of operations may make room for a reaction."""
        if event.type in CHANGES:
            self._pass_at, self._again = 0.0, True
            return True
        return event.type in PROGRESS

    async def tick(self) -> float | None:
        """Make a whole pass if one is due, then react; returns in how many seconds the next pass is due."""
        async with self._pace.turn():
            if time.monotonic() >= self._pass_at:
                await self.mark()
            await self.react()
        return max(0.0, self._pass_at - time.monotonic())

    async def mark(self) -> None:
        """One whole pass over everything that runs."""
        wait = AGAIN_SECONDS if self._again else EVERY_SECONDS
        self._pass_at, self._again = time.monotonic() + wait, False
        if not await mark_all(self._services):
            self._pass_at = 0.0

    async def react(self) -> None:
        """Take steps until none is left or the budget is spent."""
        while await react_all(self._services):
            pass

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
