"""Plan and create agree through the public API too, on a real database; and who may ask for what."""

import asyncio
import random
from typing import Any, Final

import pytest

from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.operation import OperationTrigger
from mooring.storage.kernel.database import PLATFORM
from server.tests.api.catalog.test_apps import REASON, AppPublisher, problem
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support import made_things
from server.tests.support.launching import Launching, make_launching
from server.tests.support.route_requests import Home
from server.tests.support.service_accounts import make_account
from tests.support.waiting import until

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

CASES: Final = 40
SEED: Final = 5


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    return await make_launching(world, bare_publisher)


def home_of(launching: Launching) -> Home:
    """The project, as the generic tests know it."""
    return Home(launching.publisher.world, launching.client, launching.publisher.tenant, launching.publisher.project_id)


async def test_what_a_plan_promises_is_launched_and_what_it_refuses_is_refused(launching: Launching) -> None:
    chance = random.Random(SEED)
    await launching.publish("1.1.0")
    await launching.publisher.publish("2.0.0")
    taken = await launching.site.ask(launching.sku, gpu_count=1)
    await launching.launch(name="taken", placement={"allocations": [taken["id"]]})
    rules = {"rules": {"gpus_max": 12, "regions": {"deny": ["moon"]}}, "reason": REASON}
    await launching.client.put(f"/api/v1/projects/{launching.publisher.project_id}/policy", json=rules)
    outcomes = set()
    for _ in range(CASES):
        free = await launching.site.ask(launching.sku, gpu_count=1) if chance.random() < 0.2 else taken
        placement: dict[str, Any] = chance.choice(
            [
                {"sku": launching.sku, "gpu_count": chance.choice([1, 1, 1, 2, 3])},
                {"allocations": [free["id"]]},
                {"sku": "no-such"},
                {},
            ]
        )
        body = launching.body(placement=placement)
        body |= chance.choice([{}, {}, {}, {"topology": {"worker": chance.randint(0, 9)}}, {"config": {"a": 1}}])
        body |= chance.choice([{}, {}, {"version": chance.choice(["1.0.0", "2.0.0", "3.0.0"])}, {"channel": "canary"}])
        body |= chance.choice([{}, {}, {}, {"name": "taken"}, {"control_plane_scope": "tenant"}])
        plan = (await launching.client.post(f"{launching.path}:plan", json=body)).json()
        made = await launching.client.post(launching.path, json=body)
        if plan["launchable"]:
            assert made.status_code == 201, (body, made.text)
            assert (made.json()["version"], made.json()["topology"]) == (plan["version"]["version"], plan["topology"])
        else:
            first, *others = (each["code"] for each in plan["hindrances"])
            assert made.json()["code"] == first, body
            assert [each["code"] for each in made.json()["details"].get("others", [])] == others
        outcomes.add("launched" if plan["launchable"] else plan["hindrances"][0]["code"])
    assert {"launched", "validation_failed", "allocation_in_use", "version_not_offered"} <= outcomes


async def test_two_who_want_one_name_or_the_whole_instance_at_once_do_not_both_get_it(launching: Launching) -> None:
    same = launching.body(name="contested")
    answers = await asyncio.gather(*(launching.client.post(launching.path, json=same) for _ in range(4)))
    assert sorted(each.status_code for each in answers) == [201, 409, 409, 409]
    assert {each.json()["code"] for each in answers if each.status_code == 409} == {"name_taken"}
    made = await launching.running()
    verbs = ("reconcile", "repair", "restart", "reconcile")
    paths = [f"{launching.path}/{made['id']}/{verb}" for verb in verbs]
    answers = await asyncio.gather(*(launching.client.post(each, json={}) for each in paths))
    (won,) = [each for each in answers if each.status_code == 202]
    lost = [each.json() for each in answers if each.status_code != 202]
    assert {(each["code"], each["details"]["operation_id"]) for each in lost} == {
        ("operation_in_progress", won.json()["id"])
    }


async def test_a_key_of_a_category_opens_the_apps_of_that_category_and_no_others(launching: Launching) -> None:
    home = home_of(launching)
    keys = ["scheduler.instance.read", "scheduler.instance.create", "scheduler.instance.delete"]
    client = launching.publisher.world.client(await (await make_account(home, keys)).token(home.client))
    tool = await launching.launch()
    assert problem(await client.get(f"{launching.path}/{tool['id']}")) == (404, "not_found")
    assert (await client.get(launching.path)).json()["items"] == []
    for path in (launching.path, f"{launching.path}:plan"):
        refused = await client.post(path, json=launching.body())
        assert problem(refused) == (403, "permission_denied")
        assert refused.json()["details"] == {"action": "instance.create", "category": "tool"}
    assert problem(await client.post(f"{launching.path}/{tool['id']}/stop")) == (403, "permission_denied")
    other = (await made_things.new_instance(home, Scope.PROJECT))["instance_id"]
    known = await made_things.launchable(home)
    assert (await client.get(f"{launching.path}/{other}")).json()["app_category"] == "scheduler"
    assert [each["id"] for each in (await client.get(launching.path)).json()["items"]] == [other]
    body = launching.body(app=known["slug"])
    made = await client.post(launching.path, json=body)
    assert made.status_code == 201, made.text
    assert (await client.post(f"{launching.path}/{other}/stop")).status_code == 202
    database = launching.services.database
    query = "SELECT action, reason FROM audit WHERE outcome = 'denied' AND action LIKE 'instance.%' ORDER BY id"
    assert len(await database.fetch(PLATFORM, query)) == 3, "each denial stands in the trail"


async def test_an_app_is_opened_by_a_secret_that_is_shown_and_written_down(launching: Launching) -> None:
    home = home_of(launching)
    opens = await made_things.new_secret(home, Scope.PROJECT)
    path = f"{launching.path}/{opens['instance_id']}/secrets"
    shown = (await launching.client.post(f"{path}/access/reveal")).json()
    assert shown == {"name": "access", "value": made_things.VALUE.decode()}
    assert problem(await launching.client.post(f"{path}/no-such/reveal")) == (404, "not_found")
    trail = (await launching.client.get(f"/api/v1/projects/{home.project_id}/audit?limit=500")).json()["items"]
    (row,) = [each for each in trail if each["action"] == "secret.reveal"]
    assert row["after"] == {"name": "access", "purpose": "app_access"}
    assert (await launching.get(f"{opens['instance_id']}/usage"))["items"] == []
    assert (await launching.get(f"{opens['instance_id']}/closing-records"))["items"] == []


async def test_a_wait_for_an_action_is_woken_whether_it_leaves_a_trace_or_not(launching: Launching) -> None:
    made = await launching.running()
    for name, given, output in (("queue.list", {}, {"jobs": 2}), ("queue.submit", {"line": "x"}, {"id": 7})):
        path = f"{launching.path}/{made['id']}/actions/{name}?wait=30"
        asking = asyncio.create_task(launching.client.post(path, json={"input": given}))
        operation_id = await _begun(launching, made["id"])
        await launching.finish(made["id"], operation_id, OperationTrigger.SUCCEED, output=output)
        answer = await asking
        assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "succeeded", output)


async def test_a_caller_who_loses_the_right_during_an_action_does_not_see_its_state(launching: Launching) -> None:
    made, world, project_id = await launching.running(), launching.publisher.world, launching.publisher.project_id
    caller = world.client(await world.member(launching.publisher.tenant, project_id, "project_admin", "leaving"))
    asking = asyncio.create_task(
        caller.post(f"{launching.path}/{made['id']}/actions/queue.list?wait=25", json={"input": {}})
    )
    await _begun(launching, made["id"])
    memberships = f"/api/v1/projects/{project_id}/memberships"
    me = (await caller.get("/api/v1/whoami")).json()["id"]
    (mine,) = [each for each in (await launching.client.get(memberships)).json()["items"] if each["user_id"] == me]
    assert (await launching.client.delete(f"{memberships}/{mine['id']}")).status_code == 204
    assert problem(await asking) == (404, "not_found"), "nobody finished it: only the look at the right can end this"


async def _begun(launching: Launching, instance_id: str) -> str:
    """The action that is open, as soon as there is one."""
    query = "SELECT id FROM operation WHERE instance_id = $1 AND kind = 'action' AND finished_at IS NULL"
    return str(await until(lambda: launching.services.database.fetchval(PLATFORM, query, instance_id)))
