"""Gives instances to adapters: every poll of an adapter waits here, and a waiting poll costs only memory.

A poll renews what its holder holds, claims what is offered, and returns which of its instances have changed. It tries
again when an event says that an operation of its project changed, and when the lease of another holder ends; an
instance is never claimed from its holder before that. An event with the id of a held instance ends the wait. A claim
whose answer was lost is repeated to the same holder under the same fence.
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
from mooring.core.kernel.ids import Prefix
from mooring.core.runtime.claim import PRESENCE_SECONDS, FencedInstance
from mooring.storage.kernel import event as events
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime.claim import SCAN_MAX, ClaimRequester, ClaimResult, LeaseRenewal

CHANGES_READ_MAX: Final = 1_000
"""Events that are read for changes; a holder that is further behind gets all of its instances as changed."""
ROUNDS_MAX: Final = 20
"""Claim statements in a row, each of which cleared something out of the way."""
HOLDERS_MAX: Final = 50_000
HINTED_MAX: Final = 10_000
BATCH_SECONDS: Final = 0.02
"""The least time between two claims of one holder: in a burst of launches, one claim takes several of them."""
WAKES: Final = frozenset({EventType.OPERATION_CHANGED.value, EventType.INSTANCE_REQUESTED.value})


@dataclass(frozen=True, slots=True)
class ClaimPoll:
    """A poll of an adapter: what it holds, how many more it takes, and the cursor `after` which it needs changes."""

    requester: ClaimRequester
    held: tuple[FencedInstance, ...]
    free: int
    wait_seconds: float
    after: str | None


@dataclass(frozen=True, slots=True)
class ClaimPollAnswer:
    claims: tuple[FencedInstance, ...]
    changed: tuple[str, ...]
    lost: tuple[FencedInstance, ...]
    cursor: str


class WaitingPoll:
    """A poll that waits, and the changes that it has collected."""

    __slots__ = ("changed", "gone", "held", "position", "requester", "wake")

    def __init__(self, requester: ClaimRequester, held: Iterable[str], position: StreamPosition) -> None:
        self.requester = requester
        self.held = frozenset(held)
        self.changed: set[str] = set()
        self.position = position  # up to which changes are known
        self.wake = asyncio.Event()
        self.gone = False

    def leave(self) -> None:
        """The caller hung up or releases its claims: claim nothing more for it."""
        self.gone = True
        self.wake.set()

    def observe(self, event: Event) -> None:
        if event.app_instance_id in self.held:
            self.changed.add(str(event.app_instance_id))
            self.wake.set()
        elif event.type in WAKES:
            self.wake.set()


class ClaimBroker:
    """All waiting polls of this process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiters: dict[str, set[WaitingPoll]] = {}  # by project
        self._presence_noted: OrderedDict[str, datetime] = OrderedDict()
        self._claimed_at: OrderedDict[ClaimRequester, float] = OrderedDict()  # when each holder claimed last
        self._hinted: OrderedDict[str, None] = OrderedDict()  # instances that changed without an event, unnoticed
        self._closed = False
        services.hub.on_event(self._on_event)
        services.hub.on_hint(self._on_hint)
        services.hub.on_close(self.close)

    @property
    def waiting(self) -> int:
        return sum(len(each) for each in self._waiters.values())

    def close(self) -> None:
        """Answer every waiting poll: the process stops."""
        self._closed = True
        for project_id in list(self._waiters):
            self.wake(project_id)

    def wake(self, project_id: str) -> None:
        for waiter in self._waiters.get(project_id, ()):
            waiter.wake.set()

    def _on_event(self, event: Event) -> None:
        for waiter in self._waiters.get(event.project_id or "", ()):
            waiter.observe(event)

    def _on_hint(self, instance_id: str) -> None:
        """Wake the holder of an instance for a change without an event, such as the end of a routine look.

        No event says so later: between two polls of its holder, the hint is kept for the next one.
        """
        if not instance_id.startswith(f"{Prefix.INSTANCE}_"):
            return
        holders = [each for waiters in self._waiters.values() for each in waiters if instance_id in each.held]
        for waiter in holders:
            waiter.changed.add(instance_id)
            waiter.wake.set()
        if not holders:
            self._hinted[instance_id] = None
            if len(self._hinted) > HINTED_MAX:
                self._hinted.popitem(last=False)

    def _take_hints(self, held: frozenset[str]) -> set[str]:
        """Those of these instances that changed without an event while nobody waited."""
        found = {each for each in held if each in self._hinted}
        for each in found:
            del self._hinted[each]
        return found

    async def poll(self, poll: ClaimPoll, gone: list[Callable[[], object]] | None = None) -> ClaimPollAnswer:
        """Renew and claim, and wait until there is something to answer."""
        hub, project_id = self._services.hub, poll.requester.project_id
        waiter = WaitingPoll(poll.requester, (each.instance_id for each in poll.held), hub.head)
        self._waiters.setdefault(project_id, set()).add(waiter)
        if gone is not None:
            gone.append(waiter.leave)
        try:
            waiter.changed |= self._take_hints(waiter.held)
            waiter.changed |= await self._changed_since(poll, waiter)
            await self._note_presence(poll.requester)
            claimed = await self._wait(poll, waiter)
        finally:
            waiters = self._waiters[project_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[project_id]
        lost = {each.instance_id for each in claimed.lost}
        # No await from here on, so `changed` has everything up to the head of the stream.
        changed = tuple(sorted(waiter.changed - lost))
        return ClaimPollAnswer(claimed.claims, changed, claimed.lost, max(hub.head, waiter.position).cursor())

    async def release(self, requester: ClaimRequester, held: Sequence[FencedInstance]) -> list[str]:
        """Release claims, end the holder's own polls, and let the other waiting polls of the project try at once."""
        for waiter in self._waiters.get(requester.project_id, ()):
            if waiter.requester == requester:
                waiter.leave()
        released = await claims.release(self._services.database, requester, held)
        self.wake(requester.project_id)
        return released

    async def _wait(self, poll: ClaimPoll, waiter: WaitingPoll) -> ClaimResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + poll.wait_seconds
        while True:
            if poll.wait_seconds:
                await self._wait_for_batch(poll.requester)
            waiter.wake.clear()
            claimed = await self._claim(poll, waiter)
            left = deadline - loop.time()
            if claimed.claims or claimed.lost or waiter.changed or waiter.gone or left <= 0 or self._closed:
                return claimed
            await _either(waiter.wake, min(left, self._until(claimed.next_at)))

    async def _wait_for_batch(self, requester: ClaimRequester) -> None:
        """Wait a moment if this holder has just claimed, so that one statement claims what comes meanwhile."""
        loop = asyncio.get_running_loop()
        last = self._claimed_at.get(requester, 0.0)
        if loop.time() < last + BATCH_SECONDS:
            await asyncio.sleep(last + BATCH_SECONDS - loop.time())
        self._claimed_at[requester] = loop.time()
        self._claimed_at.move_to_end(requester)
        if len(self._claimed_at) > HOLDERS_MAX:
            self._claimed_at.popitem(last=False)

    def _until(self, next_at: datetime | None) -> float:
        """Seconds until the next lease of another holder ends."""
        if next_at is None:
            return float("inf")
        return max(0.05, (next_at - self._services.clock.now()).total_seconds() + 0.01)

    async def _claim(self, poll: ClaimPoll, waiter: WaitingPoll) -> ClaimResult:
        """Renew and claim in one statement, or in a few while each only clears something out of the way."""
        free = 0 if waiter.gone or self._closed else poll.free
        lease_seconds = self._services.settings.adapter_lease_seconds
        for _ in range(ROUNDS_MAX):
            now = self._services.clock.now()
            lease = LeaseRenewal(
                now, now + timedelta(seconds=lease_seconds * 0.75), now + timedelta(seconds=lease_seconds)
            )
            claimed = await claims.claim(self._services.database, poll.requester, poll.held, free, lease)
            if claimed.claims or claimed.lost or claimed.scanned < SCAN_MAX:
                break
        return claimed

    async def _changed_since(self, poll: ClaimPoll, waiter: WaitingPoll) -> set[str]:
        """Which held instances changed between the poll's cursor and the position where the waiter joined."""
        everything = set(waiter.held)
        if not everything:
            return set()
        if poll.after is None:
            return everything
        after = read_cursor(poll.after)
        if after >= waiter.position:
            waiter.position = after  # the cursor is from another process that is further ahead
            return set()
        if after < await events.forgotten(self._services.database):
            return everything
        selection = events.EventSelection(poll.requester.tenant_id, poll.requester.project_id)
        found, _ = await self._services.hub.read(selection, after, CHANGES_READ_MAX)
        if len(found) == CHANGES_READ_MAX:
            return everything
        return {str(each.app_instance_id) for each in found if each.app_instance_id in waiter.held}

    async def _note_presence(self, requester: ClaimRequester) -> None:
        """Persist that an adapter is polling, at most every half minute per account."""
        now = self._services.clock.now()
        stale_before = now - timedelta(seconds=PRESENCE_SECONDS)
        noted = self._presence_noted.get(requester.service_account_id)
        if noted is not None and noted > stale_before:
            return
        await claims.record_presence(self._services.database, requester, now, stale_before)
        self._presence_noted[requester.service_account_id] = now
        self._presence_noted.move_to_end(requester.service_account_id)
        if len(self._presence_noted) > HOLDERS_MAX:
            self._presence_noted.popitem(last=False)


async def _either(wake: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most for `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await wake.wait()
    except TimeoutError:
        return
