"""Policy, entitlements and the catalog through the public API on a real database."""

from dataclasses import replace
from typing import Any

import asyncpg
import httpx
import pytest

from mooring.core.catalog.channel import is_in_canary
from mooring.core.kernel.permissions import Scope
from mooring.storage.kernel.database import PLATFORM
from server.tests.api.catalog.test_apps import REASON, AppShelf, problem
from server.tests.api.catalog.test_apps import shop as bare_shop
from server.tests.conftest import World
from server.tests.support.fleet import FleetWithAgents
from server.tests.support.route_requests import Home, a_manifest
from server.tests.support.service_accounts import make_account

__all__ = ["bare_shop"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def shop(bare_shop: AppShelf) -> AppShelf:
    """A shop on a platform that has a machine with four GPUs, sold in slices."""
    fleet = FleetWithAgents(bare_shop.world.running.platform.services.database)
    await fleet.node(inventory_facts={"rdma": True})
    await fleet.sku()
    return bare_shop


def rules(**said: Any) -> dict[str, Any]:
    """A body that states rules."""
    return {"rules": said, "reason": REASON}


async def put(client: httpx.AsyncClient, place: str, **said: Any) -> httpx.Response:
    """State the rules of a place."""
    return await client.put(f"{place}/policy", json=rules(**said))


async def entry(shop: AppShelf, project_id: str | None = None) -> dict[str, Any]:
    """The shop's app as the project sees it."""
    listed = (await shop.client.get(f"/api/v1/projects/{project_id or shop.project_id}/catalog")).json()["items"]
    return next(each for each in listed if each["app_id"] == shop.app["id"])


def obstacles(seen: dict[str, Any]) -> list[str]:
    """What hinders."""
    return [each["obstacle"] for each in seen["hindrances"]]


async def entitle(shop: AppShelf, **terms: Any) -> httpx.Response:
    """Entitle the shop's project to the shop's app."""
    body = {"app_id": shop.app["id"], "reason": REASON, **terms}
    return await shop.client.post(f"/api/v1/projects/{shop.project_id}/entitlements", json=body)


async def test_layers_are_stated_narrow_and_are_explained(shop: AppShelf) -> None:
    project = f"/api/v1/projects/{shop.project_id}"
    empty = (await shop.client.get(f"{shop.place}/policy")).json()
    assert (empty["id"], empty["layer"], empty["rules"]) == (None, "tenant", {})
    assert (await put(shop.world.admin, "/api/v1/platform", apps={"deny": ["bad-*"]}, gpus_max=8)).status_code == 200
    stated = (await put(shop.client, shop.place, apps={"allow": ["web-*", "bench"]})).json()
    assert (stated["layer"], stated["rules"], stated["revision"]) == (
        "tenant",
        {"apps": {"allow": ["bench", "web-*"]}},
        0,
    )
    wider = await put(shop.client, project, apps={"allow": ["mail"]}, gpus_max=9)
    assert problem(wider) == (422, "policy_widens")
    assert {(each["field"], each["layer"]) for each in wider.json()["details"]["widenings"]} == {
        ("apps", "tenant"),
        ("gpus_max", "global"),
    }
    assert (await put(shop.client, project, apps={"allow": ["web-tool"]}, gpus_max=4)).status_code == 200
    explained = (await shop.client.get(f"{project}/policy/explain?app=bench&gpus=5")).json()
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
    final = (await shop.client.get(f"{project}/policy/explain?app=bad-one")).json()
    assert (final["allowed"], final["decided_by"]) == (False, "global")
    assert "'bad-*'" in final["reason"]
    here = (await shop.world.admin.get("/api/v1/platform/policy/explain?app=web-tool")).json()
    assert (here["allowed"], here["decided_by"]) == (True, None)


async def test_a_layer_is_replaced_under_the_revision_that_was_seen(shop: AppShelf) -> None:
    first = (await put(shop.client, shop.place, gpus_max=4)).json()
    again = await shop.client.put(f"{shop.place}/policy", json=rules(gpus_max=2) | {"revision": 0})
    assert (again.json()["id"], again.json()["revision"]) == (first["id"], 1)
    stale = await shop.client.put(f"{shop.place}/policy", json=rules() | {"revision": 0})
    assert problem(stale) == (409, "revision_conflict")
    assert problem(await put(shop.client, shop.place, apps={"deny": ["UPPER"]})) == (422, "validation_failed")


async def test_an_entitlement_is_made_changed_shown_and_taken_away(shop: AppShelf) -> None:
    await shop.artifact("active")
    await shop.moved(
        await shop.publish(required_actions=["runtime.claim", "runtime.report"]), "stage", "canary", "activate"
    )
    made = await entitle(shop, agreed_actions=["runtime.claim"])
    assert made.status_code == 201, made.text
    row = made.json()
    assert row["required_actions"] == ["runtime.claim", "runtime.report"]
    assert row["missing_actions"] == ["runtime.report"]
    seen = await entry(shop)
    assert (seen["launchable"], obstacles(seen)) == (False, ["not_entitled"])
    assert seen["hindrances"][0]["details"]["missing_actions"] == ["runtime.report"]
    one = f"/api/v1/projects/{shop.project_id}/entitlements/{row['id']}"
    terms = {"enabled": True, "reason": REASON, "agreed_actions": row["required_actions"], "revision": 0}
    assert (await shop.client.put(one, json=terms)).json()["missing_actions"] == []
    assert (await entry(shop))["launchable"] is True
    assert problem(await shop.client.put(one, json=terms)) == (409, "revision_conflict")
    beyond = terms | {"agreed_actions": ["tenant.create"], "revision": 1}
    assert problem(await shop.client.put(one, json=beyond)) == (403, "grant_exceeds_ceiling")
    ranged = (await shop.client.put(one, json=terms | {"versions": ">=2.0.0", "revision": 1})).json()
    assert ranged["versions"] == ">=2.0.0"
    assert (await entry(shop))["hindrances"][0]["details"]["reason"] == "version"
    assert problem(await entitle(shop)) == (409, "name_taken")
    assert (await shop.client.delete(one)).status_code == 204
    assert (await entry(shop))["entitled"] is False
    assert (await shop.client.get(f"/api/v1/projects/{shop.project_id}/entitlements")).json()["items"] == []


async def test_only_people_who_administer_change_entitlements(shop: AppShelf) -> None:
    home = Home(shop.world, shop.world.client(), shop.tenant, shop.project_id)
    account = await make_account(home, ["entitlement.read", "catalog.read"])
    client = shop.world.client(await account.token(home.client))
    body = {"app_id": shop.app["id"], "reason": REASON}
    path = f"/api/v1/projects/{shop.project_id}/entitlements"
    assert (await client.get(path)).status_code == 200
    assert problem(await client.post(path, json=body)) == (403, "permission_denied")
    one = f"{path}/{(await entitle(shop)).json()['id']}"
    for switch in ("enable", "disable"):
        assert problem(await client.post(f"{one}/{switch}", json={"reason": REASON})) == (403, "permission_denied")
    operator = shop.world.client(await home.new_person(Scope.PLATFORM, "platform_operator"))
    assert (await operator.get(one)).json()["allowed_actions"] == []
    assert problem(await operator.post(f"{one}/disable", json={"reason": REASON})) == (403, "permission_denied")
    other = await shop.world.tenant("other")
    stranger = shop.world.client(other.token)
    assert problem(await stranger.post(path, json=body)) == (404, "not_found")
    project = await shop.world.project(other, "theirs")
    foreign = await stranger.post(f"/api/v1/projects/{project}/entitlements", json=body)
    assert problem(foreign) == (404, "not_found")


async def test_an_entitlement_is_switched_off_and_on_again_with_its_terms(shop: AppShelf) -> None:
    made = (await entitle(shop, versions=">=1.0.0", agreed_actions=["runtime.claim"])).json()
    one = f"/api/v1/projects/{shop.project_id}/entitlements/{made['id']}"
    why = {"reason": REASON}
    off = (await shop.client.post(f"{one}/disable", json=why)).json()
    assert (off["enabled"], off["revision"]) == (False, 1)
    on = (await shop.client.post(f"{one}/enable", json=why)).json()
    changing = {"revision", "etag", "updated_at"}
    assert {key: on[key] for key in on.keys() - changing} == {key: made[key] for key in made.keys() - changing}
    assert problem(await shop.client.post(f"{one}/disable", json={})) == (422, "validation_failed")


async def test_admins_of_the_platform_entitle_any_project_and_its_tenant_reads_who_did(shop: AppShelf) -> None:
    path = f"/api/v1/projects/{shop.project_id}/entitlements"
    body, why = {"app_id": shop.app["id"], "reason": REASON}, {"reason": "the contract is over"}
    admin = shop.world.admin
    made = await admin.post(path, json=body, headers={"Idempotency-Key": "once"})
    assert (made.status_code, made.json()["allowed_actions"]) == (201, ["entitlement.update"])
    again = await admin.post(path, json=body, headers={"Idempotency-Key": "once"})
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (made.json(), "true")
    one = f"{path}/{made.json()['id']}"
    assert (await admin.post(f"{one}/disable", json=why)).json()["enabled"] is False
    assert (await shop.client.get(one)).json() == (await admin.get(one)).json()
    rows = (await shop.client.get(f"{shop.place}/audit?action=entitlement.update")).json()["items"]
    mine = (await admin.get("/api/v1/whoami")).json()["id"]
    assert [(row["actor_id"], row["project_id"], row["reason"]) for row in rows] == [
        (mine, shop.project_id, why["reason"]),
        (mine, shop.project_id, REASON),
    ]
    assert (await admin.delete(one)).status_code == 204
    other = await shop.world.tenant("other")
    project = await shop.world.project(other, "theirs")
    unseen = await admin.post(f"/api/v1/projects/{project}/entitlements", json=body)
    assert problem(unseen) == (404, "not_found"), "an app of another tenant's"
    gone = "prj_" + "0" * 26
    assert problem(await admin.get(f"/api/v1/projects/{gone}/entitlements")) == (404, "not_found")
    assert problem(await admin.get(f"/api/v1/projects/{shop.project_id}/catalog")) == (404, "not_found")
    assert problem(await admin.get(f"/api/v1/projects/{shop.project_id}")) == (404, "not_found")


async def test_a_deleted_project_is_nobody_s_for_the_platform_too(shop: AppShelf, database_url: str) -> None:
    path = f"/api/v1/projects/{await shop.world.project(shop.tenant, 'brief')}"
    body = {"app_id": shop.app["id"], "reason": REASON}
    for each in (shop.world.admin, shop.client):
        assert (await each.get(f"{path}/entitlements")).json()["items"] == []
    writing = await asyncpg.connect(database_url)  # while it is open, nobody hears of an event
    try:
        await writing.execute("BEGIN; CREATE TABLE meanwhile ()")
        assert (await shop.client.delete(path)).status_code == 204
        for each in (shop.world.admin, shop.client):
            assert problem(await each.get(f"{path}/entitlements")) == (404, "not_found")
            assert problem(await each.post(f"{path}/entitlements", json=body)) == (404, "not_found")
    finally:
        await writing.close()


async def test_the_catalog_says_what_may_be_launched_and_everything_that_hinders(shop: AppShelf) -> None:
    artifact_id = await shop.artifact("active")
    draft = await shop.publish()
    assert (await shop.client.get(f"/api/v1/projects/{shop.project_id}/catalog")).json()["items"] == []
    version = await shop.moved(draft, "stage", "canary", "activate")
    assert obstacles(await entry(shop)) == ["not_entitled"]
    assert (await entitle(shop)).status_code == 201
    seen = await entry(shop)
    assert (seen["launchable"], seen["version"]["id"], seen["hindrances"]) == (True, version["id"], [])
    assert (await put(shop.client, shop.place, apps={"deny": ["web-tool"]})).status_code == 200
    seen = await entry(shop)
    assert obstacles(seen) == ["policy"]
    assert seen["hindrances"][0]["details"]["layer"] == "tenant"
    assert (await put(shop.client, shop.place)).status_code == 200
    assert (await shop.move(version, "deprecate", no_successor_because="it is too old")).status_code == 200
    seen = await entry(shop)
    assert (obstacles(seen), seen["hindrances"][0]["code"]) == (["deprecated"], "version_deprecated")
    database = shop.world.running.platform.services.database
    await database.fetch(PLATFORM, "DELETE FROM artifact_source")
    seen = await entry(shop)
    assert obstacles(seen) == ["deprecated", "policy"]
    assert seen["hindrances"][1]["details"]["artifact_id"] == artifact_id


async def test_stable_is_the_newest_active_or_the_canary_for_those_who_are_in(shop: AppShelf) -> None:
    await shop.artifact("active")
    for number in ("1.9.0", "1.10.0"):
        active = await shop.moved(await shop.publish(number), "stage", "canary", "activate")
    assert (await entry(shop))["version"]["version"] == "1.10.0"
    canary = await shop.moved(await shop.publish("2.0.0-rc.1"), "stage", "canary")
    projects = [await shop.world.project(shop.tenant, f"project-{number}") for number in range(12)]
    await shop.move(canary, "canary", canary_percentage=50)
    met = set()
    for project in projects:
        inside = is_in_canary(canary["id"], project, 50)  # type: ignore[arg-type]
        wanted = canary if inside else active
        assert (await entry(shop, project))["version"]["id"] == wanted["id"]
        met.add(inside)
    await shop.move(canary, "canary", canary_percentage=100)
    assert (await entry(shop, projects[0]))["version"]["id"] == canary["id"]
    await shop.moved(canary, "rollback")
    assert (await entry(shop, projects[0]))["version"]["id"] == active["id"]


async def test_the_catalog_is_browsed_filtered_searched_and_paged(world: World, shop: AppShelf) -> None:
    await shop.artifact("active")
    await shop.moved(await shop.publish(), "stage", "canary", "activate")
    for number in range(5):
        body = {
            "slug": f"bench-{number}",
            "display_name": f"Bench Größe {number}",
            "category": "bench",
            "description": "measures\nthroughput",
        }
        made = (await shop.client.post(f"{shop.place}/apps", json=body)).json()
        manifest = {"manifest": a_manifest(made["slug"])}
        version = (await shop.client.post(f"{shop.place}/apps/{made['id']}/versions", json=manifest)).json()
        if number == 4:
            continue  # a draft: not on offer
        for move in ("stage", "canary", "activate"):
            more = {"canary_percentage": 10} if move == "canary" else {}
            moved = await shop.client.post(
                f"{shop.place}/apps/{made['id']}/versions/{version['id']}/promote",
                json={"move": move, "reason": REASON, **more},
            )
            assert moved.status_code == 200, moved.text

    async def slugs(query: str, client: httpx.AsyncClient = shop.client) -> list[str]:
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
    first = (await shop.client.get("/api/v1/apps/catalog?limit=2&search=bench")).json()
    assert [each["slug"] for each in first["items"]] == four[:2]
    assert await slugs(f"?limit=2&search=bench&cursor={first['next_cursor']}") == four[2:]
    stranger = world.client((await world.tenant("other")).token)
    assert await slugs("", stranger) == []
    project = f"/api/v1/projects/{shop.project_id}/catalog?category=bench&limit=3"
    listed = (await shop.client.get(project)).json()
    assert [each["slug"] for each in listed["items"]] == four[:3]
    assert all(obstacles(each) == ["not_entitled"] for each in listed["items"])
    rest = (await shop.client.get(f"{project}&cursor={listed['next_cursor']}")).json()
    assert [each["slug"] for each in rest["items"]] == four[3:]


async def test_an_app_that_no_machine_could_take_says_so_and_what_would_help(shop: AppShelf) -> None:
    database = shop.world.running.platform.services.database
    await shop.artifact("active")
    needs = [{"fact": "rdma", "equals": True}]
    wide: dict[str, Any] = {"compatibility": {"min_gpu_count": 8, "needs": needs}}
    await shop.moved(await shop.publish(**wide), "stage", "canary", "activate")
    await entitle(shop)
    seen = await entry(shop)
    assert (obstacles(seen), seen["hindrances"][0]["code"]) == (["no_compatible_capacity"], "incompatible")
    assert seen["hindrances"][0]["details"]["smallest_change"] == "4 more GPUs"
    plain = FleetWithAgents(database)
    await plain.node(8)
    large = await plain.sku(counts=(8,))
    shop.world.running.platform.services.fleet.forget_after("nodes.sku.changed")
    assert (await entry(shop))["hindrances"][0]["details"]["smallest_change"] != "", "it has no rdma"
    node_id = await plain.node(8, inventory_facts={"rdma": True})
    shop.world.running.platform.services.fleet.forget_after("nodes.node.changed")
    assert (await entry(shop))["launchable"] is True
    assert (await put(shop.client, shop.place, skus={"deny": [large]})).status_code == 200
    assert obstacles(await entry(shop)) == ["no_compatible_capacity"], "policy takes the SKU out of sight"
    assert (await put(shop.client, shop.place)).status_code == 200
    assert (await entry(shop))["launchable"] is True
    await database.fetch(PLATFORM, "UPDATE slot SET status = 'quarantined' WHERE node_id = $1 AND index > 0", node_id)
    shop.world.running.platform.services.fleet.forget_after("nodes.node.changed")
    assert obstacles(await entry(shop)) == ["no_compatible_capacity"]


async def test_the_key_of_a_category_opens_the_catalog_for_its_apps_only(shop: AppShelf) -> None:
    await shop.artifact("active")
    await shop.moved(await shop.publish(), "stage", "canary", "activate")
    body = {"slug": "batch", "display_name": "Batch", "category": "scheduler"}
    batch = AppShelf(
        shop.world,
        shop.tenant,
        shop.client,
        shop.project_id,
        (await shop.client.post(f"{shop.place}/apps", json=body)).json(),
    )
    await batch.moved(await batch.publish(), "stage", "canary", "activate")
    home = Home(shop.world, shop.world.client(), shop.tenant, shop.project_id)
    account = await make_account(home, ["scheduler.catalog.read"])
    client = shop.world.client(await account.token(shop.world.client()))

    async def slugs(path: str) -> list[str]:
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        return [each["slug"] for each in answer.json()["items"]]

    project = f"/api/v1/projects/{shop.project_id}/catalog"
    for path in (project, "/api/v1/apps/catalog"):
        assert await slugs(path) == ["batch"]
        assert await slugs(f"{path}?category=scheduler") == ["batch"]
        assert await slugs(f"{path}?category=tool") == []
        assert await slugs(f"{path}?search=web") == []
    other = await make_account(home, ["scheduler.instance.read"])
    without = shop.world.client(await other.token(shop.world.client()))
    assert (await without.get(project)).status_code == 403
    assert (await without.get("/api/v1/apps/catalog")).json()["items"] == []


class PlatformShelf(AppShelf):
    """An app of the platform, and its admin's client."""

    @property
    def place(self) -> str:
        return "/api/v1/platform"


async def platform_shelf(shop: AppShelf) -> PlatformShelf:
    """The platform's own shelf, with an artifact that its versions use."""
    body = {"slug": "shared", "display_name": "Shared", "category": "tool"}
    app = (await shop.world.admin.post("/api/v1/platform/apps", json=body)).json()
    nobody = replace(shop.tenant, id=None)  # type: ignore[arg-type]
    made = PlatformShelf(shop.world, nobody, shop.world.admin, shop.project_id, app)
    source = {"name": "any", "pattern": "oci://registry.example/*"}
    await shop.world.admin.post("/api/v1/platform/artifact-sources", json=source)
    await made.artifact("active")
    return made


async def test_a_project_reads_what_it_launches_of_the_platforms_apps_too(bare_shop: AppShelf) -> None:
    shop = await platform_shelf(bare_shop)
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
    active = await shop.moved(await shop.publish("1.0.0", **manifest), "stage", "canary", "activate")
    draft = await shop.publish("2.0.0")
    client = shop.world.client(await shop.world.member(bare_shop.tenant, shop.project_id, "project_viewer", "somebody"))
    versions = f"/api/v1/projects/{shop.project_id}/catalog/{shop.app['id']}/versions"
    listed = (await client.get(versions)).json()["items"]
    assert [(each["version"], each["status"], each["offered"]) for each in listed] == [("1.0.0", "active", True)]
    read = (await client.get(f"{versions}/{active['id']}")).json()
    assert {name: read[name] for name in manifest} == manifest
    assert read["instances"] == 0
    assert (await client.get(f"{versions}/{draft['id']}")).status_code == 404
    stranger = await shop.world.tenant("other")
    elsewhere = await shop.world.project(stranger, "theirs")
    theirs = shop.world.client(stranger.token)
    own_view = await theirs.get(f"/api/v1/projects/{elsewhere}/catalog/{shop.app['id']}/versions")
    assert own_view.status_code == 200, "the platform's apps are for everybody"
    assert (await theirs.get(versions)).status_code == 404
