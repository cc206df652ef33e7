"""The database of the simulated world: every write may be a process's last, or wait while the world goes on.

A process dies before a statement (nothing was done), or after it (it was done, and nobody got the answer); a slow
process waits before a statement while others act on what it has read. The context in which a statement runs says
which process it belongs to. The world sees what was written and wakes those whom it concerns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, TypeVar

from asyncpg.prepared_stmt import PreparedStatement

from mooring.storage.kernel.database import PLATFORM, Acting, BorrowedConnection, Database, PoolSettings, RowReader
from mooring.storage.kernel.pool import PooledConnection
from server.tests.world.memory import QueryCache, writes_of

Result = TypeVar("Result")


class ProcessDied(BaseException):
    """The process is gone: no handler of its own sees this."""


@dataclass
class WorldProcess:
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
            raise ProcessDied
        self.writes += 1
        if self.writes != self.last_write:
            return
        if self.fate == "before":
            self.dead = True
            raise ProcessDied
        if self.fate == "stall":
            self.stalled.set()
            await self.go_on.wait()

    def after(self) -> None:
        """A write was done."""
        if self.writes == self.last_write and self.fate == "after":
            self.dead = True
            raise ProcessDied


CURRENT: Final[ContextVar[WorldProcess | None]] = ContextVar("process", default=None)
Heard = Callable[[str, Sequence[object]], None]


class _Speaking:
    """A connection that tells what is written over it."""

    def __init__(self, database: "SimulatedDatabase", acting: Acting) -> None:
        self._database = database
        self._acting = acting

    async def fetchval(self, statement: str, *arguments: object) -> Any:
        prepared = await self._database.prepared(self._acting, statement)
        value = await prepared.fetchval(*arguments)
        self._database.wrote(statement, arguments)
        return value

    async def fetch(self, statement: str, *arguments: object) -> Any:
        prepared = await self._database.prepared(self._acting, statement)
        rows = await prepared.fetch(*arguments)
        self._database.wrote(statement, arguments)
        return rows


class _Guarded:
    """A connection while a process writes with it."""

    def __init__(self, speaking: _Speaking) -> None:
        self._speaking = speaking

    async def __aenter__(self) -> _Speaking:
        process = CURRENT.get()
        if process is not None:
            await process.before()
        return self._speaking

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = CURRENT.get()
        if error is None and process is not None:
            process.after()


class SimulatedDatabase(Database):
    """The real database, under processes that die.

    The whole world never has more than one statement under way: so the platform and each tenant have one connection
    of their pool for good, and a statement is prepared once. The database keeps all plans (`starting_point.Snapshots`),
    so that the platform needs no other connection for statements with a kept plan.
    """

    def __init__(self, settings: PoolSettings) -> None:
        super().__init__(settings)
        self.heard: Heard = lambda statement, arguments: None
        self.memory = QueryCache()
        self.statements = 0
        self._lent: dict[Acting, tuple[BorrowedConnection, PooledConnection]] = {}
        self._prepared: dict[tuple[Acting, str], PreparedStatement] = {}

    async def open(self) -> None:
        """Open the pools, and learn which answers may be remembered."""
        await super().open()
        async with super().connection(PLATFORM) as connection:
            await self.memory.learn(connection)

    async def close(self) -> None:
        """Give every connection back."""
        for lent, _ in self._lent.values():
            await lent.__aexit__(None, None, None)
        await super().close()

    async def prepared(self, acting: Acting, statement: str) -> PreparedStatement:
        """A statement as it was prepared on the connection for `acting`."""
        self.statements += 1
        acting = PLATFORM if acting.keeps_plans else acting
        found = self._prepared.get((acting, statement))
        if found is None:
            if acting not in self._lent:
                lent = super().connection(acting)
                self._lent[acting] = lent, await lent.__aenter__()
            found = self._prepared[acting, statement] = await self._lent[acting][1].prepare(statement)
        return found

    def connection(self, acting: Acting) -> Any:
        """A connection for a write; reads use `fetch` and its kin."""
        return _Guarded(_Speaking(self, acting))

    async def in_snapshot(self, acting: Acting, read: Callable[[RowReader], Awaitable[Result]]) -> Result:
        """Nobody writes while somebody reads, so that whatever is read is of one moment."""
        return await read(self)

    def wrote(self, statement: str, arguments: Sequence[object]) -> None:
        """Something was written: what was read of it is forgotten, and the world hears of it."""
        self.memory.forget_after(statement)
        self.heard(statement, arguments)

    async def _read(
        self, acting: Acting, way: Callable[..., Awaitable[Any]], statement: str, arguments: Sequence[object]
    ) -> Any:
        process = CURRENT.get()
        if process is not None and process.dead:
            raise ProcessDied
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
        process, writes = CURRENT.get(), bool(writes_of(statement))
        if process is not None and writes:
            await process.before()
        found = await _WAYS[way](await self.prepared(acting, statement), *arguments)
        if writes:
            self.wrote(statement, arguments)
            if process is not None:
                process.after()
        return found


_WAYS: Final[dict[Any, Callable[..., Awaitable[Any]]]] = {
    PooledConnection.fetch: PreparedStatement.fetch,
    PooledConnection.fetchrow: PreparedStatement.fetchrow,
    PooledConnection.fetchval: PreparedStatement.fetchval,
}
