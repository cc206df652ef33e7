"""The event hub: wakes the waiters of this process when events arrive, and caches the newest events.

A writer notifies the hub of its own process after the commit. The hub sends one NOTIFY for many such calls, so that
other processes poll too. NOTIFY is only a hint, sent outside of any transaction; each hub also polls every second, so
a hint that is lost in a crash delays an event but never loses it. The hub keeps the newest events in a ring buffer. A
follower whose position is in the ring is served from memory; one that is further behind reads from the database until
it has caught up. Both see the same events in the same order.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import asyncpg

from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.event import BEGINNING, Event, StreamPosition
from mooring.storage.kernel import event as events
from mooring.storage.kernel.database import BROKEN, PLATFORM, Acting, Database

CHANNEL: Final = "mooring_event"
HINT_CHANNEL: Final = "mooring_hint"
"""The channel on which the database names instances and tasks that changed without an event."""
RING_SIZE: Final = 10_000
BATCH: Final = 1_000
POLL_SECONDS: Final = 1.0
UNSETTLED_SECONDS: Final = 0.01
POLL_GAP_SECONDS: Final = 0.005
NOTIFY_SECONDS: Final = 0.005
"""One poll, and one NOTIFY, for all commits of this time: one per commit would cost as much as the writes."""

log = logging.getLogger("mooring.hub")


class EventHub:
    """Follows the event stream for its process; there is one per process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ring: deque[Event] = deque(maxlen=RING_SIZE)
        self._ring_after = BEGINNING  # the ring holds every event after this position
        self._head = BEGINNING
        self._poll = asyncio.Event()
        self._notify = asyncio.Event()
        self._grown: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._hooks: list[Callable[[Event], None]] = []
        self._commit_hooks: list[Callable[[str], None]] = []
        self._close_hooks: list[Callable[[], None]] = []
        self._hint_hooks: list[Callable[[str], None]] = []
        self._closed = False

    @property
    def head(self) -> StreamPosition:
        """The newest position that this process has read."""
        return self._head

    @property
    def closed(self) -> bool:
        """Whether the process is stopping: followers should end."""
        return self._closed

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """Call `hook` with every event that this process reads, in order."""
        self._hooks.append(hook)

    async def open(self) -> None:
        """Start to follow the stream from its current head."""
        self._head = self._ring_after = await events.head(self._database)
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._listen())]

    async def close(self) -> None:
        """Wake every waiting follower, then stop the hub."""
        self._closed = True
        self._wake()
        for hook in self._close_hooks:
            hook()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_close(self, hook: Callable[[], None]) -> None:
        """Call `hook` when the process stops, before the shutdown waits for requests in progress."""
        self._close_hooks.append(hook)

    def on_hint(self, hook: Callable[[str], None]) -> Callable[[], None]:
        """Call `hook` with the id of each instance or task that changed without an event; the result unsubscribes."""
        self._hint_hooks.append(hook)
        return lambda: self._hint_hooks.remove(hook)

    def on_commit(self, hook: Callable[[str], None]) -> None:
        """Call `hook` with the type of every event that this process commits, immediately after the commit."""
        self._commit_hooks.append(hook)

    def notify(self, types: Iterable[str] = ()) -> None:
        """This process committed events of these types: poll now, and notify the other processes."""
        for each in types:
            for hook in self._commit_hooks:
                hook(each)
        self._poll.set()
        self._notify.set()

    async def read(
        self, selection: events.EventSelection, after: StreamPosition, limit: int
    ) -> tuple[list[Event], StreamPosition]:
        """The next events of a selection, and the position up to which the selection has been read completely."""
        if after >= self._ring_after:
            found: list[Event] = []
            reached = max(after, self._head)
            for event in self._newer(after):
                if selection.matches(event):
                    found.append(event)
                    if len(found) == limit:
                        reached = event.position
                        break
            return found, reached
        known = self._head
        found = await events.read(self._database, Acting(selection.tenant_id), selection, after, limit)
        if len(found) == limit:
            return found, found[-1].position
        return found, max(known, found[-1].position) if found else max(known, after)

    async def newest(self, selection: events.EventSelection, limit: int) -> tuple[list[Event], StreamPosition]:
        """The last events of a selection in order, and the position from which to read on."""
        known = self._head
        found = await events.newest(self._database, Acting(selection.tenant_id), selection, limit)
        return found, max(known, found[-1].position) if found else known

    async def wait(self, after: StreamPosition, timeout_seconds: float) -> bool:
        """Wait for an event after this position; False when the time-out comes first."""
        if self._head > after or self._closed:
            return True
        if self._grown is None or self._grown.done():
            self._grown = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(self._grown)
        except TimeoutError:
            return False
        return True

    def _newer(self, after: StreamPosition) -> list[Event]:
        """The events of the ring after a position; searched from the end, because most followers are there."""
        newer = []
        for event in reversed(self._ring):
            if event.position <= after:
                break
            newer.append(event)
        newer.reverse()
        return newer

    async def _follow(self) -> None:
        pause = POLL_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):  # no notification: poll anyway
                async with asyncio.timeout(pause):  # wait_for of Python 3.11 can swallow a cancellation
                    await self._poll.wait()
            self._poll.clear()
            try:
                await self._read_new()
                pause = UNSETTLED_SECONDS if await events.unsettled(self._database) else POLL_SECONDS
            except Refusal as refusal:
                log.warning("cannot read the event stream; retrying: %s", refusal.detail)
                pause = POLL_SECONDS
            except Exception:  # the hub must survive any error, because without it no waiter is ever woken
                log.exception("failed to read the event stream; retrying")
                pause = POLL_SECONDS
            await asyncio.sleep(POLL_GAP_SECONDS)

    async def _read_new(self) -> None:
        """Read all new events into the ring, and wake the waiters."""
        while True:
            batch = await events.read(self._database, PLATFORM, events.EventSelection(), self._head, BATCH)
            for event in batch:
                if len(self._ring) == RING_SIZE:
                    self._ring_after = self._ring[0].position
                self._ring.append(event)
                self._head = event.position
                for hook in self._hooks:
                    hook(event)
            if batch:
                self._wake()
            if len(batch) < BATCH:
                return

    def _wake(self) -> None:
        if self._grown is not None and not self._grown.done():
            self._grown.set_result(None)

    async def _listen(self) -> None:
        """Exchange notifications with the other processes; without the connection, polling continues."""
        while True:
            try:
                connection = await self._database.listener()
                try:
                    await self._exchange_notifications(connection)
                finally:
                    connection.terminate()
            except (*BROKEN, asyncpg.PostgresError) as error:
                log.warning("lost the connection that listens for events; reconnecting: %s", type(error).__name__)
                await asyncio.sleep(POLL_SECONDS)

    def _on_notify(self, sender: int, own: int) -> None:
        if sender != own:  # this process polls already after its own commits
            self._poll.set()

    def _on_hint(self, subject_id: str) -> None:
        for hook in tuple(self._hint_hooks):
            hook(subject_id)
        self._wake()  # a waiting read looks whether the hint was about its subject

    async def _exchange_notifications(self, connection: asyncpg.Connection) -> None:
        own = connection.get_server_pid()
        await connection.add_listener(CHANNEL, lambda _, sender, *__: self._on_notify(sender, own))
        await connection.add_listener(HINT_CHANNEL, lambda *received: self._on_hint(str(received[-1])))
        while True:
            try:
                async with asyncio.timeout(30):
                    await self._notify.wait()
            except TimeoutError:
                await connection.fetchval("SELECT 1")  # detects a broken connection
                continue
            self._notify.clear()
            await connection.execute(f"NOTIFY {CHANNEL}")
            await asyncio.sleep(NOTIFY_SECONDS)
