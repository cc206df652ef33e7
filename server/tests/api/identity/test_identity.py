"""Tenants, projects, users, memberships and service accounts, through the public API on a real database."""

import base64

import asyncpg
import pytest

from mooring.gateways.signing.signatures import new_key_pair
from server.tests.conftest import World

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]


async def test_a_tenant_begins_with_an_admin_who_signs_in_with_a_one_time_code(world: World) -> None:
    acme = await world.tenant("acme")
    me = (await world.client(acme.token).get("/api/v1/whoami")).json()
    assert me["tenant_id"] == acme.id
    assert me["roles"] == [{"role": "tenant_admin", "project_id": None}]


async def test_events_of_one_decision_stand_in_the_order_in_which_it_lists_them(world: World) -> None:
    acme = await world.tenant("acme")
    path = f"/api/v1/tenants/{acme.id}/events"
    events = (await world.client(acme.token).get(path, params={"wait": 30})).json()["items"]
    assert [event["type"] for event in events][:3] == [
        "identity.tenant.created",
        "identity.user.created",
        "identity.membership.created",
    ]


async def test_a_project_is_seen_by_its_tenant_and_by_nobody_else(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    project = await world.project(acme, "train")
    path = f"/api/v1/projects/{project}"
    assert (await world.client(acme.token).get(path)).status_code == 200
    for stranger in (other.token, None):
        answer = await world.client(stranger).get(path)
        assert answer.status_code == (404 if stranger else 401)
    assert (await world.admin.get(path)).status_code == 404


async def test_a_reset_ends_every_token_of_the_user(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    token = await world.member(acme, project, "project_viewer", "vera")
    vera = world.client(token)
    user_id = (await vera.get("/api/v1/whoami")).json()["id"]
    assert (await vera.get(f"/api/v1/projects/{project}")).status_code == 200

    reset = await world.client(acme.token).post(f"/api/v1/tenants/{acme.id}/users/{user_id}/reset")

    assert reset.status_code == 200
    assert (await vera.get(f"/api/v1/projects/{project}")).status_code == 401
    again = await world.sign_in(f"vera@{acme.slug}.example", reset.json()["one_time_code"], acme.slug)
    assert (await world.client(again).get(f"/api/v1/projects/{project}")).status_code == 200


async def test_a_narrowed_token_resets_nobody_who_holds_more(world: World) -> None:
    acme = await world.tenant("acme")
    body = {"name": "helpdesk", "actions": ["user.update", "user.read"]}
    narrow = (await world.client(acme.token).post("/api/v1/tokens", json=body)).json()["token"]
    answer = await world.client(narrow).post(f"/api/v1/tenants/{acme.id}/users/{acme.admin_id}/reset")
    assert (answer.status_code, answer.json()["code"]) == (403, "grant_exceeds_ceiling")


async def test_a_break_glass_entry_reads_the_tenant_and_leaves_no_access_behind(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    body = {"tenant_id": acme.id, "reason": "the customer asked for help", "role": "tenant_admin"}
    entered = (await world.admin.post("/api/v1/platform/break-glass", json=body)).json()
    inside = world.client(entered["token"])
    assert (await inside.get(f"/api/v1/projects/{project}")).status_code == 200
    user = {"email": "mole@acme.example", "display_name": "Mole"}
    assert (await inside.post(f"/api/v1/tenants/{acme.id}/users", json=user)).status_code == 403
    trail = (await world.client(acme.token).get(f"/api/v1/tenants/{acme.id}/audit")).json()["items"]
    denied = next(row for row in trail if row["outcome"] == "denied")
    assert denied["break_glass_id"] == entered["id"]
    assert any(row["action"] == "break_glass.open" and row["reason"] == body["reason"] for row in trail)


async def test_what_staff_read_inside_a_break_glass_entry_is_in_the_trail_of_the_tenant(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    webhook = {"url": "https://receiver.example/hook"}
    hook = (await world.client(acme.token).post(f"/api/v1/projects/{project}/webhooks", json=webhook)).json()["id"]
    body = {"tenant_id": acme.id, "reason": "curiosity, hidden in a polite reason", "role": "tenant_admin"}
    entered = (await world.admin.post("/api/v1/platform/break-glass", json=body)).json()
    inside = world.client(entered["token"])
    reads = [
        ("project.read", f"/api/v1/projects/{project}", None, project),
        ("webhook.read", f"/api/v1/projects/{project}/webhooks/{hook}", hook, project),
        ("webhook.read", f"/api/v1/projects/{project}/webhooks/{hook}", hook, project),
        ("user.read", f"/api/v1/tenants/{acme.id}/users", None, None),
        ("user.read", f"/api/v1/tenants/{acme.id}/users/{acme.admin_id}", acme.admin_id, None),
        ("audit.read", f"/api/v1/tenants/{acme.id}/audit", None, None),
        ("event.read", f"/api/v1/tenants/{acme.id}/events", None, None),
        ("self.read", "/api/v1/whoami", None, None),
    ]
    for _, path, _, _ in reads:
        assert (await inside.get(path)).status_code == 200, path
    async with inside.stream("GET", f"/api/v1/projects/{project}/events/stream") as stream:
        assert stream.status_code == 200
    wanted = [(action, subject, place) for action, _, subject, place in reads] + [("event.read", None, project)]
    owner = world.client(acme.token)
    trail = (await owner.get(f"/api/v1/tenants/{acme.id}/audit")).json()["items"]
    rows = [row for row in trail if row["break_glass_id"] == entered["id"] and row["action"] != "break_glass.open"]
    seen = [(row["action"], row["subject_id"], row["project_id"]) for row in rows]
    assert sorted(seen, key=str) == sorted(wanted, key=str)
    assert {(row["outcome"], row["actor_id"]) for row in rows} == {("done", entered["user_id"])}
    assert not [row for row in trail if row["action"] == "project.read" and row["break_glass_id"] is None]


async def test_a_change_that_changes_nothing_reads_no_tenant_behind_its_back(world: World) -> None:
    """Inside a break-glass entry: the answer of a change shows the thing, also when nothing of it changed."""
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    accounts, owner = f"/api/v1/projects/{project}/service-accounts", world.client(acme.token)
    key = {"public_key": base64.b64encode(new_key_pair()[1]).decode()}
    account = (await owner.post(accounts, json={"name": "robot", "actions": ["project.read"], **key})).json()["id"]
    keys = f"{accounts}/{account}/keys"
    key_id = (await owner.get(keys)).json()["items"][0]["id"]
    body = {"tenant_id": acme.id, "reason": "the customer asked for help", "role": "tenant_admin"}
    entered = (await world.admin.post("/api/v1/platform/break-glass", json=body)).json()
    inside = world.client(entered["token"])
    for _ in range(2):
        assert (await inside.delete(f"{keys}/{key_id}")).status_code == 200
        answer = await inside.post(f"{accounts}/{account}/disable", headers={"Idempotency-Key": "the-same-twice"})
        assert (answer.status_code, answer.json()["name"]) == (200, "robot")
    trail = (await owner.get(f"/api/v1/tenants/{acme.id}/audit")).json()["items"]
    rows = [row for row in trail if row["break_glass_id"] == entered["id"] and row["action"] != "break_glass.open"]
    assert sorted(row["action"] for row in rows) == ["service_account.disable"] * 2 + ["service_account.key.revoke"] * 2
    assert {row["project_id"] for row in rows} == {project}


async def test_a_read_inside_a_break_glass_entry_that_cannot_be_recorded_is_not_answered(
    world: World, connection: asyncpg.Connection
) -> None:
    acme = await world.tenant("acme")
    body = {"tenant_id": acme.id, "reason": "the customer asked for help"}
    entry = (await world.admin.post("/api/v1/platform/break-glass", json=body)).json()["token"]
    inside = world.client(entry)
    assert (await inside.get(f"/api/v1/tenants/{acme.id}")).status_code == 200
    await connection.execute("ALTER TABLE audit ADD CONSTRAINT audit_is_full CHECK (action <> 'tenant.read') NOT VALID")
    answer = await inside.get(f"/api/v1/tenants/{acme.id}")
    assert answer.status_code >= 500
    assert "acme" not in answer.text
