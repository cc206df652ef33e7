"""Tables that the kernel has once for the whole machine, and that one tenant could fill for everybody.

Each entry of such a table takes memory that the sandbox's control group counts, or each sandbox has a bound of its own.
So the table's limit is only in the way: it is raised to where no single sandbox reaches it. Nothing is ever lowered.
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OPEN_FILES_MAX: Final = 16_384
OPEN_FILES_MIN: Final = 1_024
_SETTINGS: Final = Path("/proc/sys")
_RING_BYTES: Final = 4_096  # the least memory of an asynchronous I/O context
_FILE_BYTES: Final = 256  # the least memory of an open file
_SHARE: Final = 4  # of a table that cannot be raised, a sandbox gets at most a quarter


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One limit of the kernel, below /proc/sys."""

    path: str
    wanted: int


def tables(memory_bytes: int) -> tuple[KernelTable, ...]:
    """The limits that a machine with this much memory should have."""
    return (
        KernelTable("fs/file-max", memory_bytes // _FILE_BYTES),
        KernelTable("fs/aio-max-nr", memory_bytes // _RING_BYTES),
        KernelTable("kernel/pty/max", 65_536),  # 256 of each sandbox
        # Addresses of neighbours: at most 254 of each sandbox. The kernel shares this table between namespaces.
        KernelTable("net/ipv4/neigh/default/gc_thresh3", 65_536),
        KernelTable("net/ipv4/neigh/default/gc_thresh2", 32_768),
    )


def raise_tables(memory_bytes: int, settings: Path = _SETTINGS) -> list[str]:
    """Raise what is lower than wanted; returns what cannot be raised, with its value."""
    lacking = []
    for table in tables(memory_bytes):
        file = settings / table.path
        try:
            value = int(file.read_text())
        except (OSError, ValueError):  # this kernel has no such limit
            continue
        if value >= table.wanted:
            continue
        try:
            file.write_text(str(table.wanted))
        except OSError:
            lacking.append(f"{table.path.replace('/', '.')} = {value}")
    return lacking


@functools.cache
def enforced() -> str:
    """What protects the kernel's tables on this machine, for a sandbox's facts; raises them when first asked."""
    lacking = raise_tables(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return f"not enforced: {', '.join(lacking)}" if lacking else "raised above what a sandbox can use"


def open_files(pids: int, settings: Path = _SETTINGS) -> int:
    """How many files each process of a sandbox may have open, so that all of them leave room in the kernel's table."""
    limit = int((settings / "fs/file-max").read_text())
    return max(OPEN_FILES_MIN, min(OPEN_FILES_MAX, limit // _SHARE // pids))
