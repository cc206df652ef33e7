"""Spawning an owner's init in an existing sandbox: its own pids and view of /proc, with a supervisor outside.

Programs of the tenant's may be running in the sandbox already, so nothing of this Python program ever enters it:
`mooring-init`, which loads nothing, joins the namespaces and becomes the init. The supervisor is a fork of this program
that stays outside, gives up every capability, and talks to the init over a socket.
"""

import contextlib
import fcntl
import os
import platform
import resource
import socket
from typing import Any, Final, NoReturn

from mooring_agent.kernel import syscalls
from mooring_agent.sandbox_init import confinement
from mooring_agent.sandbox_init.spawner import (
    HIDDEN,
    MEMORY_SCORE,
    PROGRAM_SCORE,
    READ_ONLY,
    InitSpawner,
    raise_memory_score,
    run,
)
from mooring_agent.supervisor.namespace_supervisor import NamespaceSupervisorOptions, serve

_BACKLOG: Final = 128
_FIRST_PASSED: Final = 3
_ABOVE_PASSED: Final = 64
_OPEN_FILES: Final = 65_536  # of the supervisor and the init: four times what a program may have
_JOINED: Final = ("cgroup", "ipc", "net", "uts", "pid", "mnt")  # in the order that init.c expects


class OwnerSpawner(InitSpawner):
    def spawn(self) -> dict[str, Any]:
        """Fork the supervisor and the init, let both go on when their record is on disk."""
        listener = self._listen()
        self.leave_agent()
        _allow_open_files()
        channel, init_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        supervisor_end, init_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        go_reader, go_writer = os.pipe()
        supervisor = os.fork()
        if supervisor == 0:
            for each in (channel, init_channel, init_end):
                each.close()
            os.close(go_writer)
            self._supervise(listener, supervisor_end, go_reader)
        os.close(go_reader)
        supervisor_end.close()
        entering = os.fork()
        if entering == 0:
            channel.close()
            os.close(go_writer)
            self._execute_init(init_channel, init_end)
        init_channel.close()
        init_end.close()
        record = self.record(_pid_of_init(channel))
        record |= {"supervisor_pid": supervisor, "supervisor_start": self.start_of(supervisor)}
        self.save(record)
        channel.send(b"go")
        os.write(go_writer, b"go")
        os.waitpid(entering, 0)
        return record

    def _listen(self) -> socket.socket:
        """The control socket, bound by its relative name, because a path may be longer than a socket address."""
        os.fchdir(self.directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.plan["socket"])
        previous = os.umask(0o077)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.plan["socket"])
        listener.listen(_BACKLOG)
        os.umask(previous)
        os.chdir("/")
        return listener

    def _execute_init(self, channel: socket.socket, supervisor: socket.socket) -> NoReturn:
        """Become `mooring-init owner`, with its descriptors at the numbers that it expects. The lock goes along."""
        try:
            raise_memory_score(MEMORY_SCORE, PROGRAM_SCORE)
            program = confinement.filter_program(platform.machine()) or b""
            passed = [
                channel.fileno(),
                supervisor.fileno(),
                self.proc,
                os.open("/dev/null", os.O_RDWR),
                _memory_file(self._settings()),
                _memory_file(program),
                *(self._namespace(kind) for kind in _JOINED),
                self._namespace("user"),
                self.lock,
            ]
            self.require_same(self.plan["sandbox_pid"], self.plan["sandbox_start"])
            # All are moved above the target numbers first, so that none is overwritten before it is used.
            above = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _ABOVE_PASSED) for each in passed]
            program_file = fcntl.fcntl(self.init_program, fcntl.F_DUPFD_CLOEXEC, _ABOVE_PASSED)
            for number, source in enumerate(above, _FIRST_PASSED):
                os.dup2(source, number)
            os.execve(program_file, ["mooring-init", "owner"], {})
        except OSError as problem:
            channel.send(f"problem {problem}".encode())
        finally:
            os._exit(1)

    def _namespace(self, kind: str) -> int:
        return os.open(f"{self.plan['sandbox_pid']}/ns/{kind}", os.O_RDONLY, dir_fd=self.proc)

    def _settings(self) -> bytes:
        lines = [
            f"user {int(self.first_uid is not None)}",
            f"keep {confinement.kept_mask()}",
            f"last {syscalls.last_capability()}",
            *(f"apparmor {profile}" for profile in [self.plan["apparmor"]] if profile),
            *(f"limit {getattr(resource, name)} {value}" for name, value in self.plan["rlimits"].items()),
            *(f"hide {path}" for path in HIDDEN if path.startswith("/proc/")),
            *(f"readonly {path}" for path in READ_ONLY if path.startswith("/proc/")),
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def _supervise(self, listener: socket.socket, init: socket.socket, go: int) -> NoReturn:
        """In the fork: supervise from outside the sandbox, with access only to the owner's files."""
        try:
            state = os.open(self.plan["data"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.read(go, 2) == b"go":
                os.setsid()
                for descriptor in (go, self.lock, self.proc, self.directory, self.init_program):
                    os.close(descriptor)
                confinement.confine(frozenset())
                label, reserve = self.plan["label"], self.plan["reserve_bytes"]
                serve(NamespaceSupervisorOptions(listener.detach(), state, init.detach(), label, reserve))
        finally:
            os._exit(0)


def _allow_open_files() -> None:
    """Allow the supervisor and the init more open files than any program of a tenant's has.

    The kernel counts descriptors on their way between processes per user, and compares them with this limit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, _OPEN_FILES), max(hard, _OPEN_FILES)))
    except (OSError, ValueError):  # an agent without the right to raise it has what it was given
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _memory_file(content: bytes) -> int:
    memory = os.memfd_create("settings", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(content)
    return memory


def _pid_of_init(channel: socket.socket) -> int:
    word, _, rest = channel.recv(4096).decode(errors="replace").partition(" ")
    if word == "born":
        return int(rest)
    raise OSError(1, rest or "the init ended before it was ready")


def main() -> NoReturn:
    run(OwnerSpawner)
