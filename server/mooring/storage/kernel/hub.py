"""The hub: wakes whoever waits for events, in this process, and keeps the newest ones at hand.

A writer pokes the hub of its own process after the commit; the hub sends one NOTIFY for many pokes, so that other
processes look as well. NOTIFY is only a hint, sent outside of any transaction; each hub also looks by itself every
second, so that a hint lost in a crash delays and never loses. What the hub reads goes into a ring of the newest
events. A follower whose place is in the ring is served from memory; one that is further behind reads from the
database until it has caught up. Both ways give the same events in the same order.
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
"""Where the database itself says that something of an instance changed which leaves no event."""
RING_SIZE: Final = 10_000
BATCH: Final = 1_000
LOOK_SECONDS: Final = 1.0
UNSETTLED_SECONDS: Final = 0.01
LOOK_GAP_SECONDS: Final = 0.005
NOTIFY_SECONDS: Final = 0.005
"""One look, and one NOTIFY, for all that was committed meanwhile: under load they would cost as much as the writes."""

log = logging.getLogger("mooring.hub")


class EventHub:
    """One per process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ring: deque[Event] = deque(maxlen=RING_SIZE)
        self._ring_after = BEGINNING  # the ring holds everything after this place
        self._head = BEGINNING
        self._look = asyncio.Event()
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
        """The newest place that this process has seen."""
        return self._head

    @property
    def closed(self) -> bool:
        """Whether the process is stopping: followers should end."""
        return self._closed

    def on_event(self, hook: Callable[[Event], None]) -> None:
        """Call this with every event that this process sees, in order."""
        self._hooks.append(hook)

    async def open(self) -> None:
        """Begin at the present head."""
        self._head = self._ring_after = await events.head(self._database)
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._listen())]

    async def close(self) -> None:
        """End every follower's wait, then the hub."""
        self._closed = True
        self._wake()
        for hook in self._close_hooks:
            hook()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def on_close(self, hook: Callable[[], None]) -> None:
        """Call this when the process stops, before anybody waits for what is under way."""
        self._close_hooks.append(hook)

    def on_hint(self, hook: Callable[[str], None]) -> Callable[[], None]:
        """Call this with the id of an instance of which something changed that leaves no event; returns how to stop."""
        self._hint_hooks.append(hook)
        return lambda: self._hint_hooks.remove(hook)

    def on_commit(self, hook: Callable[[str], None]) -> None:
        """Call this with the type of every event that is committed in this process, at once."""
        self._commit_hooks.append(hook)

    def notify(self, types: Iterable[str] = ()) -> None:
        """Events of these types were committed here: look now, and tell the other processes."""
        for each in types:
            for hook in self._commit_hooks:
                hook(each)
        self._look.set()
        self._notify.set()

    async def read(
        self, selection: events.EventSelection, after: StreamPosition, limit: int
    ) -> tuple[list[Event], StreamPosition]:
        """The next events of a selection after a place, and the place up to which that is all there is."""
        if after >= self._ring_after:
            found: list[Event] = []
            reached = max(after, self._head)
            for event in self._newer(after):
                if selection.takes(event):
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

    async def wait(self, after: StreamPosition, timeout_seconds: float) -> bool:
        """Wait until there is something after this place; False when the time is over first."""
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
        """The events of the ring after a place; most followers are at its end, so look from there."""
        newer = []
        for event in reversed(self._ring):
            if event.position <= after:
                break
            newer.append(event)
        newer.reverse()
        return newer

    async def _follow(self) -> None:
        pause = LOOK_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):  # nobody said anything: look all the same
                async with asyncio.timeout(pause):  # wait_for of Python 3.11 can swallow a cancellation
                    await self._look.wait()
            self._look.clear()
            try:
                await self._take()
                pause = UNSETTLED_SECONDS if await events.unsettled(self._database) else LOOK_SECONDS
            except Refusal as refusal:
                log.warning("the event stream cannot be read now: %s", refusal.detail)
                pause = LOOK_SECONDS
            except Exception:  # the hub must live: without it nobody is woken; the log has the cause
                log.exception("reading the event stream failed; looking again")
                pause = LOOK_SECONDS
            await asyncio.sleep(LOOK_GAP_SECONDS)

    async def _take(self) -> None:
        """Read what is new into the ring."""
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
        """Hear the other processes, and let them hear this one; without the connection, looking goes on."""
        while True:
            try:
                connection = await self._database.listener()
                try:
                    await self._speak(connection)
                finally:
                    connection.terminate()
            except (*BROKEN, asyncpg.PostgresError) as error:
                log.warning("listening for events was interrupted: %s", type(error).__name__)
                await asyncio.sleep(LOOK_SECONDS)

    def _hear(self, speaker: int, own: int) -> None:
        if speaker != own:  # what was said here is known here
            self._look.set()

    def _hinted(self, instance_id: str) -> None:
        for hook in tuple(self._hint_hooks):
            hook(instance_id)

    async def _speak(self, connection: asyncpg.Connection) -> None:
        own = connection.get_server_pid()
        await connection.add_listener(CHANNEL, lambda _, speaker, *__: self._hear(speaker, own))
        await connection.add_listener(HINT_CHANNEL, lambda *heard: self._hinted(str(heard[-1])))
        while True:
            try:
                async with asyncio.timeout(30):
                    await self._notify.wait()
            except TimeoutError:
                await connection.fetchval("SELECT 1")  # notices a connection that is gone
                continue
            self._notify.clear()
            await connection.execute(f"NOTIFY {CHANNEL}")
            await asyncio.sleep(NOTIFY_SECONDS)
