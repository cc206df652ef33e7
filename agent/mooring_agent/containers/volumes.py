"""The volumes of containers: a disk of limited size for what containers write, and plain directories for artifacts.

A volume that a container may write to is on a disk of its allocation: a sparse file with a file system in it, mounted
below the agent's directory when it is first needed. A tenant who fills it gets "no space left", and nobody else is
affected. A volume that containers only read holds artifacts: hard links into the agent's cache, which take no room.
When a container is to write to such a volume, its artifacts are copied to the disk first.

Where the machine has no loop devices, and for volumes that an older agent made, everything is in plain directories.
"""

import contextlib
import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Final

from mooring_agent.hosts.contract import HostFailure, Owner
from mooring_agent.hosts.namespace import project_network, root_filesystem, sandbox_disk
from mooring_agent.kernel import hostile_files, syscalls

_IMAGE: Final = "disk.img"
_MOUNT: Final = "disk"


class ContainerVolumes:
    """All volumes of one agent; `disk_bytes` limits those of one allocation together, 0 for no limit."""

    def __init__(self, directory: Path, disk_bytes: int = sandbox_disk.DISK_BYTES) -> None:
        self._directory = directory
        self._disk_bytes = disk_bytes
        self._lock = threading.Lock()  # tasks of one allocation run in several threads

    def holders(self) -> list[str]:
        """The allocations that have volumes."""
        return [path.name for path in self._directory.iterdir()] if self._directory.exists() else []

    def provide(self, owner: Owner, name: str, *, writable: bool) -> Path:
        """The directory of a volume for a container."""
        with self._lock:
            if writable:
                return self._writable(owner, name)
            on_disk = self._place_on_disk(owner, name)
            return on_disk if on_disk is not None and on_disk.is_dir() else self._plain(owner, name)

    def add_artifact(self, owner: Owner, name: str, source: Path, file: str) -> None:
        """Put a file of the agent's cache into a volume, readable by every user."""
        with self._lock:
            on_disk = self._place_on_disk(owner, name)
            is_on_disk = on_disk is not None and on_disk.is_dir()
            directory = on_disk if on_disk is not None and is_on_disk else self._plain(owner, name)
        place = hostile_files.open_directory(directory)
        try:
            if is_on_disk:
                _copy(source, place, file)
            else:
                hostile_files.link_read_only(source, place, file)
        except OSError as problem:
            raise HostFailure("path_refused", f"cannot write into the volume: {problem.strerror}") from problem
        finally:
            os.close(place)

    def clear(self, owner: Owner) -> bool:
        """Remove the volumes of an owner, or of a whole allocation with their disk; returns whether there were any."""
        allocation = self._directory / owner.allocation_id
        with self._lock:
            if not owner.label:
                if not allocation.exists():
                    return False
                while os.path.ismount(allocation / _MOUNT):
                    syscalls.unmount(str(allocation / _MOUNT))
                root_filesystem.remove(allocation)
                return True
            places = [allocation / _part(owner)]
            if os.path.ismount(allocation / _MOUNT):
                places.append(allocation / _MOUNT / _part(owner))
            found = [place for place in places if place.exists()]
            for place in found:
                root_filesystem.remove(place)
            return bool(found)

    def _plain(self, owner: Owner, name: str) -> Path:
        directory = self._directory / owner.allocation_id / _part(owner) / name
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        return directory

    def _writable(self, owner: Owner, name: str) -> Path:
        plain = self._directory / owner.allocation_id / _part(owner) / name
        if plain.is_dir() and not _holds_only_artifacts(plain):
            return plain  # an older agent let containers write here
        mount = self._mount(owner.allocation_id)
        if mount is None:
            return self._plain(owner, name)
        directory = mount / _part(owner) / name
        if not directory.is_dir():
            directory.mkdir(mode=0o750, parents=True)
            if plain.is_dir():
                self._copy_artifacts(plain, directory)
        return directory

    def _copy_artifacts(self, plain: Path, directory: Path) -> None:
        place = hostile_files.open_directory(directory)
        try:
            for file in sorted(plain.iterdir()):
                _copy(file, place, file.name)
        except OSError as problem:
            root_filesystem.remove(directory)
            raise HostFailure("capacity", f"the artifacts do not fit on the volume's disk: {problem}") from problem
        finally:
            os.close(place)

    def _place_on_disk(self, owner: Owner, name: str) -> Path | None:
        """Where a volume is on the allocation's disk, if it has one."""
        if not (self._directory / owner.allocation_id / _IMAGE).exists():
            return None
        mount = self._mount(owner.allocation_id)
        return None if mount is None else mount / _part(owner) / name

    def _mount(self, allocation_id: str) -> Path | None:
        """The allocation's disk, created and mounted if needed; none where the machine or the operator has no limit."""
        if not self._disk_bytes or sandbox_disk.unavailable_reason():
            return None
        allocation = self._directory / allocation_id
        mount, image = allocation / _MOUNT, allocation / _IMAGE
        if os.path.ismount(mount):
            return mount
        mount.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not image.exists():
            # Under its name only when it is whole: a crash leaves a file that the next try replaces.
            new = image.with_suffix(".new")
            sandbox_disk.create(new, self._disk_bytes)
            new.rename(image)
        words = [sandbox_disk.find_program("mount"), "-o", sandbox_disk.OPTIONS, str(image), str(mount)]
        project_network.run_tool(words)
        return mount


def _part(owner: Owner) -> str:
    return f"@{owner.label}" if owner.label else "_"


def _holds_only_artifacts(directory: Path) -> bool:
    """Whether everything in it was put there by the agent: plain files of root's."""
    statuses = [entry.stat(follow_symlinks=False) for entry in os.scandir(directory)]
    return all(stat.S_ISREG(each.st_mode) and each.st_uid == os.geteuid() for each in statuses)


def _copy(source: Path, directory: int, name: str) -> None:
    """Copy a file of our own into a hostile directory, readable by everybody, in place of what is there."""
    temporary = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=directory)
    with os.fdopen(file, "wb") as target, source.open("rb") as content:
        try:
            shutil.copyfileobj(content, target, 1 << 20)
            target.flush()
            os.fchmod(file, 0o444)
        except OSError:
            os.unlink(temporary, dir_fd=directory)
            raise
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
