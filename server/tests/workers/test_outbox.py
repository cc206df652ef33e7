"""The outbox relay on a real database with real receivers: at least once, fenced, and nobody waits for another."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import pytest

from mooring.gateways.telemetry.instruments import Telemetry
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.records import delivery as deliveries
from mooring.wiring import workers
from mooring.workers.loop import WorkerLoop
from mooring.workers.outbox import OutboxRelay
from server.tests.conftest import World
from server.tests.support.http_receiver import Received, Receiver, Reply, answer, http, made, never, receiver, verifies
from server.tests.support.later_clock import ShiftedClock
from server.tests.support.outbox_site import Outbox

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, webhook_allow_networks="127.0.0.0/8", webhook_timeout_seconds=60.0, webhook_attempts_max=3)


@pytest.fixture
async def outbox(world: World) -> AsyncIterator[Outbox]:
    made_here = Outbox(world, await world.tenant("acme"))
    yield made_here
    await made_here.relay.close()


@asynccontextmanager
async def receiving(reply: Reply | None = None) -> AsyncIterator[Receiver]:
    async with receiver(reply) as opened:
        yield opened


async def test_an_event_arrives_signed_and_as_the_api_shows_it(outbox: Outbox) -> None:
    async with receiving() as good:
        webhook = await outbox.webhook(good)
        project = await outbox.happens("train")
        (delivery,) = await outbox.until_all("delivered")
    (got,) = good.received
    assert verifies(webhook["signing_key"], got)
    assert (got.headers["webhook-id"], delivery["attempts"], delivery["last_status"]) == (delivery["id"], 1, 204)
    shown = (await outbox.client.get(f"/api/v1/projects/{project}/events?wait=45")).json()["items"][0]
    assert msgspec.json.decode(got.body) == shown
    assert got.headers["x-correlation-id"] == shown["correlation_id"]
    assert re.fullmatch(rf"00-{shown['trace_id']}-[0-9a-f]{{16}}-01", got.headers["traceparent"])


async def test_a_webhook_gets_what_it_asked_for_of_its_place_and_nothing_else(outbox: Outbox) -> None:
    other = await outbox.world.tenant("other")
    async with receiving() as all_of_acme, receiving() as users, receiving() as projects, receiving() as platform:
        first = await outbox.happens("first")
        await outbox.webhook(all_of_acme, "identity.*")
        await outbox.webhook(users, "identity.user.created")
        await made(outbox.client, f"/api/v1/projects/{first}", url=f"http://127.0.0.1:{projects.port}/")
        await made(
            outbox.world.admin,
            "/api/v1/platform",
            url=f"http://127.0.0.1:{platform.port}/",
            event_types=["identity.project.created"],
        )
        await outbox.world.project(other, "foreign")
        await outbox.happens("second")
        await outbox.until_nothing_is_left()
        at_platform = [msgspec.json.decode(each.body) for each in platform.received]
        at_acme = [msgspec.json.decode(each.body) for each in all_of_acme.received]
    assert [each["type"] for each in at_acme] == ["identity.project.created"]
    assert {each["org_id"] for each in at_acme} == {outbox.tenant.id}
    assert users.received == []
    types_of_first = [msgspec.json.decode(each.body)["type"] for each in projects.received]
    assert types_of_first == ["contract.webhook.created"], "a webhook of a project hears of that project only"
    assert {each["org_id"] for each in at_platform} == {outbox.tenant.id, other.id}
    assert [(each["data"], each["data_withheld"]) for each in at_platform] == [({}, True), ({}, True)]


async def test_what_fails_is_tried_again_after_a_growing_pause_under_the_same_id(outbox: Outbox) -> None:
    async with receiving(answer(500)) as flaky:
        await outbox.webhook(flaky)
        await outbox.happens("train")
        await flaky_attempts(outbox, flaky, 1)
        (queued,) = await outbox.listed(status="queued")
        assert (queued["attempts"], queued["last_status"]) == (1, 500)
        assert queued["last_error"] == "the receiver answered 500"
        pause = datetime.fromisoformat(queued["due_at"]) - datetime.fromisoformat(queued["created_at"])
        assert timedelta(seconds=3) < pause < timedelta(seconds=60)
        due_in = await outbox.relay.tick()
        assert due_in is not None
        assert 0 < due_in < 10
        assert len(flaky.received) == 1

        outbox.clock.by = timedelta(seconds=30)
        flaky.reply = answer(200)
        (delivered,) = await outbox.until_all("delivered")
    assert (delivered["attempts"], delivered["last_error"]) == (2, None)
    assert len({each.headers["webhook-id"] for each in flaky.received}) == 1
    assert flaky.received[0].body == flaky.received[1].body


async def flaky_attempts(outbox: Outbox, flaky: Receiver, count: int) -> None:
    async def reached() -> bool:
        return len(flaky.received) >= count and not await outbox.listed(status="claimed")

    await outbox.until(reached)


async def test_a_receiver_that_asks_for_a_pause_gets_it(outbox: Outbox) -> None:
    async with receiving(answer(429, retry_after="600")) as busy:
        await outbox.webhook(busy)
        await outbox.happens("train")
        await flaky_attempts(outbox, busy, 1)
    (queued,) = await outbox.listed(status="queued")
    pause = datetime.fromisoformat(queued["due_at"]) - datetime.fromisoformat(queued["created_at"])
    assert pause > timedelta(seconds=590)


async def test_after_the_last_attempt_it_is_a_dead_letter_and_subscribers_get_the_event(outbox: Outbox) -> None:
    async with receiving(answer(503)) as broken:
        webhook = await outbox.webhook(broken)
        await outbox.happens("train")
        for attempt in (1, 2, 3):
            await flaky_attempts(outbox, broken, attempt)
            outbox.clock.by += timedelta(hours=1)
        (dead,) = await outbox.listed(status="dead")
        assert (dead["attempts"], dead["last_status"]) == (3, 503)
        assert dead["finished_at"] is not None
        outbox.clock.by += timedelta(days=1)
        await outbox.relay.tick()
        await outbox.relay.drain()
        assert len(broken.received) == 3
    trail = (await outbox.client.get(f"{outbox.place}/audit?action=outbox.dead")).json()["items"]
    assert [(row["actor_kind"], row["subject_id"], row["after"]["attempts"]) for row in trail] == [
        ("system", dead["id"], 3)
    ]
    assert trail[0]["correlation_id"] == dead["correlation_id"]
    event = await outbox.event(dead["correlation_id"], "contract.delivery.dead")
    assert event["data"]["webhook_id"] == webhook["id"]
    assert event["subject_id"] == dead["id"]


async def test_a_dead_letter_is_replayed_with_all_attempts_before_it(outbox: Outbox) -> None:
    async with receiving(answer(500)) as broken:
        await outbox.webhook(broken)
        for slug in ("one", "two", "three"):
            await outbox.happens(slug)
        outbox.services = replace(outbox.services, settings=replace(outbox.services.settings, webhook_attempts_max=1))
        outbox.relay = OutboxRelay(outbox.services)
        dead = await outbox.until_all("dead", 3)
        path = f"{outbox.place}/deliveries"
        replayed = await outbox.client.post(f"{path}/{dead[0]['id']}/replay")
        assert (replayed.status_code, replayed.json()["status"], replayed.json()["attempts"]) == (200, "queued", 0)
        assert (await outbox.client.get(f"{path}/{dead[0]['id']}")).json()["status"] == "queued"
        others = await outbox.client.post(f"{path}/replay-dead")
        assert others.json() == {"replayed": 2, "more": False}
        assert (await outbox.client.post(f"{path}/replay-dead")).json() == {"replayed": 0, "more": False}
        broken.reply = answer(200)
        delivered = await outbox.until_all("delivered", 3)
        again = await outbox.client.post(f"{path}/{delivered[0]['id']}/replay")
        assert again.json()["status"] == "queued", "what arrived can be sent again as well"
        await outbox.until_all("delivered", 3)
    assert len(broken.received) == 7
    assert len({each.headers["webhook-id"] for each in broken.received}) == 3
    trail = (await outbox.client.get(f"{outbox.place}/audit?action=outbox.replay")).json()["items"]
    assert [(row["after"] or {}).get("count") for row in trail] == [None, 2, None]


async def test_an_id_that_no_delivery_has_is_not_found(outbox: Outbox) -> None:
    for delivery_id in ("nonsense", f"{'evt_' + '0' * 26}.{'whk_' + '0' * 26}", "replay-deaf"):
        assert (await outbox.client.get(f"{outbox.place}/deliveries/{delivery_id}")).status_code == 404
        assert (await outbox.client.post(f"{outbox.place}/deliveries/{delivery_id}/replay")).status_code == 404


async def test_what_is_being_sent_is_not_replayed(outbox: Outbox) -> None:
    release = asyncio.Event()

    async def when_released(_: Received) -> bytes:
        await release.wait()
        return await answer(200)(_)

    async with receiving(when_released) as slow:
        await outbox.webhook(slow)
        await outbox.happens("train")
        await started(outbox, slow)
        (claimed,) = await outbox.listed(status="claimed")
        assert claimed["allowed_actions"] == []
        refused = await outbox.client.post(f"{outbox.place}/deliveries/{claimed['id']}/replay")
        assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")
        release.set()
        await outbox.until_all("delivered")


async def started(outbox: Outbox, slow: Receiver) -> None:
    """Let the relay begin, and wait until the receiver has the request."""
    async with asyncio.timeout(60):
        while not slow.received:
            await outbox.relay.tick()


async def test_a_slow_receiver_holds_up_nobody_else(outbox: Outbox) -> None:
    async with receiving(never) as stuck, receiving() as good:
        for receiver_ in (stuck, good):
            await outbox.webhook(receiver_)
        for number in range(20):
            await outbox.happens(f"project-{number}")
        await outbox.settled()
        async with asyncio.timeout(60):
            while len(stuck.received) < 8 or len(await outbox.listed(status="delivered")) < 20:
                await outbox.relay.tick()
        assert len(stuck.received) == 8, "one receiver gets a bounded number at once"
        assert len(await outbox.listed(status="claimed")) == 8


async def test_a_paused_webhook_gets_nothing_until_it_is_resumed(outbox: Outbox) -> None:
    async with receiving() as good, receiving() as beside:
        await outbox.webhook(beside)
        webhook = await outbox.webhook(good)
        path = f"{outbox.place}/webhooks/{webhook['id']}"
        await outbox.happens("before")
        await outbox.client.patch(path, json={"enabled": False})
        await outbox.happens("meanwhile")
        await outbox.until_nothing_is_left()
        assert (len(beside.received), good.received) == (2, [])
        await outbox.client.patch(path, json={"enabled": True})
        await outbox.until_nothing_is_left()
    assert [msgspec.json.decode(each.body)["data"]["slug"] for each in good.received] == ["before"]


async def test_a_worker_that_stops_hands_its_leases_back(outbox: Outbox) -> None:
    async with receiving(never) as stuck:
        await outbox.webhook(stuck)
        await outbox.happens("train")
        loop = WorkerLoop(outbox.relay, Telemetry().worker_tick)
        task = asyncio.create_task(loop.run())
        await stuck.wait_for(1)
        loop.stop()
        await asyncio.wait_for(task, 60)
        (queued,) = await outbox.listed()
        assert (queued["status"], queued["attempts"]) == ("queued", 0)
        stuck.reply = answer(200)
        outbox.relay = OutboxRelay(outbox.services)
        await outbox.until_all("delivered")
    assert len({each.headers["webhook-id"] for each in stuck.received}) == 1


async def test_a_relay_that_lost_its_lease_writes_nothing(outbox: Outbox) -> None:
    release = asyncio.Event()

    async def fails_late(got: Received) -> bytes:
        await release.wait()
        return await answer(500)(got)

    async with receiving(fails_late) as slow:
        await outbox.webhook(slow)
        await outbox.happens("train")
        await started(outbox, slow)
        slow.reply = answer(200)
        later = replace(outbox.services, clock=ShiftedClock(timedelta(minutes=5)))
        other = OutboxRelay(later)
        async with asyncio.timeout(60):
            while not await outbox.listed(status="delivered"):
                await other.tick()
                await other.drain()
        (before,) = await outbox.listed()
        release.set()
        await outbox.relay.drain()
        (after,) = await outbox.listed()
    assert after == before
    assert (after["status"], after["attempts"]) == ("delivered", 2)


async def test_two_workers_side_by_side_send_everything_once(outbox: Outbox) -> None:
    async with receiving() as good:
        await outbox.webhook(good)
        for number in range(30):
            await outbox.happens(f"project-{number}")
        other = OutboxRelay(outbox.services)

        async def all_there() -> bool:
            await other.tick()
            await other.drain()
            return len(await outbox.listed(status="delivered")) == 30

        await outbox.until(all_there)
    assert len(good.received) == 30
    assert len({each.headers["webhook-id"] for each in good.received}) == 30


async def test_an_address_that_was_good_once_is_checked_again_at_each_attempt(outbox: Outbox) -> None:
    async with receiving() as inside:
        await outbox.webhook(inside)
        await outbox.services.database.fetch(PLATFORM, "UPDATE webhook SET url = 'https://169.254.169.254/'")
        await outbox.happens("train")

        async def tried() -> bool:
            return any(each["attempts"] for each in await outbox.listed(status="queued"))

        await outbox.until(tried)
        (queued,) = await outbox.listed()
    assert "link-local" in queued["last_error"]
    assert inside.received == []


async def test_a_worker_killed_in_the_middle_of_a_delivery_loses_nothing(outbox: Outbox) -> None:
    """`kill -9` while the receiver has the message: when the lease has run out it comes again, under the same id."""
    settings = outbox.world.running.settings
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MOORING_")},
        "MOORING_DATABASE_URL": settings.database_url,
        "MOORING_DATABASE_CONNECT_TIMEOUT_SECONDS": "60",
        "MOORING_MASTER_KEY_FILE": settings.master_key_file,
        "MOORING_WEBHOOK_ALLOW_NETWORKS": settings.webhook_allow_networks,
        "MOORING_WEBHOOK_TIMEOUT_SECONDS": "60",
    }
    async with receiving(never) as stuck:
        webhook = await outbox.webhook(stuck)
        await outbox.happens("train")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "server.tests.support.loopback_egress",
            "worker",
            env=environment,
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await stuck.wait_for(1)
        finally:
            process.send_signal(signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
        (claimed,) = await outbox.listed()
        assert claimed["status"] == "claimed"
        await outbox.relay.tick()
        assert (await outbox.listed())[0]["status"] == "claimed", "the lease still holds"

        stuck.reply = answer(200)
        outbox.clock.by = timedelta(minutes=5)
        (delivered,) = await outbox.until_all("delivered")
    assert delivered["attempts"] == 2
    assert [each.headers["webhook-id"] for each in stuck.received] == [claimed["id"]] * 2
    assert all(verifies(webhook["signing_key"], each) for each in stuck.received)


async def test_a_delivery_whose_workers_always_die_ends_as_a_dead_letter(outbox: Outbox) -> None:
    async with receiving(never) as stuck:
        await outbox.webhook(stuck)
        await outbox.happens("train")
        await outbox.services.database.fetch(PLATFORM, "UPDATE delivery SET attempts = 3")
        (dead,) = await outbox.until_all("dead")
    assert (stuck.received, dead["last_error"]) == ([], "the last attempt did not finish")


async def test_a_running_platform_delivers_by_itself(outbox: Outbox) -> None:
    async with receiving() as good:
        await outbox.webhook(good)
        async with workers(outbox.world.running.platform, Telemetry()):
            for slug in ("one", "two", "three"):
                await outbox.happens(slug)
            await good.wait_for(3)
            async with asyncio.timeout(60):  # until it is written down, too
                while len(await outbox.listed(status="delivered")) < 3:
                    pass
    assert len(good.received) == 3


async def test_what_is_under_way_when_the_relay_stops_is_written_down(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooring.workers.outbox.GRACE_SECONDS", 60.0)
    owed = asyncio.Event()

    async def gated(_: Received) -> bytes:
        await owed.wait()
        return http(204)

    async with receiving(gated) as slow:
        await outbox.webhook(slow)
        await outbox.happens("train")
        async with asyncio.timeout(60):
            while not slow.received:
                await outbox.relay.tick()
        stopping = asyncio.create_task(outbox.relay.close())
        for _ in range(3):  # each takes many turns of the loop, in which a relay without grace would have given up
            assert [each["status"] for each in await outbox.listed()] == ["claimed"]
        assert not stopping.done()
        owed.set()
        await stopping
    (delivered,) = await outbox.listed()
    assert (delivered["status"], delivered["attempts"], delivered["last_status"]) == ("delivered", 1, 204)


async def test_deliveries_are_listed_newest_first_by_status_and_webhook_in_pages(outbox: Outbox) -> None:
    async with receiving() as good:
        first, second = await outbox.webhook(good), await outbox.webhook(good)
        for number in range(3):
            await outbox.happens(f"project-{number}")
        listed = await outbox.listed()
        assert [each["id"] for each in listed] == sorted((each["id"] for each in listed), reverse=True)
        assert len(listed) == 6
        assert {each["webhook_id"] for each in await outbox.listed(webhook_id=second["id"])} == {second["id"]}
        page = (await outbox.client.get(f"{outbox.place}/deliveries", params={"limit": 4})).json()
        rest = (await outbox.client.get(f"{outbox.place}/deliveries", params={"cursor": page["next_cursor"]})).json()
        assert [each["id"] for each in page["items"] + rest["items"]] == [each["id"] for each in listed]
        unknown = await outbox.client.get(f"{outbox.place}/deliveries", params={"status": "lost"})
        assert unknown.status_code == 422
        elsewhere = await _elsewhere(outbox, listed[0]["id"])
        assert elsewhere == [404, 404]
        assert first["id"] != second["id"]


async def _elsewhere(outbox: Outbox, delivery_id: str) -> list[int]:
    """Whether another tenant's admin, or the platform's, sees the delivery."""
    other = await outbox.world.tenant("other")
    seen: list[httpx.Response] = [
        await outbox.world.client(other.token).get(f"/api/v1/tenants/{other.id}/deliveries/{delivery_id}"),
        await outbox.world.admin.get(f"/api/v1/platform/deliveries/{delivery_id}"),
    ]
    return [each.status_code for each in seen]


async def test_every_listing_statement_prepares(outbox: Outbox) -> None:
    async with outbox.services.database.connection(PLATFORM) as connection:
        for statement in (*deliveries.LISTS.values(), *deliveries.DEAD.values()):
            await connection.prepare(statement)
