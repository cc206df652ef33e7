"""Instances through the public API on a real database: planned, launched, read, changed and stopped."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.operation import OperationTrigger
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.instance_reconciler import InstanceReconciler
from mooring.workers.janitor import Janitor
from server.tests.api.catalog.test_apps import REASON, AppPublisher, problem
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.launching import LIFECYCLE, Launching, make_launching
from server.tests.support.route_requests import Home

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    return await make_launching(world, bare_publisher)


async def test_a_launch_makes_the_instance_its_members_their_places_and_the_operation(launching: Launching) -> None:
    made = await launching.launch(topology={"worker": 2})
    assert (made["status"], made["health"], made["version"]) == ("created", "unknown", "1.0.0")
    assert made["topology"] == {"head": 1, "worker": 2}
    assert [(each["component_key"], each["desired"], each["current"]) for each in made["members_summary"]] == [
        ("head", 1, 1),
        ("worker", 2, 2),
    ]
    assert made["pin"]["artifacts"] == {"main": f"sha256:{'a' * 64}"}
    assert (made["operation"]["kind"], made["operation"]["status"]) == ("deploy", "accepted")
    assert made["claim"] == {"held": False, "holder": None, "since": None}
    assert made["allowed_verbs"] == ["stop"]
    assert made["allowed_actions"] == ["instance.delete"]
    read = await launching.get(made["id"])
    assert read == made
    members = (await launching.get(f"{made['id']}/members"))["items"]
    assert sorted((each["component_key"], each["ordinal"], each["status"]) for each in members) == [
        ("head", 0, "requested"),
        ("worker", 0, "requested"),
        ("worker", 1, "requested"),
    ]
    assert len({each["allocation_id"] for each in members}) == 3
    assert all(each["owns_allocation"] for each in members)
    (operation,) = (await launching.get(f"{made['id']}/operations"))["items"]
    assert sorted(operation["member_ids"]) == sorted(each["id"] for each in members)
    assert operation["dispatched_at"] is None, "its places do not stand yet"
    listed = await launching.client.get(f"{launching.path}?status=created&app=web-tool")
    assert [each["id"] for each in listed.json()["items"]] == [made["id"]]
    taken = await launching.client.post(launching.path, json=launching.body(name=made["name"]))
    assert problem(taken) == (409, "name_taken")


async def test_a_plan_reports_everything_at_once_and_changes_nothing(launching: Launching) -> None:
    plan = (await launching.client.post(f"{launching.path}:plan", json=launching.body())).json()
    assert (plan["launchable"], plan["hindrances"], plan["new_allocations"]) == (True, [], 1)
    assert plan["price"] == [{"currency": "EUR", "minor_per_hour": 250, "added_minor_per_hour": 250}]
    assert plan["version"]["version"] == "1.0.0"
    assert plan["expected"] == {"basis": "none", "samples": 0, "seconds": None, "stages": []}
    assert [each["gpu_count"] for each in plan["shapes"] if each["fits"]] == [1, 2, 4]
    assert (await launching.client.get(launching.path)).json()["items"] == []
    await launching.publisher.world.admin.put(
        "/api/v1/platform/policy", json={"rules": {"apps": {"deny": ["web-*"]}}, "reason": REASON}
    )
    wrong = launching.body(
        name="tool",
        config={"a": 1},
        topology={"worker": 9},
        operating_mode="platform_managed",
        control_plane_scope="platform",
        placement={"sku": launching.sku, "gpu_count": 3},
    )
    plan = (await launching.client.post(f"{launching.path}:plan", json=wrong)).json()
    codes = [each["code"] for each in plan["hindrances"]]
    assert codes == [
        "policy_denied",
        "validation_failed",
        "validation_failed",
        "validation_failed",
        "mode_not_offered",
    ]
    assert (plan["policy"]["allowed"], plan["policy"]["layer"]) == (False, "global")
    refused = await launching.client.post(launching.path, json=wrong)
    assert problem(refused) == (403, codes[0])
    assert [each["code"] for each in refused.json()["details"]["others"]] == codes[1:]


async def test_an_allocation_holds_one_instance_and_a_place_is_named(launching: Launching) -> None:
    stands = await launching.site.active(launching.sku, gpu_count=1)
    placed = {"allocations": [stands["id"]]}
    made = await launching.launch(placement=placed, topology={"worker": 1})
    (operation,) = (await launching.get(f"{made['id']}/operations"))["items"]
    assert operation["dispatched_at"] is not None
    members = (await launching.get(f"{made['id']}/members"))["items"]
    assert {each["allocation_id"] for each in members} == {stands["id"]}
    assert {(each["node_id"], each["node_reachable"]) for each in members} == {(stands["node_id"], True)}
    second = await launching.client.post(launching.path, json=launching.body(placement=placed))
    assert problem(second) == (409, "allocation_in_use")
    nowhere = await launching.client.post(launching.path, json=launching.body(placement=None))
    assert problem(nowhere) == (422, "validation_failed")
    assert nowhere.json()["details"]["path"] == "placement"


async def test_a_launch_waits_for_its_place_and_a_stop_gives_it_back(launching: Launching) -> None:
    made = await launching.launch()
    worker = InstanceReconciler(launching.services)
    await worker.tick()
    (operation,) = (await launching.get(f"{made['id']}/operations"))["items"]
    assert operation["dispatched_at"] is None, "no adapter may take it before its place stands"
    await launching.site.look()
    (member,) = (await launching.get(f"{made['id']}/members"))["items"]
    await launching.site.fleet.do(member["allocation_id"])
    await launching.site.look()
    await worker.tick()
    operation = await launching.get(f"{made['id']}/operations/{operation['id']}")
    assert operation["dispatched_at"] is not None
    await launching.post(f"{made['id']}/stop")
    launching.site.later(timedelta(minutes=5))
    for _ in range(6):
        await worker.tick()
    seen = await launching.get(made["id"])
    assert (seen["status"], seen["teardown_proof"]) == ("stopped", "receipts")
    (record,) = (await launching.get(f"{made['id']}/closing-records"))["items"]
    assert (record["member_id"], record["kind"]) == (member["id"], "nothing_started")
    assert (await launching.site.get(member["allocation_id"]))["status"] == "releasing"
    again = await launching.post(f"{made['id']}/stop")
    assert (again["kind"], again["status"]) == ("decommission", "succeeded")


async def test_stop_is_asked_for_as_often_as_one_likes(launching: Launching) -> None:
    made = await launching.launch()
    first = await launching.post(f"{made['id']}/stop")
    again = await launching.post(f"{made['id']}/stop")
    deleted = await launching.client.delete(f"{launching.path}/{made['id']}")
    assert first["id"] == again["id"] == deleted.json()["id"]
    assert (first["kind"], first["phase"]) == ("decommission", "adapter")
    seen = await launching.get(made["id"])
    assert (seen["status"], seen["operation"]["kind"], seen["allowed_verbs"]) == ("stopping", "decommission", [])
    operations = {each["kind"]: each["status"] for each in (await launching.get(f"{made['id']}/operations"))["items"]}
    assert operations == {"decommission": "accepted", "deploy": "cancelling"}
    refused = await launching.client.post(f"{launching.path}/{made['id']}/operations/{first['id']}/cancel", json={})
    assert problem(refused) == (409, "not_supported")


async def test_one_operation_of_the_whole_is_open_at_a_time(launching: Launching) -> None:
    made = await launching.running()
    assert made["allowed_verbs"] == ["add", "connect", "reconcile", "repair", "restart", "stop", "update", "upgrade"]
    first = await launching.post(f"{made['id']}/reconcile")
    second = await launching.client.post(f"{launching.path}/{made['id']}/repair", json={})
    assert problem(second) == (409, "operation_in_progress")
    assert second.json()["details"]["operation_id"] == first["id"]
    cancelled = await launching.post(f"{made['id']}/operations/{first['id']}/cancel", {"reason": "not now"})
    assert (cancelled["status"], cancelled["cancel_reason"]) == ("cancelling", "not now")
    await launching.finish(made["id"], first["id"], OperationTrigger.FINISH_CANCEL)
    assert (await launching.post(f"{made['id']}/restart"))["kind"] == "restart"


async def test_upgrade_and_rollback_go_by_digests(launching: Launching) -> None:
    made = await launching.running()
    nothing = await launching.client.post(f"{launching.path}/{made['id']}/rollback")
    assert problem(nothing) == (409, "rollback_unavailable")
    same = await launching.client.post(f"{launching.path}/{made['id']}/upgrade", json={})
    assert problem(same) == (409, "conflict")
    unknown = await launching.client.post(f"{launching.path}/{made['id']}/upgrade", json={"version": "9.9.9"})
    assert problem(unknown) == (409, "version_not_offered")
    await launching.publish("1.1.0", lifecycle=LIFECYCLE | {"restart": {"supported": False, "instead": "drain it"}})
    operation = await launching.post(f"{made['id']}/upgrade", {})
    assert (operation["kind"], operation["target_version"]) == ("upgrade", "1.1.0")
    await launching.finish(made["id"], operation["id"], OperationTrigger.FAIL, failure_code="unhealthy")
    await launching.pin(made["id"], member_version="1.1.0")
    back = await launching.post(f"{made['id']}/rollback")
    assert back["target_version"] == "1.0.0", "after an upgrade that failed half-way it goes to the pin"
    await launching.finish(made["id"], back["id"], OperationTrigger.SUCCEED)
    new = launching.versions["1.1.0"]
    pin = {**made["pin"], "version_id": new["id"], "version": "1.1.0", "manifest_digest": new["manifest_digest"]}
    await launching.pin(
        made["id"], member_version="1.1.0", pin=pin, previous_pin=made["pin"], version_id=new["id"], version="1.1.0"
    )
    refused = await launching.client.post(f"{launching.path}/{made['id']}/restart")
    assert problem(refused) == (409, "not_supported")
    assert refused.json()["details"]["instead"] == "drain it"
    old = launching.versions["1.0.0"]
    await launching.publisher.move(old, "deprecate", superseded_by=new["id"])
    assert (await launching.post(f"{made['id']}/rollback"))["target_version"] == "1.0.0"
    deprecated = await launching.client.post(launching.path, json=launching.body(version="1.0.0"))
    assert problem(deprecated) == (409, "version_deprecated")


async def test_members_are_added_drained_resumed_and_removed(launching: Launching) -> None:
    made = await launching.launch()
    await launching.site.look()
    (member,) = (await launching.get(f"{made['id']}/members"))["items"]
    await launching.site.fleet.do(member["allocation_id"])
    await launching.site.look()
    await launching.bring_up(made["id"])
    one = f"{made['id']}/members"
    added = await launching.post(one, {"component": "worker", "count": 2})
    assert (added["kind"], len(added["member_ids"])) == ("add", 2)
    assert (await launching.get(made["id"]))["topology"] == {"head": 1, "worker": 2}
    beyond = await launching.client.post(f"{launching.path}/{one}", json={"component": "worker", "count": 7})
    assert problem(beyond) == (409, "limit_reached")
    head = (await launching.get(f"{one}?component=head"))["items"][0]
    drained = await launching.post(f"{one}/{head['id']}/drain", {"reason": "a new disk", "timeout_seconds": 60})
    second = await launching.client.post(f"{launching.path}/{one}/{head['id']}/remove", json={})
    assert problem(second) == (409, "operation_in_progress")
    assert second.json()["details"]["operation_id"] == drained["id"]
    seen = await launching.get(f"{one}/{head['id']}")
    assert (seen["status"], seen["holds"][0]["reason"]) == ("draining", "a new disk")
    resumed = await launching.post(f"{one}/{head['id']}/resume", status=200)
    assert (resumed["status"], resumed["holds"]) == ("ready", [])
    await launching.finish(made["id"], drained["id"], OperationTrigger.FINISH_CANCEL)
    below = await launching.client.post(f"{launching.path}/{one}/{head['id']}/remove", json={})
    assert problem(below) == (409, "not_supported")
    assert below.json()["details"]["instead"] == "replace the member, or stop the instance"
    surge = await launching.client.post(f"{launching.path}/{one}/{head['id']}/replace", json={"surge": True})
    assert problem(surge) == (409, "not_supported")
    replaced = await launching.post(f"{one}/{head['id']}/replace", {})
    assert replaced["request"]["surge"] is False, "there may be one head alone"
    old, new = replaced["member_ids"]
    fresh = await launching.get(f"{one}/{new}")
    assert (old, fresh["replaces_id"], fresh["allocation_id"]) == (head["id"], head["id"], head["allocation_id"])


async def test_an_action_needs_its_own_key_and_the_right_input(launching: Launching) -> None:
    made = await launching.running()
    path = f"{launching.path}/{made['id']}/actions"
    home = Home(launching.publisher.world, launching.client, launching.publisher.tenant, launching.publisher.project_id)
    viewer = launching.publisher.world.client(await home.new_person(Scope.PROJECT, "project_viewer"))
    denied = await viewer.post(f"{path}/queue.submit", json={"input": {"line": "x"}})
    assert problem(denied) == (403, "permission_denied")
    submitted = await launching.client.post(f"{path}/queue.submit", json={"input": {"line": "x"}})
    assert (submitted.status_code, submitted.json()["request"]["input"]) == (202, {"line": "x"})
    trail = (await launching.client.get(f"/api/v1/projects/{launching.publisher.project_id}/audit?limit=500")).json()[
        "items"
    ]
    assert [each["action"] for each in trail if each["outcome"] == "denied"] == ["app.web-tool.queue.submit"]
    assert problem(await launching.client.post(f"{path}/no.such", json={})) == (404, "not_found")
    wrong = await launching.client.post(f"{path}/queue.submit", json={"input": {"line": 1}})
    assert problem(wrong) == (422, "validation_failed")
    assert wrong.json()["details"]["path"] == "input.line"
    before = await _traces(launching, made["id"])
    started = await launching.client.post(f"{path}/queue.list", json={})
    assert started.status_code == 202, started.text
    operation = started.json()
    assert (operation["kind"], operation["read_only"]) == ("action", True)
    listed = (await launching.get(f"{made['id']}/operations?kind=action"))["items"]
    assert [each["id"] for each in listed] == [submitted.json()["id"]]
    assert (await launching.get(f"{made['id']}/operations/{operation['id']}"))["status"] == "accepted"
    await launching.finish(made["id"], operation["id"], OperationTrigger.SUCCEED, output={"jobs": []})
    done = await launching.get(f"{made['id']}/operations/{operation['id']}?wait=5&until=succeeded")
    assert (done["status"], done["output"]) == ("succeeded", {"jobs": []})
    assert await _traces(launching, made["id"]) == before
    launching.site.later(timedelta(minutes=59))
    await Janitor(launching.services).sweep()
    assert await _left(launching, operation["id"]) == (1, 3)
    launching.site.later(timedelta(minutes=61))
    await Janitor(launching.services).sweep()
    assert await _left(launching, operation["id"]) == (0, 0), "it is kept for an hour, and leaves nothing"


async def _left(launching: Launching, operation_id: str) -> Any:
    """What there is of an operation: its row and its transitions."""
    query = """SELECT (SELECT count(*) FROM operation WHERE id = $1),
                      (SELECT count(*) FROM transition WHERE subject_id = $1)"""
    return tuple(await launching.services.database.fetchrow(PLATFORM, query, operation_id))


async def _traces(launching: Launching, instance_id: str) -> Any:
    """How many events and audit rows there are of an instance."""
    database = launching.services.database
    query = """SELECT (SELECT count(*) FROM event WHERE app_instance_id = $1),
                      (SELECT count(*) FROM audit WHERE app_instance_id = $1)"""
    return tuple(await database.fetchrow(PLATFORM, query, instance_id))
