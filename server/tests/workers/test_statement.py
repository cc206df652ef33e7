"""Statements on a real database: closed once, whatever dies, never changed, and every law finds what breaks it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.commands.money.charge import settle
from mooring.commands.money.statement import close_due, open_missing
from mooring.core.money.charge import HOUR, hour_of, month_of
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, PoolSettings
from mooring.storage.money.law import Law
from mooring.storage.money.statement import LAWS
from mooring.workers.charge import ChargeWorker
from mooring.workers.statement import StatementWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.lifecycle_rows import refused_by
from server.tests.workers.test_allocation_reconciler_dies import DyingDatabase, ReconcilerDied
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def site(world: World) -> AllocationSite:
    return await make_site(world)


async def one(site: AllocationSite, statement: str, *arguments: object) -> Any:
    return await site.fleet.database.fetchval(PLATFORM, statement, *arguments)


async def charged(site: AllocationSite, hours: int = 3) -> tuple[dict[str, Any], datetime]:
    """An allocation that was charged for some hours; the time when it became active."""
    await site.fleet.node(4)
    stands = await site.active(await site.fleet.sku(), gpu_count=2)
    site.later(hours * HOUR)
    await ChargeWorker(site.world.running.platform.services).tick()
    return stands, datetime.fromisoformat(stands["activated_at"])


async def month_is_charged(site: AllocationSite, month: datetime) -> timedelta:
    """Mark the month as charged to its end, and let a day and an hour pass; returns how far ahead the clock is."""
    end = (month_of(month) + timedelta(days=32)).replace(day=1)
    await site.fleet.database.fetch(PLATFORM, "INSERT INTO billing_hour VALUES ($1, $2)", end - HOUR, end)
    ahead = end + timedelta(hours=25) - datetime.now(UTC)
    site.later(ahead)
    return ahead


async def tick(site: AllocationSite) -> None:
    await StatementWorker(site.world.running.platform.services).tick()


async def test_a_month_is_opened_by_its_first_charge_and_closed_once_by_however_many_workers(
    site: AllocationSite,
) -> None:
    _, active = await charged(site)
    await asyncio.gather(*(tick(site) for _ in range(3)))
    assert await one(site, "SELECT array_agg(status) FROM statement") == ["open"]
    until = await month_is_charged(site, active)
    site.later(until - timedelta(hours=2))
    await tick(site)
    assert await one(site, "SELECT status FROM statement") == "open"  # corrections still count in it
    site.later(until)
    await asyncio.gather(*(tick(site) for _ in range(3)))
    assert await one(site, "SELECT array_agg(status) FROM statement") == ["closed"]
    owed = "SELECT sum(amount) FROM ledger_entry WHERE account = 'receivable'"
    assert await one(site, "SELECT amount FROM statement") == await one(site, owed) > 0
    assert await one(site, "SELECT line_count FROM statement") == await one(site, "SELECT count(*) FROM rated_usage")
    assert await one(site, "SELECT count(*) FROM event WHERE type = 'billing.statement.closed'") == 1
    assert [law.key for law in LAWS if await counterexample(site, law)] == []


async def test_a_worker_that_dies_at_any_statement_leaves_a_month_that_is_closed_once(
    site: AllocationSite, settings: Settings
) -> None:
    _, active = await charged(site)
    await month_is_charged(site, active)
    services, seen = site.world.running.platform.services, []
    for after in (False, True):
        for uses in range(1, 12):
            database = DyingDatabase(PoolSettings(settings.database_url, 2), uses, after=after)
            await database.open()
            own = type(services)(
                **{each: getattr(services, each) for each in services.__slots__} | {"database": database}
            )
            try:
                await open_missing(own)
                await close_due(own)
            except ReconcilerDied:
                seen.append(await one(site, "SELECT coalesce(max(status), 'none') FROM statement"))
            finally:
                await database.close()
    assert {"none", "open", "closing"} <= set(seen)
    assert await one(site, "SELECT array_agg(status) FROM statement") == ["closed"]
    assert await one(site, "SELECT count(*) FROM event WHERE type = 'billing.statement.closed'") == 1
    assert [law.key for law in LAWS if await counterexample(site, law)] == []


async def test_what_is_booked_after_the_close_counts_in_the_month_of_its_booking(site: AllocationSite) -> None:
    stands, active = await charged(site)
    ahead = await month_is_charged(site, active)
    await tick(site)
    before = await one(site, "SELECT amount FROM statement WHERE status = 'closed'")
    # The release is requested in an hour that was already charged, and is logged after the month was closed.
    site.later(timedelta(0))
    await site.post(f"/allocations/{stands['id']}/release")
    site.later(ahead)
    for number in range(3):
        await settle(site.world.running.platform.services, hour_of(active) + number * HOUR)
    await tick(site)
    rows = await site.fleet.database.fetch(PLATFORM, "SELECT id, period, status, amount FROM statement ORDER BY period")
    assert [row["status"] for row in rows] == ["closed", "open"]
    assert rows[0]["amount"] == before
    late = await site.fleet.database.fetchrow(
        PLATFORM, "SELECT min(period) AS period FROM ledger_transaction WHERE kind = 'correction'"
    )
    assert late is not None
    assert late["period"] == rows[1]["period"] > rows[0]["period"]
    await month_is_charged(site, month_of(active) + timedelta(days=33))
    await tick(site)
    chain = "SELECT array_agg(coalesce(previous_digest, '') ORDER BY period) FROM statement WHERE status = 'closed'"
    first = await one(site, "SELECT digest FROM statement ORDER BY period LIMIT 1")
    assert await one(site, chain) == ["", first]
    assert await one(site, "SELECT amount FROM statement ORDER BY period DESC LIMIT 1") < 0
    assert [law.key for law in LAWS if await counterexample(site, law)] == []


async def test_a_booking_in_flight_is_waited_for_and_one_after_the_freeze_counts_later(site: AllocationSite) -> None:
    _, active = await charged(site)
    await month_is_charged(site, active)
    await open_missing(site.world.running.platform.services)
    copied = """INSERT INTO rated_usage SELECT (jsonb_populate_record(r, jsonb_build_object('id', $1::text,
                'revision', 7, 'transaction_id', null, 'billing', 'covered', 'amount', 0, 'source_id', $1::text,
                'created_at', $2::timestamptz))).* FROM rated_usage r LIMIT 1"""
    now = site.world.running.platform.services.clock.now()
    async with site.fleet.database.connection(PLATFORM) as booking:
        async with booking.transaction():
            await booking.execute(copied, "rtu_early", now)
            closing = asyncio.create_task(tick(site))
            waits = """SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                        WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted"""
            await until(lambda: one(site, waits), 10, what="the close that waits for the booking")
        await closing
        await booking.execute(copied, "rtu_late", now)
    assert await one(site, "SELECT line_count FROM statement WHERE status = 'closed'") == await one(
        site, "SELECT count(*) FROM rated_usage WHERE id <> 'rtu_late'"
    )
    periods = "SELECT array_agg(period ORDER BY id) FROM rated_usage WHERE id IN ('rtu_early', 'rtu_late')"
    early, late = await one(site, periods)
    assert early < late


async def test_the_database_refuses_to_change_a_closed_statement(site: AllocationSite) -> None:
    _, active = await charged(site)
    await month_is_charged(site, active)
    await tick(site)
    async with site.fleet.database.connection(PLATFORM) as connection:
        for change, name in (
            ("UPDATE statement SET amount = amount + 1", "statement_is_final"),
            ("UPDATE statement SET period = '2020-01-01'", "statement_is_final"),
            ("UPDATE statement SET status = 'open', generation = generation + 1", "statement_status_is_backed"),
            ("DELETE FROM statement", "statement_is_never_deleted"),
            ("TRUNCATE statement", "statement_is_never_emptied"),
        ):
            assert await refused_by(connection.execute(change)) == name, change


async def counterexample(site: AllocationSite, law: Law) -> Any:
    assert await one(site, law.checked) > 0
    return await one(site, law.counterexample)


BROKEN: tuple[tuple[str, str], ...] = (
    ("statement_lines_are_the_entries", "UPDATE rated_usage SET amount = amount + 1"),
    ("line_counts_with_its_transaction", "UPDATE rated_usage SET period = period + interval '1 month'"),
    ("closed_statement_has_its_lines", "UPDATE rated_usage SET quantity = quantity + 1"),
    ("statement_chain", "UPDATE statement SET previous_digest = 'sha256:' || repeat('0', 64)"),
    ("statement_chain", "UPDATE statement SET amount = amount + 1"),
)  # fmt: skip


async def test_each_law_finds_what_breaks_it(site: AllocationSite) -> None:
    _, active = await charged(site)
    await month_is_charged(site, active)
    await tick(site)
    assert {key for key, _ in BROKEN} == {law.key for law in LAWS}
    for key, change in BROKEN:
        law = next(each for each in LAWS if each.key == key)
        assert await counterexample(site, law) is None
        async with site.fleet.database.connection(PLATFORM) as connection:
            undone = connection.transaction()
            await undone.start()
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(change)
            found = await connection.fetchval(law.counterexample)
            await undone.rollback()
        assert found is not None, key
