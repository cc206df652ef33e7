"""Processes by their namespaces, and how to kill one for certain.

The kernel reuses the number of a namespace that is gone, so a number alone proves nothing after a sandbox was killed.
During an inspection the host holds its namespaces open (`NamespaceGuard`); if a crash came between, only processes that
started before the kill count.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from mooring_agent.hosts.namespace.sandbox_records import InitProcess
from mooring_agent.kernel import proc

_KILL_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class NamespaceProcess:
    """A process, or a thread in namespaces of its own, at the time of a survey."""

    pid: int
    start: int
    uid: int
    name: str
    namespaces: dict[str, int]


def read(pid: int) -> NamespaceProcess | None:
    """One process; none if it is gone, a zombie or a kernel thread."""
    process, uid = proc.find_process(pid), proc.uid_of(pid)
    if process is None or process.ended or uid is None:
        return None
    return NamespaceProcess(pid, process.started, uid, process.name, proc.namespace_numbers(f"/proc/{pid}"))


def own_namespaces() -> dict[str, int]:
    """The namespaces of the agent itself, which count as the machine's."""
    return proc.namespace_numbers("/proc/self")


def survey() -> list[NamespaceProcess]:
    """Every living process, and every thread that is in other namespaces than its process."""
    found = []
    for pid in proc.pids():
        process = read(pid)
        if process is None:
            continue
        found.append(process)
        for thread in proc.threads(pid):
            if thread != pid:
                other = proc.namespace_numbers(f"/proc/{pid}/task/{thread}")
                if other and other != process.namespaces:
                    found.append(replace(process, namespaces=other))
    return found


def is_alive(init: InitProcess) -> bool:
    """Whether exactly this process is alive: its pid may have been reused, or the machine rebooted."""
    if init.boot != proc.boot_id():
        return False
    process = read(init.pid)
    return process is not None and process.start == init.start


def find_supervisors(inits: Iterable[InitProcess]) -> list[NamespaceProcess]:
    """The living supervisors of these inits, which are outside of every namespace of the sandbox."""
    found = []
    for init in inits:
        process = read(init.supervisor_pid) if init.supervisor_pid and init.boot == proc.boot_id() else None
        if process is not None and process.start == init.supervisor_start:
            found.append(process)
    return found


def kill(processes: Iterable[InitProcess | NamespaceProcess]) -> list[int]:
    """Kill these processes and wait until they are gone; returns the pids that are not after a long wait."""
    handles: dict[int, int] = {}
    try:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(process.pid)
                handles[handle] = process.pid
                current = read(process.pid)
                if current is None or current.start != process.start:
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


class NamespaceGuard:
    """Holds namespaces open, so that their numbers are not reused during an inspection."""

    def __init__(self, inits: Iterable[InitProcess]) -> None:
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
        """A path by which a held namespace can be entered."""
        descriptor = self.held.get((kind, number))
        return None if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}"

    def close(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held = {}
