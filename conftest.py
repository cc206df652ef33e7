"""What every test of the project shares: the event loop of asynchronous tests, and the gates that tests belong to."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from tools import gates, soak

ROOT: Final = Path(__file__).resolve().parent
NEW_OBJECTS: Final = 20_000
"""A worker holds much for good: with 700, the usual number, a fourteenth of its time went into looking for garbage."""


def pytest_configure() -> None:
    """Rarely look for garbage. And let SIGINT through: a run in a shell's background ignores it, and so would every
    program that a test means to interrupt.
    """
    gc.set_threshold(NEW_OBJECTS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Like `ci`, no deadline by the clock; unlike it, other examples in every run.
hypothesis.settings.register_profile(soak.PROFILE, deadline=None, derandomize=False, print_blob=True)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its gate and its group, and leave out those of the other gate if a gate runs."""
    table, gate = gates.load(ROOT), os.environ.get(gates.ENVIRONMENT)
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        belongs = table.of(item.nodeid)
        if gates.SYSTEM in belongs:
            item.add_marker(pytest.mark.system)
        if group := table.group_of(item.nodeid):
            item.add_marker(pytest.mark.xdist_group(group))
        (chosen if gate is None or gate in belongs else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Attach to the report of a fuzzer how many inputs it played; whether it passes or fails."""
    soak.take_played()
    try:
        yield
    finally:
        if inputs := soak.take_played():
            item.user_properties.append((soak.INPUTS, inputs))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests and fixtures, one for the whole session of a worker."""
    return "asyncio"
