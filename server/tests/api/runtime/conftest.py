"""A floor for adapters, on a platform of the test's own."""

from collections.abc import AsyncIterator

import pytest

from server.tests.conftest import World
from server.tests.support.adapter_site import AdapterSite, a_floor


@pytest.fixture
async def floor(world: World) -> AsyncIterator[AdapterSite]:
    """A project with an app's operator account."""
    async with a_floor(world) as made:
        yield made
