"""Spawning a sandbox: a root of its own, namespaces of its own, and an init that holds them and reaps.

The init runs nothing itself. Owners' inits are spawned into its pid namespace and become its children; it reaps them,
and when it is killed, everything in the sandbox is.
"""

import errno
import os
import signal
import stat
import subprocess
from typing import Any, NamedTuple, NoReturn

from mooring_agent.kernel import syscalls
from mooring_agent.kernel.syscalls import hide_from_tracing, take_title
from mooring_agent.sandbox_init.spawner import QUIET, InitSpawner, run


class _DeviceNode(NamedTuple):
    """A GPU of the sandbox in its /dev."""

    name: str
    number: int
    is_simulated: bool


class SandboxSpawner(InitSpawner):
    root: str
    project: list[int]

    def mount_disk(self) -> None:
        """Mount its own disk, if it has one, with the initial files; visible in this mount namespace only.

        The project's network comes first: if the process that held it open has ended, nothing was done yet and the
        spawn can be repeated.
        """
        self.project = self._project_network()
        self.root = self.plan["root"]
        disk = self.plan["disk"]
        if disk is None:
            return
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        os.makedirs(disk["place"], mode=0o700, exist_ok=True)
        _run(disk["mount"], "-o", disk["options"], disk["image"], disk["place"])
        os.rmdir(disk["place"] + "/lost+found")
        _run(disk["copy"], "-a", self.root + "/.", disk["place"])
        self.root = disk["place"]

    def prepare(self) -> None:
        """Build the sandbox's mounts and leave the machine's behind."""
        plan = self.plan
        root = self.root
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.bind(root, root, syscalls.MS_NODEV | syscalls.MS_NOSUID)
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

    def _project_network(self) -> list[int]:
        """The network namespace of the project: that of another member, or a new one.

        Every member's init holds it open, so it lives as long as one of them does, and needs no process and no mount.
        """
        if self.plan["machine_network"]:
            return []
        if self.plan["project_network"]:
            return [os.open(self.plan["project_network"], os.O_RDONLY)]
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
        options = f"newinstance,ptmxmode=0666,mode=620,gid={owner + 5}"
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
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        return True

    @property
    def new_namespaces(self) -> int:
        """All of them, except the network if the sandbox uses the machine's."""
        flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWCGROUP
        return flags if self.plan["machine_network"] else flags | syscalls.CLONE_NEWNET

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
        if not self.plan["machine_network"]:
            # So that `ping` works for everybody without the right to send raw packets.
            with open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
                file.write("0 65535")

    def descriptors(self) -> list[int]:
        """The project's network, for the next member."""
        return self.project

    def run_init(self) -> None:
        """Reap children for ever."""
        take_title("mooring-sandbox")
        hide_from_tracing()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
            signal.sigwait({signal.SIGCHLD})


def _device_node(item: dict[str, Any]) -> _DeviceNode:
    if item["source"]:
        return _DeviceNode(item["name"], os.stat(item["source"]).st_rdev, is_simulated=False)
    return _DeviceNode(item["name"], os.makedev(item["major"], item["minor"]), is_simulated=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(errno.EIO, f"{words[0]}: {done.stderr.strip()[-300:]}")


def main() -> NoReturn:
    run(SandboxSpawner)
