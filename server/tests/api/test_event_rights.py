"""When a reader of events may no longer read, its stream is closed, its list is refused, and it gets nothing more."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import asyncpg
import httpx
import pytest

from mooring.gateways.signing.signatures import new_key_pair
from mooring.settings import Settings
from server.tests.api.records.test_events import (
    PATIENCE_SECONDS,
    admitted,
    ended,
    events_until,
    follow,
    path_of,
    rename,
    shown,
)
from server.tests.conftest import TenantWithAdmin, World, running_platform
from server.tests.support.service_accounts import assertion
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

CLOSED = "closed"

Ending = Callable[["ProjectWithReader"], Awaitable[httpx.Response]]


@dataclass
class ProjectWithReader:
    """A project with a reader, and all that can be taken from the reader."""

    world: World
    tenant: TenantWithAdmin
    project_id: str
    reader_id: str
    reader_token: str
    admin: httpx.AsyncClient

    @property
    def path(self) -> str:
        return f"/api/v1/projects/{self.project_id}"


async def place_with_reader(world: World) -> ProjectWithReader:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    session = await world.member(tenant, project_id, "project_viewer", "reader")
    reader = world.client(session)
    made = await reader.post("/api/v1/tokens", json={"name": "follower"})
    assert made.status_code == 201, made.text
    me = (await reader.get("/api/v1/whoami")).json()
    return ProjectWithReader(world, tenant, project_id, me["id"], made.json()["token"], world.client(tenant.token))


async def place_with_account(world: World) -> ProjectWithReader:
    """The same with a service account, which holds a token for the assertion that its key signed."""
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    admin = world.client(tenant.token)
    private, public = new_key_pair()
    path = f"/api/v1/projects/{project_id}/service-accounts"
    requested = {
        "name": "reader",
        "actions": ["event.read", "project.read"],
        "public_key": base64.b64encode(public).decode(),
    }
    account = (await admin.post(path, json=requested)).json()["id"]
    key_id = (await admin.get(f"{path}/{account}/keys")).json()["items"][0]["id"]
    audience = f"{world.running.url}/api/v1/oauth/token"
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": assertion(account, key_id, private, audience),
    }
    exchanged = await world.client().post("/api/v1/oauth/token", data=form)
    assert exchanged.status_code == 200, exchanged.text
    return ProjectWithReader(world, tenant, project_id, account, exchanged.json()["access_token"], admin)


async def revoke_token(place: ProjectWithReader) -> httpx.Response:
    reader = place.world.client(place.reader_token)
    token_id = (await reader.get("/api/v1/whoami")).json()["token_id"]
    return await reader.delete(f"/api/v1/tokens/{token_id}")


async def remove_membership(place: ProjectWithReader) -> httpx.Response:
    memberships = (await place.admin.get(f"{place.path}/memberships")).json()["items"]
    mine = next(each["id"] for each in memberships if each["user_id"] == place.reader_id)
    return await place.admin.delete(f"{place.path}/memberships/{mine}")


async def disable_user(place: ProjectWithReader) -> httpx.Response:
    return await place.admin.post(f"{path_of(place.tenant)}/users/{place.reader_id}/disable")


async def reset_user(place: ProjectWithReader) -> httpx.Response:
    return await place.admin.post(f"{path_of(place.tenant)}/users/{place.reader_id}/reset")


async def disable_account(place: ProjectWithReader) -> httpx.Response:
    return await place.admin.post(f"{place.path}/service-accounts/{place.reader_id}/disable")


async def delete_account(place: ProjectWithReader) -> httpx.Response:
    return await place.admin.delete(f"{place.path}/service-accounts/{place.reader_id}")


async def narrow_account(place: ProjectWithReader) -> httpx.Response:
    path = f"{place.path}/service-accounts/{place.reader_id}"
    return await place.admin.patch(path, json={"actions": ["project.read"]})


async def revoke_key(place: ProjectWithReader) -> httpx.Response:
    path = f"{place.path}/service-accounts/{place.reader_id}/keys"
    key_id = (await place.admin.get(path)).json()["items"][0]["id"]
    return await place.admin.delete(f"{path}/{key_id}")


ENDINGS: dict[str, tuple[Callable[[World], Awaitable[ProjectWithReader]], Ending]] = {
    "the token is revoked": (place_with_reader, revoke_token),
    "the membership is removed": (place_with_reader, remove_membership),
    "the user is disabled": (place_with_reader, disable_user),
    "the user is reset": (place_with_reader, reset_user),
    "the account is disabled": (place_with_account, disable_account),
    "the account is deleted": (place_with_account, delete_account),
    "the account loses the action": (place_with_account, narrow_account),
    "the account's key is revoked": (place_with_account, revoke_key),
}


@pytest.mark.parametrize("how", ENDINGS)
async def test_an_open_stream_is_closed_when_its_reader_may_no_longer_read(
    unhurried_world: World, connection: asyncpg.Connection, how: str
) -> None:
    world = unhurried_world
    prepare, end = ENDINGS[how]
    place = await prepare(world)
    async with follow(world, place.reader_token, place.path, after="beginning") as opened:
        await rename(place.admin, place.project_id, "while-it-may")
        await events_until(opened, "while-it-may")
        # An older transaction keeps the end back, so that it arrives together with what came after it.
        holding = connection.transaction()
        await holding.start()
        await connection.execute("SELECT pg_current_xact_id()")
        answer = await end(place)
        assert answer.is_success, answer.text
        for turn in range(20):
            await rename(place.admin, place.project_id, f"afterwards-{turn}")
        await holding.rollback()
        events = await ended(opened)  # the event says so: nobody has the patience for the token cache
    assert events[-1].type == CLOSED
    assert [each.data["correlation_id"] for each in events if "afterwards" in str(each.data)] == []
    with pytest.raises(AssertionError, match=r"the stream was refused: 40[134]"):
        async with follow(world, place.reader_token, place.path):
            pass


@pytest.fixture
async def unhurried_world(settings: Settings) -> AsyncIterator[World]:
    """A platform whose token cache keeps a look-up for longer than anybody here waits."""
    async with running_platform(replace(settings, token_cache_seconds=20 * PATIENCE_SECONDS)) as running:
        yield await admitted(running)


@pytest.fixture
async def quick_world(settings: Settings) -> AsyncIterator[World]:
    """A platform whose token cache keeps a look-up for two seconds."""
    async with running_platform(replace(settings, token_cache_seconds=2.0)) as running:
        yield await admitted(running)


async def test_a_stream_is_closed_within_the_token_cache_time_even_when_no_event_says_so(
    quick_world: World, connection: asyncpg.Connection
) -> None:
    place = await place_with_reader(quick_world)
    async with follow(quick_world, place.reader_token, place.path, after="beginning") as opened:
        assert await opened.take(1)
        await connection.execute("UPDATE token SET revoked_at = now() WHERE name = 'follower'")
        events = await ended(opened)
    assert events[-1].type == CLOSED


async def test_a_list_that_waits_for_events_is_refused_when_its_reader_may_no_longer_read(world: World) -> None:
    place = await place_with_reader(world)
    reader = world.client(place.reader_token)
    await rename(place.admin, place.project_id, "while-it-may")
    cursor = await shown(reader, place.path, correlation_id="while-it-may")
    waiting = asyncio.create_task(reader.get(f"{place.path}/events?wait=30&cursor={cursor}"))
    await remove_membership(place)
    await rename(place.admin, place.project_id, "afterwards")
    answer = await waiting
    assert answer.status_code == 404, answer.text


IS_HELD = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
 WHERE datname = current_database() AND relation = 'event_horizon'::regclass AND NOT granted"""


async def test_a_waiting_list_is_refused_when_its_reader_lost_the_right_meanwhile(
    world: World, connection: asyncpg.Connection
) -> None:
    place = await place_with_reader(world)
    reader = world.client(place.reader_token)
    await rename(place.admin, place.project_id, "while-it-may")
    await shown(reader, place.path, correlation_id="while-it-may")
    async with connection.transaction():
        await connection.execute("LOCK TABLE event_horizon")  # where a list looks first
        reading = asyncio.create_task(reader.get(f"{place.path}/events?wait=30"))
        await until(lambda: connection.fetchval(IS_HELD))
        await remove_membership(place)
    answer = await reading
    assert answer.status_code == 404, answer.text
