"""What a supervisor needs to do to processes, whether they are its own children or an init's in a sandbox."""

import base64
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from mooring_agent.supervisor.output_capture import OUTPUT_MAX_BYTES

ARGUMENTS_MAX: Final = 4096
TEXT_MAX_BYTES: Final = 1_048_576
KEY_VARIABLE: Final = "MOORING_KEY"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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


class StandardStreams(NamedTuple):
    """A program's standard streams; the caller closes the descriptors."""

    output: int
    errors: int
    input: int | None = None  # of an interactive command, which may not be root's; otherwise `stdin` is the input


class TerminalSize(NamedTuple):
    """The size of a terminal, in characters."""

    columns: int
    rows: int


class Ended(NamedTuple):
    """A program's main process that has ended; a signal counts as 128 and its number."""

    pid: int
    exit_code: int


class Related(NamedTuple):
    """Every living process of an owner, and those of them that belong to one program."""

    living: frozenset[int]
    related: frozenset[int]


class ProcessControl(Protocol):
    """Starts, signals and reaps the processes of one owner."""

    def start(self, spec: SpawnSpec, streams: StandardStreams) -> int:
        """Start a program and return its pid."""
        ...

    def start_on_terminal(self, spec: SpawnSpec, size: TerminalSize) -> tuple[int, int]:
        """Start a program on a new terminal; returns its pid and our end of the terminal."""
        ...

    def signal(self, pids: Collection[int], number: int) -> None:
        """Signal each of them, passing over those that have ended; a negative pid is a process group."""
        ...

    def signal_foreground(self, terminal: int, number: int) -> None:
        """Signal the foreground process group of a terminal, if it has one."""
        ...

    def signal_all(self, number: int) -> None:
        """Signal everything of the owner."""
        ...

    def ended(self) -> Iterator[Ended]:
        """The processes that have ended since the last call."""
        ...

    def living(self) -> list[int]:
        """Every living process of the owner."""
        ...

    def is_empty(self) -> bool:
        """Whether nothing of the owner is left, not even a process that waits to be reaped."""
        ...

    def related(self, pid: int | None, key: str) -> Related:
        """What is in the session of a program's main process, or carries its key in its environment."""
        ...


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
    if any(not name or "=" in name for name in environment) or len(environment) > ARGUMENTS_MAX:
        raise RequestRefused(
            "refused", f"at most {ARGUMENTS_MAX} variables, whose names must not be empty or contain '='"
        )
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
