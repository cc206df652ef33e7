"""A test that uses `driven` runs twice: with the blocking client and with the one for asyncio."""

import pytest

from sdk.tests.support.fake_platform import Driven


@pytest.fixture(params=["sync", "async"])
def driven(request: pytest.FixtureRequest) -> Driven:
    """One of the two clients."""
    return Driven(request.param)
