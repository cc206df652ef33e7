"""Operator accounts: made with an entitlement, kept to what was agreed, found by the adapter's key."""

import base64
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from mooring.gateways.signing.signatures import new_key_pair
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.adapter_site import RUNTIME
from server.tests.support.service_accounts import AccountWithKey, assertion

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]
REASON = "the tests say that it is so"
AGREED = ["runtime.claim", "runtime.report", "task.create"]


@dataclass
class OperatedApp:
    """A tenant with an app of its own and two projects."""

    world: World
    tenant: TenantWithAdmin
    client: httpx.AsyncClient
    app: dict[str, Any]
    projects: list[str]

    def path(self, project: int = 0) -> str:
        """Where a project's entitlements are."""
        return f"/api/v1/projects/{self.projects[project]}/entitlements"

    async def entitle(self, project: int = 0, **changes: Any) -> dict[str, Any]:
        """Entitle a project to the app."""
        body = {"app_id": self.app["id"], "reason": REASON, "agreed_actions": AGREED} | changes
        answer = await self.client.post(self.path(project), json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def account(self, entitlement: dict[str, Any]) -> dict[str, Any]:
        """The operator account of an entitlement."""
        place = f"/api/v1/projects/{entitlement['project_id']}/service-accounts"
        answer = await self.client.get(f"{place}/{entitlement['service_account_id']}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def set_key(self, public: bytes | None, **more: Any) -> dict[str, Any]:
        """Set the adapter's key of the app."""
        text = None if public is None else base64.urlsafe_b64encode(public).decode().rstrip("=")
        path = f"/api/v1/tenants/{self.tenant.id}/apps/{self.app['id']}/adapter-key"
        answer = await self.client.put(path, json={"public_key": text, **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def discovered(self, private: bytes, public: bytes) -> httpx.Response:
        """The accounts that an adapter with this key sees."""
        subject = "key:" + base64.urlsafe_b64encode(public).decode().rstrip("=")
        audience = self.world.running.url + f"{RUNTIME}/accounts"
        signed = assertion(subject, "any", private, audience)
        return await self.world.client().post(f"{RUNTIME}/accounts", json={"assertion": signed})


@pytest.fixture
async def publisher(world: World) -> OperatedApp:
    tenant = await world.tenant("acme")
    client = world.client(tenant.token)
    body = {"slug": "echo", "display_name": "Echo", "category": "tool"}
    app = await client.post(f"/api/v1/tenants/{tenant.id}/apps", json=body)
    assert app.status_code == 201, app.text
    projects = [await world.project(tenant, slug) for slug in ("train", "serve")]
    return OperatedApp(world, tenant, client, app.json(), projects)


async def test_an_entitlement_that_is_on_has_an_operator_account_with_the_agreed_list(publisher: OperatedApp) -> None:
    made = await publisher.entitle()
    account = await publisher.account(made)
    assert (account["name"], account["actions"], account["status"]) == ("app-echo", sorted(AGREED), "active")
    assert (await publisher.entitle(1))["service_account_id"] != made["service_account_id"]


async def test_an_entitlement_that_is_off_gets_its_account_when_it_is_switched_on(publisher: OperatedApp) -> None:
    made = await publisher.entitle(enabled=False)
    assert made["service_account_id"] is None
    on = (await publisher.client.post(f"{publisher.path()}/{made['id']}/enable", json={"reason": REASON})).json()
    account = await publisher.account(on)
    assert account["actions"] == sorted(AGREED)
    off = (await publisher.client.post(f"{publisher.path()}/{made['id']}/disable", json={"reason": REASON})).json()
    assert off["service_account_id"] == on["service_account_id"]
    assert (await publisher.account(off))["status"] == "active"  # what runs goes on


async def test_an_account_holds_what_was_agreed_to_last(publisher: OperatedApp) -> None:
    made = await publisher.entitle()
    body = {"enabled": True, "reason": REASON, "agreed_actions": ["runtime.claim", "usage.report"]}
    answer = await publisher.client.put(f"{publisher.path()}/{made['id']}", json=body)
    assert answer.json()["service_account_id"] == made["service_account_id"]
    assert (await publisher.account(made))["actions"] == ["runtime.claim", "usage.report"]


async def test_a_deleted_account_is_made_again_at_the_next_agreement(publisher: OperatedApp) -> None:
    made = await publisher.entitle()
    place = f"/api/v1/projects/{publisher.projects[0]}/service-accounts/{made['service_account_id']}"
    assert (await publisher.client.delete(place)).status_code in (200, 204)
    body = {"enabled": True, "reason": REASON, "agreed_actions": AGREED}
    after = (await publisher.client.put(f"{publisher.path()}/{made['id']}", json=body)).json()
    assert after["service_account_id"] != made["service_account_id"]
    assert (await publisher.account(after))["status"] == "active"


async def test_a_name_that_is_taken_gets_a_suffix(publisher: OperatedApp) -> None:
    place = f"/api/v1/projects/{publisher.projects[0]}/service-accounts"
    assert (await publisher.client.post(place, json={"name": "app-echo", "actions": []})).status_code == 201
    account = await publisher.account(await publisher.entitle())
    assert account["name"].startswith("app-echo-")


async def test_an_account_goes_with_its_entitlement_when_nothing_runs(publisher: OperatedApp) -> None:
    made = await publisher.entitle()
    assert (await publisher.client.delete(f"{publisher.path()}/{made['id']}")).status_code == 204
    assert (await publisher.account(made))["status"] == "deleted"
    assert (await publisher.account(await publisher.entitle()))["name"] == "app-echo"


async def test_an_admin_of_the_platform_can_entitle_without_holding_the_keys(publisher: OperatedApp) -> None:
    body = {"app_id": publisher.app["id"], "reason": REASON, "agreed_actions": AGREED}
    answer = await publisher.world.admin.post(publisher.path(), json=body)
    assert answer.status_code == 201, answer.text
    assert (await publisher.account(answer.json()))["actions"] == sorted(AGREED)
    beyond = await publisher.client.post(publisher.path(1), json={**body, "agreed_actions": ["user.create"]})
    assert beyond.json()["code"] == "grant_exceeds_ceiling"
    accounts = f"/api/v1/projects/{publisher.projects[1]}/service-accounts"
    assert (await publisher.client.get(accounts)).json()["items"] == []


async def test_an_adapter_finds_its_accounts_by_its_key_and_acts_in_each_project(publisher: OperatedApp) -> None:
    private, public = new_key_pair()
    before = await publisher.entitle()
    await publisher.set_key(public)
    after = await publisher.entitle(1)
    answer = await publisher.discovered(private, public)
    assert answer.status_code == 200, answer.text
    found = answer.json()["accounts"]
    assert {each["service_account_id"] for each in found} == {
        before["service_account_id"],
        after["service_account_id"],
    }
    assert [each["apps"] for each in found] == [["echo"], ["echo"]]
    for each in found:
        account = AccountWithKey(each["service_account_id"], each["key_id"], private)
        token = await account.token(publisher.world.client())
        polled = await publisher.world.client(token).post(f"{RUNTIME}/claims", json={"holder": "one"})
        assert (polled.status_code, polled.json()["claims"]) == (200, [])


async def test_a_rotated_key_reaches_every_account_and_the_old_one_counts_no_more(publisher: OperatedApp) -> None:
    (old_private, old), (new_private, new) = new_key_pair(), new_key_pair()
    await publisher.set_key(old)
    made = [await publisher.entitle(each) for each in (0, 1)]
    await publisher.set_key(new, keep_previous=True)
    assert len((await publisher.discovered(old_private, old)).json()["accounts"]) == 2
    assert len((await publisher.discovered(new_private, new)).json()["accounts"]) == 2
    await publisher.set_key(new)  # once more: the changeover is over
    assert (await publisher.discovered(old_private, old)).json()["accounts"] == []
    found = (await publisher.discovered(new_private, new)).json()["accounts"]
    assert {each["service_account_id"] for each in found} == {each["service_account_id"] for each in made}
    shown = await publisher.set_key(None)
    assert shown["adapter_key"] is None
    assert (await publisher.discovered(new_private, new)).json()["accounts"] == []


@pytest.mark.usefixtures("private_platform")
async def test_a_key_that_did_not_sign_sees_no_accounts(publisher: OperatedApp) -> None:
    (private, public), (other, _) = new_key_pair(), new_key_pair()
    await publisher.set_key(public)
    await publisher.entitle()
    stolen = await publisher.discovered(other, public)
    assert (stolen.status_code, stolen.json()["code"]) == (401, "assertion_refused")
    elsewhere = assertion("key:" + base64.urlsafe_b64encode(public).decode().rstrip("="), "any", private, "https://x")
    answer = await publisher.world.client().post(f"{RUNTIME}/accounts", json={"assertion": elsewhere})
    assert answer.status_code == 401
    database = publisher.world.running.platform.services.database
    refused = "SELECT count(*) FROM audit WHERE action = 'runtime.accounts' AND outcome = 'refused'"
    assert await database.fetchval(PLATFORM, refused) == 2


async def test_a_disabled_account_is_not_listed(publisher: OperatedApp) -> None:
    private, public = new_key_pair()
    await publisher.set_key(public)
    made = await publisher.entitle()
    place = f"/api/v1/projects/{publisher.projects[0]}/service-accounts/{made['service_account_id']}"
    assert (await publisher.client.post(f"{place}/disable")).status_code == 200
    assert (await publisher.discovered(private, public)).json()["accounts"] == []
