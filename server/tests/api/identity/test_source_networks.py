"""A tenant limits from where its users and service accounts call the platform."""

import asyncio
import base64
from dataclasses import replace

import httpx
import pytest

from mooring.gateways.signing.signatures import new_key_pair
from mooring.settings import Settings
from server.tests.conftest import PASSWORD, TenantWithAdmin, World, running_platform
from server.tests.support.agents import joined
from server.tests.support.service_accounts import assertion

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

OFFICE, OUTSIDE = "127.0.0.1", "127.9.9.9"
ONLY_OFFICE = {"networks": ["127.0.0.0/24", "192.0.2.0/24"]}


def path_of(tenant: TenantWithAdmin) -> str:
    return f"/api/v1/tenants/{tenant.id}/source-networks"


async def limited(world: World, slug: str = "acme") -> TenantWithAdmin:
    tenant = await world.tenant(slug)
    answer = await world.client(tenant.token).put(path_of(tenant), json=ONLY_OFFICE)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["networks"], answer.json()["your_address"]) == (ONLY_OFFICE["networks"], OFFICE)
    return tenant


def refused(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.json()["code"]) == (403, "caller_address_denied")


async def test_a_stolen_credential_of_a_tenant_is_worth_nothing_elsewhere(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    private, public = new_key_pair()
    body = {"name": "robot", "actions": ["project.read"], "public_key": base64.b64encode(public).decode()}
    accounts = f"/api/v1/projects/{project}/service-accounts"
    owner, thief = world.client(acme.token), world.client(acme.token, address=OUTSIDE)
    account = (await owner.post(accounts, json=body)).json()["id"]
    key = (await owner.get(f"{accounts}/{account}/keys")).json()["items"][0]["id"]

    async def exchanged(client: httpx.AsyncClient) -> httpx.Response:
        signed = assertion(account, key, private, f"{world.running.url}/api/v1/oauth/token")
        form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": signed}
        return await client.post("/api/v1/oauth/token", data=form)

    robot = (await exchanged(owner)).json()["access_token"]
    assert (await thief.get(f"/api/v1/projects/{project}")).status_code == 200  # and is cached as authorized
    assert (await owner.put(path_of(acme), json=ONLY_OFFICE)).status_code == 200

    sign_in = {"tenant": "acme", "email": "admin@acme.example", "password": PASSWORD}
    attempts = {
        "the cached read": await thief.get(f"/api/v1/projects/{project}"),
        "another read": await thief.get("/api/v1/whoami"),
        "a write": await thief.post(f"/api/v1/tenants/{acme.id}/projects", json={"slug": "mine", "display_name": "m"}),
        "the list itself": await thief.put(path_of(acme), json={"networks": []}),
        "a sign-in": await thief.post("/api/v1/sign-in", json=sign_in),
        "a sign-in of nobody": await thief.post("/api/v1/sign-in", json=sign_in | {"email": "no@acme.example"}),
        "a token of a service account": await world.client(robot, address=OUTSIDE).get(f"/api/v1/projects/{project}"),
        "a key of a service account": await exchanged(world.client(address=OUTSIDE)),
        "a stream": await thief.get(f"/api/v1/tenants/{acme.id}/events/stream"),
    }
    assert [name for name, answer in attempts.items() if not refused(answer)] == []
    assert (await owner.get(f"/api/v1/projects/{project}")).status_code == 200
    assert (await thief.get(f"/api/v1/projects/{project}")).status_code == 403  # the owner's read is cached again
    assert (await world.client(robot).get(f"/api/v1/projects/{project}")).status_code == 200
    assert (await owner.post("/api/v1/sign-in", json=sign_in)).status_code == 200
    services = world.running.platform.services
    await services.denials.flush(services.database, everything=True)
    trail = (await owner.get(f"/api/v1/tenants/{acme.id}/audit")).json()["items"]
    outside = [row for row in trail if row["remote_address"] == OUTSIDE]
    # One of the denials is the second try of the cached read; the assertion is a refusal.
    assert sum(row["count"] for row in outside if row["outcome"] == "denied") == len(attempts)
    assert sum(row["count"] for row in outside if row["outcome"] == "refused") == 1


async def test_a_stream_that_is_open_ends_when_its_address_is_no_longer_allowed(world: World) -> None:
    acme = await world.tenant("acme")
    thief = world.client(acme.token, address=OUTSIDE)
    async with asyncio.timeout(30), thief.stream("GET", f"/api/v1/tenants/{acme.id}/events/stream") as stream:
        assert stream.status_code == 200
        assert (await world.client(acme.token).put(path_of(acme), json=ONLY_OFFICE)).status_code == 200
        await world.project(acme, "afterwards")
        received = "".join([line async for line in stream.aiter_lines()])
    assert "the tenant does not allow requests from this address" in received
    assert "afterwards" not in received


async def test_nodes_other_tenants_and_platform_staff_are_not_affected(world: World) -> None:
    acme, other = await limited(world), await world.tenant("other")
    machine = await joined(world.client(address=OUTSIDE), world.admin)
    assert await machine.token(world.client(address=OUTSIDE))
    assert (await world.client(other.token, address=OUTSIDE).get("/api/v1/whoami")).status_code == 200
    staff = str(world.admin.headers["Authorization"]).removeprefix("Bearer ")
    outside = world.client(staff, address=OUTSIDE)
    assert (await outside.get(path_of(acme))).json()["networks"] == ONLY_OFFICE["networks"]
    body = {"tenant_id": acme.id, "reason": "they have locked themselves out"}
    entry = (await outside.post("/api/v1/platform/break-glass", json=body)).json()["token"]
    assert (await world.client(entry, address=OUTSIDE).get(f"/api/v1/tenants/{acme.id}")).status_code == 200


async def test_nobody_locks_themselves_out_by_mistake_and_staff_can_let_them_in_again(world: World) -> None:
    acme = await limited(world)
    owner, elsewhere = world.client(acme.token), {"networks": ["198.51.100.0/24"]}
    forced = elsewhere | {"force": True}
    mistake = await owner.put(path_of(acme), json=elsewhere)
    assert (mistake.status_code, mistake.json()["code"]) == (409, "would_lock_out")
    assert mistake.json()["details"] == {"address": OFFICE}
    assert (await owner.put(path_of(acme), json=forced)).status_code == 403
    assert (await world.admin.put(path_of(acme), json=elsewhere)).status_code == 409
    assert (await owner.get("/api/v1/whoami")).status_code == 200
    assert (await world.admin.put(path_of(acme), json=forced)).status_code == 200
    assert refused(await owner.get("/api/v1/whoami"))
    assert (await world.admin.put(path_of(acme), json={"networks": []})).status_code == 200
    assert (await owner.get("/api/v1/whoami")).status_code == 200
    trail = (await owner.get(f"/api/v1/tenants/{acme.id}/audit?action=source_network.update")).json()["items"]
    done = [row["after"] for row in trail if row["outcome"] == "done"]
    assert sorted((each["source_networks"], each["forced"]) for each in done) == [
        ([], False),
        (ONLY_OFFICE["networks"], False),
        (elsewhere["networks"], True),
    ]


async def test_a_malformed_list_is_refused(world: World) -> None:
    acme = await world.tenant("acme")
    owner = world.client(acme.token)
    for wrong in (["10.0.0.1/8"], ["anywhere"], [""], ["10.0.0.0/8"] * 101, ["fe80::1%eth0/64"]):
        answer = await owner.put(path_of(acme), json={"networks": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), wrong
    taken = await owner.put(path_of(acme), json={"networks": ["127.0.0.0/8", "127.0.0.0/8", "2001:db8::/32"]})
    assert taken.json()["networks"] == ["127.0.0.0/8", "2001:db8::/32"]


async def test_a_flood_from_elsewhere_leaves_a_bounded_trail(settings: Settings) -> None:
    async with running_platform(replace(settings, sign_in_limit_per_minute=0.05)) as running:
        world = World(running, running.client())
        world.admin.headers["Authorization"] = f"Bearer {await world.sign_in('admin@mooring.local', running.code)}"
        acme = await limited(world)
        thief = world.client(acme.token, address=OUTSIDE)
        statuses = [(await thief.get("/api/v1/whoami")).status_code for _ in range(7)]
        assert statuses == [403] * 5 + [429] * 2
        services = running.platform.services
        await services.denials.flush(services.database, everything=True)
        trail = (await world.client(acme.token).get(f"/api/v1/tenants/{acme.id}/audit?outcome=denied")).json()["items"]
        assert [row["count"] for row in sorted(trail, key=lambda row: row["occurred_at"])] == [1, 4]
        await world.close()


async def test_the_token_service_of_the_registry_does_not_lead_around_either_record(settings: Settings) -> None:
    """It is a public route that finds its caller itself: a stolen token and a break-glass entry are seen there too."""
    async with running_platform(replace(settings, registry_url="http://127.0.0.1:9")) as running:
        world = World(running, running.client())
        world.admin.headers["Authorization"] = f"Bearer {await world.sign_in('admin@mooring.local', running.code)}"
        acme = await limited(world)
        path, scope = "/api/v1/registry/token", {"scope": f"repository:{acme.id}/model:pull"}
        outside = await world.client(address=OUTSIDE).get(path, params=scope, auth=("any", acme.token))
        assert refused(outside)
        assert (await world.client().get(path, params=scope, auth=("any", acme.token))).status_code == 200
        body = {"tenant_id": acme.id, "reason": "the customer asked for help", "role": "tenant_admin"}
        entry = (await world.admin.post("/api/v1/platform/break-glass", json=body)).json()
        assert (await world.client().get(path, params=scope, auth=("any", entry["token"]))).status_code == 200
        trail = (await world.client(acme.token).get(f"/api/v1/tenants/{acme.id}/audit?action=artifact.read")).json()
        assert sorted((row["outcome"], row["break_glass_id"], row["after"]) for row in trail["items"]) == [
            ("denied", None, None),
            ("done", entry["id"], scope),
        ]
        await world.close()
