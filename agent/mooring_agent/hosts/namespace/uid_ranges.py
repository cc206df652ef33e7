"""Uid ranges: each sandbox has 65,536 uids that no other sandbox and no account of the machine has.

Several agents may share a machine, so ranges are allocated in one directory of the machine: a file per range, named by
its first uid, containing the directory of the sandbox that holds it. Ranges that are used without being registered
there (accounts, subordinate ranges of other programs, existing user namespaces) are skipped.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mooring_agent.atomic_files import sync_directory
from mooring_agent.hosts.contract import HostFailure
from mooring_agent.hosts.namespace.sandbox_records import UIDS
from mooring_agent.kernel import proc

FIRST: Final = 0x40000000
END: Final = 0x70000000


@contextlib.contextmanager
def locked(registry: Path) -> Iterator[None]:
    descriptor = os.open(registry / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def allocated(registry: Path) -> dict[int, str]:
    """Every allocated range and the directory that holds it."""
    ranges: dict[int, str] = {}
    with contextlib.suppress(FileNotFoundError):
        for each in registry.iterdir():
            if each.name.isdigit():
                with contextlib.suppress(FileNotFoundError):
                    ranges[int(each.name)] = each.read_text()
    return ranges


def claim(registry: Path, holder: Path) -> int:
    """The first uid of this holder's range: the one it has, or a free one."""
    with locked(registry):
        allocated_ranges = allocated(registry)
        for first, holder_path in allocated_ranges.items():
            if holder_path == str(holder):
                return first
        used = set(allocated_ranges) | {number // UIDS * UIDS for number in _used()}
        for first in range(FIRST, END, UIDS):
            if first not in used:
                _write(registry / str(first), str(holder))
                return first
    raise HostFailure("capacity", "all uid ranges of this machine are in use")


def release(registry: Path, holder: Path) -> None:
    """Release the holder's range."""
    with locked(registry):
        for first, holder_path in allocated(registry).items():
            if holder_path == str(holder):
                (registry / str(first)).unlink(missing_ok=True)
        sync_directory(registry)


def _write(path: Path, text: str) -> None:
    # The content is written before the name exists: an allocated range always has a holder.
    draft = path.with_name(f".{path.name}")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_directory(path.parent)


def _used() -> Iterator[int]:
    """Uids that the machine uses: at least one of each block of 65,536 that is touched."""
    for name in ("/etc/passwd", "/etc/group"):
        for fields in _lines(name):
            yield from (int(each) for each in fields[2:4] if each.isdigit())
    for name in ("/etc/subuid", "/etc/subgid"):
        for fields in _lines(name):
            if len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit():
                yield from _blocks(int(fields[1]), int(fields[2]))
    for pid in proc.pids():
        for first, count in proc.uid_map(pid):
            if count < END:  # the machine's own map covers all uids
                yield from _blocks(first, count)


def _blocks(first: int, count: int) -> Iterator[int]:
    low, high = max(first, FIRST - UIDS), min(first + count, END)
    yield from range(low // UIDS * UIDS, high, UIDS)


def _lines(name: str) -> Iterator[list[str]]:
    with contextlib.suppress(FileNotFoundError):
        for line in Path(name).read_text(errors="replace").splitlines():
            yield line.strip().split(":")
