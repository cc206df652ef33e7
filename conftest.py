"""What every test of the project shares: asynchronous tests run on asyncio, and there only."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests and fixtures, one for the whole session of a worker."""
    return "asyncio"
