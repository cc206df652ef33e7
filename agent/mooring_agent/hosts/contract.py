"""The contract of every host.

A host creates sandboxes, runs programs in them and destroys them. It keeps its own records on disk below the agent's
state directory, so that after `kill -9` of the agent a new one finds everything again. Every method is idempotent: for
what already exists it returns the current state. Everything that is started or written belongs to an *owner*: the
allocation, or a label within it; `Owner.name` is its spelling in tasks.

Failures are raised as `HostFailure` with one of the failure codes of the node plane; a host raises nothing else on
purpose.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

HostKind = Literal["namespace", "process", "simulated"]
RESOURCE_KINDS: Final = (
    "processes",
    "namespaces",
    "mounts",
    "links",
    "sockets",
    "ports",
    "cgroups",
    "files",
    "containers",
    "secrets",
)
"""What a teardown inspects and a receipt lists."""
Isolation = Literal["user_namespace", "bounded", "none", "simulated"]


class HostFailure(Exception):
    """Something failed on this machine; `code` is one of the contract's failure codes."""

    def __init__(
        self, code: str, detail: str, exit_code: int | None = None, result: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.exit_code = exit_code
        self.result = dict(result or {})  # result fields that are reported despite the failure


@dataclass(frozen=True, slots=True)
class Owner:
    """Who a resource on the node belongs to: an allocation, or a label within it."""

    allocation_id: str
    label: str = ""

    @property
    def name(self) -> str:
        """The spelling in tasks."""
        return f"{self.allocation_id}/{self.label}" if self.label else self.allocation_id


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the machine; a simulated one computes nothing."""

    index: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """Another sandbox of the same project, by name."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Network:
    """The project's network on this machine; with `machine`, the sandbox uses the machine's own network."""

    name: str  # one per project; only sandboxes with the same name reach each other
    address: str  # such as 10.77.0.5
    subnet: str  # such as 10.77.0.0/24
    machine: bool = False


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The request of `sandbox.create`."""

    allocation_id: str
    tenant_id: str
    project_id: str
    hostname: str
    cpus: float
    memory_bytes: int
    pids: int
    devices: tuple[Device, ...]
    network: Network
    peers: tuple[Peer, ...] = ()
    isolation: Isolation = "user_namespace"


@dataclass(frozen=True, slots=True)
class SandboxFacts:
    """The state of a created sandbox."""

    isolation: Isolation
    address: str
    limits: Mapping[str, str]  # which limits are enforced, and how ("memory": "cgroup v2" or "not enforced: …")


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file to write below the sandbox's root, never through a link that leaves it."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    user: str = "root"
    directory: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One program: an argument list, never a shell command line."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    directory: str = "/"
    stdin: bytes = b""
    output_bytes: int = 0  # how much of its standard output to capture for `read_output`


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a supervised program is restarted."""

    policy: Literal["never", "on_failure", "always"] = "on_failure"
    backoff_seconds: float = 1.0
    limit: int = 10


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The current state of a supervised program."""

    name: str
    state: Literal["running", "backing_off", "exited", "failed", "absent"]
    pid: int | None = None
    started_at: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resource:
    """Something found on the machine; `kind` is one of `RESOURCE_KINDS`."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceReturn:
    """How a GPU of a destroyed sandbox was left."""

    name: str
    state: Literal["reset", "simulated", "unverified"]
    detail: str = ""  # why it could not be reset
    holders: tuple[int, ...] = ()  # processes that still use it


@dataclass(frozen=True, slots=True)
class TeardownReport:
    """What a teardown found, what it removed, and what remained when it inspected again."""

    found: tuple[Resource, ...]
    removed: tuple[Resource, ...]
    remaining: tuple[Resource, ...]
    looked: Mapping[str, int]  # per kind, how many resources were examined
    not_looked: tuple[str, ...] = ()
    truncated: bool = False  # more was found than is listed; `looked` and `remaining` are still complete
    devices: tuple[DeviceReturn, ...] = ()  # of a whole sandbox

    @property
    def clean(self) -> bool:
        """Whether nothing is left, and every kind could be inspected."""
        return not self.remaining and not self.not_looked


@dataclass(frozen=True, slots=True)
class Stray:
    """A resource that the platform does not know, and what was done about it."""

    resource: Resource
    verdict: Literal["adopted", "reaped", "foreign"]
    allocation_id: str | None = None


class ByteStream(Protocol):
    """A bidirectional byte stream: a connection into a sandbox, or the terminal of a command."""

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""

    async def send(self, data: bytes) -> None: ...

    async def send_end(self) -> None:
        """Signal that nothing more will be sent."""

    async def close(self) -> None:
        """Close both directions."""


class CommandStream(ByteStream, Protocol):
    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal."""

    async def signal(self, number: int) -> None:
        """Send a signal to the foreground process group."""

    async def exit_code(self) -> int:
        """Wait for the command to exit."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which part of a log: what follows an offset, or the last lines; never more than `max_bytes`."""

    offset: int | None
    tail_lines: int
    max_bytes: int
    log: str = ""  # which log the offset counts in, where a log can be replaced by a new one


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log without a gap, so that offsets count exactly what was written."""

    content: bytes
    offset: int  # where the content begins
    next_offset: int  # where the next part begins
    size: int  # where the log ends now
    truncated_before: bool = False  # part of what was requested no longer exists
    dropped_bytes: int | None = None  # how much of it, if known
    log: str = ""


@runtime_checkable
class PipedCommandStream(CommandStream, Protocol):
    """A command without a terminal: `receive` returns its standard output only."""

    async def receive_errors(self) -> bytes:
        """The next bytes of its standard error; empty at the end."""


class Host(Protocol):
    kind: HostKind

    async def recover(self) -> Sequence[str]:
        """After a start of the agent: find the sandboxes that exist and return their allocations."""

    async def create(self, spec: SandboxSpec) -> SandboxFacts:
        """Create the sandbox, or return the state of an existing one; a partly created one is completed or rebuilt."""

    async def set_peers(self, allocation_id: str, peers: Sequence[Peer]) -> None:
        """Set the names of other sandboxes that this one can resolve."""

    async def write_files(self, owner: Owner, files: Sequence[FileSpec]) -> int:
        """Write files below the sandbox's root and record their owner; returns how many."""

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        """Run a program to its end under `key` (the task) and return its exit code; a known key is re-attached to."""

    async def find_run(self, owner: Owner, key: str) -> Literal["running", "ended", "absent"]:
        """Whether a program that was started under `key` still exists."""

    async def cancel_run(self, owner: Owner, key: str) -> None:
        """Kill that program and what it started."""

    async def start_service(
        self, owner: Owner, name: str, process: ProcessSpec, restart: RestartPolicy
    ) -> ServiceState:
        """Start a supervised program, or return the state of the one with this name."""

    async def stop_service(self, owner: Owner, name: str, kill: Literal["main", "owner"], grace_seconds: float) -> bool:
        """Stop the main process, or everything that the owner runs; returns whether it was running."""

    async def inspect_service(self, owner: Owner, name: str) -> ServiceState: ...

    def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        """The output of a run or service (by key or name), from an offset to its current end.

        A log is bounded: its beginning and its newest part are kept, and a line marks where bytes between them were
        dropped.
        """

    async def read_log_part(self, owner: Owner, key: str, request: LogRequest) -> LogPart | None:
        """A bounded part of a log; none if there is no log with this key."""

    async def read_output(self, owner: Owner, key: str) -> tuple[bytes, bool] | None:
        """The captured standard output of a run, from its beginning, and whether it was truncated.

        None if `ProcessSpec.output_bytes` requested no capture, or if it could not be kept.
        """

    async def dial(self, allocation_id: str, port: int) -> ByteStream:
        """Connect to a port inside the sandbox's own network, and nowhere else."""

    async def open_command(self, owner: Owner, process: ProcessSpec, columns: int, rows: int) -> CommandStream:
        """Start an interactive command with a terminal of this size."""

    async def open_piped(self, owner: Owner, process: ProcessSpec) -> CommandStream:
        """Start a command without a terminal; a `PipedCommandStream` if the host separates output and errors."""

    async def close_owner(self, owner: Owner) -> TeardownReport:
        """Kill and remove everything of one owner, then inspect; other owners are not affected."""

    async def destroy(self, allocation_id: str) -> TeardownReport:
        """Kill and remove everything of the allocation, then inspect."""

    async def sweep(self, known: Collection[str]) -> Sequence[Stray]:
        """Compare the machine with the allocations that the platform knows; reap what is ours and unknown.

        `known` grows during the call and contains an allocation before anything of it is created: look at the machine
        first and into `known` second, and do not copy it.
        """
