"""The program that makes a sandbox, or an owner's part of one, and ends: it is started anew for each.

It runs as `python -I -S`, in a session of its own, so that it goes on when the agent is killed. Three processes take part:

* the **maker** (the program itself, root of the machine) opens the control socket, builds the mounts in a mount namespace of
  its own, leaves the machine's root behind, writes the map of users, and records on disk whom it made;
* the **bridge** enters the new user namespace, makes the others and forks the **init**, then ends;
* the **init** waits at a gate. It is let through only when its record is on disk: whoever kills the maker before leaves nothing,
  since the init ends when the gate's pipe does. Then it locks the mounts (by copying the mount namespace into the less privileged
  user namespace), hides the machine's parts of /proc and /sys, confines itself and supervises.

An owner's part is the same with the sandbox's namespaces joined in place of new ones; only its pids and its view of /proc are its own.
The plan comes as JSON on standard input; one line of JSON on standard output says what stands, or what failed.
"""

import fcntl
import json
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from mooring_agent.hosts.namespace import confine, kernel
from mooring_agent.supervisor.options import Options
from mooring_agent.supervisor.service import serve

CONTROL: Final = 3
DATA: Final = 4
_UNMAPPED: Final = 65534  # how a user namespace shows users that it does not have, such as root of the machine
_KINDS: Final = {
    "cgroup": kernel.CLONE_NEWCGROUP,
    "ipc": kernel.CLONE_NEWIPC,
    "mnt": kernel.CLONE_NEWNS,
    "net": kernel.CLONE_NEWNET,
    "pid": kernel.CLONE_NEWPID,
    "user": kernel.CLONE_NEWUSER,
    "uts": kernel.CLONE_NEWUTS,
}
_QUIET: Final = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
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


def main() -> None:
    """Do the plan on standard input and say how it went."""
    plan = json.load(sys.stdin)
    try:
        answer = Maker(plan).make()
    except OSError as problem:
        answer = {"problem": str(problem)}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0 if "problem" not in answer else 1)


class Maker:
    """One birth, from the machine's side."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.first_uid: int | None = plan["first_uid"]
        self.directory = os.open(plan["directory"], os.O_RDONLY | os.O_DIRECTORY)
        self.lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self.directory)
        # Whoever finds this lock held knows that a birth is still going on.
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self.log = os.open("init.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=self.directory)
        self.data = os.open(plan["data"], os.O_RDONLY | os.O_DIRECTORY)
        self.joined: dict[str, int] = {}

    def make(self) -> dict[str, Any]:
        """Every step in its order; the answer is what the init's record says."""
        for path in self.plan["cgroups"]:
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        self._open_control()
        kernel.new_session_keyring()
        if self.plan["join"] is None:
            self._new_root()
        else:
            self._join(self.plan["join"])
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        bridge = os.fork()
        if bridge == 0:
            ours.close()
            _or_die(theirs, lambda: self._bridge(theirs))
        theirs.close()
        if self.first_uid is not None and self.plan["join"] is None:
            _hear(ours, "user")
            self._map_users(bridge)
        ours.send(b"go")
        init = _hear(ours, "born")
        self._mount_views(init)
        ours.send(b"go")
        _hear(ours, "ready")
        boot = self._read("sys/kernel/random/boot_id").decode().strip()
        record = {
            "pid": init,
            "start": self._start_of(init),
            "namespaces": self._namespaces_of(init),
            "boot": boot,
        }
        self._record(record)
        ours.send(b"go")
        os.waitpid(bridge, 0)
        return record

    def _open_control(self) -> None:
        os.fchdir(self.directory)
        try:
            os.unlink("control.sock")
        except FileNotFoundError:
            pass
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # By its relative name: a path may be longer than an address can be.
        self.control.bind("control.sock")
        os.chmod("control.sock", 0o600)
        self.control.listen(64)
        os.chdir("/")

    # --- the mounts, as root of the machine -----------------------------------------------------------------------

    def _new_root(self) -> None:
        """Build the sandbox's mounts and leave the machine's behind."""
        plan = self.plan
        root = plan["root"]
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.bind(root, root, kernel.MS_NODEV | kernel.MS_NOSUID)
        for source, target in plan["binds"]:
            kernel.bind(source, root + target, kernel.MS_RDONLY | kernel.MS_NODEV | kernel.MS_NOSUID)
        devices = [(item, os.stat(item["source"]).st_rdev if item["source"] else 0) for item in plan["devices"]]
        self._mount_devices(root, devices)
        owner = self.first_uid or 0
        kernel.mount(
            "tmpfs", root + "/run", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=755,uid={owner},gid={owner}"
        )
        os.mkdir(root + "/run/lock", 0o1777)
        os.chmod(root + "/run/lock", 0o1777)
        os.chown(root + "/run/lock", owner, owner)
        os.chdir(root)
        kernel.pivot_root(".", ".")
        kernel.unmount(".")
        os.chdir("/")

    def _mount_devices(self, root: str, devices: list[tuple[dict[str, Any], int]]) -> None:
        """A /dev with the harmless devices, a terminal system of its own and the sandbox's GPUs."""
        owner = self.first_uid or 0
        dev = root + "/dev"
        quiet = kernel.MS_NOSUID | kernel.MS_NOEXEC
        kernel.mount("tmpfs", dev, "tmpfs", quiet, f"mode=755,size=1m,nr_inodes=4096,uid={owner},gid={owner}")
        previous = os.umask(0)
        for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
            os.mknod(f"{dev}/{name}", stat.S_IFCHR | 0o666, os.makedev(1, minor))
        os.mknod(f"{dev}/tty", stat.S_IFCHR | 0o666, os.makedev(5, 0))
        for item, number in devices:
            number = number or os.makedev(item["major"], item["minor"])
            os.mknod(f"{dev}/{item['name']}", stat.S_IFCHR | 0o666, number)
            os.chown(f"{dev}/{item['name']}", owner, owner)
        simulated = [item["name"] for item, _ in devices if not item["source"]]
        if simulated:
            with open(f"{dev}/simulated-gpus", "w") as file:
                file.write("".join(f"{name}\n" for name in simulated))
        for name in ("pts", "shm"):
            os.mkdir(f"{dev}/{name}")
        options = f"newinstance,ptmxmode=0666,mode=620,gid={owner + 5}"
        kernel.mount("devpts", f"{dev}/pts", "devpts", quiet, options)
        size = self.plan["shared_memory_bytes"]
        flags = kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("tmpfs", f"{dev}/shm", "tmpfs", flags, f"mode=1777,size={size},uid={owner},gid={owner}")
        os.symlink("pts/ptmx", f"{dev}/ptmx")
        os.symlink("/proc/self/fd", f"{dev}/fd")
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", f"{dev}/{name}")
        os.umask(previous)

    def _mount_views(self, init: int) -> None:
        """Mount /proc (and /sys, for a new sandbox) as the init's namespaces see them.

        A file system of processes shows the pid namespace of whoever mounts it, and only root of the machine may mount one where
        none is: so a child of ours enters the init's pid namespace, and its child mounts.
        """

        def enter() -> None:
            self._setns(init, "net")
            self._setns(init, "pid")
            _in_child(mount)

        def mount() -> None:
            kernel.mount("proc", "/proc", "proc", _QUIET)
            if self.plan["join"] is None:
                kernel.mount("sysfs", "/sys", "sysfs", _QUIET | kernel.MS_RDONLY)

        _in_child(enter)

    def _setns(self, pid: int, kind: str) -> None:
        descriptor = os.open(f"{pid}/ns/{kind}", os.O_RDONLY, dir_fd=self.proc)
        try:
            kernel.setns(descriptor, _KINDS[kind])
        finally:
            os.close(descriptor)

    def _join(self, pid: int) -> None:
        """Enter a sandbox that stands, all but its users: the bridge does that."""
        self.joined["user"] = os.open(f"{pid}/ns/user", os.O_RDONLY, dir_fd=self.proc)
        for kind in ("cgroup", "ipc", "net", "uts", "pid", "mnt"):
            self._setns(pid, kind)
        # Ours by right, so that a new /proc can be mounted over the sandbox's.
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)

    # --- the map of users and the record ----------------------------------------------------------------------------

    def _map_users(self, bridge: int) -> None:
        for name in ("uid_map", "gid_map"):
            descriptor = os.open(f"{bridge}/{name}", os.O_WRONLY, dir_fd=self.proc)
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
        return int(self._read(f"{pid}/stat").rpartition(b")")[2].split()[19])

    def _namespaces_of(self, pid: int) -> dict[str, int]:
        return {kind: os.stat(f"{pid}/ns/{kind}", dir_fd=self.proc).st_ino for kind in _KINDS}

    def _record(self, record: dict[str, Any]) -> None:
        descriptor = os.open(".init.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=self.directory)
        os.write(descriptor, json.dumps(record).encode())
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(".init.json", "init.json", src_dir_fd=self.directory, dst_dir_fd=self.directory)
        os.fsync(self.directory)

    # --- the bridge and the init --------------------------------------------------------------------------------------

    def _bridge(self, maker: socket.socket) -> None:
        fresh = kernel.CLONE_NEWPID
        if self.plan["join"] is None:
            fresh |= kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWCGROUP
            if not self.plan["machine_network"]:
                fresh |= kernel.CLONE_NEWNET
        if self.first_uid is not None:
            if "user" in self.joined:
                kernel.setns(self.joined["user"], kernel.CLONE_NEWUSER)
            else:
                kernel.unshare(kernel.CLONE_NEWUSER)
                maker.send(b"user")
        _wait(maker)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        kernel.unshare(fresh)
        # The init of the sandbox would take an orphan for something to be ended: an owner's init is no child of its.
        if os.fork() if self.plan["join"] is None else kernel.fork_beside():
            os._exit(0)
        # From here on as pid 1; whoever asks the socket who sent this is told our number as he sees it.
        maker.send(b"born")
        _wait(maker)
        self._become_init(maker)

    def _become_init(self, maker: socket.socket) -> None:
        plan = self.plan
        os.setsid()
        if self.first_uid is not None:
            kernel.unshare(kernel.CLONE_NEWNS)
            with open(os.open("sys/user/max_user_namespaces", os.O_WRONLY, dir_fd=self.proc), "w") as file:
                file.write("0")
        if plan["join"] is None:
            kernel.sethostname(plan["hostname"])
            if not plan["machine_network"]:
                with open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
                    file.write("0 65535")
        _hide()
        for name, limit in plan["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (limit, limit))
        os.umask(0o022)
        maker.send(b"ready")
        _wait(maker)
        keep = [os.open("/dev/null", os.O_RDONLY), self.log, self.log, self.control.detach(), self.data]
        # Above the numbers that are about to be taken, so that none is overwritten before it is used.
        for target, source in enumerate([fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in keep]):
            os.dup2(source, target, inheritable=target < CONTROL)
        maker.detach()
        os.closerange(len(keep), 1 << 16)
        confine.confine()
        serve(
            Options(
                listener=CONTROL,
                state=DATA,
                agent_uid=0 if self.first_uid is None else _UNMAPPED,
                title="mooring-init",
                peer_outside=True,
                addresses=tuple(plan["addresses"]),
                no_new_privileges=True,
            )
        )


def _hide() -> None:
    """Cover what /proc and /sys say of the machine, and make the rest of the machine's switches read-only."""
    for path in _READ_ONLY:
        if os.path.exists(path):
            kernel.bind(path, path, kernel.MS_RDONLY | _QUIET)
    for path in _HIDDEN:
        if os.path.isdir(path):
            kernel.mount("tmpfs", path, "tmpfs", _QUIET | kernel.MS_RDONLY, "size=0,nr_inodes=1")
        elif os.path.exists(path):
            kernel.bind("/dev/null", path)


def _in_child(action: Callable[[], None]) -> None:
    """Do it in a child, and fail as the child does."""
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
        raise OSError(status, os.strerror(status) if status > 0 else "a part of the birth was killed", action.__name__)


def _or_die(maker: socket.socket, action: Callable[[], None]) -> None:
    """Do it, and tell the maker what went wrong; never return."""
    try:
        action()
    except OSError as problem:
        maker.send(f"problem {problem}".encode())
    finally:
        os._exit(1)


def _hear(channel: socket.socket, word: str) -> int:
    """Wait for a word and answer the number of the process that said it."""
    message, ancillary, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(12))
    if message != word.encode():
        raise OSError(1, message.decode() or f"it ended before it was {word}")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(struct.unpack("=3i", data[:12])[0])
    raise OSError(1, "the kernel named no sender")


def _wait(channel: socket.socket) -> None:
    """Stand at the gate; if it is gone, so are we."""
    if channel.recv(16) != b"go":
        os._exit(1)
