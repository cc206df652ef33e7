"""The arguments of every task type, as strict types.

Decoding is the validation: sizes, alphabets and counts are bounded here, before anything is done. The types agree with
the published schemas (`task_schemas.json`); a test feeds both the same documents.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from mooring_agent.control_plane.messages import Task, prepare_decoders
from mooring_agent.tasks.verifier import TaskRefused

_PLAIN_PART: Final = r"/\.?[A-Za-z0-9_@+=~%-][A-Za-z0-9._@+=~%-]{0,253}"
_PART: Final = r"/\.?[A-Za-z0-9_@+=:,~%-][A-Za-z0-9._@+=:,~%-]{0,253}"
_HOST_URL: Final = r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?\Z"
_PIECE: Final = r"[a-z0-9]+([._-]+[a-z0-9]+){0,20}"
KIB: Final = 1_024
DEPTH_MAX: Final = 8
TAIL_LINES: Final = 100
"""How many lines of a log are read if neither an offset nor a number is given."""

# `\Z` is the very end; `$` would also match before a final line break.
Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?\Z")]
Word = Annotated[str, Meta(max_length=16 * KIB, pattern=r"^[^\x00]*\Z")]
Argv = Annotated[tuple[Word, ...], Meta(min_length=1, max_length=256)]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}\Z")]
Value = Annotated[str, Meta(max_length=32 * KIB, pattern=r"^[^\x00]*\Z")]
Environment = Annotated[dict[Variable, Value], Meta(max_length=200)]
EnvironmentSecrets = Annotated[dict[Variable, Name], Meta(max_length=200)]
UserName = Annotated[str, Meta(max_length=32, pattern=r"^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,5}(:[0-9]{1,5})?)\Z")]
SandboxPath = Annotated[str, Meta(min_length=2, max_length=1_000, pattern=rf"^({_PART}){{1,64}}\Z")]
# A path in a container that is written as PATH:OPTIONS,…: it must contain no colon and no comma.
TemporaryPath = Annotated[str, Meta(min_length=2, max_length=1_000, pattern=rf"^({_PLAIN_PART}){{1,64}}\Z")]
Directory = Annotated[str, Meta(min_length=1, max_length=1_000, pattern=rf"^(/|({_PART}){{1,64}})\Z")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Grace = Annotated[float, Meta(ge=0, le=3_600)]
Cpus = Annotated[float, Meta(ge=0.01, le=4_096)]
ProbeSeconds = Annotated[float, Meta(ge=0.05, le=300)]
Attempts = Annotated[int, Meta(ge=1, le=1_000)]
Hostname = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")]
Address = Annotated[str, Meta(max_length=15, pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}\Z")]
Subnet = Annotated[str, Meta(max_length=18, pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}\Z")]
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Repository = Annotated[str, Meta(max_length=255, pattern=rf"^{_PIECE}(/{_PIECE}){{0,10}}\Z")]
HostUrl = Annotated[str, Meta(max_length=270, pattern=_HOST_URL)]
Content = Annotated[str, Meta(max_length=256 * KIB, pattern=r"^[^\x00]*\Z")]
Base64 = Annotated[str, Meta(max_length=256 * KIB, pattern=r"^[A-Za-z0-9+/]*={0,2}\Z")]
Columns = Annotated[int, Meta(ge=1, le=1_000)]
OutputBytes = Annotated[int, Meta(ge=0, le=64 * KIB)]


class StrictArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown fields are refused."""


class DeviceArguments(StrictArguments, frozen=True):
    index: Annotated[int, Meta(ge=0, le=1_023)]
    simulated: bool


class NetworkArguments(StrictArguments, frozen=True):
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}\Z")]
    address: Address
    subnet: Subnet
    machine: bool = False


class PeerArguments(StrictArguments, frozen=True):
    name: Hostname
    address: Address


class SandboxCreate(StrictArguments, frozen=True):
    hostname: Hostname
    network: NetworkArguments
    cpus: Cpus = 1.0
    memory_bytes: Annotated[int, Meta(ge=16_777_216, le=1 << 50)] = 1 << 30
    pids: Annotated[int, Meta(ge=16, le=4_194_304)] = 4_096
    devices: Annotated[tuple[DeviceArguments, ...], Meta(max_length=64)] = ()
    peers: Annotated[tuple[PeerArguments, ...], Meta(max_length=1_024)] = ()
    isolation: Literal["user_namespace", "bounded"] = "user_namespace"


class Nothing(StrictArguments, frozen=True): ...


class FileArguments(StrictArguments, frozen=True):
    """One file: its content as text, a secret by name, or a directory."""

    path: SandboxPath
    mode: Annotated[str, Meta(pattern=r"^0?[0-7]{3}\Z")] = "0644"
    user: UserName = "root"
    content: Content | None = None
    content_base64: Base64 | None = None
    secret: Name | None = None
    directory: bool = False


class FilesWrite(StrictArguments, frozen=True):
    files: Annotated[tuple[FileArguments, ...], Meta(min_length=1, max_length=256)]


class ProgramArguments(StrictArguments, frozen=True):
    argv: Argv
    environment: Environment = {}
    environment_secrets: EnvironmentSecrets = {}
    user: UserName = "root"
    directory: Directory = "/"


class ProcessRun(ProgramArguments, frozen=True):
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=86_400)] = 600.0
    stdin: Annotated[str, Meta(max_length=64 * KIB, pattern=r"^[^\x00]*\Z")] = ""
    output_bytes: OutputBytes = 0


class RestartArguments(StrictArguments, frozen=True):
    policy: Literal["never", "on_failure", "always"]
    backoff_seconds: Annotated[float, Meta(ge=0.05, le=3_600)] = 1.0
    limit: Annotated[int, Meta(ge=0, le=10_000)] = 10


class EndpointArguments(StrictArguments, frozen=True):
    """A port that users reach through the platform."""

    name: Name
    port: Port
    protocol: Literal["http", "tcp"]


class ServiceStart(ProgramArguments, frozen=True, kw_only=True):
    name: Name
    restart: RestartArguments = RestartArguments("on_failure")
    endpoint: EndpointArguments | None = None


class ServiceStop(StrictArguments, frozen=True):
    name: Name
    kill: Literal["main", "owner"] = "main"
    grace_seconds: Grace = 10.0


class ServiceInspect(StrictArguments, frozen=True):
    name: Name


class LogRead(StrictArguments, frozen=True):
    """What follows an offset or, without one, the last lines."""

    name: Name
    kind: Literal["service", "container"]
    offset: Annotated[int, Meta(ge=0, le=1 << 53)] | None = None
    tail_lines: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    max_bytes: Annotated[int, Meta(ge=KIB, le=256 * KIB)] = 64 * KIB
    wait_seconds: Annotated[float, Meta(ge=0, le=25)] = 0.0
    log: Annotated[str, Meta(max_length=32, pattern=r"^[0-9a-z]*\Z")] = ""


class ImageArguments(StrictArguments, frozen=True):
    """An image, by digest only."""

    registry: HostUrl
    repository: Repository
    digest: Digest
    secret: Name | None = None  # the registry's credentials: purpose `artifact_pull`
    private: bool = False  # whether the platform allows a private address


class MountArguments(StrictArguments, frozen=True):
    """A volume of the owner in the container; created when first named, removed with its owner."""

    volume: Name
    target: SandboxPath
    read_only: bool = False


class ContainerLaunch(StrictArguments, frozen=True):
    name: Name
    image: ImageArguments
    argv: Annotated[tuple[Word, ...], Meta(max_length=256)] = ()
    environment: Environment = {}
    environment_secrets: EnvironmentSecrets = {}
    user: Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,4}:[1-9][0-9]{0,4}\Z")] = "1000:1000"
    mounts: Annotated[tuple[MountArguments, ...], Meta(max_length=32)] = ()
    temporary: Annotated[tuple[TemporaryPath, ...], Meta(max_length=16)] = ("/tmp",)
    cpus: Cpus | None = None  # the default is the sandbox's own limit
    memory_bytes: Annotated[int, Meta(ge=8_388_608, le=1 << 50)] | None = None
    pids: Annotated[int, Meta(ge=8, le=4_194_304)] | None = None
    endpoint: EndpointArguments | None = None


class ContainerControl(StrictArguments, frozen=True):
    name: Name
    action: Literal["stop", "start", "restart", "inspect"]
    grace_seconds: Grace = 10.0


class ContainerRemove(StrictArguments, frozen=True):
    name: Name


class ArtifactFetch(StrictArguments, frozen=True):
    """Download into the content-addressed cache, and from there into the sandbox."""

    kind: Literal["oci", "blob"]
    digest: Digest
    source: Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00]*\Z")]
    size: Annotated[int, Meta(ge=0, le=1 << 50)] | None = None
    destination: SandboxPath | None = None
    volume: Name | None = None  # or into a volume of its owner, as `file`
    file: Name | None = None
    secret: Name | None = None
    private: bool = False  # whether the platform allows a private address
    no_progress_seconds: Annotated[float, Meta(ge=1, le=3_600)] = 60.0


class ProbeArguments(StrictArguments, frozen=True, kw_only=True):
    """How often and how long a probe tries."""

    attempts: Attempts = 1
    interval_seconds: ProbeSeconds = 1.0
    timeout_seconds: ProbeSeconds = 5.0


class ProbeTcp(ProbeArguments, frozen=True, kw_only=True):
    port: Port


class ProbeHttp(ProbeArguments, frozen=True, kw_only=True):
    port: Port
    path: Annotated[str, Meta(max_length=1_000, pattern=r"^/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*\Z")] = "/"
    status: Annotated[tuple[Annotated[int, Meta(ge=100, le=599)], ...], Meta(min_length=1, max_length=16)] = (200,)
    metrics: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*\Z")], ...],
        Meta(max_length=33),
    ] = ()


class ProbeExec(ProbeArguments, frozen=True, kw_only=True):
    argv: Argv
    environment: Environment = {}
    user: UserName = "root"
    output_bytes: OutputBytes = 0


class TeardownVerify(StrictArguments, frozen=True):
    """Close the owner, kill, remove, inspect."""

    close: Literal[True] = True


class TunnelOpen(StrictArguments, frozen=True):
    """Let the relay open streams to these ports of the sandbox, or run this one command."""

    relay: HostUrl
    ports: Annotated[tuple[Port, ...], Meta(max_length=64)] = ()
    argv: Argv | None = None
    user: UserName = "app"
    directory: Directory = "/"
    environment: Environment = {}
    terminal: bool = True
    columns: Columns = 80
    rows: Columns = 24
    idle_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 300.0


ARGUMENTS: Final[dict[str, type[StrictArguments]]] = {
    "sandbox.create": SandboxCreate,
    "sandbox.destroy": Nothing,
    "files.write": FilesWrite,
    "process.run": ProcessRun,
    "service.start": ServiceStart,
    "service.stop": ServiceStop,
    "service.inspect": ServiceInspect,
    "log.read": LogRead,
    "container.launch": ContainerLaunch,
    "container.control": ContainerControl,
    "container.remove": ContainerRemove,
    "artifact.fetch": ArtifactFetch,
    "probe.tcp": ProbeTcp,
    "probe.http": ProbeHttp,
    "probe.exec": ProbeExec,
    "teardown.verify": TeardownVerify,
    "tunnel.open": TunnelOpen,
}
prepare_decoders(*ARGUMENTS.values())


def read_arguments(task: Task) -> StrictArguments:
    """Decode the task's arguments, or refuse the whole task."""
    kind = ARGUMENTS.get(task.type)
    if kind is None:
        raise TaskRefused("unknown_type", f"this agent does not support the task {task.type[:80]!r}", task.task_id)
    try:
        return msgspec.convert(_plain(task.arguments), kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise TaskRefused("bad_arguments", str(error)[:500], task.task_id) from error


def _plain(value: Any, depth: int = DEPTH_MAX) -> Any:
    """The value as JSON Schema sees it: a float without a fraction is an integer, and null is not accepted."""
    if value is None:
        raise ValueError("null is not an argument: leave out what is not given")
    if depth < 0:
        raise ValueError("the arguments are nested too deeply")
    if isinstance(value, dict):
        return {name: _plain(each, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, depth - 1) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
