"""What a tenant's users got for the relay counts only from the networks that the tenant allows."""

import asyncio
from dataclasses import replace

import pytest

from mooring.relay.listener import Relay
from server.tests.support.relay_peers import PlatformWithRelay
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]
OUTSIDE = "127.9.9.9"


async def limit(platform: PlatformWithRelay, *networks: str) -> None:
    path = f"/api/v1/tenants/{platform.tenant.id}/source-networks"
    answer = await platform.world.admin.put(path, json={"networks": list(networks), "force": True})
    assert answer.status_code == 200, answer.text


async def test_a_stolen_ticket_link_or_session_is_worth_nothing_elsewhere(platform: PlatformWithRelay) -> None:
    session = await platform.session()
    ticket, command, link = await platform.ticket(), await platform.command("id"), await platform.ticket("open")
    await limit(platform, "127.0.0.0/24")
    thief = replace(platform, local_address=OUTSIDE)
    assert (await thief.visit(ticket))[0] == 403
    assert (await thief.visit(command))[0] == 403
    opened = await thief.open_link(link)
    assert (opened.status, opened.all("set-cookie")) == (403, [])
    line = await thief.line()
    await line.ask(platform.host(), "/", Cookie=session)
    assert (await line.answer()).status == 403
    services = platform.world.running.platform.services
    await services.denials.flush(services.database, everything=True)
    trail = (await platform.people.get(f"/api/v1/tenants/{platform.tenant.id}/audit")).json()["items"]
    denied = [each for each in trail if each["remote_address"] == OUTSIDE and each["outcome"] == "denied"]
    assert sum(each["count"] for each in denied) == 4
    assert {each["project_id"] for each in denied} == {platform.project_id}
    assert (await platform.open_link(link)).status == 303, "the link was not used up, and its owner may use it"


async def test_a_session_that_is_known_is_not_taken_along(platform: PlatformWithRelay) -> None:
    """The relay keeps a session in memory for some seconds: it does not count from everywhere for so long."""
    await limit(platform, "127.0.0.0/24")
    session = await platform.session()
    line = await platform.line()
    await line.ask(platform.host(), "/", Cookie=session)
    tunnel = await platform.tunnel()
    await (await tunnel.inside()).serve()
    assert (await line.answer()).status == 200
    line = await replace(platform, local_address=OUTSIDE).line()
    await line.ask(platform.host(), "/", Cookie=session)
    assert (await line.answer()).status == 403


async def test_a_connection_that_is_open_ends_when_its_address_is_no_longer_allowed(
    platform: PlatformWithRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Relay, "poll_interval_seconds", 0.05)
    viewer, _, tunnel = await platform.connected()
    await limit(platform, "192.0.2.0/24")
    async with asyncio.timeout(20):
        while (frame := await viewer.next()) is not None:
            if b"caller_address_denied" in frame.data:
                break
    assert frame is not None
    await until(lambda: viewer.reader.at_eof(), 20)
    assert tunnel.frames is not None
