"""Metrics of GPUs: what an agent samples, who reads it, and what is refused."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.core.fleet.slot_metric import SAMPLES_MAX, SlotSample
from mooring.storage.fleet import slot_metric
from mooring.storage.kernel.database import PLATFORM, Acting
from server.tests.api.catalog.test_apps import AppPublisher, publisher  # noqa: F401
from server.tests.conftest import World
from server.tests.support.agent_double import joined_agent
from server.tests.support.launching import make_launching

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
GIB = 1 << 30
COUNT = "SELECT count(*)::int FROM slot_metric"


async def test_a_tenant_reads_the_gpus_of_its_instance_while_it_has_them(
    world: World,
    publisher: AppPublisher,  # noqa: F811
) -> None:
    launching = await make_launching(world, publisher)
    made = await launching.running()
    database, now = launching.services.database, launching.services.clock.now()
    (node_id,) = [each["id"] for each in (await world.admin.get("/api/v1/platform/nodes")).json()["items"]]
    index = await database.fetchval(PLATFORM, "SELECT index FROM slot WHERE allocation_id IS NOT NULL")
    await database.fetch(
        PLATFORM, "UPDATE allocation SET activated_at = activated_at - interval '5 minutes' RETURNING 1"
    )
    await database.fetch(PLATFORM, "UPDATE member SET created_at = created_at - interval '5 minutes' RETURNING 1")

    def sample(index: int, utilisation: float | None, minutes_ago: float = 0) -> SlotSample:
        at = now - timedelta(minutes=minutes_ago)
        return SlotSample(index, at, utilisation, 8 * GIB, 80 * GIB, 200_000, 50, 0, 79)

    samples = [sample(index, 40), sample(index, 60), sample(index, 1, 2), sample(index, None, 3), sample(index, 90, 9)]
    await slot_metric.store(database, node_id, [*samples, sample((index + 1) % 8, 10), sample(200, 10)])
    await slot_metric.store(database, node_id, [])
    path = f"{launching.path}/{made['id']}/metrics"
    read = (await publisher.client.get(path)).json()
    (slot,) = read["slots"]
    assert (slot["index"], slot["simulated"], slot["price_minor_per_gpu_hour"]) == (index, True, 250)
    assert (slot["measured_seconds"], slot["idle_seconds"]) == (180, 60)
    assert slot["series"]["utilisation_percent"] == [None, 1.0, 50.0]
    assert slot["series"]["utilisation_max_percent"][-1] == 60
    assert (slot["series"]["power_watts"][-1], slot["series"]["xid"][-1]) == (200, 79)
    assert slot["at"] == sorted(slot["at"])
    one = (await publisher.client.get(path, params={"series": "memory_used_bytes", "step": 3600})).json()
    assert (set(one["slots"][0]["series"]), one["step_seconds"]) == ({"memory_used_bytes"}, 3600)
    for query in ("series=secret", "since=2020-01-01T00:00:00Z", "step=30", "series=xid,xid&step=1"):
        assert (await publisher.client.get(f"{path}?{query}")).status_code == 422, query
    whole = (await world.admin.get(f"/api/v1/platform/nodes/{node_id}/metrics")).json()
    assert [each["index"] for each in whole["slots"]] == sorted([index, (index + 1) % 8])
    assert {each["allocation_id"] for each in whole["slots"]} == {None}
    assert (await publisher.client.get(f"/api/v1/platform/nodes/{node_id}/metrics")).status_code == 403
    other = await world.tenant("curious")
    assert (await world.client(other.token).get(path)).status_code == 404
    assert await database.fetchval(Acting(publisher.tenant.id), COUNT) == 3
    assert await database.fetchval(Acting(other.id), COUNT) == 0
    assert await database.fetchval(PLATFORM, COUNT) == 5


async def test_an_agent_sends_samples_with_its_poll_and_a_forged_or_huge_report_is_refused(world: World) -> None:
    agent = await joined_agent(world.client(), world.admin)
    database = world.running.platform.services.database

    async def poll(samples: Any) -> Any:
        body = {"free": 0, "wait_seconds": 0, "samples": samples}
        return await agent.client.post("/api/v1/agent/claims", json=body)

    good = {"index": 0, "utilisation_percent": 12.5, "memory_used_bytes": 1, "memory_total_bytes": 2, "age_seconds": 3}
    answer = await poll([good, {**good, "index": 250}])
    assert (answer.status_code, answer.json()["sample_seconds"]) == (200, 15)
    assert await database.fetchval(PLATFORM, COUNT) == 1, "only a slot that the node has is kept"
    for forged in (
        {"utilisation_percent": 101},
        {"index": -1},
        {"memory_used_bytes": 3},
        {"age_seconds": -60},
        {"age_seconds": 10_000},
        {"at": "2020-01-01T00:00:00Z"},
        {"tenant_id": "ten_1"},
        {"power_milliwatts": "much"},
    ):
        assert (await poll([{**good, **forged}])).status_code == 422, forged
    assert (await poll([good] * (SAMPLES_MAX + 1))).status_code == 422
    assert await database.fetchval(PLATFORM, COUNT) == 1
