"""A manifest's runtime profile, read into typed values: how members are started and observed.

The platform has validated the manifest against its schema, so reading refuses nothing; `render` refuses what this
adapter cannot do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

GRACE_SECONDS: Final = 60
STARTUP_SECONDS: Final = 300
"""How long a start may take if the manifest has no startup probe."""

Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the program's environment, and where its value comes from."""

    name: str
    value: str | None = None
    from_config: str | None = None
    from_secret: str | None = None
    hidden: bool = False  # the launcher's field is `writeOnly`: it appears in no task


@dataclass(frozen=True, slots=True)
class ProfilePort:
    name: str
    port: int
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True)
class ProfileProbe:
    """How the program is probed."""

    kind: str
    port: str | None = None
    path: str = "/"
    command: tuple[str, ...] = ()
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 5
    failures_max: int = 3


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory of the program: initially empty, or with one artifact."""

    name: str
    path: str
    kind: str
    artifact: str | None = None
    size_bytes: int | None = None
    read_only: bool = False

    @property
    def file(self) -> str:
        """The path of the volume's artifact, which is named by its role."""
        return f"{self.path.rstrip('/')}/{self.artifact}"


@dataclass(frozen=True, slots=True)
class ProfileEndpoint:
    """Where a running instance is reached."""

    name: str
    protocol: str
    port: str | None = None
    path: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """The limits of one member."""

    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    shared_memory_bytes: int | None = None
    pids_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """How the members of one version are started, observed and stopped."""

    app: str
    version: str
    image: str | None = None
    user: str | None = None
    command: tuple[str, ...] = ()
    artifacts: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[Variable, ...] = ()
    ports: tuple[ProfilePort, ...] = ()
    resources: Resources = field(default_factory=Resources)
    volumes: tuple[Volume, ...] = ()
    probes: Mapping[str, ProfileProbe] = field(default_factory=dict)
    endpoints: tuple[ProfileEndpoint, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    grace_seconds: int = GRACE_SECONDS
    upgrade_strategy: str = "in_place"

    @property
    def startup_seconds(self) -> int:
        """How long a start may take."""
        probe = self.probes.get("startup")
        if probe is None:
            return STARTUP_SECONDS
        return probe.initial_delay_seconds + probe.failures_max * probe.period_seconds

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets that the environment names, each once."""
        return tuple(dict.fromkeys(each.from_secret for each in self.environment if each.from_secret is not None))


def read_profile(manifest: Plain) -> WorkloadProfile:
    plain = manifest.get("runtime_profile") or {}
    lifecycle = manifest.get("lifecycle") or {}
    return WorkloadProfile(
        app=manifest["app"],
        version=manifest["version"],
        image=plain.get("image"),
        user=plain.get("user"),
        command=tuple(plain.get("command", ())),
        artifacts=dict(manifest["artifacts"]),
        environment=_environment(plain.get("env", ()), manifest.get("config_schema") or {}),
        ports=tuple(_read(ProfilePort, each) for each in plain.get("ports", ())),
        resources=_read(Resources, plain.get("resources", {})),
        volumes=tuple(_read(Volume, each) for each in plain.get("volumes", ())),
        probes={name: _probe(each) for name, each in plain.get("probes", {}).items()},
        endpoints=tuple(_read(ProfileEndpoint, each) for each in manifest.get("endpoints", ())),
        defaults=_defaults(manifest.get("config_schema") or {}),
        grace_seconds=lifecycle.get("delete", {}).get("graceful_seconds", GRACE_SECONDS),
        upgrade_strategy=lifecycle.get("upgrade", {}).get("strategy", "in_place"),
    )


def _environment(variables: Iterable[Plain], schema: Plain) -> tuple[Variable, ...]:
    fields = schema.get("properties", {})
    read: Iterable[Variable] = (_read(Variable, each) for each in variables)
    return tuple(replace(each, hidden=bool(fields.get(each.from_config, {}).get("writeOnly"))) for each in read)


def _defaults(schema: Plain) -> dict[str, Any]:
    return {name: each["default"] for name, each in schema.get("properties", {}).items() if "default" in each}


def _probe(plain: Plain) -> ProfileProbe:
    read: ProfileProbe = _read(ProfileProbe, {**plain, "command": tuple(plain.get("command", ()))})
    return read


def _read(kind: Any, plain: Plain) -> Any:
    """Read the known fields; a manifest has more than an adapter needs."""
    return kind(**{name: plain[name] for name in kind.__slots__ if name in plain})
