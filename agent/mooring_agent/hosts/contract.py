"""What every host promises to the agent.

A host makes sandboxes, runs things in them and takes them away again. It keeps its own records on disk below the
agent's state directory, so that after `kill -9` of the agent a new one finds everything again. Every method may be
repeated: what stands already is answered as it stands. Everything that is started or written belongs to an *owner*:
the allocation, or a label within it; `Owner.name` is how tasks spell it.

What goes wrong is a `HostFailure` with one of the codes of the node plane's contract; a host raises nothing else on
purpose.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

HostKind = Literal["namespace", "process", "simulated"]
Isolation = Literal["user_namespace", "bounded", "none", "simulated"]


class HostFailure(Exception):
    """Something could not be done on this machine; `code` is one of the contract's failure codes."""

    def __init__(
        self, code: str, detail: str, exit_code: int | None = None, result: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.exit_code = exit_code
        self.result = dict(result or {})  # what the task's result says all the same


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a thing on the node belongs to: an allocation, or a label within it."""

    allocation_id: str
    label: str = ""

    @property
    def name(self) -> str:
        """As tasks spell it."""
        return f"{self.allocation_id}/{self.label}" if self.label else self.allocation_id


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the machine; a simulated one computes nothing and says so."""

    index: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """Another sandbox of the same project, by name."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Network:
    """The project's network on this machine; with `machine`, the sandbox uses the machine's own."""

    name: str  # one per project; sandboxes of one name reach each other, of two names never
    address: str  # such as 10.77.0.5
    subnet: str  # such as 10.77.0.0/24
    machine: bool = False


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What `sandbox.create` asks for."""

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
    """How a sandbox stands."""

    isolation: Isolation
    address: str
    limits: Mapping[str, str]  # which limits are in force, and by what ("memory": "cgroup v2" or "not enforced: …")


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file to write: below the sandbox's root, never through a link that leaves it."""

    path: str
    content: bytes = b""
    mode: int = 0o644
    user: str = "root"
    directory: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One program: an argument list, never a shell's line."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    directory: str = "/"
    stdin: bytes = b""
    output_bytes: int = 0  # of a run: how much of its standard output `read_output` has


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a supervised program is started again."""

    policy: Literal["never", "on_failure", "always"] = "on_failure"
    backoff_seconds: float = 1.0
    limit: int = 10


@dataclass(frozen=True, slots=True)
class ServiceState:
    """A supervised program as it is seen now."""

    name: str
    state: Literal["running", "backing_off", "exited", "failed", "absent"]
    pid: int | None = None
    started_at: float | None = None
    restarts: int = 0
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that was found on the machine: `kind` is one of the receipt's kinds."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TeardownReport:
    """What a teardown found, removed, and found again when it looked afterwards."""

    found: tuple[Resource, ...]
    removed: tuple[Resource, ...]
    remaining: tuple[Resource, ...]
    looked: Mapping[str, int]  # per kind, how many things were examined
    not_looked: tuple[str, ...] = ()
    truncated: bool = False  # more was found than is listed; `looked` and `remaining` are whole all the same

    @property
    def clean(self) -> bool:
        """Whether nothing is left, and every kind could be looked at."""
        return not self.remaining and not self.not_looked


@dataclass(frozen=True, slots=True)
class Stray:
    """A thing that the platform does not know of, and what became of it."""

    resource: Resource
    verdict: Literal["adopted", "reaped", "foreign"]
    allocation_id: str | None = None


class ByteStream(Protocol):
    """Two directions of bytes: a connection inside a sandbox, or the terminal of a command."""

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""

    async def send(self, data: bytes) -> None:
        """Write all of it."""

    async def send_end(self) -> None:
        """Nothing more will be sent."""

    async def close(self) -> None:
        """Both directions end now."""


class CommandStream(ByteStream, Protocol):
    """An interactive command in a sandbox."""

    async def resize(self, columns: int, rows: int) -> None:
        """The viewer's window has this size now."""

    async def signal(self, number: int) -> None:
        """Send a signal to the foreground."""

    async def exit_code(self) -> int:
        """Wait for its end."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """Which part of a log: what follows on an offset, or its last lines; never more than so many bytes."""

    offset: int | None
    tail_lines: int
    max_bytes: int
    log: str = ""  # the log that the offset counts in, where a log can be replaced by a new one


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log: never across a gap, so that offsets count what was written and nothing else."""

    content: bytes
    offset: int  # where the content begins
    next_offset: int  # where the next part begins
    size: int  # where the log ends now
    truncated_before: bool = False  # what was asked for is, in part, not there any more
    dropped_bytes: int | None = None  # how much of it, where that is known
    log: str = ""


@runtime_checkable
class PipedCommandStream(CommandStream, Protocol):
    """A command without a terminal: `receive` has its standard output alone."""

    async def receive_errors(self) -> bytes:
        """The next bytes of its standard error; empty at the end."""


class Host(Protocol):
    """A place where sandboxes stand."""

    kind: HostKind

    async def recover(self) -> Sequence[str]:
        """After a start of the agent: find what stands; the allocations whose sandbox is there."""

    async def create(self, spec: SandboxSpec) -> SandboxFacts:
        """Make the sandbox, or answer how it stands already; half made ones are completed or made anew."""

    async def set_peers(self, allocation_id: str, peers: Sequence[Peer]) -> None:
        """Let the sandbox know these names."""

    async def write_files(self, owner: Owner, files: Sequence[FileSpec]) -> int:
        """Write files below the sandbox's root and remember whose they are; how many."""

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        """Run a program to its end under `key` (the task); its exit code. A known key is re-attached to."""

    async def find_run(self, owner: Owner, key: str) -> Literal["running", "ended", "absent"]:
        """Whether a program that was started under `key` can still be found."""

    async def cancel_run(self, owner: Owner, key: str) -> None:
        """Kill that program and what it started."""

    async def start_service(
        self, owner: Owner, name: str, process: ProcessSpec, restart: RestartPolicy
    ) -> ServiceState:
        """Start a supervised program, or answer how the one of this name stands."""

    async def stop_service(self, owner: Owner, name: str, kill: Literal["main", "owner"], grace_seconds: float) -> bool:
        """Stop it: the main process alone, or all that the owner runs; whether it ran."""

    async def inspect_service(self, owner: Owner, name: str) -> ServiceState:
        """How it stands."""

    def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        """The output of a run or a service (by key or name) from an offset to what is there now.

        A log is bounded: its beginning and its newest part are kept, and a line says where bytes between them were
        dropped.
        """

    async def read_log_part(self, owner: Owner, key: str, request: LogRequest) -> LogPart | None:
        """A bounded part of such a log; none where there is no log of this key."""

    async def read_output(self, owner: Owner, key: str) -> tuple[bytes, bool] | None:
        """What a run wrote to its standard output alone, from its beginning, and whether more came than was asked for.

        It is what `ProcessSpec.output_bytes` asked for; none where that was nothing, or where it could not be kept.
        """

    async def dial(self, allocation_id: str, port: int) -> ByteStream:
        """Connect to a port inside the sandbox's own network, and nowhere else."""

    async def open_command(self, owner: Owner, process: ProcessSpec, columns: int, rows: int) -> CommandStream:
        """Start an interactive command with a terminal of this size."""

    async def open_piped(self, owner: Owner, process: ProcessSpec) -> CommandStream:
        """Start a command without a terminal; a `PipedCommand` where the host can tell output and errors apart."""

    async def close_owner(self, owner: Owner) -> TeardownReport:
        """Kill, remove and look for everything of one owner; the others go on."""

    async def destroy(self, allocation_id: str) -> TeardownReport:
        """Kill, remove and look for everything of the allocation."""

    async def sweep(self, known: Collection[str]) -> Sequence[Stray]:
        """Compare the machine with the allocations that the platform knows; reap what is ours and unknown.

        `known` grows while this lasts, and has an allocation before anything of it is made: look first at the machine
        and then into `known`, and keep no copy of it.
        """
