"""Make an owner's part of a sandbox that stands: pids and a view of /proc of its own, with a supervisor as its init."""

import contextlib
import os
import socket
from typing import Any, Final, NoReturn

from mooring_agent.kernel import syscalls
from mooring_agent.sandbox_init.spawner import QUIET, InitSpawner, run
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.serve import serve

_UNMAPPED: Final = 65534  # how a user namespace shows users that it does not have, such as root of the machine
_BACKLOG: Final = 128


class OwnerSpawner(InitSpawner):
    """An owner that is new in the sandbox of the plan."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        self.data = os.open(plan["data"], os.O_RDONLY | os.O_DIRECTORY)
        self.users = os.open(f"{plan['sandbox_pid']}/ns/user", os.O_RDONLY, dir_fd=self.proc)

    def prepare(self) -> None:
        """Open the socket that the agent asks at, then enter the sandbox, all but its users: the bridge does that."""
        os.fchdir(self.directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.plan["socket"])
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # By its relative name: a path may be longer than an address can be.
        self.control.bind(self.plan["socket"])
        os.chmod(self.plan["socket"], 0o600)
        self.control.listen(_BACKLOG)
        for kind in ("cgroup", "ipc", "net", "uts", "pid", "mnt"):
            self.setns(self.plan["sandbox_pid"], kind)
        # A mount namespace that is ours by right, so that a new /proc can be mounted over the sandbox's.
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)

    def enter_user_namespace(self) -> bool:
        """The sandbox's."""
        if self.first_uid is not None:
            syscalls.setns(self.users, syscalls.CLONE_NEWUSER)
        return False

    @property
    def new_namespaces(self) -> int:
        """Pids alone."""
        return syscalls.CLONE_NEWPID

    def mount_views(self) -> None:
        """The owner's processes."""
        syscalls.mount("proc", "/proc", "proc", QUIET)

    def wait_until_idle(self) -> None:
        """Everything else is the sandbox's already."""

    def descriptors(self) -> list[int]:
        """The socket, and the directory of logs and results."""
        return [self.control.detach(), self.data]

    def run_init(self) -> None:
        """Supervise."""
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
    """Make one."""
    run(OwnerSpawner)
