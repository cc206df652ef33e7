"""Connections to PostgreSQL: the platform's and, behind the second lock, the tenants'.

There are two pools. A connection of the first acts as the owner of the tables. A connection of the second takes the
role `mooring_tenant` once, when it is made, and names a tenant before it is used: row-level security then shows it
that tenant's rows only. The name stays with the connection, so that naming it again costs a round trip only when the
tenant changes; the pool is last-in first-out, which makes that rare. Nothing resets a connection on release: no
caller opens a transaction by hand, and nothing but the tenant's name is ever set.

A connection that breaks is a matter of the moment. A read is tried once more on a new connection; a write is not,
since nobody knows whether it was committed: the caller repeats it with its idempotency key.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import asyncpg
import msgspec

from mooring.core.errors import Code, Refusal

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


@dataclass(frozen=True, slots=True)
class Acting:
    """For whom the database is asked: the platform, or one tenant."""

    tenant_id: str | None = None

    @property
    def is_platform(self) -> bool:
        """Whether this is the platform itself, which sees every row."""
        return self.tenant_id is None


PLATFORM: Final = Acting()


class Connection(asyncpg.Connection):
    """A connection that remembers for which tenant it speaks."""

    __slots__ = ("_tenant_named",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tenant_named: str | None = None

    async def name_tenant(self, tenant_id: str) -> None:
        """Speak for this tenant from now on."""
        if self._tenant_named == tenant_id:
            return
        self._tenant_named = None
        await self.fetchval("SELECT set_config('mooring.tenant', $1, false)", tenant_id)
        self._tenant_named = tenant_id


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How many connections, and how long a statement may take."""

    url: str
    size: int = 8
    acquire_timeout_seconds: float = 10.0
    statement_timeout_seconds: float = 30.0


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


async def _keep(connection: asyncpg.Connection) -> None:
    """The pool's reset: nothing is set on a connection that would have to be taken back."""


class Database:
    """The two pools, and the few ways of asking them."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._platform: asyncpg.Pool | None = None
        self._tenant: asyncpg.Pool | None = None
        self._closing = False

    async def open(self) -> None:
        """Make both pools; the tenants' one needs the role that the first migration makes."""
        self._platform = await self._pool(_encode_json)
        self._tenant = await self._pool(_as_tenant)

    async def close(self) -> None:
        """Give every connection back, waiting a bounded time for those in use."""
        self._closing = True
        for pool in (self._tenant, self._platform):
            if pool is not None:
                try:
                    await asyncio.wait_for(pool.close(), 5)
                except TimeoutError:
                    pool.terminate()

    async def _pool(self, init: Callable[[asyncpg.Connection], Any]) -> asyncpg.Pool:
        settings = self._settings
        return await asyncpg.create_pool(
            settings.url,
            min_size=1,
            max_size=settings.size,
            max_inactive_connection_lifetime=300,
            connection_class=Connection,
            init=init,
            reset=_keep,
            timeout=5,
            command_timeout=settings.statement_timeout_seconds + 5,
            statement_cache_size=500,
            max_cached_statement_lifetime=0,
            server_settings=_session(settings, "mooring"),
        )

    @asynccontextmanager
    async def connection(self, acting: Acting) -> AsyncIterator[Connection]:
        """A connection that speaks for `acting`."""
        pool = self._platform if acting.is_platform else self._tenant
        if pool is None or self._closing:
            raise unavailable("the database is not open")
        try:
            taken = await pool.acquire(timeout=self._settings.acquire_timeout_seconds)
        except TimeoutError as error:
            raise unavailable("every database connection is in use") from error
        speaker = cast(Connection, taken)  # the pool's proxy has all that the connection has
        try:
            if acting.tenant_id is not None:
                await speaker.name_tenant(acting.tenant_id)
            yield speaker
        finally:
            await pool.release(taken)

    async def fetch(self, acting: Acting, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """All rows of a read."""
        rows: list[asyncpg.Record] = await self._read(acting, "fetch", statement, arguments)
        return rows

    async def fetchrow(self, acting: Acting, statement: str, *arguments: object) -> asyncpg.Record | None:
        """The first row of a read, or none."""
        row: asyncpg.Record | None = await self._read(acting, "fetchrow", statement, arguments)
        return row

    async def fetchval(self, acting: Acting, statement: str, *arguments: object) -> Any:
        """The first value of a read."""
        return await self._read(acting, "fetchval", statement, arguments)

    async def _read(self, acting: Acting, way: str, statement: str, arguments: Sequence[object]) -> Any:
        for last_try in (False, True):
            try:
                async with self.connection(acting) as connection:
                    return await getattr(connection, way)(statement, *arguments)
            except asyncpg.QueryCanceledError as error:
                raise unavailable("the database took too long") from error
            except BROKEN as error:
                if last_try:
                    raise unavailable("the database does not answer") from error
        raise AssertionError("unreachable")

    async def listener(self) -> asyncpg.Connection:
        """A connection of its own for LISTEN and NOTIFY, outside of the pools."""
        return await asyncpg.connect(
            self._settings.url, timeout=5, server_settings=_session(self._settings, "mooring-listen")
        )


def _session(settings: PoolSettings, name: str) -> dict[str, str]:
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
