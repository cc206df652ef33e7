"""The database of the simulated world: every write may be a process's last, or wait while the world goes on.

A process dies before a statement (nothing was done), or after it (it was done, and nobody was told); a slow process
waits before a statement while others act on what it has read. Which process a statement belongs to is known by the
context in which it runs. What was written is told to the world, so that those are woken whom it concerns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from mooring.storage.database import PLATFORM, Acting, Database, Lent, PoolSettings
from mooring.storage.pool import Connection
from server.tests.world.memory import Memory, writes_of


class Died(BaseException):
    """The process is gone: no handler of its own sees this."""


@dataclass
class Process:
    """One run of a program, until it dies; `last_write` is the write at which something happens to it."""

    name: str
    last_write: int = 0  # 1 is the next one; 0: nothing happens
    fate: str = ""  # before, after, stall
    writes: int = 0
    dead: bool = False
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def before(self) -> None:
        """A write is about to be sent."""
        if self.dead:
            raise Died
        self.writes += 1
        if self.writes != self.last_write:
            return
        if self.fate == "before":
            self.dead = True
            raise Died
        if self.fate == "stall":
            self.stalled.set()
            await self.go_on.wait()

    def after(self) -> None:
        """A write was done."""
        if self.writes == self.last_write and self.fate == "after":
            self.dead = True
            raise Died


CURRENT: Final[ContextVar[Process | None]] = ContextVar("process", default=None)
Heard = Callable[[str, Sequence[object]], None]


class _Speaking:
    """A connection that tells what is written over it."""

    def __init__(self, real: Connection, heard: Heard) -> None:
        self._real = real
        self._heard = heard

    async def fetchval(self, statement: str, *arguments: object) -> Any:
        value = await self._real.fetchval(statement, *arguments)
        self._heard(statement, arguments)
        return value

    async def fetch(self, statement: str, *arguments: object) -> Any:
        rows = await self._real.fetch(statement, *arguments)
        self._heard(statement, arguments)
        return rows


class _Guarded:
    """A connection while a process writes with it."""

    def __init__(self, lent: Lent, heard: Heard) -> None:
        self._lent = lent
        self._heard = heard

    async def __aenter__(self) -> _Speaking:
        process = CURRENT.get()
        if process is not None:
            await process.before()
        return _Speaking(await self._lent.__aenter__(), self._heard)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lent.__aexit__(kind, error, trace)
        process = CURRENT.get()
        if error is None and process is not None:
            process.after()


class SimulatedDatabase(Database):
    """The real database, under processes that die."""

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(settings)
        self.heard: Heard = lambda statement, arguments: None
        self.memory = Memory()
        self.statements = 0

    async def open(self) -> None:
        """Open the pools, and learn which answers may be remembered."""
        await super().open()
        async with super().connection(PLATFORM) as connection:
            await self.memory.learn(connection)

    def connection(self, acting: Acting) -> Any:
        """A connection for a write: whoever only reads asks `fetch` and its kin."""
        self.statements += 1
        return _Guarded(super().connection(acting), self._wrote)

    def _wrote(self, statement: str, arguments: Sequence[object]) -> None:
        self.memory.forget_after(statement)
        self.heard(statement, arguments)

    async def _read(
        self, acting: Acting, way: Callable[..., Awaitable[Any]], statement: str, arguments: Sequence[object]
    ) -> Any:
        process = CURRENT.get()
        if process is not None and process.dead:
            raise Died
        tables = self.memory.tables_of(statement)
        if tables is None:
            return await self._asked(acting, way, statement, arguments)
        answers, age, key = self.memory.answers_of(tables), self.memory.age, (acting, way, statement, repr(arguments))
        if key not in answers:
            found = await self._asked(acting, way, statement, arguments)
            if self.memory.age != age:
                return found
            answers[key] = found
        return answers[key]

    async def _asked(
        self, acting: Acting, way: Callable[..., Awaitable[Any]], statement: str, arguments: Sequence[object]
    ) -> Any:
        self.statements += 1
        process, writes = CURRENT.get(), bool(writes_of(statement))
        if process is not None and writes:
            await process.before()
        async with super().connection(acting) as connection:
            found = await way(connection, statement, *arguments)
        if writes:
            self._wrote(statement, arguments)
            if process is not None:
                process.after()
        return found
