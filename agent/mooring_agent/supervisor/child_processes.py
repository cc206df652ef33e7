"""The processes of a sandbox without namespaces: children of the supervisor itself, and what descends from them.

A new process reports a failure before exec over a pipe that exec closes.
"""

import errno
import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple, NoReturn

from mooring_agent.kernel import proc, process_tree, syscalls
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.process_control import (
    KEY_VARIABLE,
    PATH,
    Ended,
    Related,
    RequestRefused,
    SpawnSpec,
    StandardStreams,
    TerminalSize,
)

START_SECONDS: Final = 20.0
_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ChildProcesses:
    """Starts programs as the supervisor's own user and finds what they leave behind by its ancestors."""

    def __init__(self, options: SupervisorOptions) -> None:
        self._options = options

    def start(self, spec: SpawnSpec, streams: StandardStreams) -> int:
        return _start(spec, self._options, streams, is_terminal=False)

    def start_on_terminal(self, spec: SpawnSpec, size: TerminalSize) -> tuple[int, int]:
        terminal, side = os.openpty()
        try:
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))
            return _start(spec, self._options, StandardStreams(side, side, side), is_terminal=True), terminal
        except (RequestRefused, OSError):
            os.close(terminal)
            raise
        finally:
            os.close(side)

    def signal(self, pids: Collection[int], number: int) -> None:
        process_tree.send_signal(pids, number)

    def signal_foreground(self, terminal: int, number: int) -> None:
        foreground = os.tcgetpgrp(terminal)
        if foreground > 0:
            process_tree.send_signal([-foreground], number)

    def signal_all(self, number: int) -> None:
        self.signal(self.living(), number)

    def ended(self) -> Iterator[Ended]:
        """Reap every child that has ended, including adopted ones."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            yield Ended(pid, code if code >= 0 else 128 - code)

    def living(self) -> list[int]:
        return process_tree.descendants(os.getpid())

    def is_empty(self) -> bool:
        """Whether no child is left: orphans become children of this process."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def related(self, pid: int | None, key: str) -> Related:
        living = frozenset(self.living())
        return Related(living, frozenset(each for each in living if _is_related(each, pid, key)))


def _is_related(pid: int, main: int | None, key: str) -> bool:
    if main is not None and (pid == main or process_tree.is_in_session(pid, main)):
        return True
    return proc.has_variable(pid, f"{KEY_VARIABLE}={key}")


class _ChildDescriptors(NamedTuple):
    """What a new process needs open until exec."""

    input: int
    output: int
    errors: int
    error_writer: int  # reports a failure before exec


def _start(spec: SpawnSpec, options: SupervisorOptions, streams: StandardStreams, *, is_terminal: bool) -> int:
    standard_input = streams.input if streams.input is not None else open_stdin(spec.stdin)
    error_reader, error_writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            descriptors = _ChildDescriptors(standard_input, streams.output, streams.errors, error_writer)
            _exec_program(spec, options, descriptors, is_terminal)
    finally:
        os.close(error_writer)
        if streams.input is None:
            os.close(standard_input)
    try:
        _wait_for_exec(error_reader, pid, spec.argv[0])
    finally:
        os.close(error_reader)
    return pid


def open_stdin(content: bytes) -> int:
    """A descriptor that reads this content. Even an empty one is not the machine's /dev/null: a tenant that is user 0
    of the machine could change its mode, and everybody's lock on it would be the same lock.
    """
    memory = os.memfd_create("stdin", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(content)
    os.lseek(memory, 0, os.SEEK_SET)
    return memory


def _wait_for_exec(error_reader: int, pid: int, name: str) -> None:
    poll = select.poll()
    poll.register(error_reader, select.POLLIN)
    if not poll.poll(START_SECONDS * 1000):
        problem = f"{errno.ETIMEDOUT}:it did not start within {START_SECONDS:.0f} seconds"
    else:
        problem = os.read(error_reader, 4096).decode("utf-8", "replace")
    if not problem:
        return
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    number, _, detail = problem.partition(":")
    codes = {errno.ENOENT: "not_found", errno.ENOTDIR: "not_found", errno.EACCES: "permission_denied"}
    raise RequestRefused(codes.get(int(number), "host_error"), f"{name} could not be started: {detail}")


def _exec_program(
    spec: SpawnSpec, options: SupervisorOptions, descriptors: _ChildDescriptors, has_terminal: bool
) -> NoReturn:
    """In the new process; never returns."""
    error_writer = descriptors.error_writer
    try:
        os.setsid()
        if has_terminal:
            fcntl.ioctl(descriptors.input, termios.TIOCSCTTY, 0)
        error_writer = _place_descriptors(descriptors)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.umask(0o022)
        syscalls.drop_capabilities(options.drop_capabilities)
        if options.no_new_privileges or os.geteuid() != 0:
            syscalls.forbid_new_privileges()
        _change_directory(spec.directory, options.start)
        syscalls.close_at_exec(3)
        environment = {"PATH": PATH, "LANG": "C.UTF-8", **spec.environment, **options.markers}
        os.execvpe(spec.argv[0], list(spec.argv), environment)
    except OSError as error:
        os.write(error_writer, f"{error.errno or 0}:{error.strerror or error}".encode())
    except BaseException as error:  # noqa: BLE001 - reported to the supervisor; nobody else could handle it
        os.write(error_writer, f"0:{error!r}".encode())
    finally:
        os._exit(127)


def _place_descriptors(descriptors: _ChildDescriptors) -> int:
    """Put the standard streams at 0, 1 and 2 and the error pipe above them; none is overwritten before its use."""
    duplicates = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in descriptors]
    for target in (0, 1, 2):
        os.dup2(duplicates[target], target)
    return duplicates[3]


def _change_directory(directory: str, start: int) -> None:
    """Enter the program's directory step by step, and never through a link."""
    current = os.open(".", _DIRECTORY, dir_fd=start)
    for part in directory.strip("/").split("/"):
        if part == "..":
            raise OSError(errno.EACCES, "the directory is outside the sandbox")
        if part not in ("", "."):
            current = os.open(part, _DIRECTORY, dir_fd=current)
    os.fchdir(current)
