"""The agent's one reader of /proc: processes, their namespaces and control groups, sockets, mounts.

A process that ends while it is read, or that this user may not see, reads as absent or empty and raises nothing: the
process table changes all the time, and a caller can do no more about it than look again. Every other error is raised.
"""

import errno
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

NAMESPACE_KINDS: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
ENVIRONMENT_MAX_BYTES: Final = 2_097_152
_ABSENT: Final = {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.EINVAL}
"""How a process that ends, or is not ours to see, answers; EINVAL comes from the mounts of an ending one."""
_KERNEL_THREAD: Final = 0x0020_0000  # a flag in /proc/<pid>/stat
_LISTENING: Final = "0A"
_LINGERING: Final = {"06", "03", "0C"}  # owned by no process: the kernel finishes the last packets of a connection
# One line of the table of unix sockets, exactly as the kernel prints it. A program chooses the name of its socket, even
# one with line breaks: what follows a break is not a line of the kernel's.
_UNIX_LINE: Final = re.compile(
    r"[0-9a-f]{16}: [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{8} [0-9A-F]{4} [0-9A-F]{2} +([0-9]{1,20})(?: (.*))?"
)
_INTERNET_TABLES: Final = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "udplite", "udplite6")


@dataclass(frozen=True, slots=True)
class Process:
    """One process; pid and start time together identify it, because the kernel reuses pids."""

    pid: int
    started: int  # in ticks since boot
    parent: int
    name: str
    ended: bool  # a zombie: it only waits to be reaped
    is_kernel_thread: bool = False


@dataclass(frozen=True, slots=True)
class Socket:
    """One line of the kernel's socket tables."""

    table: str  # such as tcp6, or unix
    inode: int
    port: int | None = None  # a TCP port that accepts connections, or a bound port of another protocol
    local: str = ""  # ADDRESS:PORT as the kernel prints them, in hexadecimal
    path: str = ""  # of a unix socket; one that begins with `@` is in no directory

    @property
    def name(self) -> str:
        """How receipts call it."""
        if self.table == "unix":
            return f"unix {self.path}".strip()
        return f"{self.table} port {int(self.local.rpartition(':')[2], 16)}"

    @property
    def protocol(self) -> str:
        """`tcp` or `udp`, of either version of IP."""
        return self.table.removesuffix("6")

    @property
    def address(self) -> str:
        """The local address of an internet socket."""
        # The kernel prints an address as words of four bytes in the machine's own byte order.
        text = self.local.partition(":")[0]
        words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
        raw = struct.pack(f"={len(words)}I", *words)
        return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, raw)

    @property
    def dial_address(self) -> str:
        """The address of this machine at which exactly this socket is reached."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.address, self.address)

    @property
    def is_wildcard(self) -> bool:
        """Whether it listens on every address."""
        return self.address in ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of a mountinfo table."""

    device: str  # MAJOR:MINOR
    root: str  # the path within its file system, or a namespace such as `net:[4026531840]`
    target: str
    kind: str
    options: str  # of the file system


# --- processes ---


def pids() -> list[int]:
    """Every process that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes() -> dict[int, Process]:
    """Every visible process by its pid, without the kernel's own threads, of which a machine has hundreds."""
    return {pid: process for pid in pids() if (process := find_process(pid)) is not None}


def find_process(pid: int) -> Process | None:
    """One process, unless it is gone or a kernel thread."""
    process = parse_stat(_read(f"/proc/{pid}/stat"))
    return None if process is None or process.is_kernel_thread else process


def parse_stat(content: bytes) -> Process | None:
    """A process from its `stat` file."""
    head, _, tail = content.rpartition(b")")
    if not tail:
        return None
    pid, _, name = head.partition(b" (")
    fields = tail.split()
    is_kernel_thread = bool(int(fields[6]) & _KERNEL_THREAD)
    ended = fields[0] in (b"Z", b"X")
    return Process(int(pid), int(fields[19]), int(fields[1]), name.decode("utf-8", "replace"), ended, is_kernel_thread)


def own_memory_layout() -> tuple[int, int, int, int]:
    """Where this process's arguments and environment lie in memory: arg_start, arg_end, env_start, env_end."""
    fields = _read("/proc/self/stat").rpartition(b")")[2].split()
    # They are the fields 48 to 51 of proc(5); the split begins at field 3.
    arguments, arguments_end, environment, environment_end = (int(fields[number - 3]) for number in range(48, 52))
    return arguments, arguments_end, environment, environment_end


def uid_of(pid: int) -> int | None:
    """The real user id of a process."""
    # A process cannot forge this line by its name: line breaks in a name are escaped in `status`.
    _, _, found = _read(f"/proc/{pid}/status").partition(b"\nUid:")
    return int(found.split(maxsplit=1)[0]) if found else None


def uid_map(pid: int) -> list[tuple[int, int]]:
    """The user ids of the machine that a process's user namespace maps, as (first, count)."""
    lines = _read(f"/proc/{pid}/uid_map").splitlines()
    return [(int(first), int(count)) for _, first, count in (line.split() for line in lines)]


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty where it is not visible."""
    raw = _read(f"/proc/{pid}/environ", ENVIRONMENT_MAX_BYTES)
    pairs = (each.partition(b"=") for each in raw.split(b"\0") if b"=" in each)
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}


def has_variable(pid: int, assignment: str) -> bool:
    """Whether a process was started with this `NAME=value` in its environment, as far as that is visible."""
    return assignment.encode() in _read(f"/proc/{pid}/environ", ENVIRONMENT_MAX_BYTES).split(b"\0")


def title(pid: int) -> str:
    """The command line, without the padding at its end."""
    return _read(f"/proc/{pid}/cmdline", 4096).rstrip(b"\0").decode("utf-8", "replace")


def kill(process: Process) -> bool:
    """Kill exactly this process, and no other that has its pid by now; whether it was there."""
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


def descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """What a process has open, as (descriptor, target)."""
    yield from ((int(name), target) for name, target in _links(f"/proc/{pid}/fd"))


def socket_inodes(pids: Collection[int]) -> frozenset[int]:
    """The sockets that these processes have open, as far as they are visible."""
    targets = (target for pid in pids for _, target in descriptors(pid))
    return frozenset(int(target[8:-1]) for target in targets if target.startswith("socket:["))


def boot_id() -> str:
    """Identifies this boot of the machine."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()


def ticks_now() -> int:
    """The current time in the unit of `Process.started`: ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


# --- namespaces and control groups ---


def namespaces(pid: int) -> set[str]:
    """The namespaces that a process is in, such as `net:[4026531840]`."""
    return {target for _, target in _links(f"/proc/{pid}/ns")}


def namespace_numbers(directory: str) -> dict[str, int]:
    """The namespaces of the process or thread whose directory this is, as numbers by their kind."""
    found = {}
    for kind in NAMESPACE_KINDS:
        try:
            namespace = parse_namespace(os.readlink(f"{directory}/ns/{kind}"))
        except OSError as error:
            _check_absent(error)
            continue
        if namespace is not None:
            found[kind] = namespace[1]
    return found


def parse_namespace(link: str) -> tuple[str, int] | None:
    """The kind and number of a namespace, from a link such as `net:[4026531840]`."""
    kind, _, rest = link.partition(":[")
    is_namespace = kind in NAMESPACE_KINDS and rest.endswith("]") and rest[:-1].isdigit()
    return (kind, int(rest[:-1])) if is_namespace else None


def threads(pid: int) -> list[int]:
    """The threads of a process, itself among them."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError as error:
        _check_absent(error)
        return []


def cgroups(pid: int | str) -> set[str]:
    """The control groups that a process is in, as /proc spells them."""
    return set(_read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines())


def cgroup_directory(line: str) -> str | None:
    """The directory of a group in a line of /proc/<pid>/cgroup; none if its hierarchy is not mounted."""
    _, names, path = line.split(":", 2)
    for mount in mounts():
        if names:
            is_hierarchy = mount.kind == "cgroup" and set(names.split(",")) <= set(mount.options.split(","))
        else:
            is_hierarchy = mount.kind == "cgroup2"
        if is_hierarchy and mount.root == "/":
            return f"{mount.target.rstrip('/')}/{path.lstrip('/')}".rstrip("/")
    return None


# --- mounts and networks ---


def mounts(pid: int | str = "self") -> list[Mount]:
    """The mounts that a process sees, oldest first."""
    lines = _read(f"/proc/{pid}/mountinfo").decode("utf-8", "surrogateescape").splitlines()
    found = []
    for line in lines:
        head, _, tail = line.partition(" - ")
        fields, (kind, _, options) = head.split(" "), tail.split(" ")[:3]
        found.append(Mount(fields[2], _unescape(fields[3]), _unescape(fields[4]), kind, options))
    return found


def _unescape(text: str) -> str:
    """A path as mountinfo spells it, with blanks and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def network_links(directory: str = "/proc/thread-self/net") -> list[str]:
    """The names of the network interfaces in this thread's network namespace."""
    with open(f"{directory}/dev", encoding="ascii", errors="replace") as file:
        return [line.partition(":")[0].strip() for line in file if ":" in line]


def sockets(directory: str = "/proc/thread-self/net") -> Iterator[Socket]:
    """The sockets of the network namespace whose tables are in this directory.

    A table that this kernel does not have is passed over. Any other error is raised: a receipt must not claim that
    nothing was found in a table that could not be read.
    """
    for table in _INTERNET_TABLES:
        for line in _table(f"{directory}/{table}"):
            fields = line.split()
            if fields[3] in _LINGERING and fields[9] == "0":
                continue
            port = int(fields[1].rpartition(":")[2], 16)
            is_bound = fields[3] == _LISTENING if table.startswith("tcp") else port != 0
            yield Socket(table, int(fields[9]), port if is_bound else None, local=fields[1])
    for line in _table(f"{directory}/unix"):
        if (found := _UNIX_LINE.fullmatch(line)) is not None:
            yield Socket("unix", int(found[1]), path=found[2] or "")


def _table(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return file.read().split("\n")[1:-1]
    except FileNotFoundError:
        return []


def _links(directory: str) -> Iterator[tuple[str, str]]:
    try:
        # By one descriptor, so that all links are of one process even if its pid is reused meanwhile.
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        _check_absent(error)
        return
    try:
        for name in os.listdir(handle):
            try:
                target = os.readlink(name, dir_fd=handle)
            except OSError as error:
                _check_absent(error)
                continue
            yield name, target
    except OSError as error:
        _check_absent(error)
        return
    finally:
        os.close(handle)


def _read(path: str, limit_bytes: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(limit_bytes)
    except OSError as error:
        _check_absent(error)
        return b""


def _check_absent(error: OSError) -> None:
    """Raise what says nothing about the process, such as too many open files: a receipt must not rest on it."""
    if error.errno not in _ABSENT:
        raise error
