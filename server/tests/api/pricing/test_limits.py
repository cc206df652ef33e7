"""Quotas, budgets and balances through the API: who sets them, what they refuse, and what they stop."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from mooring.commands.money.spending_watch import watch_all
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.money.payment import LAWS
from mooring.workers.charge import ChargeWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

BLOCKS = [{"percent": 50, "action": "notify"}, {"percent": 100, "action": "block"}]


@pytest.fixture
async def site(world: World) -> AllocationSite:
    return await make_site(world)


async def put(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = await client.put(path, json={"reason": "a limit for the test", **body})
    assert answer.status_code == status, answer.text
    return answer.json()


async def pay(site: AllocationSite, minor: int, reference: str, status: int = 201) -> Any:
    body = {"currency": "EUR", "minor": minor, "reference": reference, "reason": "paid by wire"}
    answer = await site.world.admin.post(f"/api/v1/tenants/{site.tenant.id}/payments", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def prepaid(site: AllocationSite, minor: int) -> None:
    """Make the tenant prepaid, with a first payment of `minor`."""
    await pay(site, minor, "first")
    path = f"/api/v1/tenants/{site.tenant.id}/balance"
    await put(site.world.admin, path, currency="EUR", low_minor=200)


async def balance(site: AllocationSite) -> Any:
    answer = await site.client.get(f"/api/v1/tenants/{site.tenant.id}/balance")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(site: AllocationSite, beginning: str) -> list[Any]:
    statement = "SELECT type, data FROM event WHERE starts_with(type, $1) AND tenant_id = $2 ORDER BY epoch, tx, seq"
    return [tuple(row) for row in await site.fleet.database.fetch(PLATFORM, statement, beginning, site.tenant.id)]


async def test_quotas_of_the_tenant_and_the_project_refuse_with_the_smallest_change(site: AllocationSite) -> None:
    sku, tenant = await site.fleet.sku(), f"/api/v1/tenants/{site.tenant.id}/quotas"
    other = await site.beside("other")
    await put(site.world.admin, tenant, gpus_max=4, minor_per_hour_max=1000, currency="EUR")
    await put(site.client, f"{site.path}/quotas", gpus_max=3)
    await other.ask(sku, gpu_count=2)
    refused = await site.ask(sku, 409, gpu_count=4)
    assert (refused["code"], refused["details"]["scope"]) == ("quota_exceeded", "tenant")
    assert refused["details"]["smallest_change"] == "a quota of 6 GPUs"
    said = await site.post("/allocations/explain", {"shape": "gpu_slice", "sku": sku, "gpu_count": 4})
    assert (said["fits"], said["smallest_change"]) == (False, "a quota of 6 GPUs")
    await site.ask(sku, gpu_count=2)
    assert (await site.ask(sku, 409, gpu_count=1))["details"]["limit"] == "gpus"
    shown = (await site.client.get(f"/api/v1/tenants/{site.tenant.id}/quotas")).json()
    assert (shown["gpus_max"], shown["allowed_actions"]) == (4, ["billing.quota.update"])


async def test_a_tenant_cannot_set_its_own_quota_nor_book_payments(site: AllocationSite) -> None:
    place = f"/api/v1/tenants/{site.tenant.id}"
    await put(site.client, f"{place}/quotas", 403, gpus_max=9)
    await put(site.client, f"{place}/balance", 403, currency="EUR", low_minor=1)
    assert (await site.client.post(f"{place}/payments", json={})).status_code == 403


async def test_many_requests_at_once_do_not_pass_a_tenants_quota_together(site: AllocationSite) -> None:
    sku = await site.fleet.sku()
    other = await site.beside("other")
    await put(site.world.admin, f"/api/v1/tenants/{site.tenant.id}/quotas", gpus_max=4)
    body = {"shape": "gpu_slice", "sku": sku, "gpu_count": 1}
    sent = [site.client.post(f"{each.path}/allocations", json=body) for each in (site, other) * 5]
    answers = await asyncio.gather(*sent)
    assert sorted(each.status_code for each in answers) == [201] * 4 + [409] * 6


async def test_a_budget_fires_once_and_blocks_what_it_does_not_cover(site: AllocationSite) -> None:
    await site.fleet.node(4)
    sku, services = await site.fleet.sku(), site.world.running.platform.services
    await put(site.client, f"{site.path}/budgets", currency="EUR", minor_per_month=1000, thresholds=BLOCKS)
    stands = await site.active(sku, gpu_count=2)  # reserves 500
    refused = await site.ask(sku, 409, gpu_count=4)
    assert (refused["code"], refused["details"]["left"]) == ("budget_exceeded", 500)
    assert refused["details"]["smallest_change"] == "a budget that blocks only at 1500 EUR (minor units)"
    assert await watch_all(services) == 0
    site.later(timedelta(minutes=90))
    assert sum(await asyncio.gather(*(watch_all(services) for _ in range(3)))) == 1
    ((_, data),) = await events(site, "billing.budget.crossed")
    assert (data["percent"], data["action"], data["basis"]) == (50, "notify", "estimated")
    (shown,) = (await site.client.get(f"{site.path}/budgets")).json()["items"]
    assert (shown["measured_minor"], shown["crossed"]) == (0, [50])
    assert 750 <= shown["estimated_minor"] <= 760, shown  # 90 minutes, and the time that the test took
    site.later(timedelta(hours=4))
    await ChargeWorker(services).tick()
    assert await watch_all(services) == 1
    assert (await events(site, "billing.budget.crossed"))[1][1]["basis"] == "measured"
    assert (await site.get(stands["id"]))["status"] == "active"  # block refuses, and stops nothing
    assert (await site.ask(sku, 409, gpu_count=1))["code"] == "budget_exceeded"


async def test_a_projects_budget_is_at_most_its_tenants(site: AllocationSite) -> None:
    notify = BLOCKS[:1]
    tenant = f"/api/v1/tenants/{site.tenant.id}/budgets"
    await put(site.client, tenant, currency="EUR", minor_per_month=1000, thresholds=notify)
    await put(site.client, f"{site.path}/budgets", 422, currency="EUR", minor_per_month=1001, thresholds=notify)
    await put(site.client, f"{site.path}/budgets", currency="EUR", minor_per_month=1000, thresholds=notify)
    await put(
        site.client, f"{site.path}/budgets", 409, currency="EUR", minor_per_month=5, thresholds=notify, revision=7
    )


async def test_a_budget_that_stops_releases_and_says_why(site: AllocationSite) -> None:
    await site.fleet.node(4)
    services = site.world.running.platform.services
    stops = [{"percent": 100, "action": "stop"}]
    await put(site.client, f"{site.path}/budgets", currency="EUR", minor_per_month=600, thresholds=stops)
    stands = await site.active(await site.fleet.sku(), gpu_count=2)
    site.later(timedelta(minutes=80))
    assert await watch_all(services) == 2  # it fires, and releases
    assert (await site.get(stands["id"]))["status"] == "releasing"
    assert await watch_all(services) == 0
    lost = await site.fleet.database.fetchval(
        PLATFORM, "SELECT data ->> 'cause' FROM event WHERE subject_id = $1 AND type LIKE '%.lost'", stands["id"]
    )
    audited = await site.fleet.database.fetchrow(
        PLATFORM, "SELECT actor_id, reason FROM audit WHERE subject_id = $1 ORDER BY id DESC LIMIT 1", stands["id"]
    )
    assert (lost, tuple(audited or ())) == (
        "budget",
        ("billing", "the budget is used up, and its threshold says stop"),
    )


async def test_a_prepaid_balance_pays_holds_and_is_used_up_once(site: AllocationSite) -> None:
    await site.fleet.node(4)
    sku, services = await site.fleet.sku(), site.world.running.platform.services
    path = f"/api/v1/tenants/{site.tenant.id}/balance"
    assert "book a payment first" in (await put(site.world.admin, path, 422, currency="EUR", low_minor=1))["detail"]
    await prepaid(site, 1000)
    assert (await pay(site, 1000, "first", 409))["code"] == "name_taken"
    stands = await site.active(sku, gpu_count=2)  # 500 per hour
    shown = await balance(site)
    assert (shown["available_minor"] <= 500, shown["held_minor"] <= 500, shown["level"]) == (True, True, None)
    refused = await site.ask(sku, 409, gpu_count=4)
    assert refused["code"] == "balance_too_low"
    assert refused["details"]["smallest_change"].startswith("a payment of at least 500 EUR")
    site.later(timedelta(minutes=110))
    assert await watch_all(services) == 1
    assert [each[0] for each in await events(site, "billing.balance")] == ["billing.balance.low"]
    site.later(timedelta(hours=2, minutes=1))
    assert sum(await asyncio.gather(*(watch_all(services) for _ in range(3)))) == 2
    assert (await site.get(stands["id"]))["status"] == "releasing"
    assert (await site.ask(sku, 409, gpu_count=1))["code"] == "balance_too_low"
    assert (await events(site, "billing.balance"))[1][0] == "billing.balance.depleted"
    await pay(site, 1000, "second")
    assert await watch_all(services) == 0  # a payment arms the levels again, and stops nothing
    await site.ask(sku, gpu_count=1)
    rows = (await site.client.get(f"/api/v1/tenants/{site.tenant.id}/payments")).json()["items"]
    assert [(each["minor"], each["reference"]) for each in rows] == [(1000, "first"), (1000, "second")]


BROKEN = {
    "payment_has_two_sides": "UPDATE ledger_entry SET account = 'revenue' WHERE account = 'cash'",
    "hold_is_covered": "UPDATE hold SET available_minor = amount_minor - 1",
    "hold_ends": "DELETE FROM allocation",
    "budget_crossing_is_true": "UPDATE budget_crossing SET spent_minor = 0",
    "balance_crossing_is_true": "UPDATE balance_crossing SET level = 'depleted', balance_minor = 1",
}


async def test_each_law_holds_and_finds_what_breaks_it(site: AllocationSite) -> None:
    services, database = site.world.running.platform.services, site.fleet.database
    await prepaid(site, 700)
    await put(site.client, f"{site.path}/budgets", currency="EUR", minor_per_month=1000, thresholds=BLOCKS)
    await site.fleet.node(4)
    await site.active(await site.fleet.sku(), gpu_count=2)
    site.later(timedelta(minutes=70))
    assert await watch_all(services) == 2
    for law in LAWS:
        assert await database.fetchval(PLATFORM, law.checked) == 1, law.key
        assert await database.fetchval(PLATFORM, law.counterexample) is None, law.key
        async with database.connection(PLATFORM) as connection:
            await connection.execute("BEGIN; SET LOCAL session_replication_role = replica")
            try:
                for table in ("hold", "budget_crossing", "balance_crossing"):
                    await connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {CHECKS[table]}")
                await connection.execute(BROKEN[law.key])
                assert await connection.fetchval(law.counterexample), law.key
            finally:
                await connection.execute("ROLLBACK")


CHECKS = {
    "hold": "hold_is_covered",
    "budget_crossing": "budget_crossing_is_reached",
    "balance_crossing": "balance_crossing_depleted_is_empty",
}
