"""Budgets and balances on a real database: whenever the worker dies, each level fires once and everything ends."""

from datetime import timedelta

import pytest

from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, PoolSettings
from mooring.workers.spending import SpendingWorker
from server.tests.api.pricing.test_limits import events, prepaid, put
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.workers.test_allocation_reconciler_dies import DyingDatabase, ReconcilerDied

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


FIRED = [
    *("balance.depleted", "balance.low", "budget.changed", "budget.crossed", "budget.crossed"),
    *("payment.booked", "prepaid.changed"),
]


async def dies(site: AllocationSite, settings: Settings, uses: int, *, after: bool) -> bool:
    """One pass of a worker that dies at this use; whether it did."""
    database = DyingDatabase(PoolSettings(settings.database_url, 2), uses, after=after)
    await database.open()
    services = site.world.running.platform.services
    own = type(services)(**{name: getattr(services, name) for name in services.__slots__} | {"database": database})
    try:
        await SpendingWorker(own).tick()
    except ReconcilerDied:
        return True
    finally:
        await database.close()
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before the statement", "after it"])
async def test_whenever_the_worker_dies_each_level_fires_once(world: World, settings: Settings, after: bool) -> None:
    site = await make_site(world)
    await site.fleet.node(4)
    await prepaid(site, 1000)
    stops = [{"percent": 50, "action": "notify"}, {"percent": 100, "action": "stop"}]
    await put(site.client, f"{site.path}/budgets", currency="EUR", minor_per_month=1000, thresholds=stops)
    sku = await site.fleet.sku()
    stand = [await site.active(sku, gpu_count=1) for _ in range(3)]
    site.later(timedelta(hours=2))
    deaths, uses = 0, 1
    while uses < 40:
        if not await dies(site, settings, uses, after=after):
            break
        deaths, uses = deaths + 1, uses + 1
    assert deaths > 3
    await SpendingWorker(site.world.running.platform.services).tick()
    fired = [each[0].removeprefix("billing.") for each in await events(site, "billing.")]
    assert sorted(fired) == FIRED
    for each in stand:
        assert (await site.get(each["id"]))["status"] == "releasing"
        lost = "SELECT count(*) FROM event WHERE subject_id = $1 AND type LIKE '%.lost'"
        assert await site.fleet.database.fetchval(PLATFORM, lost, each["id"]) == 1
