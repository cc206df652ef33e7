"""Fixtures of the relay's tests: the real relay on a free port, and both of its sides played."""

from collections.abc import AsyncIterator

import pytest

from mooring.wiring import relay
from server.tests.conftest import World
from server.tests.support.relay_peers import PlatformWithRelay, platform_with_relay


@pytest.fixture
async def platform(world: World) -> AsyncIterator[PlatformWithRelay]:
    """A platform with its relay, an endpoint, and a machine that is played."""
    async with relay(world.running.platform) as listening, platform_with_relay(world, listening) as made:
        yield made
