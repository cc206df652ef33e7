"""Changing the configuration of a running instance, through the API and on real rows."""

from typing import Any, Final

import pytest

from mooring.storage.kernel.database import PLATFORM
from server.tests.api.catalog.test_apps import AppPublisher, problem
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.adapter_site import AdapterClient
from server.tests.support.launching import LIFECYCLE, OPERATOR, Launching, make_launching
from server.tests.support.route_requests import Home
from server.tests.support.service_accounts import make_account

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

SCHEMA: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "motd": {"type": "string", "maxLength": 20},
        "token": {"type": "string", "maxLength": 20, "writeOnly": True},
    },
}


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    made = await make_launching(world, bare_publisher)
    lifecycle = {**LIFECYCLE, "configure": {"supported": True}}
    await made.publish("1.1.0", lifecycle=lifecycle, config_schema=SCHEMA)
    return made


class Configured:
    """A running instance with a secret in its configuration, and its adapter."""

    def __init__(self, launching: Launching, instance_id: str, adapter: AdapterClient, fence: int) -> None:
        self.launching, self.id, self.adapter, self.fence = launching, instance_id, adapter, fence

    async def patch(self, config: Any, status: int = 202) -> dict[str, Any]:
        answer = await self.launching.client.patch(f"{self.launching.path}/{self.id}", json={"config": config})
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    async def config(self) -> Any:
        return (await self.launching.get(self.id))["config"]


async def make_configured(launching: Launching) -> Configured:
    publisher = launching.publisher
    home = Home(publisher.world, launching.client, publisher.tenant, publisher.project_id)
    account = await make_account(home, OPERATOR)
    config = {"motd": "hello", "token": "old-secret"}
    made = await launching.running(service_account_id=account.id, config=config)
    adapter = AdapterClient(publisher.world.client(await account.token(home.client)), "one", account.id)
    return Configured(launching, made["id"], adapter, await adapter.claim(made["id"]))


async def test_a_change_becomes_true_when_the_adapter_has_made_it(launching: Launching) -> None:
    site = await make_configured(launching)
    operation = await site.patch({"token": "new-secret"})
    assert (operation["kind"], operation["request"]["changed"]) == ("configure", ["/token"])
    assert operation["request"]["input"] == {"motd": "hello", "token": None}, "nobody but the adapter reads a secret"
    (seen,) = (await site.adapter.read(site.id, site.fence))["operations"]
    assert seen["request"]["input"] == {"motd": "hello", "token": "new-secret"}
    read = await site.adapter.read(site.id, site.fence)
    assert read["instance"]["config"]["token"] == "old-secret", "until it has succeeded, the old one stays"
    await site.adapter.report(site.id, site.fence, operation_id=operation["id"], begin=True)
    await site.adapter.finish(site.id, site.fence, operation["id"], evidence={"by": "reload"})
    assert (await site.adapter.read(site.id, site.fence))["instance"]["config"]["token"] == "new-secret"
    assert await site.config() == {"motd": "hello", "token": None}
    stored = await launching.services.database.fetchval(
        PLATFORM,
        "SELECT (SELECT string_agg(i::text, ' ') FROM instance i) || (SELECT string_agg(o::text, ' ') FROM operation o)"
        " || (SELECT string_agg(e::text, ' ') FROM event e) || (SELECT string_agg(a::text, ' ') FROM audit a)",
    )
    assert "-secret" not in stored, "the old and the new value are stored sealed"
    trail = (await launching.client.get(f"/api/v1/projects/{launching.publisher.project_id}/audit?limit=500")).json()
    asked = [each for each in trail["items"] if each["action"] == "instance.update"]
    assert [each["after"]["changed"] for each in asked] == [["/token"]]


async def test_what_an_adapter_refuses_leaves_the_configuration_and_is_explained(launching: Launching) -> None:
    site = await make_configured(launching)
    operation = await site.patch({"motd": "goodbye"})
    busy = await site.patch({"motd": "again"}, status=409)
    assert (busy["code"], busy["details"]["operation_id"]) == ("operation_in_progress", operation["id"])
    await site.adapter.report(site.id, site.fence, operation_id=operation["id"], begin=True)
    failure = {"code": "config_refused", "detail": "motd is fixed at launch"}
    await site.adapter.finish(site.id, site.fence, operation["id"], outcome="failed", failure=failure)
    assert await site.config() == {"motd": "hello", "token": None}
    path = f"/api/v1/projects/{launching.publisher.project_id}/why/{operation['id']}"
    why = (await launching.client.get(path)).json()
    assert "motd is fixed at launch" in str(why)
    assert f"mooring instances update {site.id}" in str(why)


async def test_a_change_that_the_form_or_the_app_does_not_allow_is_refused(launching: Launching) -> None:
    site = await make_configured(launching)
    wrong = await site.patch({"colour": "red"}, status=422)
    assert (wrong["code"], "colour" in wrong["detail"]) == ("validation_failed", True)
    assert (await site.patch({"motd": "hello"}, status=422))["code"] == "validation_failed"
    old = await launching.running(version="1.0.0")
    answer = await launching.client.patch(f"{launching.path}/{old['id']}", json={"config": {"motd": "x"}})
    assert problem(answer) == (409, "not_supported")
    assert answer.json()["details"]["instead"]
