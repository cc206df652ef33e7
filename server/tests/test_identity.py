"""Tenants, projects, users, memberships and service accounts, through the public API on a real database."""

import pytest

from server.tests.conftest import World

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def test_a_tenant_begins_with_an_admin_who_signs_in_with_a_one_time_code(world: World) -> None:
    acme = await world.tenant("acme")
    me = (await world.client(acme.token).get("/api/v1/whoami")).json()
    assert me["tenant_id"] == acme.id
    assert me["roles"] == [{"role": "tenant_admin", "project_id": None}]


async def test_events_of_one_decision_stand_in_the_order_in_which_it_lists_them(world: World) -> None:
    acme = await world.tenant("acme")
    events = (await world.client(acme.token).get(f"/api/v1/tenants/{acme.id}/events")).json()["items"]
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
