"""What the tests of the embedded PostgreSQL share: a place for data, a log, a process to kill."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mooring.embedded.binaries import find_installation
from mooring.embedded.cluster import ClusterLayout
from mooring.embedded.errors import BinariesMissing
from mooring.embedded.processes import account_for, wait_until_gone

CHILD = Path(__file__).with_name("child.py")


class Remembered:
    """A log that keeps its entries."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.entries.append((event, fields))

    warning = info
    error = info

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.entries]


@pytest.fixture(autouse=True)
def _postgresql_is_there() -> None:
    try:
        find_installation()
    except BinariesMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def log() -> Remembered:
    return Remembered()


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory that other accounts may pass through, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="mooring-embedded-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        layout = ClusterLayout(path)
        if layout.cluster.exists():  # a supervisor that was killed has left a server that is still ending
            wait_until_gone(layout.cluster_name(), account_for(layout.cluster), timeout_seconds=30)
        shutil.rmtree(path)


Child = subprocess.Popen[str]


@pytest.fixture
def start_child() -> Iterator[Callable[..., Child]]:
    """Starts another process that supervises a server in the directory it is given."""
    children: list[Child] = []

    def start(data_directory: Path, *arguments: str) -> Child:
        command = [sys.executable, str(CHILD), str(data_directory), *arguments]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        return child

    yield start
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.communicate()
