"""The adapters' site, on a platform of the test's own."""

from collections.abc import AsyncIterator

import pytest

from server.tests.conftest import World
from server.tests.support.adapter_site import AdapterSite, open_adapter_site


@pytest.fixture
async def site(world: World) -> AsyncIterator[AdapterSite]:
    """A project with an app's operator account."""
    async with open_adapter_site(world) as made:
        yield made
