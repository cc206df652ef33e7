"""A tenant who fills a volume gets an error, and the machine's disk is not affected."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooring_agent.containers.volumes import ContainerVolumes
from mooring_agent.hosts.contract import HostFailure, Owner
from mooring_agent.hosts.namespace import sandbox_disk

SIZE = 32 << 20
OWNER, OTHER = Owner("alc_1", "member"), Owner("alc_1", "other")
NEEDS = "a disk of one's own needs root, loop devices and mkfs.ext4"


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[ContainerVolumes]:
    if os.geteuid() != 0 or sandbox_disk.unavailable_reason():
        pytest.skip(NEEDS)
    made = ContainerVolumes(tmp_path / "volumes", SIZE)
    yield made
    for allocation_id in made.holders():
        made.clear(Owner(allocation_id))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert str(tmp_path) not in subprocess.run(["losetup", "--list"], capture_output=True, text=True).stdout


def fill(directory: Path) -> int:
    """Write until it fails; returns how much was written."""
    written = 0
    with (directory / "fill").open("wb", buffering=0) as file:
        try:
            while written < 8 * SIZE:
                written += file.write(bytes(1 << 20))
        except OSError:
            pass
    return written


def test_what_containers_of_an_allocation_write_has_one_limit(volumes: ContainerVolumes, tmp_path: Path) -> None:
    data = volumes.provide(OWNER, "data", writable=True)
    assert SIZE // 2 < fill(data) < SIZE
    assert fill(volumes.provide(OTHER, "more", writable=True)) < 1 << 20, "another owner's volume is on the same disk"
    neighbour = Owner("alc_2", "member")
    assert fill(volumes.provide(neighbour, "data", writable=True)) > SIZE // 2
    assert volumes.provide(OWNER, "data", writable=False) == data, "one volume, however it is mounted"
    # The next agent finds it, also after the machine was restarted.
    subprocess.run(["umount", tmp_path / "volumes/alc_1/disk"], check=True)
    later = ContainerVolumes(tmp_path / "volumes", SIZE)
    assert (later.provide(OWNER, "data", writable=False) / "fill").exists()
    assert later.clear(OWNER)
    assert not later.clear(OWNER)
    assert fill(later.provide(OTHER, "more", writable=True)) > SIZE // 2, "what was removed is room again"


def test_artifacts_that_are_only_read_take_no_room_and_are_copied_for_a_container_that_writes(
    volumes: ContainerVolumes, tmp_path: Path
) -> None:
    artifact = tmp_path / "artifact"
    artifact.write_bytes(b"weights")
    volumes.add_artifact(OWNER, "model", artifact, "weights")
    read = volumes.provide(OWNER, "model", writable=False) / "weights"
    assert read.stat().st_ino == artifact.stat().st_ino
    written = volumes.provide(OWNER, "model", writable=True)
    assert (written / "weights").read_bytes() == b"weights"
    assert (written / "weights").stat().st_nlink == 1
    os.symlink(artifact, written / ".later.new")
    volumes.add_artifact(OWNER, "model", artifact, "later")
    assert not (written / "later").is_symlink()
    assert (written / "later").stat().st_mode & 0o777 == 0o444
    large = tmp_path / "large"
    os.truncate(os.open(large, os.O_CREAT | os.O_WRONLY, 0o600), 2 * SIZE)
    with pytest.raises(HostFailure, match="No space left"):
        volumes.add_artifact(OWNER, "model", large, "large")
    volumes.add_artifact(OWNER, "huge", large, "large")
    with pytest.raises(HostFailure, match="capacity"):
        volumes.provide(OWNER, "huge", writable=True)


def test_a_volume_that_an_older_agent_let_containers_write_to_stays_where_it_is(
    volumes: ContainerVolumes, tmp_path: Path
) -> None:
    old = tmp_path / "volumes/alc_1/@member/data"
    old.mkdir(parents=True)
    (old / "theirs").write_text("x")
    os.chown(old / "theirs", 400_000, 400_000)
    assert volumes.provide(OWNER, "data", writable=True) == old


def test_a_crash_while_a_disk_is_made_leaves_nothing_that_is_taken_for_one(
    volumes: ContainerVolumes, tmp_path: Path
) -> None:
    place = tmp_path / "volumes/alc_1"
    place.mkdir(parents=True)
    (place / "disk.new").write_bytes(b"half")
    assert fill(volumes.provide(OWNER, "data", writable=True)) > SIZE // 2
