"""A test that uses `driven` runs twice: with the blocking client and with the one for asyncio."""

import pytest

from sdk.tests.support.fake_platform import ClientUnderTest


@pytest.fixture(params=["sync", "async"])
def driven(request: pytest.FixtureRequest) -> ClientUnderTest:
    """One of the two clients."""
    return ClientUnderTest(request.param)
