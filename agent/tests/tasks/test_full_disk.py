"""A full disk stops new work, but neither the agent nor a teardown."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.tests.support.fake_platform import ALLOCATION, CREATE, FakePlatform
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.journal import BALLAST_BYTES, Journal, JournalFull

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk for the test."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={BALLAST_BYTES + 8 * 1_048_576}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a disk of one's own needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk to its last byte."""
    file = disk / f"filler-{time.monotonic_ns()}"
    with file.open("wb", buffering=0) as stuff:
        try:
            while True:
                stuff.write(b"x" * 4_096)
        except OSError:
            return file


def write_much(journal: Journal) -> None:
    """Write more than SQLite can buffer."""
    for number in range(2_000):
        journal.close_owner(f"{ALLOCATION}/{number}", time.time())


async def test_a_teardown_is_written_down_although_the_disk_is_full(disk: Path) -> None:
    journal, fake_platform = Journal(disk / "journal.sqlite"), FakePlatform()
    executor = Executor(SimulatedHost(), journal, make_keys(), time.time, lambda: None)
    assert journal.keep_reserve()
    executor.accept(fake_platform.task("sandbox.create", CREATE))
    await executor.wait_until_idle()
    fill(disk)
    destroy = fake_platform.task("sandbox.destroy")
    executor.accept(destroy)
    await executor.wait_until_idle()
    entry = journal.find(destroy.task_id)
    assert entry is not None
    assert entry.result is not None
    assert entry.result.receipt is not None
    journal.close()


async def test_what_cannot_be_written_down_is_not_done_and_is_taken_up_when_there_is_room(disk: Path) -> None:
    journal, fake_platform = Journal(disk / "journal.sqlite"), FakePlatform()
    executor = Executor(SimulatedHost(), journal, make_keys(), time.time, lambda: None)
    executor.accept(fake_platform.task("sandbox.create", CREATE))
    await executor.wait_until_idle()
    filler = fill(disk)
    assert not journal.keep_reserve()
    with pytest.raises(JournalFull):
        write_much(journal)
    ran = fake_platform.task("process.run", {"argv": ["true"]})
    executor.accept(ran)
    await executor.wait_until_idle()
    assert journal.find(ran.task_id) is None
    filler.unlink()
    executor.accept(
        fake_platform.verifier.verify(
            fake_platform.sign({**fake_platform.payload("process.run", {"argv": ["true"]})}), time.time()
        )
    )
    await executor.wait_until_idle()
    assert journal.keep_reserve()
    journal.close()
