"""The fixtures of the server's tests that these tests use: a real platform in the test's event loop, on PostgreSQL."""

from server.tests.conftest import (
    anyio_backend,
    database_url,
    running,
    settings,
    shared_database_url,
    shared_platform,
    template,
    world,
)

__all__ = [
    "anyio_backend",
    "database_url",
    "running",
    "settings",
    "shared_database_url",
    "shared_platform",
    "template",
    "world",
]
