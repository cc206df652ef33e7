"""A request that was admitted a moment ago is admitted from memory, until anything changes."""

import httpx
import pytest

from mooring.api.auth_cache import ENTRIES_MAX, AuthCache
from server.tests.conftest import World

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


def kept(world: World) -> dict[object, object]:
    """What the running application remembers."""
    admissions = world.running.platform.application._auth_cache
    assert isinstance(admissions, AuthCache)
    return admissions._entries  # type: ignore[return-value]


async def twice(client: httpx.AsyncClient, path: str) -> None:
    """Read something twice: the second time its admission is remembered."""
    for _ in range(2):
        assert (await client.get(path)).status_code == 200


async def test_the_same_read_by_the_same_caller_is_remembered_once(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    before = len(kept(world))
    await twice(client, f"/api/v1/projects/{project}")
    assert len(kept(world)) == before + 1
    await twice(client, f"/api/v1/projects/{project}?wait=0")
    assert len(kept(world)) == before + 2


async def test_a_user_who_loses_a_role_no_longer_reads_what_they_read_before(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    member = world.client(await world.member(acme, project, "project_viewer", "mia"))
    admin = world.client(acme.token)
    path = f"/api/v1/projects/{project}"
    await twice(member, path)
    memberships = (await admin.get(f"{path}/memberships")).json()["items"]
    (held,) = [each["id"] for each in memberships if each["role"] == "project_viewer"]
    assert (await admin.delete(f"{path}/memberships/{held}")).status_code == 204
    assert (await member.get(path)).status_code == 404


async def test_a_revoked_token_no_longer_reads_what_it_read_before(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    admin = world.client(acme.token)
    made = (await admin.post("/api/v1/tokens", json={"name": "soon gone"})).json()
    client = world.client(made["token"])
    await twice(client, f"/api/v1/projects/{project}")
    assert (await admin.delete(f"/api/v1/tokens/{made['id']}")).status_code == 200
    assert (await client.get(f"/api/v1/projects/{project}")).status_code == 401


async def test_a_deleted_project_is_no_longer_found_by_those_who_read_it_before(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    admin = world.client(acme.token)
    await twice(admin, f"/api/v1/projects/{project}")
    assert (await admin.delete(f"/api/v1/projects/{project}")).status_code == 204
    assert (await admin.get(f"/api/v1/projects/{project}")).status_code == 404


async def test_what_one_caller_was_admitted_to_opens_nothing_to_another(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    path = f"/api/v1/projects/{await world.project(acme, 'train')}"
    await twice(world.client(acme.token), path)
    stranger, nobody, garbled = world.client(other.token), world.client(), world.client(acme.token + "x")
    for _ in range(2):
        assert (await stranger.get(path)).status_code == 404
        assert (await nobody.get(path)).status_code == 401
        assert (await garbled.get(path)).status_code == 401


async def test_a_refused_read_is_evaluated_again_each_time(world: World) -> None:
    acme = await world.tenant("acme")
    admin = world.client(acme.token)
    before = len(kept(world))
    for _ in range(2):
        assert (await admin.get("/api/v1/projects/prj_00000000000000000000000000")).status_code == 404
        assert (await admin.get("/api/v1/projects/nonsense")).status_code == 404
        assert (await admin.get("/api/v1/whoami?unknown=1")).status_code == 422
    assert len(kept(world)) == before


async def test_a_mutation_is_remembered_and_ends_with_the_role_as_well(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    lead = world.client(await world.member(acme, project, "project_admin", "lea"))
    admin = world.client(acme.token)
    path = f"/api/v1/projects/{project}"
    for name in ("One", "Two"):
        assert (await lead.patch(path, json={"display_name": name})).json()["display_name"] == name
    (held,) = [
        each["id"]
        for each in (await admin.get(f"{path}/memberships")).json()["items"]
        if each["role"] == "project_admin"
    ]
    assert (await admin.delete(f"{path}/memberships/{held}")).status_code == 204
    assert (await lead.patch(path, json={"display_name": "Three"})).status_code == 404
    assert (await admin.get(path)).json()["display_name"] == "Two"


async def test_a_read_and_a_mutation_at_one_address_are_admitted_each_for_itself(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    viewer = world.client(await world.member(acme, project, "project_viewer", "vic"))
    path = f"/api/v1/projects/{project}"
    await twice(viewer, path)
    assert (await viewer.patch(path, json={"display_name": "Mine"})).status_code == 403


async def test_what_needs_no_token_is_not_remembered_and_nothing_without_end(world: World) -> None:
    acme = await world.tenant("acme")
    admin = world.client(acme.token)
    before = len(kept(world))
    await world.client().get("/healthz")
    assert len(kept(world)) == before
    admitted = await admin.get("/api/v1/whoami")
    assert admitted.status_code == 200
    remembered = next(iter(kept(world).values()))
    kept(world).update({(b"", "GET", str(number), b""): remembered for number in range(ENTRIES_MAX)})
    assert (await admin.get("/api/v1/projects")).status_code == 200
    assert len(kept(world)) == 1
