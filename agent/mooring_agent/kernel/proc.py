"""What /proc shows of processes, their sockets and namespaces, for a host that has to find its own among all others."""

import os
import signal
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENVIRONMENT_MAX_BYTES: Final = 2_097_152
KERNEL_THREAD: Final = 0x0020_0000
"""The flag, among those of /proc/<pid>/stat, of a thread of the kernel: none runs a program, or has something open."""
_LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class Process:
    """One process; with the time of its start the number stands for no other."""

    pid: int
    started: int
    parent: int
    name: str
    ended: bool


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port that takes connections, or a UDP port that is bound."""

    protocol: str
    address: str
    number: int
    inode: int

    @property
    def reach(self) -> str:
        """The address of this machine at which this very socket is reached."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)

    @property
    def is_wildcard(self) -> bool:
        """Whether it listens on every address."""
        return self.address in ("0.0.0.0", "::")


def processes() -> dict[int, Process]:
    """Every process that can be seen; the kernel's own threads, of which a machine has hundreds, are none."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := find_process(int(name))) is not None:
            found[process.pid] = process
    return found


def find_process(pid: int) -> Process | None:
    """One process, if it is there and none of the kernel's own threads."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            before, _, after = file.read().rpartition(b")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = after.split()
    if int(fields[6]) & KERNEL_THREAD:
        return None
    name = before.partition(b"(")[2].decode("utf-8", "replace")
    return Process(pid, int(fields[19]), int(fields[1]), name, fields[0] in (b"Z", b"X"))


def below(table: dict[int, Process], ancestors: Collection[int]) -> set[int]:
    """These processes and all that descend from them."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    pending = [pid for pid in ancestors if pid in table]
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending += children.get(pid, [])
    return found


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where we may not see it."""
    raw = _read(f"/proc/{pid}/environ", ENVIRONMENT_MAX_BYTES)
    pairs = (each.partition(b"=") for each in raw.split(b"\0") if b"=" in each)
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}


def title(pid: int) -> str:
    """The command line, without what fills it up at the end."""
    return _read(f"/proc/{pid}/cmdline", 4096).rstrip(b"\0").decode("utf-8", "replace")


def kill(process: Process) -> bool:
    """Kill this very process and no other that has its number by now; whether it was there."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = find_process(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def socket_inodes(pids: Collection[int]) -> set[int]:
    """The sockets that these processes hold, as far as we may see them."""
    found = set()
    for pid in pids:
        for target in _links(f"/proc/{pid}/fd"):
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    return found


def namespaces(pid: int) -> set[str]:
    """The namespaces that a process is in, such as `net:[4026531840]`."""
    return set(_links(f"/proc/{pid}/ns"))


def cgroups(pid: int) -> set[str]:
    """The control groups that a process is in, as /proc spells them."""
    return set(_read(f"/proc/{pid}/cgroup", 65_536).decode("utf-8", "replace").splitlines())


def cgroup_directory(line: str) -> Path | None:
    """Where the group of a line of /proc/<pid>/cgroup is to be found as a directory; none if it is shown nowhere."""
    _, names, path = line.split(":", 2)
    for mount in _read("/proc/self/mountinfo", 16 * 1_048_576).decode("utf-8", "replace").splitlines():
        fields, _, rest = mount.partition(" - ")
        kind, _, options = rest.split(" ")[:3]
        place = fields.split(" ")
        right = (
            kind == "cgroup2" if not names else kind == "cgroup" and set(names.split(",")) <= set(options.split(","))
        )
        if right and place[3] == "/":
            return Path(place[4]) / path.lstrip("/")
    return None


def ports() -> list[Port]:
    """Every port of this network that takes connections or datagrams."""
    found: list[Port] = []
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in _read(f"/proc/net/{protocol}", 64 * 1_048_576).decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if protocol.startswith("udp") or fields[3] == _LISTENING:
                address, _, number = fields[1].partition(":")
                found.append(Port(protocol[:3], _address(address), int(number, 16), int(fields[9])))
    return found


def unix_sockets() -> dict[int, str]:
    """Every unix socket of this network that has a name; one that begins with `@` is in no directory."""
    found = {}
    for line in _read("/proc/net/unix", 64 * 1_048_576).decode("utf-8", "replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8:
            found[int(fields[6])] = fields[7]
    return found


def mounts() -> list[str]:
    """Where something is mounted."""
    lines = _read("/proc/self/mountinfo", 64 * 1_048_576).decode("utf-8", "replace").splitlines()
    return [line.split()[4] for line in lines]


def _address(text: str) -> str:
    """The kernel prints an address as words of four bytes in the machine's own order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, raw)


def _links(directory: str) -> Iterator[str]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return
    for name in names:
        try:
            yield os.readlink(f"{directory}/{name}")
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue


def _read(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return b""
