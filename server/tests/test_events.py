"""The event stream through the public API: whose events it shows, where it goes on, and when it ends."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import httpx
import pytest

from mooring.core.event import Position
from mooring.gateways.signatures import new_key_pair
from mooring.settings import Settings
from server.tests.conftest import PASSWORD, Running, Tenant, World, running_platform
from server.tests.processes.wire import BROKEN, Stream, Told, stream
from server.tests.targets import assertion

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

PATIENCE_SECONDS = 60.0
CLOSED = "closed"


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


def path_of(tenant: Tenant) -> str:
    return f"/api/v1/tenants/{tenant.id}"


def follow(world: World, token: str, place: str, **options: Any) -> Any:
    """The stream of a place."""
    return stream(world.running.url, token, f"{place}/events/stream", **options)


async def rename(client: httpx.AsyncClient, project_id: str, name: str) -> None:
    answer = await client.patch(
        f"/api/v1/projects/{project_id}", json={"display_name": name}, headers={"X-Correlation-ID": name}
    )
    assert answer.status_code == 200, answer.text


async def until_told(opened: Stream, correlation_id: str) -> list[Told]:
    """Everything up to the event that the request of this correlation id wrote."""
    told: list[Told] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for each in opened.events():
            told.append(each)
            if each.data["correlation_id"] == correlation_id:
                return told
    raise AssertionError(f"the stream ended before {correlation_id}: {told[-1:]}")


async def ended(opened: Stream) -> list[Told]:
    """Everything up to the end that the server makes."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await opened.end()


# Whose events -------------------------------------------------------------------------------------------------------


async def test_no_stream_shows_a_foreign_event_while_everybody_writes_at_once(
    world: World, connection: asyncpg.Connection
) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    projects = {
        (tenant.id, slug): await world.project(tenant, slug) for tenant in (acme, other) for slug in ("one", "two")
    }
    admin_token = world.admin.headers["Authorization"].removeprefix("Bearer ")
    owners = {acme.id: acme.token, other.id: other.token}

    async def write(tenant_id: str, project_id: str) -> None:
        client = world.client(owners[tenant_id])
        for turn in range(25):
            await rename(client, project_id, f"{project_id}-{turn}")

    everything = "SELECT id FROM event WHERE {} ORDER BY epoch, tx, seq"
    selections: dict[tuple[str, str], str] = {
        ("/api/v1/platform", admin_token): "true",
        (path_of(acme), acme.token): f"tenant_id = '{acme.id}'",
        (path_of(other), other.token): f"tenant_id = '{other.id}'",
    }
    for (tenant_id, _), project_id in projects.items():
        selections[f"/api/v1/projects/{project_id}", owners[tenant_id]] = f"project_id = '{project_id}'"

    async def read(place: str, token: str) -> list[Told]:
        told: list[Told] = []
        awaited = {f"{project}-24" for project in projects.values() if place.endswith(project)}
        if place.startswith("/api/v1/tenants/"):
            awaited = {f"{project}-24" for (tenant, _), project in projects.items() if place.endswith(tenant)}
        if place == "/api/v1/platform":
            awaited = {f"{project}-24" for project in projects.values()}
        async with asyncio.timeout(PATIENCE_SECONDS), follow(world, token, place, after="beginning") as opened:
            async for each in opened.events():
                told.append(each)
                awaited.discard(each.data["correlation_id"])
                if not awaited:
                    return told
        raise AssertionError("the stream ended")

    reading = {spot: asyncio.create_task(read(*spot)) for spot in selections}
    await asyncio.gather(*(write(tenant_id, project_id) for (tenant_id, _), project_id in projects.items()))
    for spot, condition in selections.items():
        told = await reading[spot]
        assert [each.data["id"] for each in told] == [
            row["id"] for row in await connection.fetch(everything.format(condition))
        ]
        if spot[0] == "/api/v1/platform":
            tenants = [each for each in told if each.data["org_id"] is not None]
            assert {each.data["data_withheld"] for each in tenants} == {True}
            assert {str(each.data["data"]) for each in tenants} == {"{}"}
        else:
            assert {each.data["data_withheld"] for each in told} == {False}


async def test_a_stream_of_one_correlation_shows_that_one_and_only_in_its_own_place(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    mine, theirs = await world.project(acme, "mine"), await world.project(other, "theirs")
    client, stranger = world.client(acme.token), world.client(other.token)
    place = f"{path_of(acme)}/events/stream?correlation_id=shared"
    async with stream(world.running.url, acme.token, place, after="beginning") as opened:
        await rename(stranger, theirs, "shared")
        await rename(client, mine, "unshared")
        await rename(client, mine, "shared")
        told = await opened.take(1)
    assert [(each.data["correlation_id"], each.data["subject_id"]) for each in told] == [("shared", mine)]


# From where on ------------------------------------------------------------------------------------------------------


async def test_a_stream_without_a_cursor_begins_now_and_tells_the_cursor_before_the_first_event(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    await rename(client, project, "before")
    seen = await client.get(f"{path_of(acme)}/events?limit=500")
    async with asyncio.timeout(PATIENCE_SECONDS):  # until this process has seen all that was written so far
        while seen.json()["items"][-1]["correlation_id"] != "before":
            seen = await client.get(f"{path_of(acme)}/events?limit=500")
    async with client.stream("GET", f"{path_of(acme)}/events/stream") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        opening = [await anext(lines) for _ in range(4)]
        cursor = next(line for line in opening if line.startswith("id: ")).removeprefix("id: ")
    await rename(client, project, "while nobody looked".replace(" ", "-"))
    async with follow(world, acme.token, path_of(acme), after=cursor) as opened:
        assert [each.data["correlation_id"] for each in await opened.take(1)] == ["while-nobody-looked"]


async def test_a_stream_goes_on_after_the_last_event_id_and_repeats_nothing(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    for turn in range(10):
        await rename(client, project, f"turn-{turn}")
    async with follow(world, acme.token, path_of(acme), after="beginning") as opened:
        told = await until_told(opened, "turn-9")
    for each in range(len(told) - 1):
        async with follow(world, acme.token, path_of(acme), after=told[each].cursor) as opened:
            rest = await until_told(opened, "turn-9")
        assert [one.data["id"] for one in rest] == [one.data["id"] for one in told[each + 1 :]]


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


GARBAGE = (
    "garbage", "%00", "e1.1.2.3", encoded("e1.1.2"), encoded("e1.1.2.3.4"), encoded("e2.1.2.3"), encoded("e1.-1.2.3"),
    encoded("e1.1.2.x"), encoded("e1.01.2.3"), encoded("e1.1.2.3") + "=", encoded(f"e1.{2**31}.2.3"),
    encoded(f"e1.1.{2**63}.3"), encoded(f"e1.1.2.{2**63}"), encoded("e1.1.2.3 "), "a" * 500, encoded("e1.¹.2.3"),
)  # fmt: skip


async def test_a_cursor_that_is_not_ours_is_refused(world: World) -> None:
    events = "/api/v1/platform/events"
    for cursor in GARBAGE:
        answers = [
            await world.admin.get(events, params={"cursor": cursor}),
            await world.admin.get(f"{events}/stream", params={"cursor": cursor}),
            await world.admin.get(f"{events}/stream", headers={"Last-Event-ID": cursor}),
        ]
        for answer in answers:
            assert answer.status_code == 422, f"{cursor}: {answer.text}"
            assert answer.json()["code"] in ("cursor_invalid", "validation_failed")


async def test_a_cursor_older_than_what_is_kept_is_expired_and_told_how_to_resync(
    world: World, connection: asyncpg.Connection
) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    for turn in range(10):
        await rename(client, project, f"turn-{turn}")
    events = f"{path_of(acme)}/events"
    async with follow(world, acme.token, path_of(acme), after="beginning") as opened:
        told = await until_told(opened, "turn-9")
    older, last_deleted = told[2].cursor, told[5]
    row = await connection.fetchrow("SELECT epoch, tx, seq FROM event WHERE id = $1", last_deleted.data["id"])
    assert row is not None
    place = Position(*row)
    assert place.cursor() == last_deleted.cursor
    await connection.execute("DELETE FROM event WHERE (epoch, tx, seq) <= ($1, $2, $3)", *place)
    await connection.execute("UPDATE event_horizon SET epoch = $1, tx = $2, seq = $3", *place)
    for answer in (
        await client.get(events, params={"cursor": older}),
        await client.get(f"{events}/stream", params={"cursor": older}),
        await client.get(f"{events}/stream", headers={"Last-Event-ID": older}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (410, "cursor_expired")
        assert answer.json()["details"]["oldest_cursor"] == place.cursor()
    kept = [each.data["id"] for each in told[6:]]
    for cursor in (place.cursor(), "beginning"):
        page = (await client.get(events, params={"cursor": cursor})).json()
        assert [each["id"] for each in page["items"]] == kept
        async with follow(world, acme.token, path_of(acme), after=cursor) as opened:
            assert [each.data["id"] for each in await until_told(opened, "turn-9")] == kept


# When it ends -------------------------------------------------------------------------------------------------------

Ending = Callable[["Place"], Awaitable[httpx.Response]]


@dataclass
class Place:
    """A project with a reader, and all that can be taken from the reader."""

    world: World
    tenant: Tenant
    project_id: str
    reader_id: str
    reader_token: str
    admin: httpx.AsyncClient

    @property
    def path(self) -> str:
        return f"/api/v1/projects/{self.project_id}"


async def place_with_reader(world: World) -> Place:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    session = await world.member(tenant, project_id, "project_viewer", "reader")
    reader = world.client(session)
    made = await reader.post("/api/v1/tokens", json={"name": "follower"})
    assert made.status_code == 201, made.text
    me = (await reader.get("/api/v1/whoami")).json()
    return Place(world, tenant, project_id, me["id"], made.json()["token"], world.client(tenant.token))


async def place_with_account(world: World) -> Place:
    """The same with a service account, which holds a token for the assertion that its key signed."""
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    admin = world.client(tenant.token)
    private, public = new_key_pair()
    path = f"/api/v1/projects/{project_id}/service-accounts"
    wish = {
        "name": "reader", "actions": ["event.read", "project.read"],
        "public_key": base64.b64encode(public).decode(),
    }  # fmt: skip
    account = (await admin.post(path, json=wish)).json()["id"]
    key_id = (await admin.get(f"{path}/{account}/keys")).json()["items"][0]["id"]
    audience = f"{world.running.url}/api/v1/oauth/token"
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": assertion(account, key_id, private, audience),
    }
    exchanged = await world.client().post("/api/v1/oauth/token", data=form)
    assert exchanged.status_code == 200, exchanged.text
    return Place(world, tenant, project_id, account, exchanged.json()["access_token"], admin)


async def revoke_token(place: Place) -> httpx.Response:
    reader = place.world.client(place.reader_token)
    token_id = (await reader.get("/api/v1/whoami")).json()["token_id"]
    return await reader.delete(f"/api/v1/tokens/{token_id}")


async def remove_membership(place: Place) -> httpx.Response:
    memberships = (await place.admin.get(f"{place.path}/memberships")).json()["items"]
    mine = next(each["id"] for each in memberships if each["user_id"] == place.reader_id)
    return await place.admin.delete(f"{place.path}/memberships/{mine}")


async def disable_user(place: Place) -> httpx.Response:
    return await place.admin.post(f"{path_of(place.tenant)}/users/{place.reader_id}/disable")


async def reset_user(place: Place) -> httpx.Response:
    return await place.admin.post(f"{path_of(place.tenant)}/users/{place.reader_id}/reset")


async def disable_account(place: Place) -> httpx.Response:
    return await place.admin.post(f"{place.path}/service-accounts/{place.reader_id}/disable")


async def delete_account(place: Place) -> httpx.Response:
    return await place.admin.delete(f"{place.path}/service-accounts/{place.reader_id}")


async def narrow_account(place: Place) -> httpx.Response:
    path = f"{place.path}/service-accounts/{place.reader_id}"
    return await place.admin.patch(path, json={"actions": ["project.read"]})


async def revoke_key(place: Place) -> httpx.Response:
    path = f"{place.path}/service-accounts/{place.reader_id}/keys"
    key_id = (await place.admin.get(path)).json()["items"][0]["id"]
    return await place.admin.delete(f"{path}/{key_id}")


ENDINGS: dict[str, tuple[Callable[[World], Awaitable[Place]], Ending]] = {
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
        await until_told(opened, "while-it-may")
        # An older transaction keeps the end back, so that it arrives together with what came after it.
        holding = connection.transaction()
        await holding.start()
        await connection.execute("SELECT pg_current_xact_id()")
        answer = await end(place)
        assert answer.is_success, answer.text
        for turn in range(20):
            await rename(place.admin, place.project_id, f"afterwards-{turn}")
        await holding.rollback()
        told = await ended(opened)  # the event says so: nobody has the patience for the token cache
    assert told[-1].type == CLOSED
    assert [each.data["correlation_id"] for each in told if "afterwards" in str(each.data)] == []
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


async def admitted(running: Running) -> World:
    """The world of a platform whose admin has signed in."""
    admin = running.client()
    body = {"email": "admin@mooring.local", "one_time_code": running.code, "new_password": PASSWORD}
    answer = await admin.post("/api/v1/sign-in", json=body)
    assert answer.status_code == 200, answer.text
    admin.headers["Authorization"] = f"Bearer {answer.json()['token']}"
    return World(running, admin)


async def test_a_stream_is_closed_within_the_token_cache_time_even_when_no_event_says_so(
    quick_world: World, connection: asyncpg.Connection
) -> None:
    place = await place_with_reader(quick_world)
    async with follow(quick_world, place.reader_token, place.path, after="beginning") as opened:
        assert await opened.take(1)
        await connection.execute("UPDATE token SET revoked_at = now() WHERE name = 'follower'")
        told = await ended(opened)
    assert told[-1].type == CLOSED


async def test_a_list_that_waits_for_events_is_refused_when_its_reader_may_no_longer_read(world: World) -> None:
    place = await place_with_reader(world)
    reader = world.client(place.reader_token)
    page = (await reader.get(f"{place.path}/events?limit=500")).json()
    waiting = asyncio.create_task(reader.get(f"{place.path}/events?wait=30&cursor={page['next_cursor']}"))
    await remove_membership(place)
    await rename(place.admin, place.project_id, "afterwards")
    answer = await waiting
    assert answer.status_code == 404, answer.text


# Readers and each other ---------------------------------------------------------------------------------------------

FILL = """
INSERT INTO event (id, type, noun, subject_id, tenant_id, actor_kind, actor_id, correlation_id, trace_id, occurred_at,
                   data)
SELECT 'evt_' || n, 'identity.tenant.updated', 'tenant', id, id, 'system', 'system', 'filler-' || n, 'filler', now(),
       jsonb_build_object('filler', repeat('x', 20000))
  FROM tenant, generate_series(1, 1000) n"""
"""Twenty megabytes of events: more than the buffers between a server and a reader hold."""


async def test_a_reader_that_does_not_read_holds_up_nobody_and_misses_nothing(
    world: World, connection: asyncpg.Connection
) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    place = path_of(acme)
    async with (
        follow(world, acme.token, place, after="beginning", buffer_bytes=4096) as slow,
        follow(world, acme.token, place, after="beginning") as quick,
    ):
        await connection.execute(FILL)
        seen = await until_told(quick, "filler-1000")
        await rename(client, project, "after-the-flood")
        seen += await until_told(quick, "after-the-flood")
        assert (await client.get("/api/v1/whoami")).status_code == 200
        late = await until_told(slow, "after-the-flood")
    assert [each.data["id"] for each in late] == [each.data["id"] for each in seen]


async def until_streams(running: Running, counts: dict[str, int]) -> None:
    """Return once the platform counts these streams by principal."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while running.platform.tools.streams != counts:  # noqa: ASYNC110  the product has no event for it
            await asyncio.sleep(0)


async def test_a_caller_holds_a_bounded_number_of_streams_and_gets_room_back_when_one_ends(
    settings: Settings, database_url: str, connection: asyncpg.Connection
) -> None:
    async with running_platform(replace(settings, streams_per_principal=2)) as running:
        world = await admitted(running)
        acme = await world.tenant("acme")
        await connection.execute(FILL)
        place = path_of(acme)
        async with follow(world, acme.token, place) as first:
            async with follow(world, acme.token, place, after="beginning", buffer_bytes=4096) as stuck:
                await first.take(0)
                await stuck.take(1)
                with pytest.raises(AssertionError, match="the stream was refused: 429"):
                    async with follow(world, acme.token, place):
                        pass
            await until_streams(running, {acme.admin_id: 1})
            async with follow(world, acme.token, place, after="beginning") as again:
                assert await again.take(1)
        await until_streams(running, {})
        await world.close()


async def test_streams_go_on_while_the_database_is_away_and_show_what_comes_after(
    world: World, connection: asyncpg.Connection
) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    async with follow(world, acme.token, path_of(acme), after="beginning") as opened:
        await rename(client, project, "before")
        await until_told(opened, "before")
        await connection.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name LIKE 'mooring%'"""
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await rename(client, project, "after")
                    break
                except (AssertionError, *BROKEN):  # 503 until there are connections again
                    continue
        told = await until_told(opened, "after")
    assert [each.data["correlation_id"] for each in told] == ["after"]
