"""The event stream through the public API: whose events it shows, where it goes on, and how readers meet."""

import asyncio
import base64
from dataclasses import replace
from typing import Any

import asyncpg
import httpx
import pytest

from mooring.core.kernel.event import StreamPosition
from mooring.settings import Settings
from server.tests.conftest import PASSWORD, Running, TenantWithAdmin, World, running_platform
from server.tests.support.http_wire import BROKEN, Stream, StreamEvent, stream
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

PATIENCE_SECONDS = 60.0


def path_of(tenant: TenantWithAdmin) -> str:
    return f"/api/v1/tenants/{tenant.id}"


def follow(world: World, token: str, place: str, **options: Any) -> Any:
    """The stream of a place."""
    return stream(world.running.url, token, f"{place}/events/stream", **options)


async def rename(client: httpx.AsyncClient, project_id: str, name: str) -> None:
    answer = await client.patch(
        f"/api/v1/projects/{project_id}", json={"display_name": name}, headers={"X-Correlation-ID": name}
    )
    assert answer.status_code == 200, answer.text


async def events_until(opened: Stream, correlation_id: str) -> list[StreamEvent]:
    """Everything up to the event that the request of this correlation id wrote."""
    events: list[StreamEvent] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for each in opened.events():
            events.append(each)
            if each.data["correlation_id"] == correlation_id:
                return events
    raise AssertionError(f"the stream ended before {correlation_id}: {events[-1:]}")


async def shown(client: httpx.AsyncClient, place: str, **wanted: str) -> str:
    """The cursor once a list has shown an event with these fields, and so all before it.

    One look is not enough: the horizon covers the whole cluster, whose others may hold it.
    """
    cursor = ""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            page = (await client.get(f"{place}/events?limit=500&wait=20&cursor={cursor}")).json()
            cursor = page["next_cursor"]
            if any(wanted.items() <= each.items() for each in page["items"]):
                return str(cursor)


async def ended(opened: Stream) -> list[StreamEvent]:
    """Everything up to the end that the server makes."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await opened.end()


async def admitted(running: Running) -> World:
    """The world of a platform whose admin has signed in."""
    admin = running.client()
    body = {"email": "admin@mooring.local", "one_time_code": running.code, "new_password": PASSWORD}
    answer = await admin.post("/api/v1/sign-in", json=body)
    assert answer.status_code == 200, answer.text
    admin.headers["Authorization"] = f"Bearer {answer.json()['token']}"
    return World(running, admin)


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

    async def read(place: str, token: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        awaited = {f"{project}-24" for project in projects.values() if place.endswith(project)}
        if place.startswith("/api/v1/tenants/"):
            awaited = {f"{project}-24" for (tenant, _), project in projects.items() if place.endswith(tenant)}
        if place == "/api/v1/platform":
            awaited = {f"{project}-24" for project in projects.values()}
        async with asyncio.timeout(PATIENCE_SECONDS), follow(world, token, place, after="beginning") as opened:
            async for each in opened.events():
                events.append(each)
                awaited.discard(each.data["correlation_id"])
                if not awaited:
                    return events
        raise AssertionError("the stream ended")

    reading = {spot: asyncio.create_task(read(*spot)) for spot in selections}
    await asyncio.gather(*(write(tenant_id, project_id) for (tenant_id, _), project_id in projects.items()))
    for spot, condition in selections.items():
        events = await reading[spot]
        assert [each.data["id"] for each in events] == [
            row["id"] for row in await connection.fetch(everything.format(condition))
        ]
        if spot[0] == "/api/v1/platform":
            tenants = [each for each in events if each.data["org_id"] is not None]
            assert {each.data["data_withheld"] for each in tenants} == {True}
            assert {str(each.data["data"]) for each in tenants} == {"{}"}
        else:
            assert {each.data["data_withheld"] for each in events} == {False}


async def test_a_stream_of_one_correlation_shows_that_one_and_only_in_its_own_place(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    mine, theirs = await world.project(acme, "mine"), await world.project(other, "theirs")
    client, stranger = world.client(acme.token), world.client(other.token)
    place = f"{path_of(acme)}/events/stream?correlation_id=shared"
    async with stream(world.running.url, acme.token, place, after="beginning") as opened:
        await rename(stranger, theirs, "shared")
        await rename(client, mine, "unshared")
        await rename(client, mine, "shared")
        events = await opened.take(1)
    assert [(each.data["correlation_id"], each.data["subject_id"]) for each in events] == [("shared", mine)]


# From where on ------------------------------------------------------------------------------------------------------


async def test_a_stream_without_a_cursor_starts_now_and_sends_the_cursor_before_the_first_event(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    await rename(client, project, "before")
    await shown(client, path_of(acme), correlation_id="before")
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
        events = await events_until(opened, "turn-9")
    for each in range(len(events) - 1):
        async with follow(world, acme.token, path_of(acme), after=events[each].cursor) as opened:
            rest = await events_until(opened, "turn-9")
        assert [one.data["id"] for one in rest] == [one.data["id"] for one in events[each + 1 :]]


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


async def test_a_cursor_older_than_what_is_kept_is_expired_and_says_how_to_resync(
    world: World, connection: asyncpg.Connection
) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    client = world.client(acme.token)
    for turn in range(10):
        await rename(client, project, f"turn-{turn}")
    events = f"{path_of(acme)}/events"
    async with follow(world, acme.token, path_of(acme), after="beginning") as opened:
        received = await events_until(opened, "turn-9")
    older, last_deleted = received[2].cursor, received[5]
    row = await connection.fetchrow("SELECT epoch, tx, seq FROM event WHERE id = $1", last_deleted.data["id"])
    assert row is not None
    place = StreamPosition(*row)
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
    kept = [each.data["id"] for each in received[6:]]
    for cursor in (place.cursor(), "beginning"):
        page = (await client.get(events, params={"cursor": cursor})).json()
        assert [each["id"] for each in page["items"]] == kept
        async with follow(world, acme.token, path_of(acme), after=cursor) as opened:
            assert [each.data["id"] for each in await events_until(opened, "turn-9")] == kept


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
        seen = await events_until(quick, "filler-1000")
        await rename(client, project, "after-the-flood")
        seen += await events_until(quick, "after-the-flood")
        assert (await client.get("/api/v1/whoami")).status_code == 200
        late = await events_until(slow, "after-the-flood")
    assert [each.data["id"] for each in late] == [each.data["id"] for each in seen]


async def until_streams(running: Running, counts: dict[str, int]) -> None:
    """Return once the platform counts these streams by principal."""
    await until(lambda: running.platform.tools.streams == counts)


async def test_a_caller_holds_a_bounded_number_of_streams_and_gets_room_back_when_one_ends(
    settings: Settings, database_url: str, connection: asyncpg.Connection
) -> None:
    async with running_platform(replace(settings, streams_per_principal=2)) as running:
        world = await admitted(running)
        acme = await world.tenant("acme")
        await connection.execute(FILL)
        place = path_of(acme)
        async with follow(world, acme.token, place):
            async with follow(world, acme.token, place, after="beginning", buffer_bytes=4096) as stuck:
                await stuck.take(1)
                await until_streams(running, {acme.admin_id: 2})
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
        await events_until(opened, "before")
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
        events = await events_until(opened, "after")
    assert [each.data["correlation_id"] for each in events] == ["after"]


# The newest ---------------------------------------------------------------------------------------------------------


async def test_the_newest_events_are_the_last_ones_in_order_and_lead_on(world: World) -> None:
    acme = await world.tenant("acme")
    project, client = await world.project(acme, "vision"), world.client(acme.token)
    for number in range(5):
        await rename(client, project, f"name-{number}")
    await shown(client, path_of(acme), correlation_id="name-4")
    page = (await client.get(f"{path_of(acme)}/events?newest=true&limit=2")).json()
    assert [each["correlation_id"] for each in page["items"]] == ["name-3", "name-4"]
    await rename(client, project, "name-5")
    further = (await client.get(f"{path_of(acme)}/events?wait=20&cursor={page['next_cursor']}")).json()
    assert [each["correlation_id"] for each in further["items"]] == ["name-5"]
