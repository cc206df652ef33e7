"""Cost and ledger through the API: to the last micro-unit, of one's own tenant only, estimates labelled as such."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from mooring.core.kernel.ids import Prefix
from mooring.core.money.charge import HOUR, hour_of
from mooring.core.money.cost import next_month
from mooring.gateways.clock import SystemClock
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.money import cost as costs
from mooring.workers.charge import ChargeWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.lifecycle_rows import CLOCK
from server.tests.support.made_things import make_instance_rows
from server.tests.support.route_requests import Home

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

SECOND = timedelta(seconds=1)
GPU_HOUR = 250 * 10**6  # 2.50 EUR, in millionths of a cent
USED = """
INSERT INTO usage_record (id, tenant_id, project_id, instance_id, record_id, unit, started_at, ended_at, quantity,
                          app_slug, correlation_id, trace_id, created_at, billing, price_id)
SELECT $1, i.tenant_id, i.project_id, i.id, $1, 'token_out', $3, $3, $4, i.app_slug, 'made', 'made', $3, $5, $6
  FROM instance i WHERE i.id = $2"""


class StoppedClock(SystemClock):
    """Shows the time that a test sets."""

    def __init__(self, at: datetime) -> None:
        super().__init__()
        self.at = at

    def now(self) -> datetime:
        return self.at


@pytest.fixture
async def site(world: World) -> AllocationSite:
    return await make_site(world)


def stopped(site: AllocationSite, at: datetime) -> StoppedClock:
    clock = StoppedClock(at)
    object.__setattr__(site.world.running.platform.services, "clock", clock)
    return clock


async def read(site: AllocationSite, path: str, **query: str) -> Any:
    answer = await site.client.get(f"{site.path}{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def charge(site: AllocationSite) -> None:
    await ChargeWorker(site.world.running.platform.services).tick()


async def test_the_worked_example_of_the_docs(site: AllocationSite) -> None:
    """An allocation of one GPU at 2.50 EUR is active seven seconds before a full hour and released seven after it."""
    hour = hour_of(CLOCK.now()) + HOUR
    clock = stopped(site, hour - 7 * SECOND)
    await site.fleet.node(4)
    stands = await site.active(await site.fleet.sku(), gpu_count=1)
    clock.at = hour + 7 * SECOND
    await site.post(f"/allocations/{stands['id']}/release")
    clock.at = hour + 2 * HOUR
    await charge(site)
    booked = (await read(site, "/ledger"))["items"]
    assert [(datetime.fromisoformat(each["hour"]), each["kind"]) for each in booked] == [
        (hour, "charge"),
        (hour - HOUR, "charge"),
    ]
    assert [[(side["account"], side["amount_micro"]) for side in each["entries"]] for each in booked] == [
        [("receivable", 486_111), ("revenue", -486_111)]
    ] * 2
    later = await read(site, "/ledger", since=hour.isoformat(), kind="charge")
    assert [each["id"] for each in later["items"]] == [booked[0]["id"]]
    first = await read(site, "/ledger", limit="1")
    rest = await read(site, "/ledger", limit="1", cursor=first["next_cursor"])
    assert [first["items"][0]["id"], rest["items"][0]["id"]] == [each["id"] for each in booked]
    balances = (await read(site, "/ledger/balances"))["items"]
    assert [(each["account"], each["currency"], each["amount_micro"]) for each in balances] == [
        ("receivable", "EUR", 972_222),
        ("revenue", "EUR", -972_222),
    ]
    since = (hour - HOUR).isoformat()
    by_hour = await read(site, "/cost", since=since, group_by="hour")
    assert [each["charged_micro"] for each in by_hour["items"]] == [486_111, 486_111]
    assert [each["total_micro"] for each in by_hour["totals"]] == [972_222]
    assert by_hour["clock"] == stands["charge"]["rule"] == "charged from active until the release was requested"
    (line,) = (await read(site, "/cost", since=since, group_by="allocation"))["items"]
    assert (line["key"], line["charged_micro"], line["unit"], line["quantity_micro"]) == (
        stands["id"],
        972_222,
        "gpu_second",
        14 * 10**6,
    )


async def test_the_open_hour_is_estimated_and_the_month_is_forecast(site: AllocationSite) -> None:
    hour = hour_of(CLOCK.now()) + HOUR
    clock = stopped(site, hour)
    await site.fleet.node(4)
    stands = await site.active(await site.fleet.sku(), gpu_count=2)
    clock.at = hour + timedelta(minutes=30)
    cost = await read(site, "/cost", since=hour.isoformat())
    (total,) = cost["totals"]
    assert (total["estimated_micro"], total["charged_micro"], total["total_micro"]) == (GPU_HOUR, 0, GPU_HOUR)
    assert (cost["estimated"]["label"], cost["items"]) == ("estimated", [])
    (forecast,) = cost["forecasts"]
    left = next_month(clock.at) - clock.at
    assert (forecast["label"], forecast["micro_per_hour"]) == ("forecast", 2 * GPU_HOUR)
    assert forecast["month_micro"] == GPU_HOUR + 2 * GPU_HOUR * (left // SECOND) // 3600
    clock.at = hour + 2 * HOUR
    await charge(site)
    clock.at = hour + 2 * HOUR + timedelta(minutes=30)
    (total,) = (await read(site, "/cost", since=hour.isoformat()))["totals"]
    assert (total["charged_micro"], total["estimated_micro"]) == (2 * GPU_HOUR, 3 * GPU_HOUR)
    past = await read(site, "/cost", since=(hour - HOUR).isoformat(), until=hour.isoformat())
    assert (past["totals"], past["estimated"]) == ([], None)
    beside = await site.beside("serve")
    assert (await read(beside, "/cost", since=hour.isoformat()))["totals"] == []
    assert (await site.get(stands["id"]))["status"] == "active"


async def test_covered_usage_is_listed_apart_and_every_group_adds_up(site: AllocationSite) -> None:
    """Tokens that are charged, tokens that the allocation pays for, and the allocation itself, by every key."""
    world, hour = site.world, hour_of(CLOCK.now()) + HOUR
    home = Home(world, world.client(), site.tenant, site.project_id)
    project_rows = await make_instance_rows(home)
    slug = await site.fleet.database.fetchval(
        PLATFORM, "SELECT app_slug FROM instance WHERE id = $1", project_rows.instance_id
    )
    price = {"item": "unit", "item_key": f"{slug}/token_out", "currency": "EUR", "minor": 200, "per": 1_000_000}
    made = await world.admin.post("/api/v1/platform/prices", json=price | {"reason": "a price for a test"})
    assert made.status_code == 201, made.text
    await site.fleet.node(4)
    clock = stopped(site, hour)
    stands = await site.active(await site.fleet.sku(), gpu_count=1)
    at_work = replace(project_rows, allocation_id=stands["id"])
    member_id = await at_work.birth("member", allocation_id=stands["id"])
    for billing, quantity in (("charged", 3_000_000), ("covered", 1_000_000)):
        values = (project_rows.instance_id, hour + SECOND, quantity, billing, made.json()["id"])
        await site.fleet.database.fetch(PLATFORM, USED, CLOCK.mint(Prefix.USAGE_RECORD), *values)
    assert await costs.rates(site.fleet.database) == {("EUR",): 250.0}
    clock.at = hour + HOUR
    await site.post(f"/allocations/{stands['id']}/release")
    clock.at = hour + HOUR + timedelta(minutes=5)
    await charge(site)
    period = {"since": hour.isoformat(), "until": (hour + HOUR).isoformat()}
    tokens, covered = 600 * 10**6, 200 * 10**6
    assert await costs.rates(site.fleet.database) == {}
    (total,) = (await read(site, "/cost", **period))["totals"]
    assert (total["charged_micro"], total["covered_micro"]) == (GPU_HOUR + tokens, covered)
    found = {}
    for by in (
        "project",
        "app",
        "instance",
        "member",
        "allocation",
        "sku",
        "unit",
        "day",
        "hour",
        "day_unit",
        "hour_unit",
    ):
        lines = (await read(site, "/cost", group_by=by, **period))["items"]
        own = await read(site, "/cost", group_by=by, instance_id=project_rows.instance_id, **period)
        assert own["items"] == lines, by
        assert sum(each["charged_micro"] for each in lines) == GPU_HOUR + tokens, by
        assert sum(each["covered_micro"] for each in lines) == covered, by
        found[by] = {each["key"]: each["charged_micro"] for each in lines}
    assert found["project"] == {site.project_id: GPU_HOUR + tokens}
    assert found["app"] == {slug: GPU_HOUR + tokens}
    assert found["instance"] == {project_rows.instance_id: GPU_HOUR + tokens}
    assert found["member"] == {member_id: GPU_HOUR, None: tokens}
    assert found["allocation"] == {stands["id"]: GPU_HOUR, None: tokens}
    assert found["unit"] == {"gpu_second": GPU_HOUR, "token_out": tokens}
    by_day = (await read(site, "/cost", group_by="day_unit", **period))["items"]
    units = {(each["unit"], each["quantity_micro"], each["charged_micro"]) for each in by_day}
    assert units == {("gpu_second", 3_600 * 10**6, GPU_HOUR), ("token_out", 4_000_000 * 10**6, tokens)}
    other = await read(site, "/cost", instance_id=(await project_rows.birth("instance")), **period)
    assert (other["totals"], other["items"], other["forecasts"]) == ([], [], [])
    await assert_operator_sees_totals(site, period, GPU_HOUR + tokens)


async def assert_operator_sees_totals(site: AllocationSite, period: dict[str, str], charged: int) -> None:
    world, path = site.world, "/api/v1/platform/billing/overview"
    other = await world.tenant("other")
    (line,) = (await world.admin.get(path, params=period)).json()["items"]
    assert (line["key"], line["name"], line["charged_micro"]) == (site.tenant.id, site.tenant.slug, charged)
    for by in ("app", "sku", "unit"):
        lines = (await world.admin.get(path, params=period | {"group_by": by})).json()["items"]
        assert sum(each["charged_micro"] for each in lines) == charged
    assert (await world.admin.get(path, params=period | {"group_by": "instance"})).status_code == 422
    foreign = await world.client(other.token).get(f"/api/v1/tenants/{other.id}/cost", params=period)
    assert (foreign.json()["totals"], foreign.json()["items"]) == ([], [])
    assert (await world.admin.get(f"/api/v1/tenants/{site.tenant.id}/cost")).status_code == 404
    tenant = await site.client.get(f"/api/v1/tenants/{site.tenant.id}/cost", params=period)
    assert [each["charged_micro"] for each in tenant.json()["totals"]] == [charged]


async def test_a_period_is_bounded(site: AllocationSite) -> None:
    for query in (
        {"since": "2026-01-01T00:00:00Z", "until": "2027-01-03T00:00:00Z"},
        {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
    ):
        answer = await site.client.get(f"{site.path}/cost", params=query)
        assert (answer.status_code, answer.json()["details"]["path"]) == (422, "until")
    for path in ("/cost", "/ledger"):
        number = await site.client.get(f"{site.path}{path}", params={"until": "0"})
        assert (number.status_code, number.json()["details"]["path"]) == (422, "until")
