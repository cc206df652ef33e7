"""The pool of connections: tenants keep theirs, and nobody ever meets what another one left behind."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.settings import Settings
from mooring.storage.kernel import pool
from mooring.storage.kernel.database import PLATFORM, WITH_KEPT_PLANS, Acting, Database, PoolSettings, RowReader
from mooring.wiring import platform
from tests.support.waiting import turns, until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

SPEAKS_FOR = "SELECT current_setting('mooring.tenant', true)"
BACKEND = "SELECT pg_backend_pid()"
IS_ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(30)'"
ONE, TWO, THREE = Acting("ten_one"), Acting("ten_two"), Acting("ten_three")


@pytest.fixture
async def small(database_url: str) -> AsyncIterator[Database]:
    """Both pools, with two connections each."""
    opened = Database(PoolSettings(database_url, 2, acquire_timeout_seconds=60.0))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def impatient(database_url: str) -> AsyncIterator[Database]:
    """The same, and nobody waits long for a connection: that is what is tried."""
    opened = Database(PoolSettings(database_url, 2, acquire_timeout_seconds=0.2))
    await opened.open()
    yield opened
    await opened.close()


async def test_a_tenant_gets_the_connection_that_spoke_for_it_last(small: Database) -> None:
    first = await small.fetchval(ONE, BACKEND)
    second = await small.fetchval(TWO, BACKEND)
    assert first != second
    for _ in range(3):
        assert await small.fetchval(ONE, BACKEND) == first
        assert await small.fetchval(TWO, BACKEND) == second


async def test_with_more_tenants_than_connections_the_longest_idle_one_is_renamed(small: Database) -> None:
    first, second = [await small.fetchval(acting, BACKEND) for acting in (ONE, TWO)]
    assert await small.fetchval(THREE, BACKEND) == first
    assert await small.fetchval(THREE, SPEAKS_FOR) == "ten_three"
    assert await small.fetchval(TWO, BACKEND) == second
    assert await small.fetchval(ONE, SPEAKS_FOR) == "ten_one"


async def test_many_tenants_at_once_never_speak_for_each_other(small: Database) -> None:
    async def ask(number: int) -> None:
        acting = Acting(f"ten_{number % 7}")
        async with small.connection(acting) as connection:
            assert await connection.fetchval(SPEAKS_FOR) == acting.tenant_id
            await connection.fetchval("SELECT pg_sleep(0)")
            assert await connection.fetchval(SPEAKS_FOR) == acting.tenant_id

    await asyncio.gather(*(ask(number) for number in range(60)))


async def test_the_platform_and_the_tenants_do_not_share_connections(small: Database) -> None:
    assert await small.fetchval(PLATFORM, "SELECT current_user") == "mooring"
    assert await small.fetchval(ONE, "SELECT current_user") == "mooring_tenant"
    assert await small.fetchval(PLATFORM, SPEAKS_FOR) in (None, "")


async def test_plans_are_kept_for_the_platform_and_for_no_tenant(small: Database) -> None:
    assert await small.fetchval(WITH_KEPT_PLANS, "SELECT current_user") == "mooring"
    with pytest.raises(ValueError, match="only the platform"):
        Acting("ten_one", keeps_plans=True)


async def test_a_caller_who_finds_every_connection_in_use_is_refused_after_a_while(impatient: Database) -> None:
    async with impatient.connection(ONE), impatient.connection(ONE):
        with pytest.raises(Refusal) as refused:
            await impatient.fetchval(ONE, SPEAKS_FOR)
    assert refused.value.code is Code.TEMPORARILY_UNAVAILABLE
    assert await impatient.fetchval(ONE, SPEAKS_FOR) == "ten_one"


async def test_a_caller_who_waits_gets_the_next_connection_under_its_own_name(small: Database) -> None:
    waiting = asyncio.Event()

    async def ask() -> object:
        waiting.set()
        return await small.fetchval(THREE, SPEAKS_FOR)

    async with small.connection(ONE), small.connection(TWO):
        asking = asyncio.create_task(ask())
        await waiting.wait()
    assert await asking == "ten_three"


async def test_a_caller_who_gives_up_waiting_takes_no_connection_along(small: Database) -> None:
    async with small.connection(ONE), small.connection(ONE):
        asking = [asyncio.create_task(small.fetchval(ONE, SPEAKS_FOR)) for _ in range(4)]
        await turns()
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    async with small.connection(ONE) as first, small.connection(ONE) as second:
        assert await first.fetchval(BACKEND) != await second.fetchval(BACKEND)


async def test_a_cancelled_statements_connection_is_not_used_again(small: Database) -> None:
    async with small.connection(ONE) as connection:
        before = await connection.fetchval(BACKEND)
    asking = asyncio.create_task(small.fetchval(ONE, "SELECT pg_sleep(30)"))
    async with small.connection(PLATFORM) as watching:
        await until(lambda: watching.fetchval(IS_ASLEEP))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await small.fetchval(ONE, BACKEND) != before


async def test_a_connection_inside_a_transaction_is_not_used_again(small: Database) -> None:
    async with small.connection(ONE) as connection:
        before = await connection.fetchval(BACKEND)
        await connection.execute("START TRANSACTION")
    assert await small.fetchval(ONE, BACKEND) != before


async def test_a_refused_statement_costs_no_connection(small: Database) -> None:
    before = await small.fetchval(ONE, BACKEND)
    async with small.connection(ONE) as connection:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.fetchval("SELECT 1 / 0")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await small.fetchval(ONE, "SELECT 1 / 0")
    assert await small.fetchval(ONE, BACKEND) == before


async def test_a_connection_that_the_server_ended_is_replaced(small: Database) -> None:
    before = await small.fetchval(ONE, BACKEND)
    await small.fetchval(PLATFORM, "SELECT pg_terminate_backend($1, 5000)", before)
    assert await small.fetchval(ONE, SPEAKS_FOR) == "ten_one"
    assert await small.fetchval(ONE, BACKEND) != before


async def test_what_is_read_at_one_moment_is_read_again_whole_where_its_connection_was_cut(small: Database) -> None:
    backends: list[int] = []

    async def read(reader: RowReader) -> list[int]:
        seen = [row[0] for row in await reader.fetch(ONE, BACKEND)]
        backends.extend(seen)
        if len(backends) == 1:
            await small.fetchval(PLATFORM, "SELECT pg_terminate_backend($1, 5000)", backends[0])
        row = await reader.fetchrow(ONE, BACKEND)
        assert row is not None
        return [*seen, row[0]]

    first, second = await small.in_snapshot(ONE, read)
    assert first == second == backends[1] != backends[0]
    assert await small.fetchval(ONE, BACKEND) == second, "it was given back, and outside of a transaction"


async def test_a_moment_is_for_one_tenant_writes_nothing_and_is_over_when_it_fails(small: Database) -> None:
    async def of_another(reader: RowReader) -> None:
        await reader.fetch(TWO, SPEAKS_FOR)

    async def writing(reader: RowReader) -> None:
        await reader.fetch(ONE, "DELETE FROM project RETURNING id")

    before = await small.fetchval(ONE, BACKEND)
    with pytest.raises(ValueError, match="another tenant"):
        await small.in_snapshot(ONE, of_another)
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await small.in_snapshot(ONE, writing)
    assert await small.fetchval(ONE, BACKEND) == before


async def test_closing_waits_for_what_is_in_use_and_refuses_the_rest(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "CLOSE_SECONDS_MAX", 60.0)
    database = Database(PoolSettings(database_url, 1))
    await database.open()
    async with database.connection(ONE) as connection:
        waiting = asyncio.create_task(database.fetchval(ONE, SPEAKS_FOR))
        await turns()
        closing = asyncio.create_task(database.close())
        await turns()
        assert await connection.fetchval("SELECT 1") == 1
    await closing
    for asking in (waiting, database.fetchval(ONE, SPEAKS_FOR)):
        with pytest.raises(Refusal):
            await asking


async def test_the_numbers_of_connections_are_known(small: Database) -> None:
    async with small.connection(ONE):
        assert small.connections()["tenant", "used"] == 1
    assert small.connections() == {
        ("platform", "used"): 0,
        ("platform", "idle"): 1,
        ("tenant", "used"): 0,
        ("tenant", "idle"): 1,
        ("planned", "used"): 0,
        ("planned", "idle"): 0,
    }


async def test_a_database_that_takes_the_connection_and_says_nothing_is_given_up_on(tmp_path: Path) -> None:
    """As the setting says: with the pools' own time, or none, this would go on for longer than the test waits."""
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", 0)
    url = f"postgresql://mooring@127.0.0.1:{silent.sockets[0].getsockname()[1]}/mooring"
    settings = Settings(master_key_file=str(tmp_path / "master.key"), database_connect_timeout_seconds=0.05)
    async with silent, asyncio.timeout(30):
        with pytest.raises(TimeoutError):
            async with platform(settings, url, Telemetry()):
                pass
        with pytest.raises(TimeoutError):
            await Database(PoolSettings(url, connect_timeout_seconds=0.05)).listener()
        for each in held:
            each.close()
