"""Queues for the rows that several writers want to change at once.

Writes are optimistic: they load, decide and write, and the guards of the statement stop the slower of two writers.
That is cheapest as long as writers rarely meet. On a row that many want, most of the work is lost, and a slow writer
may lose every race. So a writer that lost one waits for the row in a queue, first come, first served. As long as
somebody holds or awaits a row, every other writer of this process waits behind them before it writes, and loads again
when its turn comes. A request does not know its rows before it has decided; the queue remembers the paths of the
requests that wait in it, so that the next request to the same path waits first and loads once.

The queues only save work and keep the order; the guards still decide. Writers of other processes and the workers'
single attempts are not in the queue, so the holder of a turn may lose a race too. It then tries again, after a short
random pause, until its time is over.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from mooring.core.kernel.decision import Decision, Remove, StateChange, Update

PATIENCE_SECONDS: Final = 10.0
"""How long a writer waits for its turn and loses races, all together."""
PAUSE_SECONDS: Final = 0.001
PAUSE_DOUBLINGS_MAX: Final = 5

RowKey = tuple[str, str]


class OutOfPatience(Exception):
    """The writer's time is over, and it wrote nothing."""


class RowQueue:
    """The writers that wait for one row, which another one holds; and the paths of their requests."""

    __slots__ = ("paths", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.paths: set[str] = set()


class RowQueues:
    """The queues of one process; a row that nobody contends for has none."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.patience_seconds = patience_seconds
        self._queues: dict[RowKey, RowQueue] = {}
        self._rows_by_path: dict[str, set[RowKey]] = {}

    def turn(self, path: str = "") -> "Turn":
        """A writer's place in the queues; `path` names the resource of its request, if it is one."""
        return Turn(self, path)

    @property
    def are_empty(self) -> bool:
        """Whether nobody contends for any row."""
        return not self._queues

    def length(self, row: RowKey) -> int:
        """How many wait for the row behind the one that holds it."""
        return len(self._queues[row].waiting) if row in self._queues else 0

    def contended(self, rows: Iterable[RowKey]) -> set[RowKey]:
        """Those of the rows that somebody holds or awaits."""
        return {row for row in rows if row in self._queues}

    def expected_of(self, path: str) -> set[RowKey]:
        """The contended rows that requests to this path were about."""
        return set(self._rows_by_path.get(path, ()))

    async def take(self, row: RowKey, path: str, deadline: float) -> None:
        """Wait for the row behind those who came before; raises TimeoutError at the deadline."""
        queue = self._queues.get(row)
        if queue is None:
            self._queues[row] = queue = RowQueue()
            self._remember(row, queue, path)
            return
        self._remember(row, queue, path)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # the row was handed over just as this writer gave up
                self.give(row)
            else:
                turn.cancel()
            raise

    def give(self, row: RowKey) -> None:
        """Hand the row to the next one in its queue."""
        queue = self._queues[row]
        while queue.waiting:
            turn = queue.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._queues[row]
        for path in queue.paths:
            rows = self._rows_by_path[path]
            rows.discard(row)
            if not rows:
                del self._rows_by_path[path]

    def _remember(self, row: RowKey, queue: RowQueue, path: str) -> None:
        if path:
            queue.paths.add(path)
            self._rows_by_path.setdefault(path, set()).add(row)


class Turn:
    """One writer: what it holds, and how often it lost."""

    __slots__ = ("_deadline", "_held", "_losses", "_path", "_queues")

    def __init__(self, queues: RowQueues, path: str) -> None:
        self._queues = queues
        self._path = path
        self._deadline = asyncio.get_running_loop().time() + queues.patience_seconds
        self._held: tuple[RowKey, ...] = ()
        self._losses = 0

    async def wait_by_path(self) -> None:
        """Wait behind other requests to the same path, if they wait for something."""
        if not self._queues.are_empty:
            expected = self._queues.expected_of(self._path)
            if expected:
                await self._hold(expected)

    def is_behind(self, decision: Decision[Any]) -> bool:
        """Whether others are to write the decision's rows first: then wait for it, and decide again."""
        return not self._queues.are_empty and bool(self._queues.contended(rows_of(decision)) - set(self._held))

    async def wait_for(self, decision: Decision[Any]) -> None:
        """Wait until this writer is the first for the rows of the decision."""
        await self._hold(rows_of(decision))

    async def lost(self, decision: Decision[Any]) -> None:
        """Another writer was faster: wait for this writer's turn, or pause if it has its turn already."""
        rows = rows_of(decision)
        if rows <= set(self._held):
            await self.pause()
        else:
            await self._hold(rows)

    async def pause(self) -> None:
        """Let others finish; the pauses are random and grow."""
        self._losses += 1
        pause = random.uniform(0, PAUSE_SECONDS * 2 ** min(self._losses, PAUSE_DOUBLINGS_MAX))
        if asyncio.get_running_loop().time() + pause > self._deadline:
            raise OutOfPatience
        await asyncio.sleep(pause)

    async def _hold(self, rows: set[RowKey]) -> None:
        """Wait until it holds these rows; in one order for all writers, so that no two wait for each other."""
        self.end()
        try:
            for row in sorted(rows):
                await self._queues.take(row, self._path, self._deadline)
                self._held = (*self._held, row)
        except TimeoutError as error:
            raise OutOfPatience from error

    def end(self) -> None:
        """Let the next ones go."""
        held, self._held = self._held, ()
        for row in held:
            self._queues.give(row)


def rows_of(decision: Decision[Any]) -> set[RowKey]:
    """The rows that the decision changes. What it only relies on it shares with others."""
    return {(each.noun, each.id) for each in decision.writes if isinstance(each, Update | StateChange | Remove)}
