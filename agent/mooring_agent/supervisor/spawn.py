"""Starting one program: its own session, its own user, none of our descriptors.

A new process reports a failure before exec over a pipe that exec closes.
"""

import base64
import errno
import fcntl
import os
import select
import signal
import sys
import termios
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from mooring_agent.kernel import syscalls
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.output_capture import OUTPUT_MAX_BYTES
from mooring_agent.supervisor.users import SandboxUser, UnknownUserError, find_user

ARGUMENTS_MAX: Final = 4096
TEXT_MAX_BYTES: Final = 1_048_576
START_SECONDS: Final = 20.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RequestRefused(Exception):
    """A request that is refused; `code` is one of the node plane's failure codes."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class SpawnSpec(NamedTuple):
    """One program, as requested."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    user: str
    directory: str
    stdin: bytes
    output_bytes: int = 0  # how much of its standard output to capture


def read_spec(given: Any) -> SpawnSpec:
    """Read a program from a message, or refuse it."""
    if not isinstance(given, dict):
        raise RequestRefused("refused", "a program must be an object")
    argv, environment = given.get("argv"), given.get("environment", {})
    if not isinstance(argv, list) or not 1 <= len(argv) <= ARGUMENTS_MAX or not isinstance(environment, dict):
        raise RequestRefused("refused", "a program needs a list of arguments and an environment")
    texts = [*argv, *environment, *environment.values(), given.get("user", "root"), given.get("directory", "/")]
    if not all(isinstance(text, str) and "\0" not in text for text in texts) or not argv[0]:
        raise RequestRefused("refused", "arguments and environment must be text without NUL")
    if any(not name or "=" in name for name in environment):
        raise RequestRefused("refused", "a variable name must not be empty or contain '='")
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError:
        raise RequestRefused("refused", "arguments and environment must be valid Unicode") from None
    if size > TEXT_MAX_BYTES:
        raise RequestRefused("too_large", f"arguments and environment must not be longer than {TEXT_MAX_BYTES} bytes")
    kept = given.get("output_bytes", 0)
    if isinstance(kept, bool) or not isinstance(kept, int) or not 0 <= kept <= OUTPUT_MAX_BYTES:
        raise RequestRefused("refused", f"0 to {OUTPUT_MAX_BYTES} bytes of output can be captured")
    stdin = base64.b64decode(given.get("stdin", ""), validate=True)
    return SpawnSpec(tuple(argv), environment, given.get("user", "root"), given.get("directory", "/"), stdin, kept)


class StandardStreams(NamedTuple):
    """A program's standard streams; the caller closes the descriptors."""

    output: int
    errors: int
    input: int | None = None  # of an interactive command, which may not be root's; otherwise `stdin` is the input
    is_terminal: bool = False  # all three are one terminal, which becomes the controlling terminal


class _ChildDescriptors(NamedTuple):
    """What a new process needs open until exec."""

    input: int
    output: int
    errors: int
    error_writer: int  # reports a failure before exec


def start(spec: SpawnSpec, options: SupervisorOptions, streams: StandardStreams) -> int:
    """Start a program and return its pid."""
    user = _find_user(spec, options)
    if streams.input is not None and user is not None and 0 in (user.uid, user.gid):
        # Only here is the user known: the name is looked up in the sandbox's own file, which the tenant controls.
        raise RequestRefused(
            "refused", f"{spec.user!r} is root in the sandbox; an interactive command must run as another user"
        )
    standard_input = streams.input if streams.input is not None else _open_stdin(spec.stdin)
    error_reader, error_writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
        if pid == 0:
            descriptors = _ChildDescriptors(standard_input, streams.output, streams.errors, error_writer)
            _exec_program(spec, options, user, descriptors, streams.is_terminal)
    finally:
        os.close(error_writer)
        if streams.input is None:
            os.close(standard_input)
    try:
        _wait_for_exec(error_reader, pid, spec.argv[0])
    finally:
        os.close(error_reader)
    return pid


def _find_user(spec: SpawnSpec, options: SupervisorOptions) -> SandboxUser | None:
    if not options.switch_users:
        return None
    try:
        return find_user(spec.user)
    except UnknownUserError as error:
        raise RequestRefused("not_found", str(error)) from None


def _open_stdin(content: bytes) -> int:
    if not content:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
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
    spec: SpawnSpec,
    options: SupervisorOptions,
    user: SandboxUser | None,
    descriptors: _ChildDescriptors,
    has_terminal: bool,
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
        if options.prepare_program is not None:
            options.prepare_program()
        _switch_user(options, user)
        _change_directory(spec.directory, options.start)
        syscalls.close_at_exec(3)
        os.execvpe(spec.argv[0], list(spec.argv), _environment(spec, options, user))
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


def _switch_user(options: SupervisorOptions, user: SandboxUser | None) -> None:
    syscalls.drop_capabilities(options.drop_capabilities)
    if user is not None:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    if options.no_new_privileges or os.geteuid() != 0:
        syscalls.forbid_new_privileges()


def _change_directory(directory: str, start: int | None) -> None:
    """Enter the program's directory; without a root of its own, step by step and never through a link."""
    if start is None:
        os.chdir(directory)
        return
    current = os.open(".", _DIRECTORY, dir_fd=start)
    for part in directory.strip("/").split("/"):
        if part == "..":
            raise OSError(errno.EACCES, "the directory is outside the sandbox")
        if part not in ("", "."):
            current = os.open(part, _DIRECTORY, dir_fd=current)
    os.fchdir(current)


def _environment(spec: SpawnSpec, options: SupervisorOptions, user: SandboxUser | None) -> dict[str, str]:
    base = {"PATH": _PATH, "LANG": "C.UTF-8"}
    if user is not None:
        base |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    return {**base, **spec.environment, **options.markers}


# The child of a fork must not load anything from a changed root, so the codec that `encode` needs is loaded now.
"".encode(sys.getfilesystemencoding())
