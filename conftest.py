"""What every test of the project shares: asynchronous tests run on asyncio, and those that wait are dealt out."""

import gc
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent
WAITING: Final = (
    ("tests/e2e/slurm/test_adapter_dies.py", "tests/e2e/slurm/test_accounting.py"),
    ("tests/e2e/slurm", "adapters/slurm/tests/real"),
    ("tests/e2e",),
)
"""Tests that mostly wait, in chains of about one length; a chain shares what is costly to make."""
NEW_OBJECTS: Final = 20_000
"""A worker holds much for good: with 700, the usual number, a fourteenth of its time went into looking for garbage."""


def pytest_configure() -> None:
    """Rarely look for garbage. And let SIGINT through: a run in a shell's background ignores it, and so would every
    program that a test means to interrupt.
    """
    gc.set_threshold(NEW_OBJECTS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several workers share the tests, each begins with another chain: they get equal parts, in this order."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = dealt(items, [chain_of(each.path) for each in items], workers)


def chain_of(path: Path) -> int | None:
    """The chain that a test is in, if it is in one."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return next((number for number, chain in enumerate(WAITING) if name.startswith(chain)), None)


def dealt(items: Sequence[pytest.Item], chains: Sequence[int | None], workers: int) -> list[pytest.Item]:
    """The same tests, with a chain at the beginning of each worker's part but the last one's."""
    heads: list[list[pytest.Item]] = [[] for _ in range(max(workers - 1, 1))]
    others: list[pytest.Item] = []
    for item, chain in zip(items, chains, strict=True):
        (others if chain is None else heads[chain % len(heads)]).append(item)
    rest = iter(others)
    return [*_parts(heads, rest, len(items) // workers), *rest]


def _parts(heads: list[list[pytest.Item]], rest: Iterator[pytest.Item], size: int) -> Iterator[pytest.Item]:
    for head in heads:
        yield from head
        yield from islice(rest, max(size - len(head), 0))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests and fixtures, one for the whole session of a worker."""
    return "asyncio"
