"""The relay's connections are bounded per address, visit and tenant, and a head that never ends is given up."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from mooring.relay import http
from mooring.relay.connection_limits import ConnectionBounds, ConnectionLimits, TooManyConnections
from server.tests.support.relay_peers import NodeTunnel, PlatformWithRelay
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


def bound(platform: PlatformWithRelay, **bounds: int) -> None:
    limits = platform.relay.limits
    limits.bounds = replace(limits.bounds, **bounds)


async def serve(tunnel: NodeTunnel) -> None:
    """The app answers one request."""
    await (await tunnel.inside()).serve()


async def test_strangers_of_one_address_are_bounded_and_known_viewers_are_not_hurt(platform: PlatformWithRelay) -> None:
    session = await platform.session()
    bound(platform, per_address=2)
    known = await platform.line()  # it has a session: it does not count as a stranger any more
    await known.ask(platform.host(), "/", Cookie=session)
    tunnel = await platform.tunnel()
    await serve(tunnel)
    assert (await known.answer()).status == 200
    for line in [await platform.line() for _ in range(2)]:
        await line.send(b"GET ")
    await until(lambda: platform.relay.limits.open >= 4)
    refused = await platform.line()
    answer = await refused.answer()
    assert (answer.status, answer.all("retry-after")) == (429, ["5"])
    await known.ask(platform.host(), "/again", Cookie=session)  # and is served as before
    await serve(tunnel)
    assert (await known.answer()).status == 200


async def test_one_visit_and_one_tenant_have_a_bounded_number_of_connections(platform: PlatformWithRelay) -> None:
    tunnel: NodeTunnel | None = None
    for name in ("per_visit", "per_tenant"):
        bound(platform, per_visit=0, per_tenant=0)
        ticket = await platform.ticket()
        head = {"Connection": "Upgrade", "Upgrade": "mooring-visit", "Authorization": f"Bearer {ticket}"}
        waiting, second = await platform.line(), await platform.line()
        await waiting.ask("relay", "/visits", **head)  # it waits for its node
        await until(lambda: bool(platform.relay.limits._tenants))
        bound(platform, **{name: 1})
        await second.ask("relay", "/visits", **head)
        answer = await second.answer()
        assert (answer.status, answer.all("retry-after")) == (429, ["5"])
        assert json.loads(answer.body)["code"] == "rate_limited"
        tunnel = tunnel or await platform.tunnel()
        await (await tunnel.inside()).accept()
        assert (await waiting.answer()).status == 101
        waiting.writer.close()
        await until(lambda: not platform.relay.limits._tenants)


async def test_a_head_that_never_ends_is_given_up_with_an_answer(
    platform: PlatformWithRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.2)
    line = await platform.line()
    await line.send(b"GET / HTTP/1.1\r\nHost: slow\r\nX-")
    assert (await line.answer()).status == 408
    assert await line.is_over()


async def test_a_sandbox_and_a_project_have_a_bounded_number_of_open_commands(platform: PlatformWithRelay) -> None:
    services = platform.world.running.platform.services

    def most(name: str, number: int) -> None:
        bounds: dict[str, Any] = {name: number}
        object.__setattr__(services, "settings", replace(services.settings, **bounds))

    for name in ("exec_sessions_per_allocation", "exec_sessions_per_project"):
        early, spare = await platform.command("sh"), await platform.command("sh")
        visiting = asyncio.create_task(platform.visit(early))
        tunnel = await platform.tunnel()  # the command is open: its task is claimed
        most(name, 1)
        refused = await platform.people.post(
            f"{platform.path}/allocations/{platform.app.allocation_id}/exec", json={"argv": ["sh"]}
        )
        assert (refused.status_code, refused.json()["code"]) == (409, "limit_reached")
        assert "close one of them first" in refused.json()["detail"]
        assert (await platform.visit(spare))[0] == 409  # a ticket from before does not pass either
        most(name, 0)
        await (await tunnel.inside()).accept()
        assert (await visiting)[0] == 101


def test_addresses_of_one_network_count_together_and_everything_is_given_back() -> None:
    limits = ConnectionLimits(ConnectionBounds(per_address=1, per_visit=1, per_tenant=1))
    first = limits.enter("2001:db8::1")
    with pytest.raises(TooManyConnections):
        limits.enter("2001:db8::ffff:2")
    others = [limits.enter(each) for each in ("2001:db8:1::1", "192.0.2.1", None)]
    with pytest.raises(TooManyConnections):
        limits.enter("::ffff:192.0.2.1")
    first.identify(None)
    limits.enter("2001:db8::3").leave()
    for each in (first, *others):
        each.leave()
    assert (limits.open, limits._strangers, limits._visits, limits._tenants) == (0, {}, {}, {})
