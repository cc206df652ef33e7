"""Connections to PostgreSQL: for the platform, and for tenants under row-level security.

There are two pools, and a small third one. Connections of the first act as the owner of the tables. Connections of
the second switch to the role `mooring_tenant` once, when they are made, and set a tenant before they are used, so
row-level security shows them only that tenant's rows. The setting stays on the connection, and the pool prefers the
connection that last served the same tenant, so setting the tenant costs a round trip only when there are more busy
tenants than connections. Connections are not reset on release, because nothing but the tenant is ever set on them.

The third pool is for long statements that run often and cost more to plan than to execute: its connections act as the
owner too, and use generic plans, which are made once in a while and not for every call.

Each statement sees what was committed when it began. Reads that need several consistent statements use `in_snapshot`,
a read-only transaction.

When a connection breaks, a read is retried once on a new connection. A write is not, because nobody knows whether it
was committed: the caller repeats it with its idempotency key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol, TypeVar

import asyncpg
import msgspec

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.sealed_document import DocumentCipher
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
"""What a connection raises when the database server is gone or does not accept connections."""

CUT_OFF: Final = (TimeoutError, asyncpg.InternalClientError)
"""What is raised, besides a cancellation, when the client stopped waiting for a statement."""

KEEPS_PLANS: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}
KEEPING_PLANS: Final = 6
PLAN_SECONDS: Final = 10.0
"""How long a generic plan is used. Tables grow: a plan that was made for an empty table would scan all of it."""


@dataclass(frozen=True, slots=True)
class Acting:
    """On whose behalf a statement runs: the platform or one tenant; and whether it uses generic plans."""

    tenant_id: str | None = None
    keeps_plans: bool = False  # for the platform only

    def __post_init__(self) -> None:
        """Connections with generic plans act as the owner, so a tenant must never use them."""
        if self.keeps_plans and self.tenant_id is not None:
            raise ValueError("only the platform may use generic plans")

    @property
    def is_platform(self) -> bool:
        return self.tenant_id is None


PLATFORM: Final = Acting()
WITH_KEPT_PLANS: Final = Acting(keeps_plans=True)
"""The platform, for long statements that run often and cost more to plan than to execute."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The size of a pool, and the time-outs for connecting, for acquiring a connection and for a statement."""

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
    """A connection on loan from a pool: `async with database.connection(acting) as connection:`."""

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
                raise unavailable("all database connections are in use") from error
            except PoolClosed as error:
                raise unavailable("the database is not open") from error
        self._connection = connection
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An interrupted statement may still run on the server: nobody else may get this connection.
        if error is not None and (not isinstance(error, Exception) or isinstance(error, CUT_OFF)):
            self._pool.drop(self._connection)
        else:
            self._pool.give(self._connection)


class BorrowedWithPlans(BorrowedConnection):
    """A connection with generic plans, which are discarded when they are old because the tables have grown."""

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
    """A source of rows: the database in its current state, or a snapshot of it."""

    async def fetch(self, acting: Acting, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """All rows of a read."""

    async def fetchrow(self, acting: Acting, statement: str, *arguments: object) -> asyncpg.Record | None:
        """The first row of a read; None when there is none."""


class ReadSnapshot:
    """A consistent snapshot of the database, for the tenant (or the platform) for which it was opened."""

    __slots__ = ("_acting", "_connection")

    def __init__(self, connection: PooledConnection, acting: Acting) -> None:
        self._connection = connection
        self._acting = acting

    async def fetch(self, acting: Acting, statement: str, *arguments: object) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._for(acting).fetch(statement, *arguments)
        return rows

    async def fetchrow(self, acting: Acting, statement: str, *arguments: object) -> asyncpg.Record | None:
        return await self._for(acting).fetchrow(statement, *arguments)

    def _for(self, acting: Acting) -> PooledConnection:
        if acting != self._acting:
            raise ValueError("this snapshot was opened for another tenant")
        return self._connection


class Database:
    """The pools, and the ways to run statements on them."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self.documents: DocumentCipher | None = None  # what seals documents in rows; the wiring sets it at the start
        self._platform = Pool(lambda: self._connect(_encode_json), settings.size)
        self._tenant = Pool(lambda: self._connect(_as_tenant), settings.size)
        self._planned = Pool(lambda: self._connect(_encode_json, KEEPS_PLANS), min(settings.size, KEEPING_PLANS))
        self._is_open = False

    async def open(self) -> None:
        """Open the pools. The tenant pool needs the role that the migrations create; the third opens on demand."""
        await self._platform.open()
        await self._tenant.open()
        self._is_open = True

    async def close(self) -> None:
        """Close every connection; wait a bounded time for those in use."""
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
        """Borrow a connection that reads and writes on behalf of `acting`."""
        if not self._is_open:
            raise unavailable("the database is not open")
        tenant_id, seconds = acting.tenant_id, self._settings.acquire_timeout_seconds
        if acting.keeps_plans:
            return BorrowedWithPlans(self._planned, None, seconds)
        return BorrowedConnection(self._platform if tenant_id is None else self._tenant, tenant_id, seconds)

    def connections(self) -> dict[tuple[str, ...], float]:
        """The number of connections, by pool and state."""
        counts: dict[tuple[str, ...], float] = {}
        for name, pool in (("platform", self._platform), ("tenant", self._tenant), ("planned", self._planned)):
            counts[name, "used"], counts[name, "idle"] = pool.counts
        return counts

    async def fetch(self, acting: Acting, statement: str, *arguments: object) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._read(acting, PooledConnection.fetch, statement, arguments)
        return rows

    async def fetchrow(self, acting: Acting, statement: str, *arguments: object) -> asyncpg.Record | None:
        row: asyncpg.Record | None = await self._read(acting, PooledConnection.fetchrow, statement, arguments)
        return row

    async def fetchval(self, acting: Acting, statement: str, *arguments: object) -> Any:
        """The first value of the first row; None when there is none."""
        return await self._read(acting, PooledConnection.fetchval, statement, arguments)

    async def in_snapshot(self, acting: Acting, read: Callable[[RowReader], Awaitable[Result]]) -> Result:
        """Run several reads that all see the same snapshot, and return the result of `read`.

        `read` may be called a second time from the beginning, so it must only read.
        """

        async def run(connection: PooledConnection) -> Result:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await read(ReadSnapshot(connection, acting))

        return await self._with_retry(acting, run)

    async def _read(
        self, acting: Acting, method: Callable[..., Awaitable[Any]], statement: str, arguments: Sequence[object]
    ) -> Any:
        return await self._with_retry(acting, lambda connection: method(connection, statement, *arguments))

    async def _with_retry(self, acting: Acting, read: Callable[[PooledConnection], Awaitable[Result]]) -> Result:
        for last_try in (False, True):
            try:
                async with self.connection(acting) as connection:
                    return await read(connection)
            except asyncpg.QueryCanceledError as error:
                raise unavailable("the database took too long") from error
            except BROKEN as error:
                if last_try:
                    raise unavailable("the database does not answer") from error
        raise AssertionError("unreachable")

    async def listener(self) -> asyncpg.Connection:
        """A new connection for LISTEN and NOTIFY, outside of the pools."""
        settings = self._settings
        return await asyncpg.connect(
            settings.url,
            timeout=settings.connect_timeout_seconds,
            server_settings=session_settings(settings, "mooring-listen"),
        )


def session_settings(settings: PoolSettings, name: str = "mooring") -> dict[str, str]:
    milliseconds = str(int(settings.statement_timeout_seconds * 1000))
    return {
        "application_name": name,
        "jit": "off",
        "timezone": "UTC",
        "statement_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,
    }


def unavailable(detail: str) -> Refusal:
    """The refusal for a database that does not answer now."""
    return Refusal(Code.TEMPORARILY_UNAVAILABLE, detail)
