"""What needs somebody: worst first, with cause and next step; the platform sees that, and not what, of a tenant."""

import json

import httpx
import pytest

from mooring.core.kernel.permissions import Scope
from mooring.core.records.attention import RULES, AttentionKind, visible
from mooring.core.runtime.operation import OperationTrigger
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.records import attention
from server.tests.api.catalog.test_apps import AppPublisher, publisher  # noqa: F401
from server.tests.conftest import World
from server.tests.support.launching import make_launching

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
OPERATOR = "/api/v1/platform/attention"


async def every_page(client: httpx.AsyncClient, path: str) -> list[str]:
    """The ids of a list that is read one by one."""
    ids, cursor = [], None
    while True:
        answer = (await client.get(path, params={"limit": 1} | ({"cursor": cursor} if cursor else {}))).json()
        ids += [each["id"] for each in answer["items"]]
        if (cursor := answer["next_cursor"]) is None:
            return ids


async def test_a_tenant_sees_cause_and_step_and_the_platform_only_that_there_is_something(
    world: World,
    publisher: AppPublisher,  # noqa: F811
) -> None:
    launching = await make_launching(world, publisher)
    tenant = f"{publisher.place}/attention"
    running = await launching.running(name="their-secret-plan")
    assert (await publisher.client.get(tenant)).json()["items"] == []
    restart = await launching.post(f"{running['id']}/restart")
    blocked = {"blocker": "their own words", "blocker_code": "their_code"}
    await launching.finish(running["id"], restart["id"], OperationTrigger.BLOCK, **blocked)
    broken = await launching.launch(name="broken-plan")
    operation_id = broken["operation"]["id"]
    for number in range(3):
        failed = broken if number == 0 else await launching.launch(name=f"broken-{number}")
        operation_id = failed["operation"]["id"]
        ended = {
            "finished_at": launching.services.clock.now(),
            "failure_code": "timed_out",
            "failure_detail": "no answer",
        }
        await launching.finish(failed["id"], operation_id, OperationTrigger.FAIL, **ended)
    database = world.running.platform.services.database
    (node,) = (await world.admin.get("/api/v1/platform/nodes")).json()["items"]
    async with database.connection(PLATFORM) as connection:
        await connection.execute(
            "UPDATE node SET unreachable_since = now() - interval '1 hour' WHERE id = $1", node["id"]
        )
    found = (await publisher.client.get(tenant)).json()["items"]
    by_kind = {each["kind"]: each for each in found}
    assert {"operation_blocked", "circuit_open"} <= set(by_kind), sorted(by_kind)
    stuck = by_kind["operation_blocked"]
    assert (stuck["cause"], stuck["subject_name"], stuck["subject_id"]) == (
        "their own words",
        "their-secret-plan",
        restart["id"],
    )
    assert stuck["next_step"]["command"] == f"mooring why {running['id']}"
    circuit = by_kind["circuit_open"]
    assert (circuit["subject_name"], circuit["count"]) == ("web-tool", 3)
    project = f"/api/v1/projects/{publisher.project_id}/attention"
    assert {each["kind"] for each in (await publisher.client.get(project)).json()["items"]} == set(by_kind)
    seen = (await world.admin.get(OPERATOR)).json()["items"]
    kinds = [each["kind"] for each in seen]
    assert kinds[0] == "node_unreachable", "the worst is first"
    assert {"operation_blocked", "circuit_open", "launches_failing"} <= set(kinds)
    (stuck,) = [each for each in seen if each["kind"] == "operation_blocked"]
    assert (stuck["subject_id"], stuck["tenant_id"], stuck["subject_name"], stuck["code"]) == (
        restart["id"],
        publisher.tenant.id,
        None,
        None,
    )
    whole = json.dumps(seen)
    for theirs in (
        "their-secret-plan",
        "their own words",
        "their_code",
        "web-tool",
        "no answer",
        publisher.tenant.slug,
    ):
        assert theirs not in whole, theirs
    pages = await every_page(world.admin, OPERATOR)
    assert pages == [each["id"] for each in seen]
    worst = (await world.admin.get(OPERATOR, params={"severity": "critical"})).json()["items"]
    assert {each["severity"] for each in worst} == {"critical"}
    other = await world.tenant("curious")
    assert (await world.client(other.token).get(tenant)).status_code == 404
    assert (await world.client(other.token).get(f"/api/v1/tenants/{other.id}/attention")).json()["items"] == []


def test_every_kind_can_be_read_where_a_key_shows_it() -> None:
    everything = frozenset(key for rule in RULES.values() for key in (rule.own, rule.platform) if key)
    assert set(visible(everything, Scope.TENANT)) == set(attention.OF_TENANT)
    assert set(visible(everything, Scope.PLATFORM)) == set(attention.OF_PLATFORM)
    assert set(attention.OF_TENANT) | set(attention.OF_PLATFORM) == set(AttentionKind)
    assert visible(frozenset({"instance.read"}), Scope.PLATFORM) == []
