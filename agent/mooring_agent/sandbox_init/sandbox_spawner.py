"""Spawning a sandbox: a root of its own, namespaces of its own, and an init that holds them and reaps.

The init runs nothing itself. Owners' inits are spawned into its pid namespace and become its children; it reaps them,
and when it is killed, everything in the sandbox is.

Three processes take part:

* the **spawner** (the program itself, root of the machine) builds the mounts in a mount namespace of its own, leaves
  the machine's root behind, writes the uid map, and records the init on disk;
* the **intermediate** process enters the user namespace, creates the other namespaces, forks the **init** and ends;
* the **init** waits for permission to continue, which it gets only when its record is on disk. Then it locks the mounts
  (by copying the mount namespace into the less privileged user namespace), hides what /proc and /sys reveal about the
  machine, confines itself and executes `mooring-init`.

All of this happens before anything of the tenant's is in the sandbox: its root holds only what the agent put there.
"""

import errno
import fcntl
import os
import resource
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from mooring_agent.kernel import syscalls
from mooring_agent.sandbox_init import confinement
from mooring_agent.sandbox_init.spawner import (
    HIDDEN,
    NAMESPACES,
    PROJECT_DESCRIPTOR,
    QUIET,
    READ_ONLY,
    InitSpawner,
    run,
)

_TERMINALS_MAX: Final = 256  # of one sandbox; the kernel has 4,096 for all


class _DeviceNode(NamedTuple):
    """A GPU of the sandbox in its /dev."""

    name: str
    number: int
    is_simulated: bool


class SandboxSpawner(InitSpawner):
    root: str
    project: list[int]

    def spawn(self) -> dict[str, Any]:
        """Run every step in order; returns the init's record."""
        # As long as no control group denies access to devices: mount what is on one.
        self.mount_disk()
        self.leave_agent()
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
        record = self.record(init)
        self.save(record)
        parent_end.send(b"go")
        os.waitpid(intermediate, 0)
        return record

    def mount_disk(self) -> None:
        """Mount its own disk, if it has one, with the initial files; visible in this mount namespace only.

        The project's network comes first: if the process that held it open has ended, nothing was done yet and the
        spawn can be repeated.
        """
        self.project = self._project_network()
        self.root = self.plan["root"]
        disk = self.plan["disk"]
        if disk is None:
            self._limit_io(self.plan["io_device"])
            return
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        os.makedirs(disk["place"], mode=0o700, exist_ok=True)
        _run(disk["mount"], "-o", disk["options"], disk["image"], disk["place"])
        number = os.stat(disk["place"]).st_dev
        self._limit_io(f"{os.major(number)}:{os.minor(number)}")
        os.rmdir(disk["place"] + "/lost+found")
        _run(disk["copy"], "-a", self.root + "/.", disk["place"])
        self.root = disk["place"]

    def _limit_io(self, device: str) -> None:
        """Set the I/O limits of the sandbox's control group, before it enters it."""
        for path, text in self.plan["io_limits"]:
            if not device:
                raise OSError(errno.ENODEV, "the state directory is on no block device that an I/O budget could be for")
            with open(path, "w") as file:
                file.write(text.format(device=device))

    def prepare(self) -> None:
        """Build the sandbox's mounts and leave the machine's behind."""
        plan = self.plan
        root = self.root
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.bind(root, root, syscalls.MS_NODEV | syscalls.MS_NOSUID)
        self._mount_usr(root)
        for source, target in plan["binds"]:
            syscalls.bind(source, root + target, syscalls.MS_RDONLY | syscalls.MS_NODEV | syscalls.MS_NOSUID)
        devices = [_device_node(item) for item in plan["devices"]]
        self._mount_devices(root, devices)
        owner = self.first_uid or 0
        syscalls.mount(
            "tmpfs",
            root + "/run",
            "tmpfs",
            syscalls.MS_NOSUID | syscalls.MS_NODEV,
            f"mode=755,size={plan['shared_memory_bytes']},uid={owner},gid={owner}",
        )
        os.mkdir(root + "/run/lock", 0o1777)
        os.chmod(root + "/run/lock", 0o1777)
        os.chown(root + "/run/lock", owner, owner)
        os.chdir(root)
        syscalls.pivot_root(".", ".")
        syscalls.unmount(".")
        os.chdir("/")

    def _mount_usr(self, root: str) -> None:
        """Mount the visible part of the machine's /usr below a directory in which nobody can make anything."""
        usr = self.plan["usr"]
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("tmpfs", root + "/usr", "tmpfs", flags, "mode=755,size=64k,nr_inodes=512")
        for path in usr["directories"]:
            os.makedirs(root + path, 0o755)
            syscalls.bind(path, root + path, syscalls.MS_RDONLY | flags)
        for path, target in usr["links"]:
            os.makedirs(os.path.dirname(root + path), 0o755, exist_ok=True)
            os.symlink(target, root + path)
        syscalls.mount("none", root + "/usr", "", syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY | flags)

    def _project_network(self) -> list[int]:
        """The network namespace of the project: that of another member, or a new one.

        Every member's init holds it open, so it lives as long as one of them does, and needs no process and no mount.
        """
        if self.plan["network"] != "project":
            return []
        if (holder := self.plan["project_network"]) is not None:
            opened = os.open(f"{holder['pid']}/fd/{PROJECT_DESCRIPTOR}", os.O_RDONLY, dir_fd=self.proc)
            self.require_same(holder["pid"], holder["start"])
            return [opened]
        before = os.open("self/ns/net", os.O_RDONLY, dir_fd=self.proc)
        syscalls.unshare(syscalls.CLONE_NEWNET)
        made = os.open("self/ns/net", os.O_RDONLY, dir_fd=self.proc)
        syscalls.setns(before, syscalls.CLONE_NEWNET)
        os.close(before)
        return [made]

    def _mount_devices(self, root: str, devices: list[_DeviceNode]) -> None:
        """Mount a /dev with the harmless devices, its own pseudo-terminals and the sandbox's GPUs."""
        owner = self.first_uid or 0
        dev = root + "/dev"
        quiet = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
        syscalls.mount("tmpfs", dev, "tmpfs", quiet, f"mode=755,size=1m,nr_inodes=4096,uid={owner},gid={owner}")
        previous = os.umask(0)
        for name, minor in (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)):
            os.mknod(f"{dev}/{name}", stat.S_IFCHR | 0o666, os.makedev(1, minor))
        os.mknod(f"{dev}/tty", stat.S_IFCHR | 0o666, os.makedev(5, 0))
        for device in devices:
            os.mknod(f"{dev}/{device.name}", stat.S_IFCHR | 0o666, device.number)
            os.chown(f"{dev}/{device.name}", owner, owner)
        simulated = [device.name for device in devices if device.is_simulated]
        if simulated:
            with open(f"{dev}/simulated-gpus", "w") as file:
                file.write("".join(f"{name}\n" for name in simulated))
            os.chmod(f"{dev}/simulated-gpus", 0o444)
        for name in ("pts", "shm"):
            os.mkdir(f"{dev}/{name}")
        options = f"newinstance,ptmxmode=0666,mode=620,gid={owner + 5},max={_TERMINALS_MAX}"
        syscalls.mount("devpts", f"{dev}/pts", "devpts", quiet, options)
        size = self.plan["shared_memory_bytes"]
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("tmpfs", f"{dev}/shm", "tmpfs", flags, f"mode=1777,size={size},uid={owner},gid={owner}")
        os.symlink("pts/ptmx", f"{dev}/ptmx")
        os.symlink("/proc/self/fd", f"{dev}/fd")
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", f"{dev}/{name}")
        os.umask(previous)

    def enter_user_namespace(self) -> bool:
        """Create a user namespace, unless the sandbox is a bounded one."""
        if self.first_uid is None:
            return False
        # The kernel counts inotify instances, queued signals and the like also for the user who made the namespace. Let
        # that be one of the sandbox's own: otherwise a tenant could use up what the machine's root may have.
        syscalls.prctl(syscalls.PR_SET_SECUREBITS, syscalls.SECBIT_NO_SETUID_FIXUP)  # reset by the next call
        os.setresuid(-1, self.first_uid, -1)
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        return True

    @property
    def new_namespaces(self) -> int:
        """All of them, except the network if the sandbox shares the machine's."""
        flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWCGROUP
        return flags if self.plan["network"] == "shared" else flags | syscalls.CLONE_NEWNET

    def mount_views(self) -> None:
        """Mount /proc and /sys of the sandbox's own namespaces."""
        syscalls.mount("proc", "/proc", "proc", QUIET)
        syscalls.mount("sysfs", "/sys", "sysfs", QUIET | syscalls.MS_RDONLY)

    def configure(self) -> None:
        """Set the host name, and forbid nested user namespaces."""
        syscalls.sethostname(self.plan["hostname"])
        if self.first_uid is not None:
            with open("/proc/sys/user/max_user_namespaces", "w") as file:
                file.write("0")
        if self.plan["network"] != "shared":
            # So that `ping` works for everybody without the right to send raw packets.
            with open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
                file.write("0 65535")

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
            syscalls.setns(descriptor, NAMESPACES[kind])
        finally:
            os.close(descriptor)

    def _map_users(self, intermediate: int) -> None:
        for name in ("uid_map", "gid_map"):
            descriptor = os.open(f"{intermediate}/{name}", os.O_WRONLY, dir_fd=self.proc)
            try:
                os.write(descriptor, f"0 {self.first_uid} {self.plan['uids']}\n".encode())
            finally:
                os.close(descriptor)

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
        nothing = os.open("/dev/null", os.O_RDWR)
        keep = [nothing, nothing, nothing, *self.project]
        *sources, program, channel = [
            fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in (*keep, self.init_program, spawner.fileno())
        ]
        for target, source in enumerate(sources):
            os.dup2(source, target)
        spawner.detach()
        with socket.socket(fileno=channel) as to_maker:
            to_maker.send(b"ready")
            _wait_for_go(to_maker)
        os.closerange(len(keep), program)
        os.closerange(program + 1, 1 << 16)
        os.set_inheritable(program, False)
        confinement.confine()
        os.execve(program, ["mooring-sandbox", "sandbox"], {})


def _device_node(item: dict[str, Any]) -> _DeviceNode:
    if item["source"]:
        return _DeviceNode(item["name"], os.stat(item["source"]).st_rdev, is_simulated=False)
    return _DeviceNode(item["name"], os.makedev(item["major"], item["minor"]), is_simulated=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(errno.EIO, f"{words[0]}: {done.stderr.strip()[-300:]}")


def _hide() -> None:
    """Hide what /proc and /sys reveal about the machine, and make its other settings read-only."""
    for path in READ_ONLY:
        if os.path.exists(path):
            syscalls.bind(path, path, syscalls.MS_RDONLY | QUIET)
    for path in HIDDEN:
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


def main() -> NoReturn:
    run(SandboxSpawner)
