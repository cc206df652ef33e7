"""A sweep never takes for a stray what is being made while it looks."""

import time
from collections.abc import Collection, Sequence

import httpx
import pytest

from agent.tests.support.fake_platform import ALLOCATION, AUDIENCE, CREATE, NODE, Hand
from mooring_agent.agent import Agent, AgentParts
from mooring_agent.control_plane.keys import Identity, make_keys
from mooring_agent.hosts.contract import Stray
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.journal import Journal

pytestmark = pytest.mark.anyio


def knows_nothing(request: httpx.Request) -> httpx.Response:
    """A platform that has no allocation on this node."""
    if request.url.path.endswith("/oauth/token"):
        return httpx.Response(200, json={"access_token": "token", "expires_in": 600})
    return httpx.Response(200, json={"allocations": []})


async def test_a_sandbox_that_is_made_during_a_sweep_is_not_reaped_by_it_but_by_the_next_one() -> None:
    host, hand, journal = SimulatedHost(), Hand(), Journal(":memory:")
    made: list[str] = []

    async def meanwhile(known: Collection[str]) -> Sequence[Stray]:
        """The platform has been asked; now a task comes, and is done at once."""
        if not made:
            agent.executor.accept(hand.task("sandbox.create", CREATE))
            await agent.executor.wait_until_idle()
            made.extend(await host.recover())
        return []

    parts = AgentParts(
        Identity("http://platform.example", NODE, AUDIENCE, ()),
        make_keys(),
        host,
        journal,
        dict,
        time.time,
        transport=httpx.MockTransport(knows_nothing),
        sweeps=(meanwhile,),
    )
    agent = Agent(parts)
    await agent.sweep()
    assert made == [ALLOCATION]
    assert await host.recover() == [ALLOCATION]
    await agent.sweep()
    assert await host.recover() == []
    await agent.executor.stop()
    await agent.client.close()
    journal.close()
