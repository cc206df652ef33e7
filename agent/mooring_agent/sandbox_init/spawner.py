"""How the init of a sandbox, or of an owner in it, is spawned.

Three processes take part:

* the **spawner** (the program itself, root of the machine) builds the mounts in a mount namespace of its own, leaves
  the machine's root behind, writes the uid map, and records the init on disk;
* the **intermediate** process enters the user namespace, creates the other namespaces, forks the **init** and ends;
* the **init** waits for permission to continue, which it gets only when its record is on disk. If the spawner is killed
  before, the init ends too and nothing is left. Then it locks the mounts (by copying the mount namespace into the less
  privileged user namespace), hides what /proc and /sys reveal about the machine, confines itself and does its work.

The plan comes as JSON on standard input; one line of JSON on standard output is the init's record, or the problem.
"""

import errno
import fcntl
import json
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

from mooring_agent.kernel import proc, syscalls
from mooring_agent.sandbox_init import confinement

QUIET: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
_NAMESPACES: Final = {
    "cgroup": syscalls.CLONE_NEWCGROUP,
    "ipc": syscalls.CLONE_NEWIPC,
    "mnt": syscalls.CLONE_NEWNS,
    "net": syscalls.CLONE_NEWNET,
    "pid": syscalls.CLONE_NEWPID,
    "user": syscalls.CLONE_NEWUSER,
    "uts": syscalls.CLONE_NEWUTS,
}
_HIDDEN: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/vmallocinfo",
    "/sys/block",
    "/sys/firmware",
    "/sys/fs",
    "/sys/hypervisor",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
)
_READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def run(spawner: type["InitSpawner"]) -> NoReturn:
    """Execute the plan on standard input and print the result."""
    plan = json.load(sys.stdin)
    try:
        answer = spawner(plan).spawn()
    except OSError as problem:
        answer = {"problem": str(problem)}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0 if "problem" not in answer else 1)


class InitSpawner:
    """One spawn, from the machine's side; subclasses say what is created and what its init does."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.first_uid: int | None = plan["first_uid"]
        self.directory = os.open(plan["directory"], os.O_RDONLY | os.O_DIRECTORY)
        self.lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self.directory)
        # While this lock is held, a spawn is in progress.
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self.log = os.open("init.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=self.directory)

    # --- what a sandbox and an owner do each in its own way ---

    def mount_disk(self) -> None:
        """As the machine's root, before a control group denies access to devices: mount what is on one."""

    def prepare(self) -> None:
        """As the machine's root: enter the right mount namespace and root, and open what lies outside."""
        raise NotImplementedError

    def enter_user_namespace(self) -> bool:
        """In the intermediate process: enter the user namespace; returns whether it is new and needs its uid map."""
        raise NotImplementedError

    @property
    def new_namespaces(self) -> int:
        """The other namespaces to create, as flags of unshare."""
        raise NotImplementedError

    def mount_views(self) -> None:
        """As the machine's root, in the init's pid and network namespaces: mount their file systems."""
        raise NotImplementedError

    def configure(self) -> None:
        """In the init, before it is confined."""
        raise NotImplementedError

    def descriptors(self) -> list[int]:
        """What the init keeps open besides its standard streams, as descriptors from 3 on."""
        raise NotImplementedError

    def run_init(self) -> None:
        """The work of the init, confined."""
        raise NotImplementedError

    # --- the maker ---

    def spawn(self) -> dict[str, Any]:
        """Run every step in order; returns the init's record."""
        self.mount_disk()
        for path in self.plan["cgroups"]:
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        # Leave behind the keys of the agent's session.
        syscalls.new_session_keyring()
        self.prepare()
        parent_end, child_end = socket.socketpair()
        parent_end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        child_end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        intermediate = os.fork()
        if intermediate == 0:
            parent_end.close()
            _or_die(child_end, lambda: self._run_intermediate(child_end))
        child_end.close()
        if _receive(parent_end, "user", "joined")[1] == "user":
            self._map_users(intermediate)
        parent_end.send(b"go")
        init, _ = _receive(parent_end, "born")
        self._mount_views(init)
        parent_end.send(b"go")
        _receive(parent_end, "ready")
        record = {
            "pid": init,
            "start": self._start_of(init),
            "namespaces": self._namespaces_of(init),
            "boot": self._read("sys/kernel/random/boot_id").decode().strip(),
        }
        self._record(record)
        parent_end.send(b"go")
        os.waitpid(intermediate, 0)
        return record

    def _mount_views(self, init: int) -> None:
        """Mount the views of the init's namespaces.

        A /proc mount shows the pid namespace of the process that mounts it, and only the machine's root may mount the
        first one. So a child enters the init's namespaces, and its own child mounts.
        """

        def enter() -> None:
            self.setns(init, "net")
            self.setns(init, "pid")
            _in_child(self.mount_views)

        _in_child(enter)

    def setns(self, pid: int, kind: str) -> None:
        """Join a namespace of a process, through the machine's own /proc."""
        descriptor = os.open(f"{pid}/ns/{kind}", os.O_RDONLY, dir_fd=self.proc)
        try:
            syscalls.setns(descriptor, _NAMESPACES[kind])
        finally:
            os.close(descriptor)

    # --- the map of users and the record ---

    def _map_users(self, intermediate: int) -> None:
        for name in ("uid_map", "gid_map"):
            descriptor = os.open(f"{intermediate}/{name}", os.O_WRONLY, dir_fd=self.proc)
            try:
                os.write(descriptor, f"0 {self.first_uid} {self.plan['uids']}\n".encode())
            finally:
                os.close(descriptor)

    def _read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=self.proc)
        try:
            return os.read(descriptor, 65536)
        finally:
            os.close(descriptor)

    def _start_of(self, pid: int) -> int:
        process = proc.parse_stat(self._read(f"{pid}/stat"))
        if process is None:
            raise ProcessLookupError(errno.ESRCH, "the init ended before it was recorded")
        return process.started

    def _namespaces_of(self, pid: int) -> dict[str, int]:
        return {kind: os.stat(f"{pid}/ns/{kind}", dir_fd=self.proc).st_ino for kind in _NAMESPACES}

    def _record(self, record: dict[str, Any]) -> None:
        descriptor = os.open(".init.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=self.directory)
        os.write(descriptor, json.dumps(record).encode())
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(".init.json", "init.json", src_dir_fd=self.directory, dst_dir_fd=self.directory)
        os.fsync(self.directory)

    # --- the bridge and the init ---

    def _run_intermediate(self, spawner: socket.socket) -> None:
        spawner.send(b"user" if self.enter_user_namespace() else b"joined")
        _wait_for_go(spawner)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        syscalls.unshare(self.new_namespaces)
        if os.fork():
            os._exit(0)
        # From here on this is pid 1. The socket tells the spawner our pid as the machine sees it.
        spawner.send(b"born")
        _wait_for_go(spawner)
        self._become_init(spawner)

    def _become_init(self, spawner: socket.socket) -> None:
        os.setsid()
        if self.first_uid is not None:
            # From now on every mount is locked: nobody with fewer rights than the machine's root can undo one.
            syscalls.unshare(syscalls.CLONE_NEWNS)
        self.configure()
        _hide()
        for name, limit in self.plan["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (limit, limit))
        os.umask(0o022)
        # This comes before anybody knows this init, because others enter the project's network by the number of its
        # descriptor. All are moved above the target numbers first, so that none is overwritten before it is used.
        keep = [os.open("/dev/null", os.O_RDONLY), self.log, self.log, *self.descriptors()]
        *sources, channel = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in (*keep, spawner.fileno())]
        for target, source in enumerate(sources):
            os.dup2(source, target, inheritable=target < 3)
        spawner.detach()
        with socket.socket(fileno=channel) as to_maker:
            to_maker.send(b"ready")
            _wait_for_go(to_maker)
        os.closerange(len(keep), 1 << 16)
        confinement.confine()
        self.run_init()


def _hide() -> None:
    """Hide what /proc and /sys reveal about the machine, and make its other settings read-only."""
    for path in _READ_ONLY:
        if os.path.exists(path):
            syscalls.bind(path, path, syscalls.MS_RDONLY | QUIET)
    for path in _HIDDEN:
        if os.path.isdir(path):
            syscalls.mount("tmpfs", path, "tmpfs", QUIET | syscalls.MS_RDONLY, "size=0,nr_inodes=1")
        elif os.path.exists(path):
            syscalls.bind("/dev/null", path)


def _in_child(action: Callable[[], None]) -> None:
    """Run the action in a child process and raise its error here."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            action()
        except OSError as problem:
            sys.stderr.write(f"{problem}\n")
            sys.stderr.flush()
            status = problem.errno or 1
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, os.strerror(status) if status > 0 else "a step of the spawn was killed", action.__name__)


def _or_die(spawner: socket.socket, action: Callable[[], None]) -> None:
    """Run the action and report an error to the spawner; never returns."""
    try:
        action()
    except OSError as problem:
        spawner.send(f"problem {problem}".encode())
    finally:
        os._exit(1)


def _receive(channel: socket.socket, *words: str) -> tuple[int, str]:
    """Wait for one of these words; returns the sender's pid and the word."""
    message, ancillary, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(12))
    said = message.decode(errors="replace")
    if said not in words:
        raise OSError(1, said or f"it ended before it was {words[0]}")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(struct.unpack("=3i", data[:12])[0]), said
    raise OSError(1, "the kernel did not name the sender")


def _wait_for_go(channel: socket.socket) -> None:
    """Wait for permission to continue; exit if the spawner is gone."""
    if channel.recv(16) != b"go":
        os._exit(1)
