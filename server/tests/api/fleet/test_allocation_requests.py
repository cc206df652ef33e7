"""What is asked of allocations, and what they get: policy, quota, explanations, groups, networks, whole machines."""

import asyncio

import pytest

from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def site(world: World) -> AllocationSite:
    return await make_site(world)


async def test_a_task_carries_the_correlation_of_the_request(site: AllocationSite) -> None:
    await site.fleet.node()
    answer = await site.client.post(
        f"{site.path}/allocations",
        json={"shape": "gpu_slice", "sku": await site.fleet.sku(), "gpu_count": 1},
        headers={"X-Correlation-ID": "my-own-label"},
    )
    await site.look()
    (task,) = await site.fleet.tasks(answer.json()["id"])
    assert task["correlation_id"] == "my-own-label"


async def test_baremetal_has_the_machine_and_its_network(site: AllocationSite) -> None:
    used, idle = await site.fleet.node(4), await site.fleet.node(4)
    sliced, whole = await site.fleet.sku(), await site.fleet.sku("baremetal", (4,))
    first = await site.ask(sliced, gpu_count=1)
    await site.look()
    asked = await site.ask(whole, shape="baremetal")
    await site.look()
    placed, slice_ = await site.get(asked["id"]), await site.get(first["id"])
    assert {placed["node_id"], slice_["node_id"]} == {used, idle}
    assert len(placed["slots"]) == 4
    (task,) = await site.fleet.tasks(asked["id"])
    assert task["arguments"]["network"]["machine"] is True
    assert task["arguments"]["cpus"] == 16
    further = await site.ask(whole, shape="baremetal")
    await site.look()
    assert (await site.get(further["id"]))["blocker"].endswith("what would help: an idle machine")


async def test_sandboxes_of_one_project_on_one_machine_know_each_other(site: AllocationSite) -> None:
    await site.fleet.node(4)
    sku = await site.fleet.sku()
    other = await site.beside("other")
    one = await site.active(sku, gpu_count=1, name="one")
    foreign = await other.active(sku, gpu_count=1, name="one")
    two = await site.ask(sku, gpu_count=1, name="two")
    await site.look()
    (task,) = await site.fleet.tasks(two["id"])
    assert task["arguments"]["peers"] == [{"name": "one", "address": one["address"]}]
    assert (one["address"], foreign["address"]) == ("10.64.0.2", "10.64.1.2")
    assert task["arguments"]["network"]["address"] == "10.64.0.3"


async def test_a_machine_that_keeps_no_projects_apart_takes_one_at_a_time(site: AllocationSite) -> None:
    node_id = await site.fleet.node(4, host="process")
    sku = await site.fleet.sku()
    other = await site.beside("other")
    mine = await site.active(sku, gpu_count=1)
    theirs = await other.ask(sku, gpu_count=1)
    await site.look()
    assert "of another project" in (await other.get(theirs["id"]))["blocker"]
    await site.post(f"/allocations/{mine['id']}/release")
    await site.look()
    await site.fleet.do(mine["id"])
    await site.look()
    assert (await other.get(theirs["id"]))["node_id"] == node_id, "it is empty now"


async def test_a_group_that_shares_a_machine_is_placed_there_all_at_once(site: AllocationSite) -> None:
    await site.fleet.node(2)
    small_sku = await site.fleet.sku()
    body = {"name": "cluster", "shape": "gpu_slice", "sku": small_sku, "gpu_count": 1, "count": 3, "same_node": True}
    group = await site.post("/allocation-groups", body, 201)
    assert (group["status"], len(group["allocations"])) == ("requested", 3)
    await site.look()
    waits = (await site.client.get(f"{site.path}/allocation-groups/{group['id']}")).json()
    assert waits["status"] == "requested"
    assert all("1 more GPU on one machine" in each["blocker"] for each in waits["allocations"])

    node_id = await site.fleet.node(4)
    await site.look()
    placed = (await site.client.get(f"{site.path}/allocation-groups/{group['id']}")).json()
    assert placed["status"] == "provisioning"
    assert {each["node_id"] for each in placed["allocations"]} == {node_id}
    late = await site.ask(small_sku, gpu_count=1, group_id=group["id"], name="late")
    await site.look()
    assert (await site.get(late["id"]))["node_id"] == node_id
    (task,) = await site.fleet.tasks(late["id"])
    assert {each["name"] for each in task["arguments"]["peers"]} == {"cluster-1", "cluster-2", "cluster-3"}

    given_back = await site.post(f"/allocation-groups/{group['id']}/release")
    assert given_back["status"] == "failed"
    await site.look()
    over = (await site.client.get(f"{site.path}/allocation-groups/{group['id']}")).json()
    assert over["status"] == "released"


async def test_a_group_of_whole_machines_cannot_share_one(site: AllocationSite) -> None:
    body = {
        "name": "cluster",
        "shape": "baremetal",
        "sku": await site.fleet.sku("baremetal", (4,)),
        "count": 2,
        "same_node": True,
    }
    refused = await site.post("/allocation-groups", body, 422)
    assert refused["details"]["path"] == "same_node"


async def test_the_quota_of_the_project_names_the_layer_that_decides(site: AllocationSite) -> None:
    await site.fleet.node(4)
    sku = await site.fleet.sku()
    rules = {"rules": {"gpus_max": 3}, "reason": "the project is small"}
    assert (await site.client.put(f"{site.path}/policy", json=rules)).status_code == 200
    first = await site.ask(sku, gpu_count=2)
    refused = await site.ask(sku, 403, gpu_count=2)
    assert (refused["code"], refused["details"]["layer"]) == ("policy_denied", "project")
    said = await site.post("/allocations/explain", {"shape": "gpu_slice", "sku": sku, "gpu_count": 2})
    assert said["smallest_change"] == "at most 1 GPUs, or a higher maximum in the project policy"
    await site.post(f"/allocations/{first['id']}/release")
    await site.ask(sku, gpu_count=2)


async def test_many_requests_at_once_do_not_pass_the_quota_together(site: AllocationSite) -> None:
    sku = await site.fleet.sku()
    rules = {"rules": {"gpus_max": 4}, "reason": "the project is small"}
    assert (await site.client.put(f"{site.path}/policy", json=rules)).status_code == 200
    body = {"shape": "gpu_slice", "sku": sku, "gpu_count": 1}
    answers = await asyncio.gather(*(site.client.post(f"{site.path}/allocations", json=body) for _ in range(12)))
    assert sorted(each.status_code for each in answers).count(201) == 4
    assert {each.status_code for each in answers} == {201, 403}


async def test_sku_region_and_count_are_checked_before_anything_is_made(site: AllocationSite) -> None:
    sku = await site.fleet.sku(counts=(2, 4))
    assert (await site.ask("no-such-sku", 404))["details"]["noun"] == "sku"
    assert (await site.ask(sku, 422, gpu_count=3))["details"]["path"] == "gpu_count"
    assert (await site.ask(sku, 422))["details"]["path"] == "gpu_count"
    assert (await site.ask(sku, 422, gpu_count=2, region="mars-1"))["details"]["path"] == "region"
    assert (await site.ask(sku, 422, gpu_count=2, shape="baremetal"))["details"]["path"] == "shape"
    gone = await site.fleet.sku(status="withdrawn")
    assert (await site.ask(gone, 422, gpu_count=1))["details"]["path"] == "sku"
    denied = {"rules": {"skus": {"deny": [sku]}}, "reason": "not for this project"}
    assert (await site.client.put(f"{site.path}/policy", json=denied)).status_code == 200
    assert (await site.ask(sku, 403, gpu_count=2))["details"] | {"reason": ""} == {
        "layer": "project",
        "subject": "sku",
        "value": sku,
        "reason": "",
    }
    rows = await site.fleet.database.fetch(PLATFORM, "SELECT FROM allocation")
    assert not rows


async def test_a_name_is_one_allocations_until_it_is_over(site: AllocationSite) -> None:
    sku = await site.fleet.sku()
    first = await site.ask(sku, gpu_count=1, name="trainer")
    assert (await site.ask(sku, 409, gpu_count=1, name="trainer"))["code"] == "name_taken"
    await site.post(f"/allocations/{first['id']}/release")
    await site.look()
    await site.ask(sku, gpu_count=1, name="trainer")


async def test_explain_says_what_would_fit_and_changes_nothing(site: AllocationSite) -> None:
    await site.fleet.node(2)
    await site.fleet.node(4, region="far-1")
    sku = await site.fleet.sku(regions=["local", "far-1"])
    body = {"shape": "gpu_slice", "sku": sku, "gpu_count": 4, "region": "local"}
    said = await site.post("/allocations/explain", body)
    assert (said["fits"], said["smallest_change"]) == (False, "region far-1 has 4 free")
    assert [each["region"] for each in said["candidates"]] == ["local"]
    assert (await site.post("/allocations/explain", body | {"region": None}))["fits"]
    twice = await site.post("/allocations/explain", body | {"region": None, "gpu_count": 2, "count": 4})
    assert not twice["fits"]
    assert not (await site.client.get(f"{site.path}/allocations")).json()["items"]


async def test_the_operator_of_a_node_sees_what_blocks_it_and_not_what_it_is(site: AllocationSite) -> None:
    node_id, sku = await site.fleet.node(2), await site.fleet.sku()
    stands = await site.active(sku, gpu_count=1, name="top-secret", integration_metadata={"project": "top-secret"})
    listed = (await site.world.admin.get("/api/v1/platform/allocations", params={"node_id": node_id})).json()
    assert [each["id"] for each in listed["items"]] == [stands["id"]]
    assert "top-secret" not in str(listed)
    assert (await site.client.get("/api/v1/platform/allocations")).status_code == 403
