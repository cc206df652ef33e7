"""Connections to PostgreSQL: the platform's and, behind the second lock, the tenants'.

There are two pools, and a small third one. A connection of the first acts as the owner of the tables. A connection of
the second takes the role `mooring_tenant` once, when it is made, and names a tenant before it is used: row-level
security then shows it that tenant's rows only. The name stays with the connection, and the pool gives a tenant the
connection that spoke for it last, so that naming it again costs a round trip only where there are more busy tenants
than connections. Nothing resets a connection on release: nothing but the tenant's name is ever set on it.

The third is for what is asked again and again in long statements that are cheap but for their planning: its
connections act as the owner too, and plan a statement once in a while for all arguments, and not each time for these.

Each read sees what is committed when it begins. What is read in several statements and must agree is read
`at_one_moment`: in a transaction that reads and does nothing else.

A connection that breaks is a matter of the moment. A read is tried once more on a new connection; a write is not,
since nobody knows whether it was committed: the caller repeats it with its idempotency key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol, TypeVar

import asyncpg
import msgspec

from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.kernel.pool import Pool, PoolClosed, PooledConnection, PoolExhausted

Result = TypeVar("Result")
TENANT_ROLE: Final = "mooring_tenant"
BROKEN: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.InsufficientResourcesError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    ConnectionError,
    OSError,
)
"""What a connection raises when the server went away under it."""

CUT_OFF: Final = (TimeoutError, asyncpg.InternalClientError)
"""What is raised, beside a cancellation, when a statement did not come to its end on this side."""

KEEPS_PLANS: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
KEEPING_PLANS: Final = 4
PLAN_SECONDS: Final = 10.0
"""A plan that is kept must hold for tables that have grown since: one made for an empty table would read all of it."""


@dataclass(frozen=True, slots=True)
class Acting:
    """For whom the database is asked: the platform, or one tenant; and whether with plans that are kept."""

    tenant_id: str | None = None
    keeps_plans: bool = False  # for the platform only

    def __post_init__(self) -> None:
        """Connections that keep plans act as the owner: no tenant is ever asked for through them."""
        if self.keeps_plans and self.tenant_id is not None:
            raise ValueError("plans are kept for the platform alone")

    @property
    def is_platform(self) -> bool:
        """Whether this is the platform itself, which sees every row."""
        return self.tenant_id is None


PLATFORM: Final = Acting()
WITH_KEPT_PLANS: Final = Acting(keeps_plans=True)
"""The platform, for what it asks again and again in long statements that are cheap but for their planning."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many connections, and how long it may take to make one, to get one and to be answered on it."""

    url: str
    size: int = 8
    acquire_timeout_seconds: float = 10.0
    statement_timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 60.0


async def _encode_json(connection: asyncpg.Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name,
            encoder=lambda value: msgspec.json.encode(value).decode(),
            decoder=msgspec.json.decode,
            schema="pg_catalog",
        )


async def _as_tenant(connection: asyncpg.Connection) -> None:
    await connection.execute(f"SET ROLE {TENANT_ROLE}")
    await _encode_json(connection)


class BorrowedConnection:
    """A connection while somebody uses it: `async with database.connection(acting) as connection:`."""

    __slots__ = ("_connection", "_pool", "_seconds", "_tenant_id")

    def __init__(self, pool: Pool, tenant_id: str | None, seconds: float) -> None:
        self._pool = pool
        self._tenant_id = tenant_id
        self._seconds = seconds

    async def __aenter__(self) -> PooledConnection:
        connection = self._pool.take_now(self._tenant_id)
        if connection is None:
            try:
                connection = await self._pool.take(self._tenant_id, self._seconds)
            except PoolExhausted as error:
                raise unavailable("every database connection is in use") from error
            except PoolClosed as error:
                raise unavailable("the database is not open") from error
        self._connection = connection
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A statement that was cut off may still be running: nobody else may get its connection.
        if error is not None and (not isinstance(error, Exception) or isinstance(error, CUT_OFF)):
            self._pool.drop(self._connection)
        else:
            self._pool.give(self._connection)


class BorrowedWithPlans(BorrowedConnection):
    """A connection that keeps its plans, made anew when they are old: the tables have grown since."""

    __slots__ = ()

    async def __aenter__(self) -> PooledConnection:
        connection = await super().__aenter__()
        now = asyncio.get_running_loop().time()
        if now - connection.planned_at > PLAN_SECONDS:
            try:
                await connection.execute("DISCARD PLANS")
            except BaseException:
                self._pool.drop(connection)
                raise
            connection.planned_at = now
        return connection


class RowReader(Protocol):
    """Whoever is asked for rows: the database as it is, or as it was at one moment."""

    async def fetch(self, acting: Acting, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """All rows of a read."""

    async def fetchrow(self, acting: Acting, statement: str, *arguments: object) -> asyncpg.Record | None:
        """The first row of a read, or none."""


class ReadSnapshot:
    """The database as it was at one moment, for the one for whom it was opened."""

    __slots__ = ("_acting", "_connection")

    def __init__(self, connection: PooledConnection, acting: Acting) -> None:
        self._connection = connection
        self._acting = acting

    async def fetch(self, acting: Acting, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """All rows of a read."""
        rows: list[asyncpg.Record] = await self._for(acting).fetch(statement, *arguments)
        return rows

    async def fetchrow(self, acting: Acting, statement: str, *arguments: object) -> asyncpg.Record | None:
        """The first row of a read, or none."""
        return await self._for(acting).fetchrow(statement, *arguments)

    def _for(self, acting: Acting) -> PooledConnection:
        if acting != self._acting:
            raise ValueError("this moment was opened for somebody else")
        return self._connection


class Database:
    """The two pools, and the few ways of asking them."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._platform = Pool(lambda: self._connect(_encode_json), settings.size)
        self._tenant = Pool(lambda: self._connect(_as_tenant), settings.size)
        self._planned = Pool(lambda: self._connect(_encode_json, KEEPS_PLANS), min(settings.size, KEEPING_PLANS))
        self._is_open = False

    async def open(self) -> None:
        """Make the pools; the tenants' one needs the role that the first migration makes. The third grows by need."""
        await self._platform.open()
        await self._tenant.open()
        self._is_open = True

    async def close(self) -> None:
        """Give every connection back, waiting a bounded time for those in use."""
        self._is_open = False
        await asyncio.gather(self._tenant.close(), self._platform.close(), self._planned.close())

    async def _connect(
        self, prepare: Callable[[asyncpg.Connection], Awaitable[None]], extra: Mapping[str, str] = MappingProxyType({})
    ) -> PooledConnection:
        settings = self._settings
        connection = await asyncpg.connect(
            settings.url,
            connection_class=PooledConnection,
            timeout=settings.connect_timeout_seconds,
            command_timeout=settings.statement_timeout_seconds + 5,
            statement_cache_size=500,
            max_cached_statement_lifetime=0,
            server_settings={**session_settings(settings), **extra},
        )
        try:
            await prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def connection(self, acting: Acting) -> BorrowedConnection:
        """A connection that speaks for `acting`."""
        if not self._is_open:
            raise unavailable("the database is not open")
        tenant_id, seconds = acting.tenant_id, self._settings.acquire_timeout_seconds
        if acting.keeps_plans:
            return BorrowedWithPlans(self._planned, None, seconds)
        return BorrowedConnection(self._platform if tenant_id is None else self._tenant, tenant_id, seconds)

    def connections(self) -> dict[tuple[str, ...], float]:
        """How many connections there are, by pool and state."""
        counts: dict[tuple[str, ...], float] = {}
        for name, pool in (("platform", self._platform), ("tenant", self._tenant), ("planned", self._planned)):
            counts[name, "used"], counts[name, "idle"] = pool.counts
        return counts

    async def fetch(self, acting: Acting, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """All rows of a read."""
        rows: list[asyncpg.Record] = await self._read(acting, PooledConnection.fetch, statement, arguments)
        return rows

    async def fetchrow(self, acting: Acting, statement: str, *arguments: object) -> asyncpg.Record | None:
        """The first row of a read, or none."""
        row: asyncpg.Record | None = await self._read(acting, PooledConnection.fetchrow, statement, arguments)
        return row

    async def fetchval(self, acting: Acting, statement: str, *arguments: object) -> Any:
        """The first value of a read."""
        return await self._read(acting, PooledConnection.fetchval, statement, arguments)

    async def at_one_moment(self, acting: Acting, read: Callable[[RowReader], Awaitable[Result]]) -> Result:
        """What is read by several statements that all see the same: none of what is committed between them.

        `read` may be called once more from its beginning, so it only reads.
        """

        async def all_of_it(connection: PooledConnection) -> Result:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await read(ReadSnapshot(connection, acting))

        return await self._tried(acting, all_of_it)

    async def _read(
        self, acting: Acting, way: Callable[..., Awaitable[Any]], statement: str, arguments: Sequence[object]
    ) -> Any:
        return await self._tried(acting, lambda connection: way(connection, statement, *arguments))

    async def _tried(self, acting: Acting, way: Callable[[PooledConnection], Awaitable[Result]]) -> Result:
        for last_try in (False, True):
            try:
                async with self.connection(acting) as connection:
                    return await way(connection)
            except asyncpg.QueryCanceledError as error:
                raise unavailable("the database took too long") from error
            except BROKEN as error:
                if last_try:
                    raise unavailable("the database does not answer") from error
        raise AssertionError("unreachable")

    async def listener(self) -> asyncpg.Connection:
        """A connection of its own for LISTEN and NOTIFY, outside of the pools."""
        settings = self._settings
        return await asyncpg.connect(
            settings.url,
            timeout=settings.connect_timeout_seconds,
            server_settings=session_settings(settings, "mooring-listen"),
        )


def session_settings(settings: PoolSettings, name: str = "mooring") -> dict[str, str]:
    """What each session sets for itself."""
    milliseconds = str(int(settings.statement_timeout_seconds * 1000))
    return {
        "application_name": name,
        "jit": "off",
        "timezone": "UTC",
        "statement_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,
    }


def unavailable(detail: str) -> Refusal:
    """The refusal for a database that cannot be asked now."""
    return Refusal(Code.TEMPORARILY_UNAVAILABLE, detail)
