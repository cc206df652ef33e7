"""A profile becomes tasks for one member: pure, the same for the same input, so that a repetition names the same tasks.

Two ways of running. A **container**, where the profile has an image and the host can run one. A **service** (a
supervised process), where the program is an artifact that a volume holds and the command names: that needs no image,
so it runs on a host without isolation as well. What can be run in neither way is refused with `config_refused`, before
anything is started.

A host without isolation shares the machine's ports, so that two members would want the same one. There a port of the
member's own is chosen, from its id; a program learns each of its ports from `MOORING_PORT_<NAME>`, on every host. The
words of a command that name a volume's path are made relative there: the sandbox's root is a directory of the machine.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mooring_workload.profile import Endpoint, Port, Probe, RuntimeProfile, Variable, Volume

NAME: Final = "app"
"""What the container or service is called within its owner, the member."""

ACCESS: Final = "access"
"""Secrets whose names begin so open the app: whoever may connect may have them shown."""

PROBE_SECONDS: Final = 10
"""How long one probing task holds its member's other tasks up."""
PROBE_INTERVAL_SECONDS: Final = 0.5
PORTS_FROM: Final = 20_000
PORTS: Final = 12_000
CARRIED_BYTES_MAX: Final = 128 * 1024
"""What a task carries itself, to whatever host; a larger program says so by `size_bytes`, and its node fetches it."""
SHARED_MEMORY: Final = "/dev/shm"
GRACE_SECONDS_MAX: Final = 3_600
RESTARTS_MAX: Final = 5


class NotRenderable(Exception):
    """The profile cannot be run here; the message says why and what would do."""

    code: Final = "config_refused"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a member stands: what the rendering has to know of it."""

    member_id: str
    host: str
    has_containers: bool = True

    @property
    def shares_ports(self) -> bool:
        """Whether the machine's ports are everybody's."""
        return self.host == "process"


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """One task as data: the last part of its step's name, its type, its arguments and the secrets it is granted."""

    name: str
    type: str
    arguments: Mapping[str, Any]
    grants: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SecretNeed:
    """A secret that has to exist before the program is started."""

    name: str
    purpose: str
    value: str | None = field(default=None, repr=False)  # none: the platform makes one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """All that is done for one member."""

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
        """Whether nobody observes that it takes work: it counts as ready when it runs."""
        return self.probe is None


def render(profile: RuntimeProfile, config: Mapping[str, Any], place: Placement) -> Rendered:
    """The tasks of one member; NotRenderable where it cannot be run there."""
    runs_as = _runs_as(profile, place)
    ports = {each.name: _port(each, place) for each in profile.ports}
    plan = _Plan(profile, place, runs_as, ports)
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


def _runs_as(profile: RuntimeProfile, place: Placement) -> str:
    if profile.image is not None and place.has_containers and place.host != "process":
        return "container"
    programs = [each for each in profile.volumes if each.kind == "artifact"]
    if profile.command and any(_is_below(word, each.path) for word in profile.command for each in programs):
        return "service"
    if profile.image is None and profile.command:
        return "service"
    host = f'host "{place.host}"' if place.has_containers else f'host "{place.host}" without podman'
    raise NotRenderable(
        f"{profile.app} {profile.version} needs an image, and {host} starts no containers; "
        "launch it into an allocation on a node whose host is namespace and has podman"
    )


def _is_below(word: str, path: str) -> bool:
    return word == path or word.startswith(f"{path.rstrip('/')}/")


def _port(port: Port, place: Placement) -> int:
    """The number inside of the sandbox; on a machine whose ports are shared, one that hardly anybody else takes."""
    if not place.shares_ports:
        return port.port
    seed = hashlib.sha256(f"{place.member_id}/{port.name}".encode()).digest()
    return PORTS_FROM + int.from_bytes(seed[:4], "big") % PORTS


def purpose_of(secret: str) -> str:
    """What a secret of this name is for."""
    return "app_access" if secret.startswith(ACCESS) else "member_secret"


def secret_needs(profile: RuntimeProfile, config: Mapping[str, Any]) -> tuple[SecretNeed, ...]:
    """The secrets of the environment: those that the platform makes, and those that the launcher filled in."""
    made = [SecretNeed(each, purpose_of(each)) for each in profile.secrets]
    given = {kept_as(each): _value(each, config) for each in profile.environment if each.hidden}
    return (*made, *(SecretNeed(name, "member_secret", value) for name, value in given.items() if value))


def kept_as(variable: Variable) -> str:
    """The name of the secret in which a field of the launcher's is kept."""
    return f"config-{hashlib.sha256(str(variable.from_config).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """The rendering of one member."""

    profile: RuntimeProfile
    place: Placement
    runs_as: str
    ports: Mapping[str, int]

    def container(self, config: Mapping[str, Any]) -> TaskTemplate:
        """The start of a container."""
        profile = self.profile
        wanted: dict[str, Any] = {
            "name": NAME,
            "image": {"artifact": profile.image},
            "argv": list(profile.command),
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
        """The start of a supervised process."""
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
        """What has to lie ready before the start."""
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
        """The end of the program, after which nobody is served any more."""
        grace = min(self.profile.grace_seconds, GRACE_SECONDS_MAX)
        if self.runs_as == "container":
            wanted = {"name": NAME, "action": "stop", "grace_seconds": grace}
            return TaskTemplate("stop", "container.control", wanted)
        return TaskTemplate("stop", "service.stop", {"name": NAME, "kill": "owner", "grace_seconds": grace})

    def restart(self, start: TaskTemplate) -> tuple[TaskTemplate, ...]:
        """An end and a new beginning of the same program."""
        if self.runs_as == "container":
            wanted = {"name": NAME, "action": "restart", "grace_seconds": min(self.profile.grace_seconds, 60)}
            return (TaskTemplate("restart", "container.control", wanted),)
        return (self.stop(), start)

    def inspect(self) -> TaskTemplate:
        """How the program stands."""
        if self.runs_as == "container":
            return TaskTemplate("inspect", "container.control", {"name": NAME, "action": "inspect"})
        return TaskTemplate("inspect", "service.inspect", {"name": NAME})

    def probe(self, probe: Probe, name: str, *, many: bool) -> TaskTemplate:
        """Asking whether it serves: for some seconds, or once."""
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
                raise NotRenderable("an exec probe runs beside a container and not in it; use an http or a tcp probe")
            return TaskTemplate(name, "probe.exec", {"argv": [self._word(each) for each in probe.command], **timing})
        asked = {"port": self.ports[probe.port or ""], **timing}
        if probe.kind == "http":
            asked["path"] = probe.path
        return TaskTemplate(name, f"probe.{probe.kind}", asked)

    def endpoint_reports(self) -> Iterator[Mapping[str, Any]]:
        """What is told of where the member is reached; its task is told by whoever knows it."""
        for each in self.profile.endpoints:
            told = {"name": each.name, "protocol": each.protocol, "path": each.path, "title": each.title}
            port = {} if each.port is None else {"port": self.ports[each.port]}
            yield {**{key: value for key, value in told.items() if value is not None}, **port}

    def _endpoint(self) -> dict[str, Any]:
        """The endpoint that the start declares: a task has one."""
        reached = [each for each in self.profile.endpoints if each.port is not None]
        if len({each.port for each in reached}) > 1:
            names = ", ".join(each.name for each in reached)
            raise NotRenderable(f"a member is reached at one port, and the endpoints {names} name several")
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
        """A word of a command as the host understands it."""
        if self.place.host == "process" and any(_is_below(word, each.path) for each in self.profile.volumes):
            return f".{word}"
        return word


def _mount(volume: Volume) -> dict[str, Any]:
    read_only = {"read_only": True} if volume.read_only or volume.kind == "artifact" else {}
    return {"volume": volume.name, "target": volume.path.rstrip("/"), **read_only}


def _spoken(endpoint: Endpoint) -> str:
    """What the relay carries: HTTP as it is, and everything else as bytes."""
    return "http" if endpoint.protocol == "http" else "tcp"


def _value(variable: Variable, config: Mapping[str, Any]) -> str | None:
    """The text of a variable; none where the launcher filled nothing in."""
    if variable.from_config is None:
        return variable.value
    value = config.get(variable.from_config)
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
