"""Secrets that people store in a project: sealed, listed without values, named in a launch, rotated, deleted."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from mooring.core.fleet.allocation import ALLOCATION, AllocationState
from mooring.core.identity.project_secret import SECRETS_MAX, VALUE_BYTES_MAX
from mooring.storage.kernel.database import PLATFORM
from server.tests.api.catalog.test_apps import AppPublisher, publisher  # noqa: F401
from server.tests.conftest import World
from server.tests.support.adapter_site import AdapterSite, open_adapter_site
from server.tests.support.agent_double import AgentDouble, joined_agent
from server.tests.support.launching import make_launching

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]
VALUE, NEWER = "hf_c0rrect-h0rse-battery-staple", "hf_an0ther-staple-4711-battery"
BESIDE: dict[str, Any] = {
    "type": "process.run",
    "arguments": {
        "argv": ["true"],
        "environment": {"HF_TOKEN": "the app's own", "MODE": "fast"},
        "environment_secrets": {"S3_KEY": "made"},
    },
    "grants": [{"name": "made", "secret": "made"}],
}


async def stored(client: httpx.AsyncClient, path: str, name: str = "hub-token", value: str = VALUE) -> dict[str, Any]:
    answer = await client.post(f"{path}/secrets", json={"name": name, "value": value, "description": "of the hub"})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def readable(database: Any, *values: str) -> list[str]:
    """The tables in which one of the values can be read."""
    tables = await database.fetch(PLATFORM, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    found = []
    for (table,) in tables:
        rows = await database.fetch(PLATFORM, f'SELECT to_jsonb(t)::text FROM "{table}" t')
        found += [table for row in rows if any(value in row[0] for value in values)]
    return found


async def test_a_secret_is_stored_sealed_and_no_answer_ever_shows_its_value(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    acme = await world.tenant("acme")
    people, path = world.client(acme.token), f"/api/v1/projects/{await world.project(acme, 'train')}"
    made = await stored(people, path)
    assert (made["name"], made["version"], made["instances"]) == ("hub-token", 1, 0)
    one = f"{path}/secrets/{made['id']}"
    rotated = await people.post(f"{one}/rotate", json={"value": NEWER})
    assert (rotated.json()["version"], rotated.json()["rotated_at"] is None) == (2, False)
    listed = await people.get(f"{path}/secrets")
    assert [each["name"] for each in listed.json()["items"]] == ["hub-token"]
    trail = await people.get(f"/api/v1/tenants/{acme.id}/audit?limit=500")
    events = await people.get(f"{path}/events?limit=500")
    refused = await people.post(f"{path}/secrets", json={"name": "Not a name", "value": VALUE})
    assert refused.status_code == 422
    taken = await people.post(f"{path}/secrets", json={"name": "hub-token", "value": VALUE})
    assert taken.json()["code"] == "name_taken"
    answers = (rotated, listed, await people.get(one), trail, events, refused, taken)
    for text in (json.dumps(made), *(each.text for each in answers), caplog.text):
        assert VALUE not in text
        assert NEWER not in text
    assert {"project_secret.create", "project_secret.rotate"} <= {each["action"] for each in trail.json()["items"]}
    database = world.running.platform.services.database
    assert await readable(database, VALUE, NEWER) == []
    sealed = "SELECT count(*) FROM secret WHERE purpose = 'project_secret' AND tenant_id = $1"
    assert await database.fetchval(PLATFORM, sealed, acme.id) == 1, "the value that was replaced is deleted"
    assert (await people.delete(one)).status_code == 204
    assert await database.fetchval(PLATFORM, sealed, acme.id) == 0
    assert (await people.get(one)).status_code == 404


async def test_secrets_are_bounded_in_size_and_number(world: World) -> None:
    acme = await world.tenant("acme")
    people, path = world.client(acme.token), f"/api/v1/projects/{await world.project(acme, 'train')}"
    for value in ("", "x" * (VALUE_BYTES_MAX + 1), "ä" * VALUE_BYTES_MAX, "a\0b"):
        answer = await people.post(f"{path}/secrets", json={"name": "large", "value": value})
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), len(value)
    await stored(people, path, "largest", "x" * VALUE_BYTES_MAX)
    for number in range(SECRETS_MAX - 1):
        await stored(people, path, f"secret-{number}")
    answer = await people.post(f"{path}/secrets", json={"name": "one-more", "value": "x"})
    assert (answer.status_code, answer.json()["code"]) == (409, "limit_reached")


async def test_a_launch_names_secrets_of_its_own_project_and_needs_the_key_for_it(
    world: World,
    publisher: AppPublisher,  # noqa: F811
) -> None:
    launching = await make_launching(world, publisher)
    path = launching.path.removesuffix("/app-instances")
    neighbour = await world.project(publisher.tenant, "neighbour")
    await stored(publisher.client, f"/api/v1/projects/{neighbour}", "elsewhere")
    made = await stored(publisher.client, path)
    for name in ("absent", "elsewhere"):
        refused = await publisher.client.post(launching.path, json=launching.body(secrets={"HF_TOKEN": name}))
        assert refused.json()["details"]["path"] == "secrets.HF_TOKEN"
        plan = await publisher.client.post(f"{launching.path}:plan", json=launching.body(secrets={"HF_TOKEN": name}))
        assert [each["details"]["path"] for each in plan.json()["hindrances"]] == ["secrets.HF_TOKEN"]
    for variable in ("1X", "A=B", "LONG" * 33):
        answer = await publisher.client.post(launching.path, json=launching.body(secrets={variable: "hub-token"}))
        assert answer.json()["code"] == "validation_failed"
    narrow = {"name": "launcher", "actions": ["instance.create", "instance.read"]}
    token = (await publisher.client.post("/api/v1/tokens", json=narrow)).json()["token"]
    denied = await world.client(token).post(launching.path, json=launching.body(secrets={"HF_TOKEN": "hub-token"}))
    assert (denied.status_code, denied.json()["details"]["action"]) == (403, "project_secret.use")
    launched = await launching.launch(secrets={"HF_TOKEN": "hub-token"})
    assert launched["secrets"] == {"HF_TOKEN": "hub-token"}
    assert (await publisher.client.get(f"{path}/secrets/{made['id']}")).json()["instances"] == 1
    in_use = await publisher.client.delete(f"{path}/secrets/{made['id']}")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "secret_in_use")
    assert in_use.json()["details"] == {"instances": [launched["name"]], "sources": [], "count": 1}
    assert (await publisher.client.delete(f"{path}/secrets/{made['id']}?force=true")).status_code == 204


@asynccontextmanager
async def with_agent(world: World) -> AsyncIterator[tuple[AdapterSite, AgentDouble]]:
    """An adapter's site whose allocation stands on a machine with an agent."""
    async with open_adapter_site(world) as site:
        agent = await joined_agent(world.client(), world.admin)
        agent.now = lambda: site.clock.now().timestamp()
        project_rows = replace(site.project_rows, node_id=agent.node_id)
        allocation_id = (await project_rows.subject("allocation", ALLOCATION, AllocationState.ACTIVE)).id
        site.project_rows = replace(project_rows, allocation_id=allocation_id)
        yield site, agent


async def test_the_programs_of_a_launch_get_the_secret_and_after_a_rotation_the_new_value(world: World) -> None:
    async with with_agent(world) as (site, agent):
        people, path = world.client(site.tenant.token), f"/api/v1/projects/{site.project_id}"
        made = await stored(people, path)
        instance, (member, _), operation = await site.launch(
            1, secrets={"HF_TOKEN": "hub-token", "S3_KEY": "hub-token"}
        )
        adapter = site.adapter()
        fence = await adapter.claim(instance.id)
        await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
        own = {"name": "made", "purpose": "member_secret", "value": "the app made it"}
        assert (await adapter.send(instance.id, "secrets", fence, **own)).status_code == 200

        async def program(step: str, value: str) -> None:
            body = {"member_id": member.id, "step": step, "operation_id": operation.id, **BESIDE}
            answer = await adapter.send(instance.id, "tasks", fence, **body)
            assert answer.status_code == 200, answer.text
            task = await agent.claim_one()
            assert task["arguments"]["environment"] == {"MODE": "fast"}, "the launcher's variable replaces the app's"
            names = task["arguments"]["environment_secrets"]
            opened = {each["name"]: agent.unseal(task, each).decode() for each in task["secrets"]}
            assert {name: opened[secret] for name, secret in names.items()} == {"HF_TOKEN": value, "S3_KEY": value}
            assert set(opened) == set(names.values())
            await agent.finish(task)

        await program("first", VALUE)
        await people.post(f"{path}/secrets/{made['id']}/rotate", json={"value": NEWER})
        await program("second", NEWER)
        looks = {"member_id": member.id, "step": "look", "operation_id": operation.id, "type": "service.inspect"}
        assert (await adapter.send(instance.id, "tasks", fence, arguments={"name": "web"}, **looks)).status_code == 200
        assert (await agent.claim_one())["secrets"] == []
        assert (await people.delete(f"{path}/secrets/{made['id']}?force=true")).status_code == 204
        late = {"member_id": member.id, "step": "late", "operation_id": operation.id, **BESIDE}
        refused = await adapter.send(instance.id, "tasks", fence, **late)
        assert (refused.status_code, refused.json()["details"]["name"]) == (404, "hub-token")
        await stored(people, path, value=VALUE)
        await program("again", VALUE)
        trail = await people.get(f"/api/v1/tenants/{site.tenant.id}/audit?limit=500&action=secret.grant")
        granted = [each["after"].get("project_secret_id") for each in trail.json()["items"]]
        assert made["id"] in granted


async def test_the_secrets_of_an_instance_are_listed_without_values_to_those_who_may(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance, _, operation = await site.launch(1)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    for name, purpose in (("token", "app_access"), ("munge", "cluster_key")):
        body = {"name": name, "purpose": purpose, "value": VALUE}
        assert (await adapter.send(instance.id, "secrets", fence, **body)).status_code == 200
    path = f"/api/v1/projects/{site.project_id}/app-instances/{instance.id}/secrets"
    people = site.world.client(site.tenant.token)
    listed = await people.get(path)
    assert [(each["name"], each["purpose"], each["shown"]) for each in listed.json()["items"]] == [
        ("token", "app_access", True),
        ("munge", "cluster_key", False),
    ]
    assert VALUE not in listed.text
    assert (await people.get(path, params={"limit": 1})).json()["next_cursor"] is not None
    narrow = {"name": "reader", "actions": ["instance.read"]}
    token = (await people.post("/api/v1/tokens", json=narrow)).json()["token"]
    assert (await site.world.client(token).get(path)).status_code == 403
