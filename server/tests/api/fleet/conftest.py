"""Fixtures of the node plane's tests."""

from collections.abc import AsyncIterator

import pytest

from server.tests.conftest import World
from server.tests.support.node_site import NodeSite, a_site


@pytest.fixture
async def site(world: World) -> AsyncIterator[NodeSite]:
    """A project with an allocation on a joined machine whose agent is played."""
    async with a_site(world) as made:
        yield made
