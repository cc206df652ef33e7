"""Policy, entitlements and the catalog through the public API on a real database."""

from dataclasses import replace
from typing import Any

import asyncpg
import httpx
import pytest

from mooring.core.catalog.channel import is_in_canary
from mooring.core.kernel.permissions import Scope
from mooring.storage.kernel.database import PLATFORM
from server.tests.api.catalog.test_apps import REASON, AppPublisher, problem
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.fleet import FleetWithAgents
from server.tests.support.route_requests import Home, a_manifest
from server.tests.support.service_accounts import make_account

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def publisher(bare_publisher: AppPublisher) -> AppPublisher:
    """A publisher on a platform that has a machine with four GPUs, sold in slices."""
    fleet = FleetWithAgents(bare_publisher.world.running.platform.services.database)
    await fleet.node(inventory_facts={"rdma": True})
    await fleet.sku()
    return bare_publisher


def rules(**said: Any) -> dict[str, Any]:
    """A body that states rules."""
    return {"rules": said, "reason": REASON}


async def put(client: httpx.AsyncClient, place: str, **said: Any) -> httpx.Response:
    """State the rules of a place."""
    return await client.put(f"{place}/policy", json=rules(**said))


async def entry(publisher: AppPublisher, project_id: str | None = None) -> dict[str, Any]:
    """The publisher's app as the project sees it."""
    listed = (await publisher.client.get(f"/api/v1/projects/{project_id or publisher.project_id}/catalog")).json()[
        "items"
    ]
    return next(each for each in listed if each["app_id"] == publisher.app["id"])


def obstacles(seen: dict[str, Any]) -> list[str]:
    """What hinders."""
    return [each["obstacle"] for each in seen["hindrances"]]


async def entitle(publisher: AppPublisher, **terms: Any) -> httpx.Response:
    """Entitle the publisher's project to the publisher's app, which has an adapter."""
    key = {"public_key": "A" * 43}
    await publisher.client.put(f"{publisher.place}/apps/{publisher.app['id']}/adapter-key", json=key)
    agreed = {"agreed_actions": ["runtime.claim", "runtime.report"]}
    body = {"app_id": publisher.app["id"], "reason": REASON, **agreed, **terms}
    return await publisher.client.post(f"/api/v1/projects/{publisher.project_id}/entitlements", json=body)


async def test_layers_are_stated_narrow_and_are_explained(publisher: AppPublisher) -> None:
    project = f"/api/v1/projects/{publisher.project_id}"
    empty = (await publisher.client.get(f"{publisher.place}/policy")).json()
    assert (empty["id"], empty["layer"], empty["rules"]) == (None, "tenant", {})
    assert (
        await put(publisher.world.admin, "/api/v1/platform", apps={"deny": ["bad-*"]}, gpus_max=8)
    ).status_code == 200
    stated = (await put(publisher.client, publisher.place, apps={"allow": ["web-*", "bench"]})).json()
    assert (stated["layer"], stated["rules"], stated["revision"]) == (
        "tenant",
        {"apps": {"allow": ["bench", "web-*"]}},
        0,
    )
    wider = await put(publisher.client, project, apps={"allow": ["mail"]}, gpus_max=9)
    assert problem(wider) == (422, "policy_widens")
    assert {(each["field"], each["layer"]) for each in wider.json()["details"]["widenings"]} == {
        ("apps", "tenant"),
        ("gpus_max", "global"),
    }
    assert (await put(publisher.client, project, apps={"allow": ["web-tool"]}, gpus_max=4)).status_code == 200
    explained = (await publisher.client.get(f"{project}/policy/explain?app=bench&gpus=5")).json()
    assert (explained["allowed"], explained["decided_by"]) == (False, "project")
    answers = {(each["layer"], each["subject"]): each["allowed"] for each in explained["answers"]}
    assert answers == {
        ("global", "app"): True,
        ("global", "gpus"): True,
        ("tenant", "app"): True,
        ("tenant", "gpus"): True,
        ("project", "app"): False,
        ("project", "gpus"): False,
    }
    final = (await publisher.client.get(f"{project}/policy/explain?app=bad-one")).json()
    assert (final["allowed"], final["decided_by"]) == (False, "global")
    assert "'bad-*'" in final["reason"]
    here = (await publisher.world.admin.get("/api/v1/platform/policy/explain?app=web-tool")).json()
    assert (here["allowed"], here["decided_by"]) == (True, None)


async def test_a_layer_is_replaced_under_the_revision_that_was_seen(publisher: AppPublisher) -> None:
    first = (await put(publisher.client, publisher.place, gpus_max=4)).json()
    again = await publisher.client.put(f"{publisher.place}/policy", json=rules(gpus_max=2) | {"revision": 0})
    assert (again.json()["id"], again.json()["revision"]) == (first["id"], 1)
    stale = await publisher.client.put(f"{publisher.place}/policy", json=rules() | {"revision": 0})
    assert problem(stale) == (409, "revision_conflict")
    assert problem(await put(publisher.client, publisher.place, apps={"deny": ["UPPER"]})) == (422, "validation_failed")


async def test_an_entitlement_is_made_changed_shown_and_taken_away(publisher: AppPublisher) -> None:
    await publisher.artifact("active")
    await publisher.moved(
        await publisher.publish(required_actions=["runtime.claim", "runtime.report"]), "stage", "canary", "activate"
    )
    made = await entitle(publisher, agreed_actions=["runtime.claim"])
    assert made.status_code == 201, made.text
    row = made.json()
    assert row["required_actions"] == ["runtime.claim", "runtime.report"]
    assert row["missing_actions"] == ["runtime.report"]
    seen = await entry(publisher)
    assert (seen["launchable"], obstacles(seen)) == (False, ["actions_not_agreed"])
    assert (seen["hindrances"][0]["code"], seen["entitled"]) == ("not_entitled", False)
    assert seen["hindrances"][0]["details"]["missing_actions"] == ["runtime.report"]
    one = f"/api/v1/projects/{publisher.project_id}/entitlements/{row['id']}"
    terms = {"enabled": True, "reason": REASON, "agreed_actions": row["required_actions"], "revision": 0}
    assert (await publisher.client.put(one, json=terms)).json()["missing_actions"] == []
    assert (await entry(publisher))["launchable"] is True
    assert problem(await publisher.client.put(one, json=terms)) == (409, "revision_conflict")
    beyond = terms | {"agreed_actions": ["tenant.create"], "revision": 1}
    assert problem(await publisher.client.put(one, json=beyond)) == (403, "grant_exceeds_ceiling")
    ranged = (await publisher.client.put(one, json=terms | {"versions": ">=2.0.0", "revision": 1})).json()
    assert ranged["versions"] == ">=2.0.0"
    assert (await entry(publisher))["hindrances"][0]["details"]["reason"] == "version"
    assert problem(await entitle(publisher)) == (409, "name_taken")
    assert (await publisher.client.delete(one)).status_code == 204
    assert (await entry(publisher))["entitled"] is False
    assert (await publisher.client.get(f"/api/v1/projects/{publisher.project_id}/entitlements")).json()["items"] == []


async def test_only_people_who_administer_change_entitlements(publisher: AppPublisher) -> None:
    home = Home(publisher.world, publisher.world.client(), publisher.tenant, publisher.project_id)
    account = await make_account(home, ["entitlement.read", "catalog.read"])
    client = publisher.world.client(await account.token(home.client))
    body = {"app_id": publisher.app["id"], "reason": REASON}
    path = f"/api/v1/projects/{publisher.project_id}/entitlements"
    assert (await client.get(path)).status_code == 200
    assert problem(await client.post(path, json=body)) == (403, "permission_denied")
    one = f"{path}/{(await entitle(publisher)).json()['id']}"
    for switch in ("enable", "disable"):
        assert problem(await client.post(f"{one}/{switch}", json={"reason": REASON})) == (403, "permission_denied")
    operator = publisher.world.client(await home.new_person(Scope.PLATFORM, "platform_operator"))
    assert (await operator.get(one)).json()["allowed_actions"] == []
    assert problem(await operator.post(f"{one}/disable", json={"reason": REASON})) == (403, "permission_denied")
    other = await publisher.world.tenant("other")
    stranger = publisher.world.client(other.token)
    assert problem(await stranger.post(path, json=body)) == (404, "not_found")
    project = await publisher.world.project(other, "theirs")
    foreign = await stranger.post(f"/api/v1/projects/{project}/entitlements", json=body)
    assert problem(foreign) == (404, "not_found")


async def test_an_entitlement_is_switched_off_and_on_again_with_its_terms(publisher: AppPublisher) -> None:
    made = (await entitle(publisher, versions=">=1.0.0", agreed_actions=["runtime.claim"])).json()
    one = f"/api/v1/projects/{publisher.project_id}/entitlements/{made['id']}"
    why = {"reason": REASON}
    off = (await publisher.client.post(f"{one}/disable", json=why)).json()
    assert (off["enabled"], off["revision"]) == (False, 1)
    on = (await publisher.client.post(f"{one}/enable", json=why)).json()
    changing = {"revision", "etag", "updated_at"}
    assert {key: on[key] for key in on.keys() - changing} == {key: made[key] for key in made.keys() - changing}
    assert problem(await publisher.client.post(f"{one}/disable", json={})) == (422, "validation_failed")


async def test_admins_of_the_platform_entitle_any_project_and_its_tenant_reads_who_did(publisher: AppPublisher) -> None:
    path = f"/api/v1/projects/{publisher.project_id}/entitlements"
    body, why = {"app_id": publisher.app["id"], "reason": REASON}, {"reason": "the contract is over"}
    admin = publisher.world.admin
    made = await admin.post(path, json=body, headers={"Idempotency-Key": "once"})
    assert (made.status_code, made.json()["allowed_actions"]) == (201, ["entitlement.update"])
    again = await admin.post(path, json=body, headers={"Idempotency-Key": "once"})
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (made.json(), "true")
    one = f"{path}/{made.json()['id']}"
    assert (await admin.post(f"{one}/disable", json=why)).json()["enabled"] is False
    assert (await publisher.client.get(one)).json() == (await admin.get(one)).json()
    rows = (await publisher.client.get(f"{publisher.place}/audit?action=entitlement.update")).json()["items"]
    mine = (await admin.get("/api/v1/whoami")).json()["id"]
    assert [(row["actor_id"], row["project_id"], row["reason"]) for row in rows] == [
        (mine, publisher.project_id, why["reason"]),
        (mine, publisher.project_id, REASON),
    ]
    assert (await admin.delete(one)).status_code == 204
    other = await publisher.world.tenant("other")
    project = await publisher.world.project(other, "theirs")
    unseen = await admin.post(f"/api/v1/projects/{project}/entitlements", json=body)
    assert problem(unseen) == (404, "not_found"), "an app of another tenant's"
    gone = "prj_" + "0" * 26
    assert problem(await admin.get(f"/api/v1/projects/{gone}/entitlements")) == (404, "not_found")
    assert problem(await admin.get(f"/api/v1/projects/{publisher.project_id}/catalog")) == (404, "not_found")
    assert problem(await admin.get(f"/api/v1/projects/{publisher.project_id}")) == (404, "not_found")


async def test_a_deleted_project_is_nobody_s_for_the_platform_too(publisher: AppPublisher, database_url: str) -> None:
    path = f"/api/v1/projects/{await publisher.world.project(publisher.tenant, 'brief')}"
    body = {"app_id": publisher.app["id"], "reason": REASON}
    for each in (publisher.world.admin, publisher.client):
        assert (await each.get(f"{path}/entitlements")).json()["items"] == []
    writing = await asyncpg.connect(database_url)  # while it is open, nobody hears of an event
    try:
        await writing.execute("BEGIN; CREATE TABLE meanwhile ()")
        assert (await publisher.client.delete(path)).status_code == 204
        for each in (publisher.world.admin, publisher.client):
            assert problem(await each.get(f"{path}/entitlements")) == (404, "not_found")
            assert problem(await each.post(f"{path}/entitlements", json=body)) == (404, "not_found")
    finally:
        await writing.close()


async def test_the_catalog_says_what_may_be_launched_and_everything_that_hinders(publisher: AppPublisher) -> None:
    artifact_id = await publisher.artifact("active")
    draft = await publisher.publish()
    assert (await publisher.client.get(f"/api/v1/projects/{publisher.project_id}/catalog")).json()["items"] == []
    version = await publisher.moved(draft, "stage", "canary", "activate")
    assert obstacles(await entry(publisher)) == ["not_entitled"]
    assert (await entitle(publisher)).status_code == 201
    seen = await entry(publisher)
    assert (seen["launchable"], seen["version"]["id"], seen["hindrances"]) == (True, version["id"], [])
    assert (await put(publisher.client, publisher.place, apps={"deny": ["web-tool"]})).status_code == 200
    seen = await entry(publisher)
    assert obstacles(seen) == ["policy"]
    assert seen["hindrances"][0]["details"]["layer"] == "tenant"
    assert (await put(publisher.client, publisher.place)).status_code == 200
    assert (await publisher.move(version, "deprecate", no_successor_because="it is too old")).status_code == 200
    seen = await entry(publisher)
    assert (obstacles(seen), seen["hindrances"][0]["code"]) == (["deprecated"], "version_deprecated")
    database = publisher.world.running.platform.services.database
    await database.fetch(PLATFORM, "DELETE FROM artifact_source")
    seen = await entry(publisher)
    assert obstacles(seen) == ["deprecated", "policy"]
    assert seen["hindrances"][1]["details"]["artifact_id"] == artifact_id


async def test_stable_is_the_newest_active_or_the_canary_for_those_who_are_in(publisher: AppPublisher) -> None:
    await publisher.artifact("active")
    for number in ("1.9.0", "1.10.0"):
        active = await publisher.moved(await publisher.publish(number), "stage", "canary", "activate")
    assert (await entry(publisher))["version"]["version"] == "1.10.0"
    canary = await publisher.moved(await publisher.publish("2.0.0-rc.1"), "stage", "canary")
    projects = [await publisher.world.project(publisher.tenant, f"project-{number}") for number in range(12)]
    await publisher.move(canary, "canary", canary_percentage=50)
    met = set()
    for project in projects:
        inside = is_in_canary(canary["id"], project, 50)  # type: ignore[arg-type]
        wanted = canary if inside else active
        assert (await entry(publisher, project))["version"]["id"] == wanted["id"]
        met.add(inside)
    await publisher.move(canary, "canary", canary_percentage=100)
    assert (await entry(publisher, projects[0]))["version"]["id"] == canary["id"]
    await publisher.moved(canary, "rollback")
    assert (await entry(publisher, projects[0]))["version"]["id"] == active["id"]


async def test_the_catalog_is_browsed_filtered_searched_and_paged(world: World, publisher: AppPublisher) -> None:
    await publisher.artifact("active")
    await publisher.moved(await publisher.publish(), "stage", "canary", "activate")
    for number in range(5):
        body = {
            "slug": f"bench-{number}",
            "display_name": f"Bench Größe {number}",
            "category": "bench",
            "description": "measures\nthroughput",
        }
        made = (await publisher.client.post(f"{publisher.place}/apps", json=body)).json()
        manifest = {"manifest": a_manifest(made["slug"])}
        version = (await publisher.client.post(f"{publisher.place}/apps/{made['id']}/versions", json=manifest)).json()
        if number == 4:
            continue  # a draft: not on offer
        for move in ("stage", "canary", "activate"):
            more = {"canary_percentage": 10} if move == "canary" else {}
            moved = await publisher.client.post(
                f"{publisher.place}/apps/{made['id']}/versions/{version['id']}/promote",
                json={"move": move, "reason": REASON, **more},
            )
            assert moved.status_code == 200, moved.text

    async def slugs(query: str, client: httpx.AsyncClient = publisher.client) -> list[str]:
        answer = await client.get(f"/api/v1/apps/catalog{query}")
        assert answer.status_code == 200, answer.text
        return [each["slug"] for each in answer.json()["items"]]

    four = [f"bench-{number}" for number in range(4)]
    assert await slugs("") == ["web-tool", *four]
    assert await slugs("?category=bench") == four
    assert await slugs("?search=thr") == four
    assert await slugs("?search=gr%C3%B6%C3%9Fe%20meas") == four
    assert await slugs("?search=bench-2") == ["bench-2"]
    assert await slugs("?search=WEB") == ["web-tool"]
    assert await slugs("?search=web%20bench") == []
    assert await slugs("?search=%25") == []
    first = (await publisher.client.get("/api/v1/apps/catalog?limit=2&search=bench")).json()
    assert [each["slug"] for each in first["items"]] == four[:2]
    assert await slugs(f"?limit=2&search=bench&cursor={first['next_cursor']}") == four[2:]
    stranger = world.client((await world.tenant("other")).token)
    assert await slugs("", stranger) == []
    project = f"/api/v1/projects/{publisher.project_id}/catalog?category=bench&limit=3"
    listed = (await publisher.client.get(project)).json()
    assert [each["slug"] for each in listed["items"]] == four[:3]
    assert all(obstacles(each) == ["not_entitled"] for each in listed["items"])
    rest = (await publisher.client.get(f"{project}&cursor={listed['next_cursor']}")).json()
    assert [each["slug"] for each in rest["items"]] == four[3:]


async def test_an_app_that_no_machine_could_take_says_so_and_what_would_help(publisher: AppPublisher) -> None:
    database = publisher.world.running.platform.services.database
    await publisher.artifact("active")
    needs = [{"fact": "rdma", "equals": True}]
    wide: dict[str, Any] = {"compatibility": {"min_gpu_count": 8, "needs": needs}}
    await publisher.moved(await publisher.publish(**wide), "stage", "canary", "activate")
    await entitle(publisher)
    seen = await entry(publisher)
    assert (obstacles(seen), seen["hindrances"][0]["code"]) == (["no_compatible_capacity"], "incompatible")
    assert seen["hindrances"][0]["details"]["smallest_change"] == "4 more GPUs"
    plain = FleetWithAgents(database)
    await plain.node(8)
    large = await plain.sku(counts=(8,))
    publisher.world.running.platform.services.fleet.forget_after("nodes.sku.changed")
    assert (await entry(publisher))["hindrances"][0]["details"]["smallest_change"] != "", "it has no rdma"
    node_id = await plain.node(8, inventory_facts={"rdma": True})
    publisher.world.running.platform.services.fleet.forget_after("nodes.node.changed")
    assert (await entry(publisher))["launchable"] is True
    assert (await put(publisher.client, publisher.place, skus={"deny": [large]})).status_code == 200
    assert obstacles(await entry(publisher)) == ["no_compatible_capacity"], "policy takes the SKU out of sight"
    assert (await put(publisher.client, publisher.place)).status_code == 200
    assert (await entry(publisher))["launchable"] is True
    await database.fetch(PLATFORM, "UPDATE slot SET status = 'quarantined' WHERE node_id = $1 AND index > 0", node_id)
    publisher.world.running.platform.services.fleet.forget_after("nodes.node.changed")
    assert obstacles(await entry(publisher)) == ["no_compatible_capacity"]


async def test_the_key_of_a_category_opens_the_catalog_for_its_apps_only(publisher: AppPublisher) -> None:
    await publisher.artifact("active")
    await publisher.moved(await publisher.publish(), "stage", "canary", "activate")
    body = {"slug": "batch", "display_name": "Batch", "category": "scheduler"}
    batch = AppPublisher(
        publisher.world,
        publisher.tenant,
        publisher.client,
        publisher.project_id,
        (await publisher.client.post(f"{publisher.place}/apps", json=body)).json(),
    )
    await batch.moved(await batch.publish(), "stage", "canary", "activate")
    home = Home(publisher.world, publisher.world.client(), publisher.tenant, publisher.project_id)
    account = await make_account(home, ["scheduler.catalog.read"])
    client = publisher.world.client(await account.token(publisher.world.client()))

    async def slugs(path: str) -> list[str]:
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        return [each["slug"] for each in answer.json()["items"]]

    project = f"/api/v1/projects/{publisher.project_id}/catalog"
    for path in (project, "/api/v1/apps/catalog"):
        assert await slugs(path) == ["batch"]
        assert await slugs(f"{path}?category=scheduler") == ["batch"]
        assert await slugs(f"{path}?category=tool") == []
        assert await slugs(f"{path}?search=web") == []
    other = await make_account(home, ["scheduler.instance.read"])
    without = publisher.world.client(await other.token(publisher.world.client()))
    assert (await without.get(project)).status_code == 403
    assert (await without.get("/api/v1/apps/catalog")).json()["items"] == []


class PlatformPublisher(AppPublisher):
    """An app of the platform, and its admin's client."""

    @property
    def place(self) -> str:
        return "/api/v1/platform"


async def platform_publisher(publisher: AppPublisher) -> PlatformPublisher:
    """The platform's own shelf, with an artifact that its versions use."""
    body = {"slug": "shared", "display_name": "Shared", "category": "tool"}
    app = (await publisher.world.admin.post("/api/v1/platform/apps", json=body)).json()
    nobody = replace(publisher.tenant, id=None)  # type: ignore[arg-type]
    made = PlatformPublisher(publisher.world, nobody, publisher.world.admin, publisher.project_id, app)
    source = {"name": "any", "pattern": "oci://registry.example/*"}
    await publisher.world.admin.post("/api/v1/platform/artifact-sources", json=source)
    await made.artifact("active")
    return made


async def test_a_project_reads_what_it_launches_of_the_platforms_apps_too(bare_publisher: AppPublisher) -> None:
    publisher = await platform_publisher(bare_publisher)
    manifest = {
        "actions": [
            {
                "name": "queue.submit",
                "permission": "app.shared.queue.submit",
                "input_schema": {"type": "object", "properties": {"line": {"type": "string", "maxLength": 20}}},
                "output_schema": {"type": "object", "properties": {"id": {"type": "integer"}}},
            }
        ],
        "usage_units": [{"unit": "tokens", "title": "Tokens"}],
        "lifecycle": {
            "upgrade": {"strategy": "rolling", "from_versions": [">=1.0.0"]},
            "rollback": {"supported": True, "to_versions": [">=1.0.0"], "note": "the queue is lost"},
            "delete": {"data": "removed", "note": "export first"},
        },
        "runbook": {"summary": "One program.", "entries": [{"symptom": "It is silent", "steps": "Restart it."}]},
        "artifact_kind": "controller",
        "required_actions": ["runtime.claim", "runtime.report", "usage.report"],
    }
    active = await publisher.moved(await publisher.publish("1.0.0", **manifest), "stage", "canary", "activate")
    draft = await publisher.publish("2.0.0")
    client = publisher.world.client(
        await publisher.world.member(bare_publisher.tenant, publisher.project_id, "project_viewer", "somebody")
    )
    versions = f"/api/v1/projects/{publisher.project_id}/catalog/{publisher.app['id']}/versions"
    listed = (await client.get(versions)).json()["items"]
    assert [(each["version"], each["status"], each["offered"]) for each in listed] == [("1.0.0", "active", True)]
    read = (await client.get(f"{versions}/{active['id']}")).json()
    assert {name: read[name] for name in manifest} == manifest
    assert read["instances"] == 0
    assert (await client.get(f"{versions}/{draft['id']}")).status_code == 404
    stranger = await publisher.world.tenant("other")
    elsewhere = await publisher.world.project(stranger, "theirs")
    theirs = publisher.world.client(stranger.token)
    own_view = await theirs.get(f"/api/v1/projects/{elsewhere}/catalog/{publisher.app['id']}/versions")
    assert own_view.status_code == 200, "the platform's apps are for everybody"
    assert (await theirs.get(versions)).status_code == 404
