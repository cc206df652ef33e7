"""Attacks on instances over the public API: secrets in a configuration, texts that nothing keeps, races for a place."""

import asyncio
import json
from typing import Any, Final

import pytest

from mooring.core.runtime.operation import OperationTrigger
from mooring.storage.kernel.database import PLATFORM
from server.tests.api.catalog.test_apps import AppPublisher, problem
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.adapter_site import make_operator
from server.tests.support.launching import Launching, make_launching

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
SECRET: Final = "hunterhunter"
FORM: Final = {
    "type": "object",
    "properties": {
        "password": {"type": "string", "writeOnly": True, "maxLength": 20, "pattern": "^[a-z]{1,20}$"},
        "mirrors": {
            "type": "array", "maxItems": 5,
            "items": {"type": "object", "properties": {"key": {"type": "string", "writeOnly": True, "maxLength": 20}}},
        },
        "title": {"type": "string"},
    },
}  # fmt: skip
VERBS: Final = [
    {"name": "enter", "permission": "app.web-tool.enter", "input_schema": FORM},
    {"name": "look", "permission": "app.web-tool.look", "input_schema": FORM, "read_only": True},
]
CONFIG: Final = {"password": SECRET, "mirrors": [{"key": SECRET}], "title": "mine"}
SHOWN: Final = {"password": None, "mirrors": [{"key": None}], "title": "mine"}


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    made = await make_launching(world, bare_publisher)
    await made.publish("2.0.0", config_schema=FORM, actions=VERBS)
    return made


async def test_a_secret_of_a_configuration_is_given_back_by_nothing(
    launching: Launching, capsys: pytest.CaptureFixture[str]
) -> None:
    running = await launching.running(config=CONFIG)
    assert running["config"] == SHOWN
    one, client = f"{launching.path}/{running['id']}", launching.client
    keyed = {"Idempotency-Key": "entered"}
    entered = [await client.post(f"{one}/actions/enter", json={"input": CONFIG}, headers=keyed) for _ in range(2)]
    assert [each.json()["request"]["input"] for each in entered] == [SHOWN, SHOWN]
    looked = await client.post(f"{one}/actions/look", json={"input": CONFIG})
    wrong = {**CONFIG, "password": SECRET.upper()}
    refused = [
        await client.post(launching.path, json=launching.body(config=wrong)),
        await client.post(f"{launching.path}:plan", json=launching.body(config=wrong)),
        await client.post(f"{one}/actions/enter", json={"input": wrong}),
    ]
    assert [each.status_code for each in refused] == [422, 200, 422]
    project = f"/api/v1/projects/{launching.publisher.project_id}"
    read = [
        await client.get(each)
        for each in (
            launching.path,
            one,
            f"{one}/operations",
            f"{one}/operations/{entered[0].json()['id']}",
            f"{one}/operations/{looked.json()['id']}",
            f"{one}/why",
            f"{one}/timeline",
            f"{project}/events",
            f"{project}/audit",
        )
    ]
    assert {each.status_code for each in read} == {200}
    shown = "".join(each.text for each in (*entered, looked, *refused, *read)) + "".join(capsys.readouterr())
    assert SECRET not in shown.lower()
    everything = f"""
        SELECT count(*) FROM (
          SELECT data::text AS content FROM event UNION ALL SELECT concat(before, after, reason) FROM audit
          UNION ALL SELECT encode(body, 'escape') FROM idempotency) t
         WHERE content ILIKE '%{SECRET}%'"""
    assert await launching.services.database.fetchval(PLATFORM, everything) == 0


async def test_a_text_that_no_database_keeps_is_refused_and_breaks_nothing(launching: Launching) -> None:
    running = await launching.running()
    one = f"{launching.path}/{running['id']}"
    bodies: list[tuple[str, dict[str, Any]]] = [
        (launching.path, launching.body(config={"title": "\0"})),
        (launching.path, launching.body(config={"\0": 1})),
        (launching.path, launching.body(topology_mode="\0")),
        (launching.path, launching.body(app="\0")),
        (launching.path, launching.body(version="\0")),
        (launching.path, launching.body(topology={"\0": 1})),
        (f"{launching.path}:plan", launching.body(app="\0")),
        (f"{one}/actions/enter", {"input": {"title": "\0"}}),
        (f"{one}/actions/look", {"input": {"\0": "x"}}),
        (f"{one}/upgrade", {"version": "\0"}),
        (f"{one}/members", {"component": "\0"}),
    ]
    for path, body in bodies:
        answer = await launching.client.post(path, json=body)
        assert (path, answer.status_code, answer.json()["code"]) == (path, 422, "validation_failed"), body
    for path in (f"{launching.path}?app=%00", f"{one}/members?component=%00"):
        assert problem(await launching.client.get(path)) == (422, "validation_failed")


async def test_numbers_and_depths_beyond_sense_are_refused(launching: Launching) -> None:
    running = await launching.running()
    one = f"{launching.path}/{running['id']}"
    plain = json.dumps(launching.body(config={"odd": "ODD"}))
    for odd in ("1e400", "-1e400", "NaN", "Infinity", "9" * 5_000, "[" * 900 + "]" * 900, '"\\ud800"'):
        for path, body in (
            (launching.path, plain.replace('"ODD"', odd)),
            (f"{one}/actions/enter", f'{{"input": {{"odd": {odd}}}}}'),
        ):
            sent = await launching.client.post(path, content=body, headers={"content-type": "application/json"})
            assert sent.status_code in (400, 422), (path, odd[:20], sent.text)
    for count in (-1, 201, 10_000, 10**30):
        answer = await launching.client.post(launching.path, json=launching.body(topology={"worker": count}))
        assert problem(answer) == (
            422,
            "validation_failed",
        )


async def test_of_many_who_want_one_place_one_gets_it(launching: Launching) -> None:
    stands = await launching.site.active(launching.sku, gpu_count=1)
    placed = {"allocations": [stands["id"]]}
    asked = (launching.client.post(launching.path, json=launching.body(placement=placed)) for _ in range(6))
    answers = await asyncio.gather(*asked)
    assert sorted(each.status_code for each in answers) == [201] + [409] * 5
    assert {each.json()["code"] for each in answers if each.status_code == 409} == {"allocation_in_use"}


async def test_a_launch_and_a_release_of_its_place_do_not_both_have_it(launching: Launching) -> None:
    place = f"/api/v1/projects/{launching.publisher.project_id}/allocations"
    for _ in range(4):
        stands = await launching.site.active(launching.sku, gpu_count=1)
        placed = launching.body(placement={"allocations": [stands["id"]]})
        made, released = await asyncio.gather(
            launching.client.post(launching.path, json=placed),
            launching.client.post(f"{place}/{stands['id']}/release"),
        )
        assert released.status_code == 200, released.text
        assert made.status_code in (201, 409, 422), made.text
        held = "SELECT count(*) FROM member WHERE allocation_id = $1"
        members = await launching.services.database.fetchval(PLATFORM, held, stands["id"])
        assert members == (1 if made.status_code == 201 else 0)


async def test_the_output_of_an_action_is_shown_to_those_who_may_ask_for_it(launching: Launching, world: World) -> None:
    running = await launching.running()
    one, publisher = f"{launching.path}/{running['id']}", launching.publisher
    asked = (await launching.client.post(f"{one}/actions/enter", json={"input": {"title": "mine"}})).json()
    given = {"output": {"ticket": "let me in"}}
    await launching.finish(running["id"], asked["id"], OperationTrigger.SUCCEED, **given)
    read = f"{one}/operations/{asked['id']}"
    assert (await launching.client.get(read)).json()["output"] == given["output"]
    for role, shown in (("project_viewer", False), ("project_member", True)):
        caller = world.client(await world.member(publisher.tenant, publisher.project_id, role, role.replace("_", "-")))
        listed = (await caller.get(f"{one}/operations?kind=action")).json()["items"]
        for operation in ((await caller.get(read)).json(), *listed):
            assert operation["output"] == (given["output"] if shown else None)
            assert operation["request"]["input"] == ({"title": "mine"} if shown else None)


async def test_an_account_for_one_category_learns_nothing_of_another_by_asking_why(
    launching: Launching, world: World
) -> None:
    running = await launching.running()
    (member,) = (await launching.get(f"{running['id']}/members"))["items"]
    (operation,) = (await launching.get(f"{running['id']}/operations"))["items"]
    publisher = launching.publisher
    for actions, statuses in ((["scheduler.instance.read"], [404, 404, 404]), (["instance.read"], [200, 403, 403])):
        _, token = await make_operator(world, publisher.tenant, publisher.project_id, actions)
        asked = [f"/api/v1/projects/{publisher.project_id}/why/{each['id']}" for each in (running, member, operation)]
        assert [(await world.client(token).get(each)).status_code for each in asked] == statuses


async def test_a_viewer_sees_no_secret_and_starts_no_action(launching: Launching, world: World) -> None:
    running = await launching.running()
    one = f"{launching.path}/{running['id']}"
    publisher = launching.publisher
    viewer = world.client(await world.member(publisher.tenant, publisher.project_id, "project_viewer", "vera"))
    for path, body in (
        ("secrets/token/reveal", None),
        ("actions/look", {"input": {}}),
        ("actions/enter", {"input": {}}),
    ):
        assert problem(await viewer.post(f"{one}/{path}", json=body)) == (403, "permission_denied")
    denied = "SELECT array_agg(action ORDER BY id) FROM audit WHERE outcome = 'denied'"
    assert await launching.services.database.fetchval(PLATFORM, denied) == [
        "instance.connect",
        "app.web-tool.look",
        "app.web-tool.enter",
    ]
