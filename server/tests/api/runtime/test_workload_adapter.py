"""The platform's workload adapter gets into a project only by an agreement there, and never further."""

import base64
from typing import Any

import httpx
import pytest

from mooring.gateways.signing.signatures import new_key_pair
from server.tests.api.catalog.test_apps import REASON, AppPublisher, publisher
from server.tests.conftest import World
from server.tests.support.adapter_site import RUNTIME
from server.tests.support.service_accounts import AccountWithKey, assertion

__all__ = ["publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
AGREED = ["runtime.claim", "runtime.report", "task.create"]
KEY = "/api/v1/platform/workload-adapter/key"


def shown(public: bytes) -> str:
    return base64.urlsafe_b64encode(public).decode().rstrip("=")


async def set_key(client: httpx.AsyncClient, public: bytes | None) -> httpx.Response:
    return await client.put(KEY, json={"public_key": None if public is None else shown(public)})


async def found(world: World, private: bytes, public: bytes) -> list[str]:
    """The accounts that an adapter with this key finds, in all tenants."""
    return [each["service_account_id"] for each in await listed(world, private, public)]


async def listed(world: World, private: bytes, public: bytes) -> list[dict[str, Any]]:
    signed = assertion("key:" + shown(public), "any", private, world.running.url + f"{RUNTIME}/accounts")
    answer = await world.client().post(f"{RUNTIME}/accounts", json={"assertion": signed})
    return list(answer.json()["accounts"])


async def offered(publisher: AppPublisher, **changes: Any) -> None:
    """An active version of the publisher's app."""
    await publisher.artifact("active")
    await publisher.moved(await publisher.publish(required_actions=AGREED, **changes), "stage", "canary", "activate")


async def entitled(publisher: AppPublisher, **changes: Any) -> dict[str, Any]:
    """The publisher's project, entitled to the publisher's app."""
    body = {"app_id": publisher.app["id"], "reason": REASON, "agreed_actions": AGREED} | changes
    answer = await publisher.client.post(f"/api/v1/projects/{publisher.project_id}/entitlements", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def agreed_again(publisher: AppPublisher, entitlement: dict[str, Any]) -> dict[str, Any]:
    one = f"/api/v1/projects/{publisher.project_id}/entitlements/{entitlement['id']}"
    body = {"enabled": True, "reason": REASON, "agreed_actions": AGREED}
    return dict((await publisher.client.put(one, json=body)).json())


async def test_it_operates_an_image_once_an_admin_agrees(publisher: AppPublisher) -> None:
    world = publisher.world
    private, public = new_key_pair()
    await offered(publisher)
    before = await entitled(publisher)
    assert before["operated_by"] == "nobody"
    assert (await set_key(world.admin, public)).status_code == 200
    assert await found(world, private, public) == [], "the key alone opens no account"
    after = await agreed_again(publisher, before)
    assert (after["operated_by"], after["service_account_id"]) == ("platform", before["service_account_id"])
    assert await found(world, private, public) == [before["service_account_id"]]
    account = await publisher.client.get(
        f"/api/v1/projects/{publisher.project_id}/service-accounts/{after['service_account_id']}"
    )
    assert account.json()["actions"] == AGREED, "it may do what was agreed, and nothing else"


async def test_an_app_with_an_adapter_of_its_own_is_left_alone(publisher: AppPublisher) -> None:
    world = publisher.world
    private, public = new_key_pair()
    own_private, own = new_key_pair()
    await set_key(world.admin, public)
    await offered(publisher)
    made = await entitled(publisher)
    assert (made["operated_by"], await found(world, private, public)) == ("platform", [made["service_account_id"]])
    place = f"{publisher.place}/apps/{publisher.app['id']}/adapter-key"
    assert (await publisher.client.put(place, json={"public_key": shown(own)})).status_code == 200
    assert await found(world, private, public) == [], "the platform's adapter is gone when the app has its own"
    assert await found(world, own_private, own) == [made["service_account_id"]]
    assert (await agreed_again(publisher, made))["operated_by"] == "app"
    assert await found(world, private, public) == []


async def test_a_controller_waits_for_its_own_adapter(publisher: AppPublisher) -> None:
    private, public = new_key_pair()
    await set_key(publisher.world.admin, public)
    lifecycle = {"upgrade": {"strategy": "none"}, "rollback": {"supported": False}, "delete": {"data": "removed"}}
    runbook = {"summary": "It runs.", "entries": [{"symptom": "It is silent", "steps": "Restart it."}]}
    await offered(publisher, artifact_kind="controller", lifecycle=lifecycle, runbook=runbook)
    made = await entitled(publisher)
    assert (made["operated_by"], await found(publisher.world, private, public)) == ("nobody", [])


async def test_a_new_key_replaces_the_former_one_where_it_was_agreed_to(publisher: AppPublisher) -> None:
    world = publisher.world
    private, public = new_key_pair()
    next_private, next_public = new_key_pair()
    await set_key(world.admin, public)
    await offered(publisher)
    made = await entitled(publisher)
    assert (await set_key(world.admin, next_public)).json()["public_key"] == shown(next_public)
    assert await found(world, private, public) == []
    assert await found(world, next_private, next_public) == [made["service_account_id"]]
    await set_key(world.admin, None)
    assert await found(world, next_private, next_public) == []


async def test_it_acts_nowhere_but_in_the_project_that_agreed(publisher: AppPublisher) -> None:
    world = publisher.world
    private, public = new_key_pair()
    await set_key(world.admin, public)
    await offered(publisher)
    made = await entitled(publisher)
    stranger = await world.tenant("rival")
    other = await world.project(stranger, "theirs")
    (each,) = await listed(world, private, public)
    assert (each["project_id"], each["apps"]) == (publisher.project_id, [publisher.app["slug"]])
    token = await AccountWithKey(made["service_account_id"], each["key_id"], private).token(world.client())
    adapter = world.client(token)
    assert (await adapter.post(f"{RUNTIME}/claims", json={"holder": "one"})).status_code == 200
    for project_id, status in ((other, 404), (publisher.project_id, 403)):
        answer = await adapter.get(f"/api/v1/projects/{project_id}/allocations")
        assert answer.status_code == status, "another tenant is out of sight, and what was not agreed is refused"


async def test_only_the_platform_sets_the_key(publisher: AppPublisher) -> None:
    _, public = new_key_pair()
    assert (await set_key(publisher.client, public)).status_code in (403, 404)
    shown_key = (await publisher.world.admin.get("/api/v1/platform/workload-adapter")).json()
    assert shown_key["public_key"] is None


async def test_an_image_that_nobody_operates_is_not_launchable(publisher: AppPublisher) -> None:
    await offered(publisher)
    await entitled(publisher)
    project = f"/api/v1/projects/{publisher.project_id}"
    (entry,) = (await publisher.client.get(f"{project}/catalog")).json()["items"]
    assert "no_adapter" in [each["obstacle"] for each in entry["hindrances"]]
    body = {"app": publisher.app["slug"], "name": "lonely", "placement": {"sku": "none"}}
    plan = (await publisher.client.post(f"{project}/app-instances:plan", json=body)).json()
    assert "adapter_missing" in [each["code"] for each in plan["hindrances"]]
