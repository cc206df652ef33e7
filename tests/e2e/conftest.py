"""What the tests that span all parts share: what is made once in a run, and one harbour for all tests of apps."""

import os
from collections.abc import Iterator

import pytest

from tests.e2e import running
from tests.e2e.collector import Collector, collecting
from tests.e2e.harbour import Harbour
from tests.e2e.harbour import harbour as opened

HOSTS = ["process", "namespace"] if os.geteuid() == 0 else ["process"]


@pytest.fixture(scope="session", autouse=True)
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where what is made once lies: with the temporary files of the run, which pytest clears."""
    own = tmp_path_factory.getbasetemp()
    running.shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "mooring"


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """A collector of traces."""
    with collecting() as made:
        yield made


@pytest.fixture(scope="session")
def harbour(tmp_path_factory: pytest.TempPathFactory, shared_place: None, collector: Collector) -> Iterator[Harbour]:
    """A harbour with a machine of each host, where what a test launches has a name of its own and ends with it."""
    directory = tmp_path_factory.mktemp("harbour")
    for each in (directory, *directory.parents[:2]):
        each.chmod(0o711)  # the machines' sandboxes pass through
    with opened(directory, HOSTS, MOORING_OTLP_ENDPOINT=collector.url) as made:
        yield made
