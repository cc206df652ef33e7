"""Webhooks through the public API on a real database, with a real receiver on loopback."""

import asyncio
import base64
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import TenantWithAdmin, World, running_platform
from server.tests.support.http_receiver import NOBODY as URL
from server.tests.support.http_receiver import answer, made, never, receiver, verifies

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The second loopback address is allowed; the first one, where the platform listens, is not."""
    return replace(settings, webhook_allow_networks="127.0.0.2/32", webhook_timeout_seconds=60.0)


async def places(world: World) -> list[tuple[httpx.AsyncClient, str]]:
    """A place of each kind, and somebody who may do everything there."""
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    admin = world.client(acme.token)
    return [
        (world.admin, "/api/v1/platform"),
        (admin, f"/api/v1/tenants/{acme.id}"),
        (admin, f"/api/v1/projects/{project}"),
    ]


async def test_in_each_kind_of_place_a_webhook_is_made_read_changed_and_deleted(world: World) -> None:
    for client, place in await places(world):
        webhook = await made(client, place, event_types=["identity.*"], description="mine")
        path = f"{place}/webhooks/{webhook['id']}"
        assert len(base64.b64decode(webhook["signing_key"].removeprefix("whsec_"))) == 32
        shown = (await client.get(path)).json()
        assert "signing_key" not in shown
        assert (shown["url"], shown["enabled"], shown["revision"]) == (URL, True, 0)
        assert shown["allowed_actions"] == ["webhook.delete", "webhook.update"]
        listed = (await client.get(f"{place}/webhooks")).json()["items"]
        assert [each["id"] for each in listed] == [webhook["id"]]

        changed = await client.patch(path, json={"enabled": False, "event_types": [], "revision": 0})
        assert (changed.json()["enabled"], changed.json()["event_types"], changed.json()["revision"]) == (False, [], 1)
        stale = await client.patch(path, json={"enabled": True, "revision": 0})
        assert (stale.status_code, stale.json()["code"]) == (409, "revision_conflict")
        assert (await client.delete(path)).status_code == 204
        assert (await client.get(path)).status_code == 404


async def test_each_place_has_its_own_webhooks_and_nobody_elses(world: World) -> None:
    everywhere = await places(world)
    ids = [(await made(client, place))["id"] for client, place in everywhere]
    for number, (client, place) in enumerate(everywhere):
        for other, webhook_id in enumerate(ids):
            found = (await client.get(f"{place}/webhooks/{webhook_id}")).status_code
            assert found == (200 if other == number else 404)


async def test_the_key_is_shown_once_and_again_for_a_repeat_of_the_same_request(world: World) -> None:
    acme = await world.tenant("acme")
    client, path = world.client(acme.token), f"/api/v1/tenants/{acme.id}/webhooks"
    first, again = [await client.post(path, json={"url": URL}, headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    database = world.running.platform.services.database
    key = base64.b64decode(first.json()["signing_key"].removeprefix("whsec_"))
    for row in await database.fetch(PLATFORM, "SELECT ciphertext, wrapped_key FROM secret"):
        assert key not in row["ciphertext"] + row["wrapped_key"]
    assert [row["body"] for row in await database.fetch(PLATFORM, "SELECT body FROM idempotency")] == [b""]


REFUSED = {
    "https://127.0.0.1/": "address_refused",
    "https://localhost/": "address_refused",
    "https://[::1]/": "address_refused",
    "https://[::ffff:127.0.0.1]/": "address_refused",
    "https://0.0.0.0/": "address_refused",
    "https://169.254.169.254/latest/": "address_refused",
    "https://10.1.2.3/": "address_refused",
    "http://8.8.8.8/": "address_refused",
    "https://2130706433/": "validation_failed",
    "https://0177.0.0.1/": "validation_failed",
    "https://0x7f.1/": "validation_failed",
    "https://user:secret@example.org/": "validation_failed",
    "https://example.org/#x": "validation_failed",
    "ftp://example.org/": "validation_failed",
}


async def test_an_address_that_tenants_may_not_reach_is_refused_at_creation_and_at_change(world: World) -> None:
    webhook = await made(world.admin, "/api/v1/platform")
    path = f"/api/v1/platform/webhooks/{webhook['id']}"
    for url, code in REFUSED.items():
        created = await world.admin.post("/api/v1/platform/webhooks", json={"url": url})
        changed = await world.admin.patch(path, json={"url": url})
        for answered in (created, changed):
            assert (answered.status_code, answered.json()["code"]) == (422, code), url
            assert "secret" not in answered.text
    assert (await world.admin.get(path)).json()["url"] == URL


async def test_an_internationalized_name_is_kept_in_ascii(world: World) -> None:
    webhook = await made(world.admin, "/api/v1/platform", url="https://bücher.invalid/")
    assert webhook["url"] == "https://xn--bcher-kva.invalid/"


async def test_an_unknown_type_is_refused(world: World) -> None:
    body = {"url": URL, "event_types": ["identity.unheard_of"]}
    answered = await world.admin.post("/api/v1/platform/webhooks", json=body)
    assert (answered.status_code, answered.json()["details"]) == (422, {"path": "event_types"})


async def test_a_place_has_at_most_fifty_webhooks(world: World) -> None:
    for _ in range(50):
        await made(world.admin, "/api/v1/platform")
    answered = await world.admin.post("/api/v1/platform/webhooks", json={"url": URL})
    assert (answered.status_code, answered.json()["code"]) == (409, "limit_reached")


async def test_a_ping_is_signed_and_its_outcome_is_published_and_audited(world: World) -> None:
    async with receiver(host="127.0.0.2") as good:
        webhook = await made(world.admin, "/api/v1/platform", url=f"http://127.0.0.2:{good.port}/hook?t=s3cret")
        path = f"/api/v1/platform/webhooks/{webhook['id']}"
        tested = await world.admin.post(f"{path}/test", headers={"X-Correlation-ID": "try-1"})
        assert tested.json()["delivered"], tested.text
        assert tested.json()["status"] == 204
        (got,) = good.received
        assert verifies(webhook["signing_key"], got)
        assert got.line == "POST /hook?t=s3cret HTTP/1.1"
        assert (got.headers["x-correlation-id"], got.headers["content-type"]) == ("try-1", "application/json")

        good.reply = answer(302, location="http://127.0.0.1/")
        assert "redirects are not followed" in (await world.admin.post(f"{path}/test")).json()["error"]
        good.reply = never
        services = world.running.platform.services
        object.__setattr__(services, "settings", replace(services.settings, webhook_timeout_seconds=2.0))
        assert "no complete answer within 2 s" in (await world.admin.post(f"{path}/test")).json()["error"]
    refused = (await world.admin.post(f"{path}/test")).json()
    assert (refused["delivered"], refused["error"]) == (False, "no connection could be made")
    trail = (await world.admin.get("/api/v1/platform/audit?action=webhook.update")).json()["items"]
    assert [row["after"]["change"] for row in trail] == ["tested"] * 4
    assert "s3cret" not in str(trail)


async def test_a_rotated_key_signs_beside_the_old_one_and_the_one_before_is_gone(world: World) -> None:
    database = world.running.platform.services.database
    async with receiver(host="127.0.0.2") as good:
        webhook = await made(world.admin, "/api/v1/platform", url=f"http://127.0.0.2:{good.port}/")
        path = f"/api/v1/platform/webhooks/{webhook['id']}"
        keys = [webhook["signing_key"]]
        for _ in range(2):
            rotated = await world.admin.post(f"{path}/rotate-key")
            assert rotated.status_code == 200, rotated.text
            keys.append(rotated.json()["signing_key"])
        await world.admin.post(f"{path}/test")
        (got,) = good.received
        assert [verifies(key, got) for key in keys] == [False, True, True]
        kept = await database.fetch(PLATFORM, "SELECT FROM secret WHERE purpose = 'webhook_key'")
        assert len(kept) == 2
        await database.fetch(
            PLATFORM, "UPDATE secret SET expires_at = now() - interval '1 second' WHERE expires_at IS NOT NULL"
        )
        await world.admin.post(f"{path}/test")
        assert [verifies(key, good.received[1]) for key in keys] == [False, False, True]


async def test_a_deleted_webhook_leaves_neither_its_keys_nor_its_deliveries(world: World) -> None:
    acme = await world.tenant("acme")
    client, place = world.client(acme.token), f"/api/v1/tenants/{acme.id}"
    webhook = await made(client, place)
    await client.post(f"{place}/webhooks/{webhook['id']}/rotate-key")
    await world.project(acme, "train")
    assert len((await client.get(f"{place}/deliveries")).json()["items"]) == 3
    assert (await client.delete(f"{place}/webhooks/{webhook['id']}")).status_code == 204
    assert (await client.get(f"{place}/deliveries")).json()["items"] == []
    database = world.running.platform.services.database
    assert await database.fetch(PLATFORM, "SELECT FROM secret WHERE purpose = 'webhook_key'") == []


async def test_who_may_see_webhooks_and_who_may_change_them(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    project = await world.project(acme, "train")
    place = f"/api/v1/projects/{project}"
    webhook = await made(world.client(acme.token), place)
    path = f"{place}/webhooks/{webhook['id']}"
    viewer = world.client(await world.member(acme, project, "project_viewer", "vera"))
    leader = world.client(await world.member(acme, project, "project_admin", "lea"))
    for who, expected in ((viewer, 403), (leader, 200), (world.client(other.token), 404), (world.admin, 404)):
        assert (await who.get(path)).status_code == expected
        assert (await who.post(f"{path}/rotate-key")).status_code == expected
        assert (await who.get(f"{place}/deliveries")).status_code == expected


async def test_news_of_a_webhook_goes_into_the_stream_and_the_trail_without_its_address(world: World) -> None:
    acme = await world.tenant("acme")
    client, place = world.client(acme.token), f"/api/v1/tenants/{acme.id}"
    webhook = await made(client, place, url=f"{URL}/s3cret")
    path = f"{place}/webhooks/{webhook['id']}"
    await client.patch(path, json={"enabled": False})
    await client.post(f"{path}/rotate-key")
    await client.delete(path)
    events = await _events_about(client, acme, webhook["id"])
    assert [(each["type"], each["data"].get("change")) for each in events] == [
        ("contract.webhook.created", None),
        ("contract.webhook.updated", "paused"),
        ("contract.webhook.updated", "re-keyed"),
        ("contract.webhook.deleted", None),
    ]
    trail = (await client.get(f"{place}/audit")).json()["items"]
    about = [row for row in trail if row["noun"] == "webhook"]
    assert [row["action"] for row in reversed(about)] == [
        "webhook.create",
        "webhook.update",
        "webhook.update",
        "webhook.delete",
    ]
    assert "s3cret" not in str(events) + str(trail)
    assert "whsec_" not in str(events) + str(trail)


async def _events_about(client: httpx.AsyncClient, tenant: TenantWithAdmin, subject_id: str) -> list[dict[str, Any]]:
    """The events of one subject, once the last of them is behind the horizon."""
    path, cursor, found = f"/api/v1/tenants/{tenant.id}/events", "", list[dict[str, Any]]()
    async with asyncio.timeout(120):
        while not found or found[-1]["type"] != "contract.webhook.deleted":
            page = (await client.get(path, params={"wait": 20, **({"cursor": cursor} if cursor else {})})).json()
            found += [each for each in page["items"] if each["subject_id"] == subject_id]
            cursor = page["next_cursor"] or cursor
    return found


def shown_in_the_documentation() -> dict[str, Any]:
    """What the page's Python code defines."""
    text = (Path(__file__).resolve().parents[4] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    defined: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], defined)
    return defined


async def test_the_check_that_the_documentation_shows_accepts_a_message_and_nothing_else(world: World) -> None:
    verify = shown_in_the_documentation()["verify"]
    async with receiver(host="127.0.0.2") as good:
        webhook = await made(world.admin, "/api/v1/platform", url=f"http://127.0.0.2:{good.port}/")
        await world.admin.post(f"/api/v1/platform/webhooks/{webhook['id']}/test")
    (got,) = good.received
    key = webhook["signing_key"]
    assert verify(key, got.headers, got.body)
    assert not verify(key, got.headers, got.body + b" ")
    assert not verify("whsec_" + base64.b64encode(b"another key").decode(), got.headers, got.body)
    assert not verify(key, {**got.headers, "webhook-timestamp": "1700000000"}, got.body)


def address_of_this_machine() -> str:
    """The address from which this machine would call the outside, if it has one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


async def test_a_network_that_the_admin_allows_does_not_open_the_platform_itself(settings: Settings) -> None:
    """A tenant names the platform, its database and a cloud's metadata, which the allowed network contains."""
    everything = replace(settings, webhook_allow_networks="0.0.0.0/0, ::/0")
    async with running_platform(everything, dials_loopback=False) as running:
        world = World(running, running.client())
        world.admin.headers["Authorization"] = f"Bearer {await world.sign_in('admin@mooring.local', running.code)}"
        acme = await world.tenant("acme")
        client, path = world.client(acme.token), f"/api/v1/tenants/{acme.id}/webhooks"
        targets = [
            f"{running.url}/api/v1/sign-in",
            "http://127.0.0.2/",
            "https://localhost/",
            "http://[::1]:5432/",
            "http://[::ffff:127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[fd00:ec2::254]/",
            "http://168.63.129.16/",
            "http://0.0.0.0/",
            f"http://{address_of_this_machine()}/",
        ]
        for url in targets:
            answer = await client.post(path, json={"url": url})
            assert (answer.status_code, answer.json()["code"]) == (422, "address_refused"), url
        receiver_inside = await client.post(path, json={"url": "http://10.20.0.7/hook"})
        assert receiver_inside.status_code == 201, receiver_inside.text
        await world.close()
