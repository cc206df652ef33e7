"""The operator's view across tenants: numbers that add up, and nothing that belongs to a tenant."""

import json
from dataclasses import replace

import pytest

from mooring.core.runtime.operation import OPERATION, OperationState, OperationTrigger
from server.tests.api.catalog.test_apps import AppPublisher, publisher  # noqa: F401
from server.tests.api.catalog.test_catalog import platform_publisher
from server.tests.conftest import World
from server.tests.support.launching import make_launching
from server.tests.support.lifecycle_rows import ProjectRows

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
PATH = "/api/v1/platform/overview"


async def test_an_operator_sees_counts_health_capacity_and_failures_and_no_names(
    world: World,
    publisher: AppPublisher,  # noqa: F811
) -> None:
    launching = await make_launching(world, publisher)
    running = await launching.running(name="their-secret-plan")
    broken = await launching.running()
    restart = await launching.post(f"{broken['id']}/restart")
    ended = {"finished_at": launching.services.clock.now(), "failure_code": "timed_out", "failure_detail": "no answer"}
    await launching.finish(broken["id"], restart["id"], OperationTrigger.FAIL, **ended)
    operator = world.admin
    counts = (await operator.get(PATH)).json()
    assert (counts["tenants"], counts["projects"], counts["nodes"]) == (1, 1, {"ready": 1})
    assert (counts["instances"], sum(counts["health"].values())) == ({"running": 2}, 2)
    assert counts["allocations"] == {"active": 2}
    assert counts["slots"] == {"free": 6, "claimed": 2}
    assert counts["operations"] == {}
    capacity = (await operator.get(f"{PATH}/capacity")).json()["items"]
    assert [(each["nodes"], each["slots"], each["free"], each["claimed"]) for each in capacity] == [(1, 8, 6, 2)]
    (apps,) = (await operator.get(f"{PATH}/apps")).json()["items"]
    assert (apps["app"], apps["instances"], apps["failures"]) == (None, {"running": 2}, {"failed": 1})
    (node,) = (await operator.get("/api/v1/platform/nodes")).json()["items"]
    await operator.post(f"/api/v1/platform/nodes/{node['id']}/cordon", json={"reason": "its fan is loud"})
    cordoned = (await operator.get(f"{PATH}/capacity")).json()["items"][0]
    assert (cordoned["slots"], cordoned["free"]) == (8, 0)
    assert (await operator.get(PATH)).json()["nodes_cordoned"] == 1
    whole = json.dumps([counts, capacity, apps])
    for theirs in (
        publisher.tenant.id,
        publisher.tenant.slug,
        publisher.project_id,
        running["id"],
        running["name"],
        "web-tool",
    ):
        assert theirs not in whole
    for path in (PATH, f"{PATH}/apps", f"{PATH}/capacity"):
        assert (await publisher.client.get(path)).status_code == 403
    assert (await operator.get(f"{PATH}/apps?hours=0")).status_code == 422


async def test_the_platforms_apps_are_counted_by_name_and_code(world: World, publisher: AppPublisher) -> None:  # noqa: F811
    shelf = await platform_publisher(publisher)
    version = await shelf.moved(await shelf.publish(), "stage", "canary", "activate")
    rows = ProjectRows(world.running.platform.services.database, publisher.tenant.id, publisher.project_id)
    rows = replace(
        rows, account_id=await rows.birth("service_account"), app_id=shelf.app["id"], version_id=version["id"]
    )
    instance_id = await rows.birth("instance")
    await replace(rows, instance_id=instance_id).subject("operation", OPERATION, OperationState.FAILED)
    (row,) = (await world.admin.get(f"{PATH}/apps?hours=168")).json()["items"]
    assert (row["app"], row["instances"], sum(row["failures"].values())) == ("shared", {"created": 1}, 1)
    assert "failed" not in row["failures"], "the codes of the platform's apps are shown"
