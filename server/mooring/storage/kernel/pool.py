"""A connection pool that remembers which tenant each connection is set to.

Taking an idle connection needs no await and no round trip: a request for a tenant gets the connection that last served
that tenant. If there is none, the pool makes a new connection until it has its full size, and after that it switches
one that has been idle for long to the new tenant. So each tenant keeps its own connections as long as there are no
more busy tenants than connections.

A connection returns to the pool only in a known state. One that is closed, inside a transaction, or whose statement
was interrupted (cancelled, timed out) is dropped and replaced by a new one, so no caller ever meets what another left
behind.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

INACTIVE_SECONDS_MAX: Final = 300.0
SWEEP_SECONDS: Final = 30.0
CLOSE_SECONDS_MAX: Final = 5.0
NAME_TENANT: Final = "SELECT set_config('mooring.tenant', $1, false)"


class PooledConnection(asyncpg.Connection):
    """A connection that remembers its tenant, since when it is idle, and when its plans were made."""

    __slots__ = ("idle_since", "planned_at", "tenant_named")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tenant_named: str | None = None
        self.idle_since = 0.0
        self.planned_at = float("-inf")

    async def name_tenant(self, tenant_id: str) -> None:
        """Switch this connection to the tenant."""
        if self.tenant_named == tenant_id:
            return
        self.tenant_named = None
        await self.fetchval(NAME_TENANT, tenant_id)
        self.tenant_named = tenant_id


class PoolClosed(Exception):
    """Somebody asked a closed pool for a connection."""


class PoolExhausted(Exception):
    """All connections are in use, and none became free in time."""


class Pool:
    """At most `size` connections, made on demand."""

    def __init__(self, make: Callable[[], Awaitable[PooledConnection]], size: int) -> None:
        self._make = make
        self._size = size
        self._made = 0  # connections that exist or are being made
        self._idle: list[PooledConnection] = []  # the most recently used one is at the end
        self._waiting: deque[asyncio.Future[PooledConnection | None]] = deque()
        self._sweeping: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._taken: set[PooledConnection] = set()

    @property
    def counts(self) -> tuple[int, int]:
        """The number of connections in use, and of idle ones."""
        return self._made - len(self._idle), len(self._idle)

    async def open(self) -> None:
        """Make the first connection, so that a wrong URL fails at start-up."""
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        self.give(await self._new())

    def take_now(self, tenant_id: str | None) -> PooledConnection | None:
        """An idle connection that is already set to the tenant; None when there is none."""
        idle = self._idle
        for index in range(len(idle) - 1, -1, -1):
            connection = idle[index]
            if connection.tenant_named == tenant_id:
                del idle[index]
                if connection.is_closed():
                    self._made -= 1
                    continue
                self._taken.add(connection)
                return connection
        return None

    async def take(self, tenant_id: str | None, timeout_seconds: float) -> PooledConnection:
        """A connection for the tenant. Waits for a free one, and raises `PoolExhausted` after the time-out."""
        connection = self.take_now(tenant_id)
        if connection is not None:
            return connection
        connection = self._another()
        if connection is None:
            connection = await self._any(asyncio.get_running_loop().time() + timeout_seconds)
        if tenant_id is not None:
            try:
                await connection.name_tenant(tenant_id)
            except BaseException:
                self.drop(connection)
                raise
        return connection

    def _another(self) -> PooledConnection | None:
        """An idle connection without a tenant, or with another tenant when the pool has its full size.

        It is a random one of the half that has been idle for longest. If it were always the one idle for longest,
        tenants that take turns would never find a connection of their own again.
        """
        while self._idle and (self._made >= self._size or self._idle[0].tenant_named is None):
            unnamed = self._idle[0].tenant_named is None
            connection = self._idle.pop(0 if unnamed else random.randrange((len(self._idle) + 1) // 2))
            if not connection.is_closed():
                self._taken.add(connection)
                return connection
            self._made -= 1
        return None

    async def _any(self, deadline: float) -> PooledConnection:
        while self._emptied is None:
            connection = self._another()
            if connection is None and self._made < self._size:
                connection = await self._new()
            elif connection is None:
                connection = await self._wait(deadline)
            if connection is not None:
                return connection
        raise PoolClosed

    async def _wait(self, deadline: float) -> PooledConnection | None:
        """Wait for the next returned connection; None means that there is room to make a new one."""
        turn: asyncio.Future[PooledConnection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it was handed over just as this waiter gave up
                connection = turn.result()
                if connection is not None:
                    self.give(connection)
                else:
                    self._call_next(None)
            if isinstance(error, TimeoutError):
                raise PoolExhausted from error
            raise

    async def _new(self) -> PooledConnection:
        self._made += 1
        try:
            connection = await self._make()
        except BaseException:
            self._made -= 1
            self._call_next(None)
            raise
        self._taken.add(connection)
        return connection

    def give(self, connection: PooledConnection) -> None:
        """Return a connection whose statement finished."""
        if connection.is_closed() or connection.is_in_transaction() or self._emptied is not None:
            self.drop(connection)
            return
        self._taken.discard(connection)
        connection.idle_since = asyncio.get_running_loop().time()
        if not self._waiting or not self._call_next(connection):
            self._idle.append(connection)

    def drop(self, connection: PooledConnection) -> None:
        """Close a connection whose state is unknown."""
        if connection in self._taken:  # otherwise `close` has dropped it already
            self._taken.discard(connection)
            self._end(connection)

    def _end(self, connection: PooledConnection) -> None:
        connection.terminate()
        self._made -= 1
        self._call_next(None)
        if self._emptied is not None and not self._made and not self._emptied.done():
            self._emptied.set_result(None)

    def _call_next(self, connection: PooledConnection | None) -> bool:
        """Give the longest waiter this connection, or None to say that there is room for a new one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                if connection is not None:
                    self._taken.add(connection)
                turn.set_result(connection)
                return True
        return False

    def _sweep(self) -> None:
        """Close connections that have been idle for long, except one."""
        loop = asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0].idle_since < loop.time() - INACTIVE_SECONDS_MAX:
            self._idle.pop(0).terminate()
            self._made -= 1
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)

    async def close(self) -> None:
        """Close every connection; those in use get a bounded time to finish."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._emptied = asyncio.get_running_loop().create_future()
        idle, self._idle = self._idle, []
        for connection in idle:
            self._end(connection)
        while self._call_next(None):
            pass
        if self._made:
            await asyncio.wait((self._emptied,), timeout=CLOSE_SECONDS_MAX)
        for connection in list(self._taken):
            self.drop(connection)
