"""Launches under quotas, budgets and balances: what the plan says, and how an instance ends that nobody pays for."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.commands.money.spending_watch import watch_all
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.instance_reconciler import InstanceReconciler
from server.tests.api.catalog.test_apps import AppPublisher
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.api.runtime.test_launch_placement import plan_of, refused
from server.tests.conftest import World
from server.tests.support.launching import Launching, make_launching

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    return await make_launching(world, bare_publisher)


async def put(launching: Launching, path: str, *, by_platform: bool = False, **body: Any) -> None:
    client = launching.publisher.world.admin if by_platform else launching.client
    answer = await client.put(f"/api/v1/{path}", json={"reason": "a limit for the test", **body})
    assert answer.status_code == 200, answer.text


async def look(launching: Launching) -> None:
    await launching.site.look()
    await InstanceReconciler(launching.services).tick()


async def test_a_budget_that_blocks_refuses_in_the_plan_with_the_smallest_change(launching: Launching) -> None:
    plain = await plan_of(launching, topology={"worker": 2})
    assert (plain["launchable"], plain["limits"]) == (True, [])
    hourly = plain["price"][0]["added_minor_per_hour"]  # of three members
    blocks = [{"percent": 100, "action": "block"}]
    budget = {"currency": plain["price"][0]["currency"], "minor_per_month": hourly - 1, "thresholds": blocks}
    await put(launching, f"projects/{launching.publisher.project_id}/budgets", **budget)
    hindrance = await refused(launching, topology={"worker": 2})
    assert hindrance["code"] == "budget_exceeded"
    assert hindrance["details"]["smallest_change"].startswith("2 allocations instead of 3, or a budget that blocks")
    fits = await plan_of(launching, topology={"worker": 1})
    (limit,) = fits["limits"]
    assert (limit["kind"], limit["left"], limit["requested"]) == ("budget", hourly - 1, hourly * 2 // 3)
    assert (fits["launchable"], limit["exceeded"]) == (True, False)
    await launching.launch(topology={"worker": 1})
    after = await plan_of(launching, topology={"worker": 1})
    assert (after["launchable"], after["limits"][0]["held"]) == (False, hourly * 2 // 3)


async def test_a_quota_counts_instances_even_in_capacity_that_is_there(launching: Launching) -> None:
    await put(launching, f"projects/{launching.publisher.project_id}/quotas", instances_max=1)
    await launching.running()
    stands = await launching.site.active(launching.sku, gpu_count=1)
    hindrance = await refused(launching, placement={"allocations": [stands["id"]]})
    assert (hindrance["code"], hindrance["details"]["limit"]) == ("quota_exceeded", "instances")
    assert hindrance["details"]["smallest_change"] == "one instance less"


async def test_a_depleted_balance_stops_an_instance_with_receipts(launching: Launching) -> None:
    price = (await plan_of(launching))["price"][0]
    place = f"tenants/{launching.publisher.tenant.id}"
    paid = {
        "currency": price["currency"],
        "minor": price["minor_per_hour"],
        "reference": "one",
        "reason": "paid by wire",
    }
    answer = await launching.publisher.world.admin.post(f"/api/v1/{place}/payments", json=paid)
    assert answer.status_code == 201, answer.text
    await put(launching, f"{place}/balance", by_platform=True, currency=price["currency"], low_minor=0)
    made = await launching.running()
    (member,) = (await launching.get(f"{made['id']}/members"))["items"]
    assert await watch_all(launching.services) == 0
    launching.site.later(timedelta(hours=1, seconds=5))
    assert await watch_all(launching.services) == 3  # low, depleted, and the stop
    assert await watch_all(launching.services) == 0
    (operation,) = [
        each for each in (await launching.get(f"{made['id']}/operations"))["items"] if each["kind"] == "decommission"
    ]
    assert operation["requested_by"] == "billing"
    assert (await launching.get(made["id"]))["status"] == "stopping"
    await look(launching)
    launching.site.later(timedelta(hours=1, seconds=60))  # the adapter is not there, and the manifest gives it 30 s
    await look(launching)
    if (await launching.get(made["id"]))["status"] != "stopped":
        await launching.site.fleet.do(member["allocation_id"])
        await look(launching)
    stopped = await launching.get(made["id"])
    assert (stopped["status"], stopped["teardown_proof"]) == ("stopped", "receipts")
    assert await watch_all(launching.services) == 1  # the allocation that the instance did not own
    await look(launching)
    await launching.site.fleet.do(member["allocation_id"])
    await look(launching)
    released = await launching.site.get(member["allocation_id"])
    assert (released["status"], released["teardown_proof"]) == ("released", "receipts")
    causes = "SELECT data ->> 'cause' FROM event WHERE subject_id = $1 AND type LIKE '%.lost'"
    assert await launching.services.database.fetchval(PLATFORM, causes, member["allocation_id"]) == "balance"
