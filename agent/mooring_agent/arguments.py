"""The arguments of every task family, as types that refuse what they do not know.

Reading them is the check: sizes, alphabets and counts are bounded here, before anything is done. They say the same
as the published schemas (`task_schemas.json`); a test feeds both the same documents.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from mooring_agent.verify import Refused
from mooring_agent.wire import Task

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
Word = Annotated[str, Meta(max_length=16_384, pattern=r"^[^\x00]*$")]
Argv = Annotated[tuple[Word, ...], Meta(min_length=1, max_length=256)]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Environment = Annotated[dict[Variable, Word], Meta(max_length=256)]
UserName = Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_-]{0,31}$|^[0-9]{1,5}(:[0-9]{1,5})?$")]
SandboxPath = Annotated[str, Meta(max_length=1_024, pattern=r"^/[^\x00]*$")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Attempts = Annotated[int, Meta(ge=1, le=1_000)]
Hostname = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Address = Annotated[str, Meta(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")]
Subnet = Annotated[str, Meta(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$")]
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Repository = Annotated[str, Meta(max_length=255, pattern=r"^[a-z0-9]+([._/-]+[a-z0-9]+)*$")]
FILE_MAX: Final = 1_048_576


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is not understood is refused."""


class DeviceArguments(Strict, frozen=True):
    """A GPU for the sandbox."""

    index: Annotated[int, Meta(ge=0, le=1_023)]
    simulated: bool = False


class NetworkArguments(Strict, frozen=True):
    """The project's network on this machine."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,64}$")]
    address: Address
    subnet: Subnet
    machine: bool = False


class PeerArguments(Strict, frozen=True):
    """Another sandbox of the project."""

    name: Hostname
    address: Address


class SandboxCreate(Strict, frozen=True):
    """`sandbox.create`."""

    hostname: Hostname
    network: NetworkArguments
    cpus: Annotated[float, Meta(gt=0, le=4_096)] = 1.0
    memory_bytes: Annotated[int, Meta(ge=16_777_216, le=1 << 50)] = 1 << 30
    pids: Annotated[int, Meta(ge=16, le=4_194_304)] = 4_096
    devices: Annotated[tuple[DeviceArguments, ...], Meta(max_length=64)] = ()
    peers: Annotated[tuple[PeerArguments, ...], Meta(max_length=1_024)] = ()
    isolation: Literal["user_namespace", "bounded"] = "user_namespace"


class Nothing(Strict, frozen=True):
    """No arguments."""


class FileArguments(Strict, frozen=True):
    """One file: its content as text, or a secret by its name, or a directory."""

    path: SandboxPath
    mode: Annotated[str, Meta(pattern=r"^0?[0-7]{3,4}$")] = "0644"
    user: UserName = "root"
    content: Annotated[str, Meta(max_length=FILE_MAX)] | None = None
    content_base64: Annotated[str, Meta(max_length=FILE_MAX * 4 // 3 + 4)] | None = None
    secret: Name | None = None
    directory: bool = False


class FilesWrite(Strict, frozen=True):
    """`files.write`."""

    files: Annotated[tuple[FileArguments, ...], Meta(min_length=1, max_length=256)]


class Program(Strict, frozen=True):
    """A program to start."""

    argv: Argv
    environment: Environment = {}
    environment_secrets: Annotated[dict[Variable, Name], Meta(max_length=64)] = {}
    user: UserName = "root"
    directory: SandboxPath = "/"


class ProcessRun(Program, frozen=True):
    """`process.run`."""

    timeout_seconds: Seconds = 600.0
    stdin: Annotated[str, Meta(max_length=FILE_MAX)] = ""


class RestartArguments(Strict, frozen=True):
    """When a service is started again."""

    policy: Literal["never", "on_failure", "always"] = "on_failure"
    backoff_seconds: Seconds = 1.0
    limit: Annotated[int, Meta(ge=0, le=1_000_000)] = 10


class EndpointArguments(Strict, frozen=True):
    """A port that people reach through the platform."""

    name: Name
    port: Port
    protocol: Literal["http", "tcp"] = "http"


class ServiceStart(Program, frozen=True, kw_only=True):
    """`service.start`."""

    name: Name
    restart: RestartArguments = RestartArguments()
    endpoint: EndpointArguments | None = None


class ServiceStop(Strict, frozen=True):
    """`service.stop`."""

    name: Name
    kill: Literal["main", "owner"] = "main"
    grace_seconds: Annotated[float, Meta(ge=0, le=3_600)] = 10.0


class ServiceInspect(Strict, frozen=True):
    """`service.inspect`."""

    name: Name


class ImageArguments(Strict, frozen=True):
    """An image, by digest only."""

    registry: Annotated[str, Meta(max_length=300, pattern=r"^https?://[^/\s]+$")]
    repository: Repository
    digest: Digest
    secret: Name | None = None  # what opens the registry: purpose `artifact_pull`


class MountArguments(Strict, frozen=True):
    """A volume of the owner's in the container; it is made when it is first named, and goes with its owner."""

    volume: Name
    target: SandboxPath
    read_only: bool = False


class ContainerLaunch(Strict, frozen=True):
    """`container.launch`."""

    name: Name
    image: ImageArguments
    argv: Annotated[tuple[Word, ...], Meta(max_length=256)] = ()
    environment: Environment = {}
    environment_secrets: Annotated[dict[Variable, Name], Meta(max_length=64)] = {}
    user: Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,4}:[1-9][0-9]{0,4}$")] = "1000:1000"
    mounts: Annotated[tuple[MountArguments, ...], Meta(max_length=32)] = ()
    temporary: Annotated[tuple[SandboxPath, ...], Meta(max_length=16)] = ("/tmp",)
    cpus: Annotated[float, Meta(gt=0, le=4_096)] = 1.0
    memory_bytes: Annotated[int, Meta(ge=8_388_608, le=1 << 50)] = 1 << 28
    pids: Annotated[int, Meta(ge=8, le=4_194_304)] = 512
    endpoint: EndpointArguments | None = None


class ContainerControl(Strict, frozen=True):
    """`container.control`."""

    name: Name
    action: Literal["stop", "start", "restart", "inspect"]
    grace_seconds: Annotated[float, Meta(ge=0, le=3_600)] = 10.0


class ContainerRemove(Strict, frozen=True):
    """`container.remove`."""

    name: Name


class ArtifactFetch(Strict, frozen=True):
    """`artifact.fetch`: into the content-addressed cache, and from there to a place in the sandbox."""

    kind: Literal["oci", "blob"]
    digest: Digest
    source: Annotated[str, Meta(max_length=2_000)]
    size: Annotated[int, Meta(ge=0, le=1 << 50)] | None = None
    destination: SandboxPath | None = None
    secret: Name | None = None
    no_progress_seconds: Seconds = 60.0


class Probe(Strict, frozen=True, kw_only=True):
    """How often and how long a probe tries."""

    attempts: Attempts = 1
    interval_seconds: Seconds = 1.0
    timeout_seconds: Seconds = 5.0


class ProbeTcp(Probe, frozen=True, kw_only=True):
    """`probe.tcp`."""

    port: Port


class ProbeHttp(Probe, frozen=True, kw_only=True):
    """`probe.http`."""

    port: Port
    path: Annotated[str, Meta(max_length=2_000, pattern=r"^/[!-~]*$")] = "/"
    status: Annotated[tuple[Annotated[int, Meta(ge=100, le=599)], ...], Meta(min_length=1, max_length=16)] = (200,)


class ProbeExec(Probe, frozen=True, kw_only=True):
    """`probe.exec`."""

    argv: Argv
    user: UserName = "root"


class TeardownVerify(Strict, frozen=True):
    """`teardown.verify`: close the owner, kill, remove, look."""

    close: Literal[True] = True


class TunnelOpen(Strict, frozen=True):
    """`tunnel.open`: let the relay open streams to these ports of the sandbox, or run this one command."""

    relay: Annotated[str, Meta(max_length=500, pattern=r"^https?://[^\s/]+$")]
    ports: Annotated[tuple[Port, ...], Meta(max_length=64)] = ()
    argv: Argv | None = None
    user: UserName = "app"
    columns: Annotated[int, Meta(ge=1, le=1_000)] = 80
    rows: Annotated[int, Meta(ge=1, le=1_000)] = 24
    idle_seconds: Seconds = 300.0


ARGUMENTS: Final[dict[str, type[Strict]]] = {
    "sandbox.create": SandboxCreate,
    "sandbox.destroy": Nothing,
    "files.write": FilesWrite,
    "process.run": ProcessRun,
    "service.start": ServiceStart,
    "service.stop": ServiceStop,
    "service.inspect": ServiceInspect,
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


def read_arguments(task: Task) -> Strict:
    """The task's arguments as its family has them, or the refusal of the whole task."""
    kind = ARGUMENTS.get(task.type)
    if kind is None:
        raise Refused("unknown_type", f"this agent knows no task {task.type[:80]!r}", task.task_id)
    try:
        return msgspec.convert(task.arguments, kind)
    except msgspec.ValidationError as error:
        raise Refused("bad_arguments", str(error)[:500], task.task_id) from error
