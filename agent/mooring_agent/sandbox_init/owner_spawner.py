"""Spawning an owner's init in an existing sandbox: its own pids and view of /proc, with a supervisor as its init."""

import contextlib
import os
import socket
from typing import Any, Final, NoReturn

from mooring_agent.kernel import syscalls
from mooring_agent.sandbox_init.spawner import QUIET, InitSpawner, run
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.serve import serve

_UNMAPPED: Final = 65534  # how a user namespace shows users that it does not map, such as the machine's root
_BACKLOG: Final = 128


class OwnerSpawner(InitSpawner):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        self.data = os.open(plan["data"], os.O_RDONLY | os.O_DIRECTORY)
        self.users = os.open(f"{plan['sandbox_pid']}/ns/user", os.O_RDONLY, dir_fd=self.proc)

    def prepare(self) -> None:
        """Open the control socket, then join the sandbox's namespaces except the user namespace."""
        os.fchdir(self.directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.plan["socket"])
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # By its relative name, because a path may be longer than a socket address.
        self.control.bind(self.plan["socket"])
        os.chmod(self.plan["socket"], 0o600)
        self.control.listen(_BACKLOG)
        for kind in ("cgroup", "ipc", "net", "uts", "pid", "mnt"):
            self.setns(self.plan["sandbox_pid"], kind)
        # A mount namespace of our own, so that a new /proc can be mounted over the sandbox's.
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)

    def enter_user_namespace(self) -> bool:
        """Join the sandbox's user namespace."""
        if self.first_uid is not None:
            syscalls.setns(self.users, syscalls.CLONE_NEWUSER)
        return False

    @property
    def new_namespaces(self) -> int:
        """Only a pid namespace."""
        return syscalls.CLONE_NEWPID

    def mount_views(self) -> None:
        syscalls.mount("proc", "/proc", "proc", QUIET)

    def configure(self) -> None:
        """Nothing to configure: everything else is the sandbox's."""

    def descriptors(self) -> list[int]:
        """The control socket, and the directory of logs and results."""
        return [self.control.detach(), self.data]

    def run_init(self) -> None:
        serve(
            SupervisorOptions(
                listener=3,
                state=4,
                agent_uid=0 if self.first_uid is None else _UNMAPPED,
                title="mooring-init",
                peer_outside=True,
                addresses=tuple(self.plan["addresses"]),
                no_new_privileges=True,
            )
        )


def main() -> NoReturn:
    run(OwnerSpawner)
