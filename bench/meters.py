"""What processes have used, read from /proc: CPU time and memory."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
KIB = 1024


@dataclass(frozen=True)
class ProcessMemory:
    """The resident memory of a process, now and at its highest."""

    resident_bytes: int
    peak_bytes: int


def memory(pid: int) -> ProcessMemory:
    """The memory that a process holds."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    return ProcessMemory(int(fields["VmRSS"][0]) * KIB, int(fields["VmHWM"][0]) * KIB)


def cpu_seconds(pid: int) -> float:
    """The CPU time of one process, user and system, all threads."""
    user, system, _, _ = _times(pid)
    return user + system


def family_cpu_seconds(pid: int) -> float:
    """The CPU time of a process and its children, those that have ended included.

    PostgreSQL is such a family: a postmaster and one child for each connection.
    """
    total = sum(_times(pid))
    for child in _children(pid):
        try:
            total += sum(_times(child))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile, and its time is now counted with its parent's
    return total


def _times(pid: int) -> tuple[float, float, float, float]:
    """User and system time of a process, then those of its children that have ended, in seconds."""
    fields = _stat(pid)
    user, system, children_user, children_system = (int(field) / TICKS_PER_SECOND for field in fields[11:15])
    return user, system, children_user, children_system


def _children(pid: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(_stat(int(entry))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended since the directory was read
            if parent == pid:
                yield int(entry)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the program's name, which may itself contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
