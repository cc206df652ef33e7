"""Charging on a real database: each hour once, whatever dies, and nothing that is booked ever changes."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from mooring.commands.money.charge import charge_next, settle
from mooring.core.kernel.decision import Insert
from mooring.core.money.charge import HOUR, hour_of
from mooring.core.pricing.price import Item, PriceSpec, create_price
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, Acting, PoolSettings
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.money.charge import last_closed
from mooring.workers.charge import ChargeWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.lifecycle_rows import ProjectRows, context, refused_by
from server.tests.workers.test_allocation_reconciler_dies import DyingDatabase, ReconcilerDied

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

HOURLY = 500 * 10**6  # two GPUs at 2.50 each, in millionths of a cent


@pytest.fixture
async def site(world: World) -> AllocationSite:
    return await make_site(world)


async def one(site: AllocationSite, statement: str, *arguments: object) -> Any:
    return await site.fleet.database.fetchval(PLATFORM, statement, *arguments)


async def owed(site: AllocationSite) -> int:
    return int(await one(site, "SELECT coalesce(sum(amount), 0) FROM ledger_entry WHERE account = 'receivable'"))


async def charged_hours(site: AllocationSite, hours: int) -> tuple[dict[str, Any], datetime]:
    """An allocation of two GPUs, and a clock some hours later; the time when it became active."""
    await site.fleet.node(4)
    stands = await site.active(await site.fleet.sku(), gpu_count=2)
    site.later(hours * HOUR)
    return stands, datetime.fromisoformat(stands["activated_at"])


def expected(active: datetime, hours: int) -> int:
    """What two GPUs cost from then until the end of the last of so many charged hours, rounded down once."""
    seconds = -(-(hour_of(active) + hours * HOUR - active) // timedelta(seconds=1))
    return 2 * seconds * 250 * 10**6 // 3600


async def tick(site: AllocationSite) -> None:
    await ChargeWorker(site.world.running.platform.services).tick()


async def test_closed_hours_are_charged_once_by_however_many_workers(site: AllocationSite) -> None:
    _, active = await charged_hours(site, 4)
    await asyncio.gather(*(tick(site) for _ in range(4)))
    await tick(site)
    closed = await last_closed(site.fleet.database)
    assert closed is not None
    hours = (closed + HOUR - hour_of(active)) // HOUR
    assert hours >= 3
    assert await owed(site) == expected(active, hours)
    assert await one(site, "SELECT count(*) FROM ledger_transaction") == hours
    assert await one(site, "SELECT sum(amount) FROM ledger_entry") == 0
    assert await one(site, "SELECT sum(amount) FROM rated_usage") == await owed(site)


async def test_a_worker_that_dies_at_any_statement_loses_and_doubles_nothing(
    site: AllocationSite, settings: Settings
) -> None:
    _, active = await charged_hours(site, 12)
    services = site.world.running.platform.services
    deaths = 0
    for after in (False, True):
        for uses in range(1, 30):
            database = DyingDatabase(PoolSettings(settings.database_url, 2), uses, after=after)
            await database.open()
            own = type(services)(
                **{each: getattr(services, each) for each in services.__slots__} | {"database": database}
            )
            try:
                while await charge_next(own):
                    pass
            except ReconcilerDied:
                deaths += 1
            finally:
                await database.close()
    await tick(site)
    closed = await last_closed(site.fleet.database)
    assert closed is not None
    assert deaths >= 10
    assert await owed(site) == expected(active, (closed + HOUR - hour_of(active)) // HOUR)


async def test_a_release_that_came_late_into_the_log_is_a_correction_of_the_charge(site: AllocationSite) -> None:
    stands, active = await charged_hours(site, 3)
    await tick(site)
    before = await owed(site)
    # The request was made in an hour that is charged already, by a replica whose statement committed late.
    site.later(timedelta(0))
    await site.post(f"/allocations/{stands['id']}/release")
    released = datetime.fromisoformat((await site.get(stands["id"]))["charge"]["ended_at"])
    site.later(3 * HOUR)
    first = hour_of(active)
    for number in range(3):
        await settle(site.world.running.platform.services, first + number * HOUR)
    seconds = -(-(released - active) // timedelta(seconds=1))
    assert await owed(site) == 2 * seconds * 250 * 10**6 // 3600 < before
    named = "SELECT count(*) FROM ledger_transaction t JOIN ledger_transaction c ON c.id = t.corrects_id"
    assert await one(site, named + " WHERE c.kind = 'charge'") >= 1


async def test_the_database_refuses_to_change_what_is_booked(site: AllocationSite) -> None:
    await charged_hours(site, 3)
    await tick(site)
    async with site.fleet.database.connection(PLATFORM) as connection:
        for table in ("ledger_transaction", "ledger_entry", "rated_usage", "price", "billing_hour"):
            column = {"ledger_entry": "line", "billing_hour": "hour"}.get(table, "id")
            for statement in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
                assert await refused_by(connection.execute(statement)) == f"{table}_is_append_only"
            assert await refused_by(connection.execute(f"TRUNCATE {table} CASCADE")) in {
                f"{each}_is_never_emptied"
                for each in (table, "rated_usage", "ledger_entry", "usage_record", "ledger_transaction")
            }
        entry = """INSERT INTO ledger_entry SELECT transaction_id, 7, tenant_id, project_id, account, currency, 5
                     FROM ledger_entry LIMIT 1"""
        assert await refused_by(connection.execute(entry)) == "ledger_entry_comes_with_its_transaction"
        lone = """INSERT INTO ledger_transaction SELECT 'ltx_lone', tenant_id, project_id, kind, hour + '1 day',
                  price_id, currency, revision, corrects_id, correlation_id, created_at
                    FROM ledger_transaction LIMIT 1"""
        assert await refused_by(connection.execute(lone)) == "ledger_transaction_is_balanced"


async def test_a_contract_is_what_the_plan_shows_and_what_is_charged(site: AllocationSite) -> None:
    await site.fleet.node(4)
    sku = await site.fleet.sku()
    sku_id = str(await one(site, "SELECT id FROM sku WHERE slug = $1", sku))
    spec = PriceSpec(site.tenant.id, Item.SKU, sku_id, "EUR", 36, reason="a contract of two years")
    made = create_price(context(), spec)
    await apply(site.fleet.database, PLATFORM, context(), made)
    stands = await site.active(sku, gpu_count=2)
    assert stands["charge"]["price_minor_per_gpu_hour"] == 36
    site.later(3 * HOUR)
    await tick(site)
    assert await one(site, "SELECT array_agg(DISTINCT price_id) FROM ledger_transaction") == [made.result.id]
    quantity, amount = await site.fleet.database.fetchrow(
        PLATFORM, "SELECT sum(quantity), sum(amount) FROM rated_usage"
    ) or (0, 0)
    assert amount == quantity / 10**6 * 10_000 > 0  # 36 cents an hour are 10,000 millionths of a cent a second
    other = ProjectRows(site.fleet.database, (await site.world.tenant("other")).id, "")
    foreign = "SELECT count(*) FROM price WHERE tenant_id IS NOT NULL"
    assert await site.fleet.database.fetchval(Acting(other.tenant_id), foreign) == 0
    row = {"id": "prc_x", "tenant_id": site.tenant.id}
    with pytest.raises(Exception, match="permission denied"):
        await other.write(Insert("price", row))
