"""Renders a profile as tasks for one member: a pure function, so that a repetition names the same tasks.

A member runs as a **container** if the profile has an image and the host can run containers, or as a **service** (a
supervised process) if its command names an artifact in a volume: that needs no image, so it also runs on a host without
isolation. If neither is possible, the member is refused with `config_refused` before anything starts.

On a host without isolation all members share the machine's ports, so each member gets ports derived from its id. On
every host a program reads its ports from `MOORING_PORT_<NAME>`. Without isolation the sandbox's root is a directory of
the machine, so words of the command that name a volume's path are made relative.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mooring_workload.profile import ProfileEndpoint, ProfilePort, ProfileProbe, Variable, Volume, WorkloadProfile

NAME: Final = "app"
"""The name of the container or service within its owner, the member."""

ACCESS: Final = "access"
"""The prefix of secrets that open the app: everyone who may connect can see them."""

PROBE_SECONDS: Final = 10
"""How long one probing task blocks its member's other tasks."""
PROBE_INTERVAL_SECONDS: Final = 0.5
PORTS_FROM: Final = 20_000
PORTS: Final = 12_000
CARRIED_BYTES_MAX: Final = 128 * 1024
"""Artifacts up to this size are part of the task; a node fetches larger ones, which declare `size_bytes`."""
SHARED_MEMORY: Final = "/dev/shm"
GRACE_SECONDS_MAX: Final = 3_600
RESTARTS_MAX: Final = 5


class NotRenderable(Exception):
    """The profile cannot run here; the message says why, and what would work."""

    code: Final = "config_refused"


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """What the rendering depends on: the member, its host, and whether that runs containers."""

    member_id: str
    host: str
    has_containers: bool = True

    @property
    def shares_ports(self) -> bool:
        """Whether all members share the machine's ports."""
        return self.host == "process"


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """One task as data: the first part of its step's name, its type, its arguments and its granted secrets."""

    name: str
    type: str
    arguments: Mapping[str, Any]
    grants: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SecretNeed:
    """A secret that has to exist before the program starts."""

    name: str
    purpose: str
    value: str | None = field(default=None, repr=False)  # None: the platform generates it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """All tasks of one member."""

    runs_as: str  # container | service
    secrets: tuple[SecretNeed, ...]
    prepare: tuple[TaskTemplate, ...]
    start: TaskTemplate
    stop: TaskTemplate
    restart: tuple[TaskTemplate, ...]
    inspect: TaskTemplate
    remove: TaskTemplate | None
    probe: TaskTemplate | None
    look: TaskTemplate | None
    rounds: int
    endpoints: tuple[Mapping[str, Any], ...]
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def unprobed(self) -> bool:
        """Whether it has no probe, so that it counts as ready when it runs."""
        return self.probe is None


def render(profile: WorkloadProfile, config: Mapping[str, Any], place: MemberPlacement) -> Rendered:
    """The tasks of one member; raises `NotRenderable` if it cannot run there."""
    runs_as = _runs_as(profile, place)
    ports = {each.name: _port(each, place) for each in profile.ports}
    plan = _MemberRenderer(profile, place, runs_as, ports)
    start = plan.container(config) if runs_as == "container" else plan.service(config)
    first = profile.probes.get("startup") or profile.probes.get("readiness")
    steady = profile.probes.get("readiness") or profile.probes.get("liveness") or first
    return Rendered(
        runs_as=runs_as,
        secrets=secret_needs(profile, config),
        prepare=tuple(plan.prepared()),
        start=start,
        stop=plan.stop(),
        restart=plan.restart(start),
        inspect=plan.inspect(),
        remove=TaskTemplate("remove", "container.remove", {"name": NAME}) if runs_as == "container" else None,
        probe=None if first is None else plan.probe(first, "probe", many=True),
        look=None if steady is None else plan.probe(steady, "look", many=False),
        rounds=max(1, math.ceil(profile.startup_seconds / PROBE_SECONDS)),
        endpoints=tuple(plan.endpoint_reports()),
        ports=ports,
    )


def _runs_as(profile: WorkloadProfile, place: MemberPlacement) -> str:
    if profile.image is not None and place.has_containers and place.host != "process":
        return "container"
    programs = [each for each in profile.volumes if each.kind == "artifact"]
    if profile.command and any(_is_below(word, each.path) for word in profile.command for each in programs):
        return "service"
    if profile.image is None and profile.command:
        return "service"
    host = f'host "{place.host}"' if place.has_containers else f'host "{place.host}" without podman'
    raise NotRenderable(
        f"{profile.app} {profile.version} needs an image, but {host} runs no containers; "
        "launch it into an allocation on a node whose host is namespace and has podman"
    )


def _is_below(word: str, path: str) -> bool:
    return word == path or word.startswith(f"{path.rstrip('/')}/")


def _port(port: ProfilePort, place: MemberPlacement) -> int:
    """The port in the sandbox; on a machine with shared ports, a number that others are unlikely to use."""
    if not place.shares_ports:
        return port.port
    seed = hashlib.sha256(f"{place.member_id}/{port.name}".encode()).digest()
    return PORTS_FROM + int.from_bytes(seed[:4], "big") % PORTS


def purpose_of(secret: str) -> str:
    return "app_access" if secret.startswith(ACCESS) else "member_secret"


def secret_needs(profile: WorkloadProfile, config: Mapping[str, Any]) -> tuple[SecretNeed, ...]:
    """The secrets of the environment: those that the platform generates, and those of the launcher."""
    made = [SecretNeed(each, purpose_of(each)) for each in profile.secrets]
    given = {kept_as(each): _value(each, config) for each in profile.environment if each.hidden}
    return (*made, *(SecretNeed(name, "member_secret", value) for name, value in given.items() if value))


def kept_as(variable: Variable) -> str:
    """The name of the secret that stores a field of the launcher."""
    return f"config-{hashlib.sha256(str(variable.from_config).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class _MemberRenderer:
    """Renders the tasks of one member."""

    profile: WorkloadProfile
    place: MemberPlacement
    runs_as: str
    ports: Mapping[str, int]

    def container(self, config: Mapping[str, Any]) -> TaskTemplate:
        """Start a container."""
        profile = self.profile
        wanted: dict[str, Any] = {
            "name": NAME,
            "image": {"artifact": profile.image},
            "argv": list(profile.command),
            **({} if profile.user is None else {"user": profile.user}),
            **self._environment(config),
            "mounts": [_mount(each) for each in profile.volumes],
            "temporary": ["/tmp"],
            **self._bounds(),
            **self._endpoint(),
        }
        if profile.resources.shared_memory_bytes:
            wanted["temporary"] = ["/tmp", SHARED_MEMORY]
        return TaskTemplate(
            "start", "container.launch", {k: v for k, v in wanted.items() if v != []}, self._grants(config)
        )

    def service(self, config: Mapping[str, Any]) -> TaskTemplate:
        """Start a supervised process."""
        wanted = {
            "name": NAME,
            "argv": [self._word(each) for each in self.profile.command],
            **self._environment(config),
            "directory": "/",
            "restart": {"policy": "on_failure", "backoff_seconds": 1, "limit": RESTARTS_MAX},
            **self._endpoint(),
        }
        return TaskTemplate("start", "service.start", wanted, self._grants(config))

    def prepared(self) -> Iterator[TaskTemplate]:
        """Prepare volumes before the start."""
        directories = []
        for volume in self.profile.volumes:
            if volume.kind == "artifact":
                yield self._fetched(volume)
            elif self.runs_as == "service":
                directories.append({"path": volume.path.rstrip("/"), "mode": "0700", "directory": True})
        if directories:
            yield TaskTemplate("prepare/scratch", "files.write", {"files": directories})

    def _fetched(self, volume: Volume) -> TaskTemplate:
        name = f"prepare/{volume.name}"
        if self.runs_as == "container":
            into = {"volume": volume.name, "file": volume.artifact}
            return TaskTemplate(name, "artifact.fetch", {"kind": "blob", "artifact": volume.artifact, **into})
        if (volume.size_bytes or 0) <= CARRIED_BYTES_MAX or not self.place.has_containers:
            file = {"path": volume.file, "mode": "0555", "artifact": volume.artifact}
            return TaskTemplate(name, "files.write", {"files": [file]})
        wanted = {"kind": "blob", "artifact": volume.artifact, "destination": volume.file}
        return TaskTemplate(name, "artifact.fetch", wanted)

    def stop(self) -> TaskTemplate:
        """Stop the program."""
        grace = min(self.profile.grace_seconds, GRACE_SECONDS_MAX)
        if self.runs_as == "container":
            wanted = {"name": NAME, "action": "stop", "grace_seconds": grace}
            return TaskTemplate("stop", "container.control", wanted)
        return TaskTemplate("stop", "service.stop", {"name": NAME, "kill": "owner", "grace_seconds": grace})

    def restart(self, start: TaskTemplate) -> tuple[TaskTemplate, ...]:
        """Restart the same program."""
        if self.runs_as == "container":
            wanted = {"name": NAME, "action": "restart", "grace_seconds": min(self.profile.grace_seconds, 60)}
            return (TaskTemplate("restart", "container.control", wanted),)
        return (self.stop(), start)

    def inspect(self) -> TaskTemplate:
        """Inspect the program."""
        if self.runs_as == "container":
            return TaskTemplate("inspect", "container.control", {"name": NAME, "action": "inspect"})
        return TaskTemplate("inspect", "service.inspect", {"name": NAME})

    def probe(self, probe: ProfileProbe, name: str, *, many: bool) -> TaskTemplate:
        """Probe whether it serves: for some seconds, or once."""
        timing: dict[str, Any] = {"timeout_seconds": probe.timeout_seconds}
        if many:
            attempts = int(PROBE_SECONDS / PROBE_INTERVAL_SECONDS)
            timing = {
                "attempts": attempts,
                "interval_seconds": PROBE_INTERVAL_SECONDS,
                "timeout_seconds": min(probe.timeout_seconds, PROBE_SECONDS),
            }
        if probe.kind == "exec":
            if self.runs_as == "container":
                raise NotRenderable("an exec probe does not run inside a container; use an http or a tcp probe")
            return TaskTemplate(name, "probe.exec", {"argv": [self._word(each) for each in probe.command], **timing})
        asked = {"port": self.ports[probe.port or ""], **timing}
        if probe.kind == "http":
            asked["path"] = probe.path
        return TaskTemplate(name, f"probe.{probe.kind}", asked)

    def endpoint_reports(self) -> Iterator[Mapping[str, Any]]:
        """The endpoints of the member, without their task, which the plan adds."""
        for each in self.profile.endpoints:
            endpoint = {"name": each.name, "protocol": each.protocol, "path": each.path, "title": each.title}
            port = {} if each.port is None else {"port": self.ports[each.port]}
            yield {**{key: value for key, value in endpoint.items() if value is not None}, **port}

    def _endpoint(self) -> dict[str, Any]:
        """The endpoint that the start task declares: a task has at most one."""
        reached = [each for each in self.profile.endpoints if each.port is not None]
        if len({each.port for each in reached}) > 1:
            names = ", ".join(each.name for each in reached)
            raise NotRenderable(f"a member can have only one endpoint port, but the endpoints {names} use several")
        if not reached:
            return {}
        first = reached[0]
        number = self.ports[first.port or ""]
        return {"endpoint": {"name": first.name, "port": number, "protocol": _spoken(first)}}

    def _environment(self, config: Mapping[str, Any]) -> dict[str, Any]:
        plain = {f"MOORING_PORT_{name.upper().replace('-', '_')}": str(number) for name, number in self.ports.items()}
        secret = {}
        for each in self.profile.environment:
            if each.from_secret is not None:
                secret[each.name] = each.from_secret
            elif (value := _value(each, {**self.profile.defaults, **config})) is not None:
                if each.hidden and value:
                    secret[each.name] = kept_as(each)
                else:
                    plain[each.name] = value
        return {"environment": plain, **({"environment_secrets": secret} if secret else {})}

    def _grants(self, config: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
        return tuple({"name": each.name, "secret": each.name} for each in secret_needs(self.profile, config))

    def _bounds(self) -> dict[str, Any]:
        asked = self.profile.resources
        bounds = {
            "cpus": None if asked.cpu_millicores is None else asked.cpu_millicores / 1_000,
            "memory_bytes": asked.memory_bytes,
            "pids": asked.pids_max,
        }
        return {name: value for name, value in bounds.items() if value is not None}

    def _word(self, word: str) -> str:
        """A word of a command, with the path that is valid on the host."""
        if self.place.host == "process" and any(_is_below(word, each.path) for each in self.profile.volumes):
            return f".{word}"
        return word


def _mount(volume: Volume) -> dict[str, Any]:
    read_only = {"read_only": True} if volume.read_only or volume.kind == "artifact" else {}
    return {"volume": volume.name, "target": volume.path.rstrip("/"), **read_only}


def _spoken(endpoint: ProfileEndpoint) -> str:
    """The protocol for the relay: HTTP, or bytes for everything else."""
    return "http" if endpoint.protocol == "http" else "tcp"


def _value(variable: Variable, config: Mapping[str, Any]) -> str | None:
    """The text of a variable; None if the launcher gave no value."""
    if variable.from_config is None:
        return variable.value
    value = config.get(variable.from_config)
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
