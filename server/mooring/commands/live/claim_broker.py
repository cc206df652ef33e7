"""Hands instances to adapters: every poll of an adapter waits here, and costs memory only.

A poll renews what its holder holds, claims what is offered, and is told which of its instances something happened to.
It looks again when an event says that an operation of its project changed, and when a lease of somebody else ends;
what has a holder is never taken from it before. Events also are the news: whatever carries the id of an instance that
is held ends the wait. A claim whose answer was lost is told again to the same holder under the same fence.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mooring.commands.services import Services
from mooring.core.kernel.event import Event, StreamPosition, read_cursor
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.claim import PRESENCE_SECONDS, FencedInstance
from mooring.storage.kernel import event as events
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime.claim import LOOK_MAX, ClaimRequester, ClaimResult, LeaseRenewal

NEWS_MAX: Final = 1_000
"""Events that are looked through for news; whoever is further behind is told of all that it holds."""
ROUNDS_MAX: Final = 20
"""Looks that follow each other at once, each of which took something out of the way."""
SEEN_MAX: Final = 50_000
GATHER_SECONDS: Final = 0.02
"""Looks of one holder are so far apart at the least: while launches come by the dozen, one takes several of them."""
WAKES: Final = frozenset({EventType.OPERATION_CHANGED.value, EventType.INSTANCE_REQUESTED.value})


@dataclass(frozen=True, slots=True)
class ClaimPoll:
    """What an adapter asks for."""

    asking: ClaimRequester
    held: tuple[FencedInstance, ...]
    free: int
    wait_seconds: float
    after: str | None


@dataclass(frozen=True, slots=True)
class ClaimPollAnswer:
    """What a poll is answered."""

    claims: tuple[FencedInstance, ...]
    changed: tuple[str, ...]
    lost: tuple[FencedInstance, ...]
    cursor: str


class WaitingPoll:
    """One poll that waits."""

    __slots__ = ("asking", "changed", "gone", "held", "place", "wake")

    def __init__(self, asking: ClaimRequester, held: Iterable[str], place: StreamPosition) -> None:
        self.asking = asking
        self.held = frozenset(held)
        self.changed: set[str] = set()
        self.place = place  # up to where the news are known
        self.wake = asyncio.Event()
        self.gone = False

    def leave(self) -> None:
        """The caller hung up, or lets go: nothing is claimed for whoever does not listen any more."""
        self.gone = True
        self.wake.set()

    def hear(self, event: Event) -> None:
        """Something happened in the project."""
        if event.app_instance_id in self.held:
            self.changed.add(str(event.app_instance_id))
            self.wake.set()
        elif event.type in WAKES:
            self.wake.set()


class ClaimBroker:
    """One per process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiters: dict[str, set[WaitingPoll]] = {}  # by project
        self._seen: OrderedDict[str, datetime] = OrderedDict()
        self._looked: OrderedDict[ClaimRequester, float] = OrderedDict()  # when each holder's polls looked last
        self._closed = False
        services.hub.on_event(self._hear)
        services.hub.on_hint(self._hinted)
        services.hub.on_close(self.close)

    @property
    def waiting(self) -> int:
        """How many polls wait."""
        return sum(len(each) for each in self._waiters.values())

    def close(self) -> None:
        """The process stops: no poll keeps waiting."""
        self._closed = True
        for project_id in list(self._waiters):
            self.wake(project_id)

    def wake(self, project_id: str) -> None:
        """There may be something to claim in this project."""
        for waiter in self._waiters.get(project_id, ()):
            waiter.wake.set()

    def _hear(self, event: Event) -> None:
        for waiter in self._waiters.get(event.project_id or "", ()):
            waiter.hear(event)

    def _hinted(self, instance_id: str) -> None:
        """Something that leaves no event, such as an action that only reads: for whoever holds the instance."""
        for there in self._waiters.values():
            for waiter in there:
                if instance_id in waiter.held:
                    waiter.changed.add(instance_id)
                    waiter.wake.set()

    async def poll(self, poll: ClaimPoll, gone: list[Callable[[], object]] | None = None) -> ClaimPollAnswer:
        """Renew, claim, and wait for something to tell."""
        hub, project_id = self._services.hub, poll.asking.project_id
        waiter = WaitingPoll(poll.asking, (each.instance_id for each in poll.held), hub.head)
        self._waiters.setdefault(project_id, set()).add(waiter)
        if gone is not None:
            gone.append(waiter.leave)
        try:
            waiter.changed |= await self._since(poll, waiter)
            await self._note(poll.asking)
            taken = await self._wait(poll, waiter)
        finally:
            there = self._waiters[project_id]
            there.discard(waiter)
            if not there:
                del self._waiters[project_id]
        lost = {each.instance_id for each in taken.lost}
        # Nothing is awaited from here on: what was heard up to the head is in `changed`.
        changed = tuple(sorted(waiter.changed - lost))
        return ClaimPollAnswer(taken.claims, changed, taken.lost, max(hub.head, waiter.place).cursor())

    async def release(self, asking: ClaimRequester, held: Sequence[FencedInstance]) -> list[str]:
        """Give claims back; whoever waits for them in this process looks at once, but for the holder's own polls."""
        for waiter in self._waiters.get(asking.project_id, ()):
            if waiter.asking == asking:
                waiter.leave()
        given = await claims.release(self._services.database, asking, held)
        self.wake(asking.project_id)
        return given

    async def _wait(self, poll: ClaimPoll, waiter: WaitingPoll) -> ClaimResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + poll.wait_seconds
        while True:
            if poll.wait_seconds:
                await self._gather(poll.asking)
            waiter.wake.clear()
            taken = await self._take(poll, waiter)
            left = deadline - loop.time()
            if taken.claims or taken.lost or waiter.changed or waiter.gone or left <= 0 or self._closed:
                return taken
            await _either(waiter.wake, min(left, self._until(taken.next_at)))

    async def _gather(self, asking: ClaimRequester) -> None:
        """Let a moment pass where this holder has just looked: what comes meanwhile is taken at once."""
        loop = asyncio.get_running_loop()
        looked = self._looked.get(asking, 0.0)
        if loop.time() < looked + GATHER_SECONDS:
            await asyncio.sleep(looked + GATHER_SECONDS - loop.time())
        self._looked[asking] = loop.time()
        self._looked.move_to_end(asking)
        if len(self._looked) > SEEN_MAX:
            self._looked.popitem(last=False)

    def _until(self, next_at: datetime | None) -> float:
        """How long nobody's lease ends."""
        if next_at is None:
            return float("inf")
        return max(0.05, (next_at - self._services.clock.now()).total_seconds() + 0.01)

    async def _take(self, poll: ClaimPoll, waiter: WaitingPoll) -> ClaimResult:
        """One statement, or a few while what lies in the way is cleared."""
        free = 0 if waiter.gone or self._closed else poll.free
        lease_seconds = self._services.settings.adapter_lease_seconds
        for _ in range(ROUNDS_MAX):
            now = self._services.clock.now()
            lease = LeaseRenewal(
                now, now + timedelta(seconds=lease_seconds * 0.75), now + timedelta(seconds=lease_seconds)
            )
            taken = await claims.claim(self._services.database, poll.asking, poll.held, free, lease)
            if taken.claims or taken.lost or taken.looked < LOOK_MAX:
                break
        return taken

    async def _since(self, poll: ClaimPoll, waiter: WaitingPoll) -> set[str]:
        """Which held instances something happened to since the cursor, up to where the waiter hears by itself."""
        everything = set(waiter.held)
        if not everything:
            return set()
        if poll.after is None:
            return everything
        after = read_cursor(poll.after)
        if after >= waiter.place:
            waiter.place = after  # of another process that has seen more
            return set()
        if after < await events.forgotten(self._services.database):
            return everything
        selection = events.EventSelection(poll.asking.tenant_id, poll.asking.project_id)
        found, _ = await self._services.hub.read(selection, after, NEWS_MAX)
        if len(found) == NEWS_MAX:
            return everything
        return {str(each.app_instance_id) for each in found if each.app_instance_id in waiter.held}

    async def _note(self, asking: ClaimRequester) -> None:
        """Write down that an adapter listens, at most every half minute for an account."""
        now = self._services.clock.now()
        stale_before = now - timedelta(seconds=PRESENCE_SECONDS)
        noted = self._seen.get(asking.service_account_id)
        if noted is not None and noted > stale_before:
            return
        await claims.was_seen(self._services.database, asking, now, stale_before)
        self._seen[asking.service_account_id] = now
        self._seen.move_to_end(asking.service_account_id)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)


async def _either(wake: asyncio.Event, seconds: float) -> None:
    """Wait for the event, or for as long."""
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        return
