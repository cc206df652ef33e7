"""A sweep never takes a sandbox that is just being created for a stray."""

import time
from collections.abc import Collection, Sequence

import httpx
import pytest

from agent.tests.support.fake_platform import ALLOCATION, AUDIENCE, CREATE, NODE, FakePlatform
from mooring_agent.agent import Agent, AgentParts
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.trust import Identity
from mooring_agent.hosts.contract import Stray
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.journal import Journal

pytestmark = pytest.mark.anyio


def knows_nothing(request: httpx.Request) -> httpx.Response:
    """A platform without allocations on this node."""
    if request.url.path.endswith("/oauth/token"):
        return httpx.Response(200, json={"access_token": "token", "expires_in": 600})
    return httpx.Response(200, json={"allocations": []})


async def test_a_sandbox_that_is_made_during_a_sweep_is_not_reaped_by_it_but_by_the_next_one() -> None:
    host, fake_platform, journal = SimulatedHost(), FakePlatform(), Journal(":memory:")
    made: list[str] = []

    async def meanwhile(known: Collection[str]) -> Sequence[Stray]:
        """After the platform responded, a task arrives and is done at once."""
        if not made:
            agent.executor.accept(fake_platform.task("sandbox.create", CREATE))
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
