"""Lists of instances and operations: over one project or a whole tenant, filtered and in both orders."""

from typing import Any

import asyncpg
import pytest

from mooring.core.runtime.instance import InstanceTrigger
from mooring.core.runtime.instance_transitions import move_instance
from mooring.core.runtime.operation import OperationTrigger
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import instance as instances
from server.tests.api.catalog.test_apps import AppPublisher
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.decision_context import context
from server.tests.support.launching import Launching, make_launching

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    return await make_launching(world, bare_publisher)


async def names(launching: Launching, path: str, **query: Any) -> list[str]:
    """The names of all pages, one row each."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await launching.client.get(path, params={**query, **cursor, "limit": 2})
        assert answer.status_code == 200, answer.text
        found += [each["name"] for each in answer.json()["items"]]
        if answer.json()["next_cursor"] is None:
            return found
        cursor = {"cursor": answer.json()["next_cursor"]}


async def test_the_lists_of_a_project_and_of_its_tenant_filter_and_sort_alike(
    launching: Launching, connection: asyncpg.Connection
) -> None:
    well, unwell = await launching.running(name="train-well"), await launching.running(name="train-unwell")
    blocked, failed = await launching.launch(name="serve-blocked"), await launching.launch(name="serve-failed")
    new = await launching.launch(name="serve-new")
    await connection.execute("UPDATE instance SET health = 'healthy' WHERE id = ANY ($1)", [well["id"]])
    await connection.execute("UPDATE instance SET health = 'degraded' WHERE id = $1", unwell["id"])
    deploy = blocked["operation"]["id"]
    await launching.finish(blocked["id"], deploy, OperationTrigger.BLOCK, blocker="no machine is free")
    row = await instances.find(
        launching.services.database, Acting(launching.publisher.tenant.id), launching.publisher.project_id, failed["id"]
    )
    assert row is not None
    why = {"failed_at": context().now, "failure_code": "adapter_error", "failure_detail": "it broke"}
    await launching.write(move_instance(context(), row, InstanceTrigger.FAIL, "runtime.report", **why))
    used = await connection.fetchval("SELECT allocation_id FROM member WHERE instance_id = $1 LIMIT 1", well["id"])
    every = [each["name"] for each in (well, unwell, blocked, failed, new)]
    rows: list[tuple[dict[str, Any], list[str]]] = [
        ({}, every),
        ({"sort": "newest"}, every[::-1]),
        ({"q": "serve-"}, every[2:]),
        ({"q": "serve-", "sort": "newest"}, every[:1:-1]),
        ({"q": new["id"][:-1]}, ["serve-new"] if new["id"][:-1] not in blocked["id"] else []),
        ({"q": "%"}, []),
        ({"health": "degraded"}, ["train-unwell"]),
        ({"needs_attention": "true"}, ["train-unwell", "serve-blocked", "serve-failed"]),
        ({"needs_attention": "false"}, ["train-well", "serve-new"]),
        ({"needs_attention": "true", "status": "failed"}, ["serve-failed"]),
        ({"allocation_id": used}, ["train-well"]),
        ({"allocation_id": "alc_none"}, []),
    ]
    of_tenant = f"/api/v1/tenants/{launching.publisher.tenant.id}/app-instances"
    for path in (launching.path, of_tenant):
        seen = [(query, await names(launching, path, **query)) for query, _ in rows]
        assert seen == rows, path
    shown = (await launching.client.get(of_tenant)).json()["items"]
    assert [each["needs_attention"] for each in shown] == [False, True, True, True, False]  # the core says the same
    first = (await launching.client.get(of_tenant, params={"limit": 1})).json()["next_cursor"]
    other_order = await launching.client.get(of_tenant, params={"sort": "newest", "cursor": first})
    assert other_order.json()["code"] == "cursor_invalid"


async def test_a_tenant_sees_the_open_operations_of_all_its_projects_and_of_no_other(
    launching: Launching, world: World
) -> None:
    done, waiting = await launching.running(name="done"), await launching.launch(name="waiting")
    path = f"/api/v1/tenants/{launching.publisher.tenant.id}/operations"
    every = (await launching.client.get(path)).json()["items"]
    assert [(each["instance_id"], each["kind"]) for each in every] == [
        (waiting["id"], "deploy"),
        (done["id"], "deploy"),
    ]
    is_open = (await launching.client.get(path, params={"open": "true"})).json()["items"]
    assert [each["instance_id"] for each in is_open] == [waiting["id"]]
    other = await world.tenant("other")
    stranger = world.client(other.token)
    assert (await stranger.get(path)).status_code == 404
    assert (await stranger.get(f"/api/v1/tenants/{other.id}/operations")).json()["items"] == []
    assert (await stranger.get(f"/api/v1/tenants/{other.id}/app-instances")).json()["items"] == []
