"""Readings over HTTP: usage is the difference, whatever is repeated, lost or reset; and the laws of all sources."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from mooring.storage.kernel.database import PLATFORM
from mooring.storage.money import meter_event, meter_reading
from mooring.storage.money.law import Law
from server.tests.api.money.test_meter_events import Sender
from server.tests.api.runtime.test_claims import deployed
from server.tests.conftest import World
from server.tests.support.adapter_site import AdapterSite, open_adapter_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]
USED = "SELECT coalesce(sum(quantity), 0) FROM usage_record WHERE instance_id = $1 AND usage_source = 'meter_reading'"


@pytest.fixture
async def site(world: World) -> AsyncIterator[AdapterSite]:
    async with open_adapter_site(world) as opened:
        yield opened


class Meter:
    """One counter of an instance, as its adapter reports it."""

    def __init__(self, site: AdapterSite, instance_id: str, fence: int) -> None:
        self.site, self.adapter = site, site.adapter()
        self.instance_id, self.fence = instance_id, fence
        self.at = site.clock.now().isoformat()

    def reading(self, seq: int, value: float, epoch: int = 1, **changes: Any) -> dict[str, Any]:
        named = {"series": "head/tokens", "unit": "tokens", "at": self.at}
        return {**named, "epoch": epoch, "seq": seq, "value": value, **changes}

    async def send(self, *readings: dict[str, Any]) -> tuple[int, Any]:
        answer = await self.adapter.send(self.instance_id, "readings", self.fence, readings=list(readings))
        return answer.status_code, answer.json()

    async def used(self) -> float:
        return float(await self.site.fetch(USED, self.instance_id))


async def meter_of(site: AdapterSite) -> Meter:
    return Meter(site, *await deployed(site, site.adapter()))


async def test_usage_is_the_difference_of_readings_whatever_is_repeated_lost_or_reset(site: AdapterSite) -> None:
    meter = await meter_of(site)
    table: list[tuple[list[dict[str, Any]], int, int, float]] = [
        ([meter.reading(1, 10)], 1, 0, 0),  # where counting begins
        ([meter.reading(2, 15), meter.reading(3, 20.5)], 2, 0, 10.5),
        ([meter.reading(2, 15), meter.reading(3, 20.5)], 0, 2, 10.5),  # a replay
        ([meter.reading(5, 30)], 1, 0, 20),  # 4 was lost
        ([meter.reading(4, 25)], 0, 1, 20),  # and came after all
        ([meter.reading(6, 30)], 0, 1, 20),  # nothing was used
        ([meter.reading(0, 0, epoch=2), meter.reading(1, 7, epoch=2)], 2, 0, 27),  # the process started again
        ([meter.reading(7, 31)], 1, 0, 28),  # the last reading of the epoch before comes late
    ]
    for readings, stored, unchanged, used in table:
        assert await meter.send(*readings) == (200, {"stored": stored, "unchanged": unchanged}), readings
        assert await meter.used() == used, readings


async def test_a_reading_that_contradicts_what_is_stored_refuses_all_of_them(site: AdapterSite) -> None:
    meter = await meter_of(site)
    await meter.send(meter.reading(1, 10), meter.reading(2, 20))
    long_ago = "2020-01-01T00:00:00Z"
    table: list[tuple[dict[str, Any], int, str]] = [
        (meter.reading(3, 19), 409, "falls inside its epoch"),
        (meter.reading(2, 21), 409, "is stored with another value"),
        (meter.reading(3, 30, unit="hours"), 422, "readings/1/unit"),
        (meter.reading(3, 30, at=long_ago), 422, "readings/1/at"),
        (meter.reading(3, 30, component="nothing"), 422, "readings/1/component"),
    ]
    for wrong, status, detail in table:
        answer = await meter.send(meter.reading(0, 0, epoch=9), wrong)
        assert (answer[0], detail in answer[1]["detail"]) == (status, True), answer
    assert await meter.used() == 10
    other = await meter.adapter.send(meter.instance_id, "readings", meter.fence + 1, readings=[meter.reading(3, 30)])
    assert (other.status_code, other.json()["code"]) == (409, "lease_lost")


async def test_two_writers_of_one_series_never_count_the_same_difference(site: AdapterSite) -> None:
    meter = await meter_of(site)
    await meter.send(meter.reading(0, 0))
    answers = await asyncio.gather(*(meter.send(meter.reading(seq, 10 * seq)) for seq in range(1, 9)))
    assert {status for status, _ in answers} == {200}
    assert await meter.used() == 80


BREAKS = {
    "meter_event_once": """
        DROP INDEX usage_record_event_once;
        INSERT INTO usage_record SELECT (jsonb_populate_record(u, jsonb_build_object('id', u.id || 'x'))).*
          FROM usage_record u WHERE usage_source = 'meter_event'""",
    "meter_batch_adds_up": "UPDATE meter_batch SET accepted = accepted + 1",
    "late_usage_is_resolved_once": "UPDATE late_usage SET quantity = quantity + 1 WHERE status = 'accepted'",
    "meter_reading_adds_up": """
        UPDATE usage_record SET quantity = quantity + 1 WHERE usage_source = 'meter_reading'""",
    "meter_reading_is_the_source": "UPDATE meter_reading SET usage_record_id = NULL WHERE previous_seq IS NULL;"
    " INSERT INTO usage_record SELECT (jsonb_populate_record(u, jsonb_build_object('id', u.id || 'x'))).*"
    " FROM usage_record u WHERE usage_source = 'meter_reading'",
}
"""For each law a change that breaks it, which the triggers and constraints would refuse."""


async def test_each_law_of_the_sources_finds_what_breaks_it(site: AdapterSite) -> None:
    meter = await meter_of(site)
    await meter.send(meter.reading(0, 0), meter.reading(1, 10))
    sender = Sender(site, meter.instance_id)
    await site.services.database.fetch(
        PLATFORM, "UPDATE instance SET created_at = created_at - interval '60 days' WHERE id = $1", meter.instance_id
    )
    late = (sender.at - timedelta(days=40)).isoformat()
    events = [sender.event("a"), sender.event("b", time=late), sender.event("c", time=late)]
    assert (await sender.send(*events)).json()["late"] == 2
    people = site.world.client(site.tenant.token)
    first, _ = (await people.get(f"{sender.url}/late-usage")).json()["items"]
    accepted = await people.post(f"{sender.url}/late-usage/{first['id']}/accept", json={"reason": "it was ours"})
    assert accepted.status_code == 200, accepted.text
    laws = {law.key: law for law in (*meter_event.LAWS, *meter_reading.LAWS)}
    assert set(laws) == set(BREAKS)
    async with site.services.database.connection(PLATFORM) as connection:
        for key, law in laws.items():
            assert await connection.fetchval(law.checked) > 0, key
            assert await connection.fetchval(law.counterexample) is None, key
            assert await broken(connection, law, BREAKS[key]) is not None, key


async def broken(connection: asyncpg.Connection, law: Law, change: str) -> str | None:
    """What the law finds after the change, which is taken back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(change)
        found: str | None = await connection.fetchval(law.counterexample)
        return found
    finally:
        await transaction.rollback()
