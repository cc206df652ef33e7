"""Sessions and personal tokens of users, as their admins see and end them."""

from typing import Any

import httpx
import pytest

from server.tests.conftest import TenantWithAdmin, World

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

WHO = "/api/v1/whoami"


async def listed(client: httpx.AsyncClient, place: str, **query: str) -> list[dict[str, Any]]:
    answer = await client.get(f"/api/v1/{place}/user-tokens", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


async def member(world: World, tenant: TenantWithAdmin, name: str) -> httpx.AsyncClient:
    project = await world.project(tenant, f"of-{name}")
    return world.client(await world.member(tenant, project, "project_viewer", name))


async def test_an_admin_ends_the_stolen_session_of_a_user_and_only_that(world: World) -> None:
    acme = await world.tenant("acme")
    owner, vera = world.client(acme.token), await member(world, acme, "vera")
    stolen = (await vera.get(WHO)).json()
    kept = (await vera.post("/api/v1/tokens", json={"name": "laptop"})).json()
    seen = await listed(owner, f"tenants/{acme.id}", user_id=stolen["id"])
    assert [(each["id"], each["kind"], each["user_id"]) for each in seen] == [
        (stolen["token_id"], "session", stolen["id"]),
        (kept["id"], "personal", stolen["id"]),
    ]
    assert not any("token" in each or "hash" in each for each in seen)
    path = f"/api/v1/tenants/{acme.id}/user-tokens/{stolen['token_id']}"
    ended = await owner.delete(path)
    assert (ended.status_code, ended.json()["revoked_at"] is not None) == (200, True)
    assert (await vera.get(WHO)).status_code == 401
    assert (await world.client(kept["token"]).get(WHO)).status_code == 200
    assert [each["id"] for each in await listed(owner, f"tenants/{acme.id}", user_id=stolen["id"])] == [kept["id"]]
    assert (await owner.get(path)).json()["revoked_at"] is not None
    trail = (await owner.get(f"/api/v1/tenants/{acme.id}/audit?action=user_token.revoke")).json()["items"]
    assert [(row["subject_id"], row["actor_id"], row["before"]) for row in trail] == [
        (stolen["token_id"], acme.admin_id, {"kind": "session", "holder_id": stolen["id"]})
    ]


async def test_signing_a_user_out_ends_all_that_they_hold_and_keeps_their_password(world: World) -> None:
    acme = await world.tenant("acme")
    owner, vera = world.client(acme.token), await member(world, acme, "vera")
    user_id = (await vera.get(WHO)).json()["id"]
    laptop = world.client((await vera.post("/api/v1/tokens", json={"name": "laptop"})).json()["token"])
    path = f"/api/v1/tenants/{acme.id}/users/{user_id}/sign-out"
    assert (await owner.post(path)).status_code == 200
    assert [(await each.get(WHO)).status_code for each in (vera, laptop)] == [401, 401]
    assert await listed(owner, f"tenants/{acme.id}", user_id=user_id) == []
    body = {"tenant": "acme", "email": "vera@acme.example", "password": "correct horse battery staple"}
    assert (await world.client().post("/api/v1/sign-in", json=body)).status_code == 200
    trail = (await owner.get(f"/api/v1/tenants/{acme.id}/audit?action=user_token.revoke")).json()["items"]
    assert [(row["subject_id"], row["after"]["change"]) for row in trail] == [(user_id, "sign_out")]


async def test_nobody_sees_or_ends_sessions_that_are_not_theirs_to_administer(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    vera, thief = await member(world, acme, "vera"), world.client(other.token)
    victim = (await vera.get(WHO)).json()
    tokens = f"/api/v1/tenants/{acme.id}/user-tokens"
    sign_out = f"/api/v1/tenants/{acme.id}/users/{victim['id']}/sign-out"
    own = f"/api/v1/tenants/{other.id}"
    rows = {
        "another tenant lists": await thief.get(tokens),
        "another tenant ends": await thief.delete(f"{tokens}/{victim['token_id']}"),
        "another tenant ends, in its own name": await thief.delete(f"{own}/user-tokens/{victim['token_id']}"),
        "another tenant signs out, in its own name": await thief.post(f"{own}/users/{victim['id']}/sign-out"),
        "the platform lists": await world.admin.get(tokens),
        "the platform ends": await world.admin.delete(f"/api/v1/platform/user-tokens/{victim['token_id']}"),
        "the platform signs out": await world.admin.post(f"/api/v1/platform/users/{victim['id']}/sign-out"),
    }
    assert {name: each.status_code for name, each in rows.items()} == dict.fromkeys(rows, 404)
    assert [(await vera.get(tokens)).status_code, (await vera.post(sign_out)).status_code] == [403, 403]
    assert await listed(thief, f"tenants/{other.id}", user_id=victim["id"]) == []
    assert (await vera.get(WHO)).status_code == 200


async def test_a_platform_admin_sees_the_sessions_of_platform_users_and_nobody_else(world: World) -> None:
    acme = await world.tenant("acme")
    me = (await world.admin.get(WHO)).json()
    body = {"tenant_id": acme.id, "reason": "the customer asked for help"}
    assert (await world.admin.post("/api/v1/platform/break-glass", json=body)).status_code == 201
    assert [each["id"] for each in await listed(world.admin, "platform")] == [me["token_id"]]
    within = await listed(world.client(acme.token), f"tenants/{acme.id}")
    assert {each["user_id"] for each in within} == {acme.admin_id}
    ended = await world.admin.delete(f"/api/v1/platform/user-tokens/{me['token_id']}")
    assert ended.status_code == 200
    assert (await world.admin.get(WHO)).status_code == 401


async def test_a_token_for_keys_that_open_nothing_any_more_opens_nothing(world: World) -> None:
    acme = await world.tenant("acme")
    body = {"name": "old", "actions": ["sku.read", "ledger.read"]}
    made = await world.client(acme.token).post("/api/v1/tokens", json=body)
    assert made.status_code == 201, made.text
    client = world.client(made.json()["token"])
    assert (await client.get(f"/api/v1/tenants/{acme.id}/users")).status_code == 403
    assert (await client.get("/api/v1/skus")).status_code == 200, "every caller reads the price list"
    mixed = await world.client(acme.token).post(
        "/api/v1/tokens", json={"name": "m", "actions": ["sku.read", "user.read"]}
    )
    assert mixed.json()["actions"] == ["user.read"]


async def test_a_person_sees_where_a_session_was_made_and_ends_the_others(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "of-vera")
    here = world.client(await world.member(acme, project, "project_viewer", "vera"))
    body = {"tenant": acme.slug, "email": f"vera@{acme.slug}.example", "password": "correct horse battery staple"}
    strange = {"user-agent": "Mozilla\t" + "x" * 500}
    elsewhere = (await world.client(address="127.0.0.9").post("/api/v1/sign-in", json=body, headers=strange)).json()
    other = world.client(elsewhere["token"])
    laptop = world.client((await here.post("/api/v1/tokens", json={"name": "laptop"})).json()["token"])
    seen = {each["id"]: each for each in (await other.get("/api/v1/tokens")).json()["items"]}
    assert (seen[elsewhere["token_id"]]["remote_address"], len(seen[elsewhere["token_id"]]["user_agent"])) == (
        "127.0.0.9",
        200,
    )
    assert [each["id"] for each in seen.values() if each["current"]] == [elsewhere["token_id"]]
    assert [(each["kind"], each["user_agent"][:12]) for each in seen.values() if each["name"] == "laptop"] == [
        ("personal", "python-httpx")
    ]
    assert (await here.post("/api/v1/tokens/end-other-sessions")).status_code == 204
    assert [(await each.get(WHO)).status_code for each in (here, other, laptop)] == [200, 401, 200]
    kept = [(each["kind"], each["current"]) for each in (await here.get("/api/v1/tokens")).json()["items"]]
    assert kept == [("session", True), ("personal", False)]
    assert (await world.client().post("/api/v1/sign-in", json=body)).status_code == 200, "a later one is valid"
    trail = (await world.client(acme.token).get(f"/api/v1/tenants/{acme.id}/audit?action=self.update")).json()["items"]
    assert sum(row["after"]["change"] == "other_sessions_ended" for row in trail) == 1
