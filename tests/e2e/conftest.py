"""Fixtures of the end-to-end tests: the first start, a trace collector, and one platform for all tests of apps."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e import mooring_process
from tests.e2e.full_platform import FullPlatform, running_full_platform
from tests.e2e.trace_collector import TraceCollector, running_trace_collector

HOSTS = ["process", "namespace"] if os.geteuid() == 0 else ["process"]


@pytest.fixture(scope="session", autouse=True)
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the copy of the first start with the temporary files of the run, which pytest clears."""
    own = tmp_path_factory.getbasetemp()
    mooring_process.shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "mooring"


@pytest.fixture(scope="session")
def collector() -> Iterator[TraceCollector]:
    with running_trace_collector() as made:
        yield made


@pytest.fixture(scope="session")
def full_platform(
    tmp_path_factory: pytest.TempPathFactory, shared_place: None, collector: TraceCollector
) -> Iterator[FullPlatform]:
    """A platform with a machine of each host; tests share it: each uses its own names and stops what it launches."""
    directory = tmp_path_factory.mktemp("platform")
    for each in (directory, *directory.parents[:2]):
        each.chmod(0o711)  # sandboxes run as other users and have to pass through
    with running_full_platform(directory, HOSTS, MOORING_OTLP_ENDPOINT=collector.url) as made:
        yield made
