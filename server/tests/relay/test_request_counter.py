"""The proxy's own counter: each answered request is usage once, if the manifest says that the proxy counts it."""

from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from mooring.commands.money import proxy_requests
from mooring.relay.request_counter import RequestCounter
from mooring.storage.kernel.database import PLATFORM
from mooring.wiring import relay
from server.tests.conftest import World
from server.tests.relay.test_proxy import BrowserWithSession
from server.tests.support.manifests import oci
from server.tests.support.relay_peers import PlatformWithRelay, platform_with_relay

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

UNITS = [{"unit": "request", "title": "Requests", "counted_by": "proxy", "covered_by_allocation": True}]
USED = """
SELECT sum(quantity)::int, count(*), min(unit), min(billing), min(usage_source) FROM usage_record
 WHERE instance_id = $1"""


async def _instance_of(platform: PlatformWithRelay, **manifest: Any) -> str:
    """Make the endpoint one of an instance whose app has this manifest."""
    rows = platform.project_rows
    rows = replace(rows, app_id=await rows.app("paged"), account_id=await rows.birth("service_account"))
    rows = replace(rows, version_id=await rows.birth("app_version", manifest=oci(usage_units=UNITS) | manifest))
    instance_id = await rows.birth("instance")
    async with rows.database.connection(PLATFORM) as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        statement = "UPDATE task SET instance_id = $1 WHERE id = $2"
        await connection.execute(statement, instance_id, platform.app.endpoint_id)
    return instance_id


async def test_answered_requests_are_usage_once_whatever_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    database = world.running.platform.services.database
    counters: list[RequestCounter] = []
    monkeypatch.setattr(RequestCounter, "__init__", _seen_by(counters, RequestCounter.__init__))
    async with relay(world.running.platform) as listening, platform_with_relay(world, listening) as platform:
        instance_id = await _instance_of(platform)
        browser = BrowserWithSession(platform, await platform.session())
        await browser.fetch()
        await browser.fetch(said=b"HTTP/1.1 500 It Broke\r\nContent-Length: 0\r\n\r\n")
        refused = await platform.line()
        await refused.ask(platform.host(), Cookie="none=1")
        assert (await refused.answer()).status == 401
        with monkeypatch.context() as broken:
            broken.setattr(proxy_requests, "take_readings", _no_database)
            with pytest.raises(asyncpg.PostgresError):
                await counters[0].report()
        for _ in range(2):
            await counters[0].report()
            assert tuple(await database.fetchrow(PLATFORM, USED, instance_id) or ())[:2] == (2, 1)
        await browser.fetch()
    # The end of the relay reports what was counted since.
    found = await database.fetchrow(PLATFORM, USED, instance_id)
    assert tuple(found or ()) == (3, 2, "request", "covered", "meter_reading")


async def test_requests_of_an_app_that_does_not_ask_for_it_are_not_counted(world: World) -> None:
    database = world.running.platform.services.database
    async with relay(world.running.platform) as listening, platform_with_relay(world, listening) as platform:
        instance_id = await _instance_of(platform, usage_units=[{"unit": "request", "title": "Requests"}])
        await BrowserWithSession(platform, await platform.session()).fetch()
    assert (await database.fetchrow(PLATFORM, USED, instance_id) or (1, 1))[1] == 0


def _seen_by(counters: list[RequestCounter], made: Any) -> Any:
    def initialize(self: RequestCounter, *values: Any) -> None:
        made(self, *values)
        counters.append(self)

    return initialize


def _no_database(*_: object) -> None:
    raise asyncpg.PostgresError("the connection is gone")
