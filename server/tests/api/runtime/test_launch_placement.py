"""Plans and growth on real rows: the plan knows the machines, and new slices join the node of the others."""

from typing import Any

import pytest

from mooring.storage.kernel.database import PLATFORM
from server.tests.api.catalog.test_apps import AppPublisher
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.launching import Launching, make_launching

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    return await make_launching(world, bare_publisher)


async def plan_of(launching: Launching, **changes: Any) -> dict[str, Any]:
    answer = await launching.client.post(f"{launching.path}:plan", json=launching.body(**changes))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def retire(launching: Launching, node_id: str) -> None:
    path = f"/api/v1/platform/nodes/{node_id}/retire"
    answer = await launching.publisher.world.admin.post(path, json={"reason": "it is sold"})
    assert answer.status_code == 200, answer.text


async def refused(launching: Launching, **changes: Any) -> dict[str, Any]:
    """What a plan and a create say alike."""
    plan = await plan_of(launching, **changes)
    assert plan["launchable"] is False, plan
    answer = await launching.client.post(launching.path, json=launching.body(**changes))
    assert (answer.status_code, answer.json()["code"]) == (409, plan["hindrances"][0]["code"]), answer.text
    return dict(plan["hindrances"][0])


async def test_a_topology_that_no_machine_holds_is_refused_and_one_that_waits_says_so(launching: Launching) -> None:
    hindrance = await refused(launching, topology={"worker": 4}, placement={"sku": launching.sku, "gpu_count": 2})
    assert hindrance["code"] == "incompatible"
    assert "10 GPUs on one machine are requested together, at most 8" in hindrance["detail"]
    assert hindrance["details"]["smallest_change"] == "1 GPU in place of 2"
    await launching.site.active(launching.sku, gpu_count=4)
    waits = await plan_of(launching, topology={"worker": 4})
    assert (waits["launchable"], waits["placement"]["fits_now"]) == (True, False)
    assert waits["placement"]["smallest_change"] == "1 more GPU on one machine"
    assert (await plan_of(launching, topology={"worker": 3}))["placement"]["fits_now"] is True


async def test_a_retired_machine_does_not_count_and_a_need_must_be_met(launching: Launching) -> None:
    needs = {"needs": [{"fact": "rdma", "equals": True}]}
    await launching.publish("1.1.0", compatibility=needs)
    assert "it needs rdma" in (await refused(launching))["detail"]
    await launching.site.fleet.node(4, inventory_facts={"rdma": True})
    launching.services.fleet.forget_after("nodes.node.changed")
    made = await launching.launch()
    await launching.site.look()
    (row,) = await launching.site.fleet.database.fetch(
        PLATFORM,
        "SELECT n.inventory #> '{facts,rdma}' AS rdma FROM member m JOIN allocation a ON a.id = m.allocation_id "
        "JOIN node n ON n.id = a.node_id WHERE m.instance_id = $1",
        made["id"],
    )
    assert row["rdma"] is True, "it is placed on the machine that it needs, not on the fuller one"
    plan = await plan_of(launching, version="1.0.0")
    assert plan["launchable"] is True
    (other,) = await launching.site.fleet.database.fetch(
        PLATFORM, "SELECT n.id FROM node n WHERE n.inventory #> '{facts,rdma}' IS NULL AND status = 'ready'"
    )
    await retire(launching, other["id"])
    hindrance = await refused(launching, version="1.0.0", topology={"worker": 4})
    assert "at most 4" in hindrance["detail"]


async def test_a_plan_says_that_no_adapter_listens(launching: Launching) -> None:
    assert (await plan_of(launching))["adapter"] == {"listening": False, "last_seen_at": None}
    now = launching.services.clock.now()
    await launching.site.fleet.database.fetch(
        PLATFORM,
        "INSERT INTO adapter_presence (service_account_id, tenant_id, project_id, holder, seen_at) "
        "VALUES ($1, $2, $3, 'one', $4)",
        launching.account_id,
        launching.publisher.tenant.id,
        launching.publisher.project_id,
        now,
    )
    adapter = (await plan_of(launching))["adapter"]
    assert adapter["listening"] is True
    assert adapter["last_seen_at"].startswith(now.isoformat()[:19])


async def test_a_cluster_in_one_named_allocation_grows_on_its_node_and_a_full_node_is_named(
    launching: Launching,
) -> None:
    fleet = launching.site.fleet
    made = await launching.running()
    await fleet.node(1)  # tighter, so that placement would prefer it
    launching.services.fleet.forget_after("nodes.node.changed")
    body = {"component": "worker", "placement": {"sku": launching.sku, "gpu_count": 1}}
    added = await launching.post(f"{made['id']}/members", body, 202)
    await launching.site.look()
    members = (await launching.get(f"{made['id']}/members"))["items"]
    assert len({each["node_id"] for each in members}) == 1, members
    assert added["kind"] == "add"
    await launching.site.active(launching.sku, gpu_count=4)
    await launching.site.active(launching.sku, gpu_count=2)
    waiting = await launching.post(f"{made['id']}/members", body, 202)
    await launching.site.look()
    (row,) = await fleet.database.fetch(
        PLATFORM,
        "SELECT a.blocker, n.name FROM allocation a JOIN node n ON n.id = a.wanted_node_id "
        "WHERE a.status = 'requested' AND a.project_id = $1",
        launching.publisher.project_id,
    )
    assert f"it must be on node {row['name']}, which is full: 1 GPU requested, 0 free there" in row["blocker"]
    assert waiting["id"] != added["id"]
    large = {"component": "worker", "count": 2, "placement": {"sku": launching.sku, "gpu_count": 4}}
    answer = await launching.client.post(f"{launching.path}/{made['id']}/members", json=large)
    assert (answer.status_code, answer.json()["code"]) == (409, "incompatible")
    assert f"node {row['name']}" in answer.json()["detail"]
