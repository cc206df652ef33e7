"""The machine's processes as /proc shows them: who is in which namespace, who holds which, and how to end one for sure.

The kernel numbers namespaces and gives a number again when a namespace is gone. So a number alone proves nothing
after a sandbox was killed: while a look goes on the host holds its namespaces open (`Guard`), and after a crash in
between only processes that began before the kill count.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mooring_agent.hosts.namespace.sandbox_records import Init
from mooring_agent.kernel.proc import KERNEL_THREAD

KINDS: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_KILL_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process (or thread that went its own way) as it was seen."""

    pid: int
    start: int
    uid: int
    name: str
    namespaces: dict[str, int]


def number_of(link: str) -> tuple[str, int] | None:
    """The kind and number of a namespace out of a link such as `net:[4026531840]`."""
    kind, _, rest = link.partition(":[")
    return (kind, int(rest[:-1])) if kind in KINDS and rest.endswith("]") and rest[:-1].isdigit() else None


def own_namespaces() -> dict[str, int]:
    """The machine's, as far as the agent is concerned: those that it is in itself."""
    return _namespaces("/proc/self")


def _namespaces(directory: str) -> dict[str, int]:
    found = {}
    for kind in KINDS:
        try:
            seen = number_of(os.readlink(f"{directory}/ns/{kind}"))
        except OSError:
            continue
        if seen is not None:
            found[kind] = seen[1]
    return found


def pids() -> Iterator[int]:
    """Every process of the machine."""
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def read(pid: int, directory: str = "") -> Process | None:
    """One process, or none if it is gone, has ended and waits to be reaped, or is a thread of the kernel."""
    directory = directory or f"/proc/{pid}"
    try:
        with open(f"{directory}/stat", "rb", buffering=0) as file:
            text = file.readall()
        fields = text.rpartition(b")")[2].split()
        if fields[0] in (b"Z", b"X") or int(fields[6]) & KERNEL_THREAD:
            return None
        with open(f"{directory}/status", "rb", buffering=0) as file:
            status = file.readall()
    except OSError:
        return None
    uid = int(status.partition(b"\nUid:")[2].split(maxsplit=1)[0])  # a name has no line of its own: it is escaped there
    name = text.partition(b"(")[2].rpartition(b")")[0].decode(errors="replace")
    return Process(pid, int(fields[19]), uid, name, _namespaces(directory))


def survey() -> list[Process]:
    """Every living process, and every thread that is in other namespaces than its process."""
    found = []
    for pid in pids():
        process = read(pid)
        if process is None:
            continue
        found.append(process)
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                if int(thread) != pid:
                    other = _namespaces(f"/proc/{pid}/task/{thread}")
                    if other and other != process.namespaces:
                        found.append(Process(pid, process.start, process.uid, process.name, other))
    return found


def descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """What a process has open."""
    try:
        directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(directory):
            try:
                target = os.readlink(name, dir_fd=directory)
            except OSError:
                continue
            yield int(name), target
    except OSError:  # it has ended
        return
    finally:
        os.close(directory)


def is_alive(init: Init) -> bool:
    """Whether this very process lives: the number may be somebody else's by now, or the machine was started anew."""
    if init.boot != boot_id():
        return False
    process = read(init.pid)
    return process is not None and process.start == init.start


def boot_id() -> str:
    """Which start of the machine this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def ticks_now() -> int:
    """The time as processes' beginnings are told: ticks since the machine's start."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def kill(wanted: Iterable[tuple[int, int]]) -> list[int]:
    """Kill these (pid, beginning) and wait until they are gone; those that are not after a long while are returned."""
    handles: dict[int, int] = {}
    try:
        for pid, start in wanted:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                handles[handle] = pid
                process = read(pid)
                if process is None or process.start != start:
                    os.close(handle)
                    del handles[handle]
                    continue
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        return _wait(handles)
    finally:
        for handle in handles:
            os.close(handle)


def _wait(handles: dict[int, int]) -> list[int]:
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    waiting = set(handles)
    deadline = time.monotonic() + _KILL_SECONDS
    while waiting and (left := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            waiting.discard(handle)
    return [handles[handle] for handle in waiting]


class Guard:
    """Holds namespaces open, so that their numbers cannot become somebody else's while one looks for them."""

    def __init__(self, inits: Iterable[Init]) -> None:
        self.held: dict[tuple[str, int], int] = {}
        for init in inits:
            for kind, number in init.namespaces.items():
                if (kind, number) in self.held or not is_alive(init):
                    continue
                with contextlib.suppress(OSError):
                    descriptor = os.open(f"/proc/{init.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                    if os.fstat(descriptor).st_ino == number:
                        self.held[kind, number] = descriptor
                    else:
                        os.close(descriptor)

    def path(self, kind: str, number: int) -> str | None:
        """Where a held namespace can be entered."""
        descriptor = self.held.get((kind, number))
        return None if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}"

    def close(self) -> None:
        """Let go."""
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held = {}
