"""Meter events over HTTP: each stored once, late ones queued, and nothing dropped silently."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from mooring.core.money.meter_event import MeterEvent, content_hash
from mooring.storage.kernel.database import PLATFORM
from server.tests.api.runtime.test_claims import deployed
from server.tests.conftest import World
from server.tests.support.adapter_site import AdapterSite, open_adapter_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]
ROWS = """
SELECT array_agg(event_id || ' ' || quantity ORDER BY event_id) FROM usage_record
 WHERE tenant_id = $1 AND usage_source = 'meter_event'"""


@pytest.fixture
async def site(world: World) -> AsyncIterator[AdapterSite]:
    async with open_adapter_site(world) as opened:
        yield opened


class Sender:
    """A service account that sends usage of one instance."""

    def __init__(self, site: AdapterSite, instance_id: str) -> None:
        self.url = f"/api/v1/projects/{site.project_id}"
        self.client = site.world.client(site.token)
        self.instance_id = instance_id
        self.at: datetime = site.clock.now()

    def event(self, id: str, quantity: float = 2, **changes: Any) -> dict[str, Any]:
        data = {"unit": "tokens", "quantity": quantity} | changes.pop("data", {})
        named = {"specversion": "1.0", "type": "mooring.usage", "source": "//gateway", "id": id}
        return {**named, "subject": self.instance_id, "time": self.at.isoformat(), "data": data, **changes}

    async def send(self, *events: dict[str, Any]) -> httpx.Response:
        return await self.client.post(f"{self.url}/meter-events", json={"events": list(events)})

    async def send_raw(self, body: str, media_type: str) -> httpx.Response:
        headers = {"content-type": media_type}
        return await self.client.post(f"{self.url}/meter-events", content=body, headers=headers)


async def sender_of(site: AdapterSite) -> Sender:
    instance_id, _ = await deployed(site, site.adapter())
    return Sender(site, instance_id)


async def test_an_event_is_stored_once_and_other_content_under_its_id_refuses_the_batch(site: AdapterSite) -> None:
    sender = await sender_of(site)
    first = await sender.send(sender.event("a"), sender.event("b"), sender.event("a"))
    assert first.status_code == 200, first.text
    assert {**first.json(), "batch_id": None} == {"batch_id": None, "accepted": 2, "late": 0, "duplicates": 1}
    again = await sender.send(sender.event("b"), sender.event("c"))
    assert (again.json()["accepted"], again.json()["duplicates"]) == (1, 1)
    nothing = await sender.send(sender.event("c"))
    assert nothing.json() == {"batch_id": None, "accepted": 0, "late": 0, "duplicates": 1}
    other = await sender.send(sender.event("d"), sender.event("a", 3), sender.event("b", 4))
    details = other.json()["details"]
    assert (other.status_code, other.json()["code"], details["conflicts"]) == (409, "conflict", 2)
    shared = ("//gateway", "a", sender.instance_id, "tokens")
    hashes = [content_hash(MeterEvent(*shared, Decimal(each), sender.at, sender.at)) for each in (2, 3)]
    assert details["events"][0] == {
        "index": 1,
        "source": "//gateway",
        "id": "a",
        "stored_hash": hashes[0],
        "sent_hash": hashes[1],
    }
    assert await site.fetch(ROWS, site.tenant.id) == ["a 2", "b 2", "c 2"], "nothing of a refused batch is stored"
    audited = "SELECT count(*) FROM audit WHERE action = 'usage.report' AND noun = 'meter_batch' AND tenant_id = $1"
    assert await site.fetch(audited, site.tenant.id) == 2, "one row for each batch that stored something"


async def test_what_cannot_be_explained_later_refuses_the_batch(site: AdapterSite) -> None:
    sender = await sender_of(site)
    early = (sender.at - timedelta(days=2)).isoformat()
    ahead = (sender.at + timedelta(hours=1)).isoformat()
    nobody = "mem_01jq3v8m5h0000000000000000"
    table: list[tuple[dict[str, Any], int, str]] = [
        ({"data": {"unit": "hours"}}, 422, "events/1/data/unit"),
        ({"time": early}, 422, "events/1/time"),
        ({"time": ahead}, 422, "events/1/time"),
        ({"data": {"started_at": ahead}}, 422, "events/1/time"),
        ({"data": {"component": "nothing"}}, 422, "events/1/data/component"),
        ({"data": {"member_id": nobody}}, 404, "events/1/data/member_id"),
        ({"subject": "ins_01jq3v8m5h0000000000000000"}, 404, "events/1/subject"),
        ({"data": {"attached_project_id": "prj_01jq3v8m5h0000000000000000"}}, 422, "events/1/data/attached_project_id"),
        ({"type": "other"}, 422, "events[1]"),
        ({"data": {"quantity": -1}}, 422, "events[1]"),
    ]
    for change, status, path in table:
        answer = await sender.send(sender.event("fine"), sender.event("wrong", **change))
        assert answer.status_code == status, (change, answer.text)
        assert path in answer.json()["detail"], (change, answer.text)
    meter = """INSERT INTO meter (id, app_slug, unit, billing, status, created_at)
               VALUES ('mtr_disabled', 'hello', 'tokens', 'informative', 'disabled', now())"""
    await site.services.database.fetch(PLATFORM, meter)
    answer = await sender.send(sender.event("fine"))
    assert (answer.status_code, "is disabled" in answer.json()["detail"]) == (422, True)
    await site.services.database.fetch(PLATFORM, "DELETE FROM meter WHERE id = 'mtr_disabled'")
    assert await site.fetch(ROWS, site.tenant.id) is None


async def test_a_batch_may_come_as_an_array_or_with_one_event_per_line(site: AdapterSite) -> None:
    sender = await sender_of(site)
    events = [json.dumps(sender.event(each)) for each in "abc"]
    batch, lines = "application/cloudevents-batch+json", "application/x-ndjson"
    answers = [
        await sender.send_raw("[" + ",".join(events) + "]", batch),
        await sender.send_raw("\n".join(events) + "\n\n", lines),
    ]
    assert [(each.json()["accepted"], each.json()["duplicates"]) for each in answers] == [(3, 0), (0, 3)]
    refused = {"": 422, "{": 400, events[0].replace("tokens", "x" * 100): 422}
    for body, status in refused.items():
        assert (await sender.send_raw(body, lines)).status_code == status, body
    many = "\n".join([events[0]] * 5_001)
    assert (await sender.send_raw(many, lines)).status_code == 422
    assert (await sender.send_raw("x" * 4_200_000, lines)).status_code == 413
    assert (await sender.send_raw(events[0], "text/plain")).status_code == 415


async def test_attribution_of_an_event_reaches_its_usage_record(site: AdapterSite) -> None:
    sender = await sender_of(site)
    member_id, component = await site.services.database.fetchrow(
        PLATFORM, "SELECT id, component_key FROM member WHERE instance_id = $1 LIMIT 1", sender.instance_id
    )
    answer = await sender.send(sender.event("a", data={"member_id": member_id}))
    assert answer.status_code == 200, answer.text
    row = await site.services.database.fetchrow(
        PLATFORM,
        """SELECT project_id, instance_id, app_slug, member_id, component, operating_mode, control_plane_scope,
                  runtime_backend, event_source, correlation_id, batch_id FROM usage_record WHERE event_id = 'a'
              AND tenant_id = $1""",
        site.tenant.id,
    )
    assert tuple(row) == (
        site.project_id,
        sender.instance_id,
        "hello",
        member_id,
        component,
        "tenant_dedicated",
        "project",
        "container",
        "//gateway",
        answer.headers["x-correlation-id"],
        answer.json()["batch_id"],
    )


async def test_late_usage_waits_for_a_person_who_accepts_or_rejects_it_once(site: AdapterSite) -> None:
    sender = await sender_of(site)
    backdated = "UPDATE instance SET created_at = created_at - interval '60 days' WHERE id = $1"
    await site.services.database.fetch(PLATFORM, backdated, sender.instance_id)
    fresh = sender.event("fresh")
    sender.at -= timedelta(days=36)
    late = [sender.event("late"), sender.event("later")]
    answer = await sender.send(*late, fresh)
    assert (answer.json()["accepted"], answer.json()["late"]) == (1, 2), answer.text
    assert (await sender.send(*late)).json()["duplicates"] == 2, "what waits in the queue is stored"
    assert (await sender.send(sender.event("late", 9))).status_code == 409

    people = site.world.client(site.tenant.token)
    listed = (await people.get(f"{sender.url}/late-usage", params={"status": "open"})).json()["items"]
    listed.sort(key=lambda each: each["event_id"])
    assert [each["event_id"] for each in listed] == ["late", "later"]
    accept, reject = (f"{sender.url}/late-usage/{each['id']}" for each in listed)
    robot = await sender.client.post(f"{accept}/accept", json={"reason": "ours"})
    assert robot.status_code == 403, "a person resolves it"
    accepted = await people.post(f"{accept}/accept", json={"reason": "the gateway was offline"})
    assert (accepted.status_code, accepted.json()["status"]) == (200, "accepted"), accepted.text
    rejected = await people.post(f"{reject}/reject", json={"reason": "a test run"})
    assert (rejected.status_code, rejected.json()["status"]) == (200, "rejected"), rejected.text
    for path, verb, status in ((accept, "accept", 200), (accept, "reject", 409), (reject, "accept", 409)):
        body = {"reason": "the gateway was offline"}
        assert (await people.post(f"{path}/{verb}", json=body)).status_code == status, (path, verb)
    assert await site.fetch(ROWS, site.tenant.id) == ["fresh 2", "late 2"]
    when = "SELECT created_at FROM usage_record WHERE id = $1"
    charged = await site.fetch(when, accepted.json()["usage_record_id"])
    assert charged.isoformat() == accepted.json()["resolved_at"].replace("Z", "+00:00"), "charged when it was accepted"
    assert (await people.get(accept)).json()["reason"] == "the gateway was offline"
