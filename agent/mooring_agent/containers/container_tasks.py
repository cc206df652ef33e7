"""Containers in a sandbox: images by digest, hardened, in the sandbox's network and uid range.

A container has all capabilities dropped, no new privileges, a read-only root, a non-root user, limits on memory, CPUs
and processes, and no network but the sandbox's. Labels identify its owner, so that a new agent finds it again and a
teardown can prove that none is left.
"""

import asyncio
import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import msgspec

from mooring_agent.artifacts.blob_cache import BlobCache
from mooring_agent.artifacts.disk_room import DiskRoom
from mooring_agent.artifacts.fetch_history import FetchHistory
from mooring_agent.artifacts.http_sources import HttpSource, RegistryRepository
from mooring_agent.containers.container_secrets import ContainerSecrets
from mooring_agent.containers.images import ImageStore, StoredImage
from mooring_agent.containers.podman import Podman
from mooring_agent.containers.volumes import ContainerVolumes
from mooring_agent.hosts import safe_paths
from mooring_agent.hosts.contract import (
    FileSpec,
    Host,
    HostFailure,
    LogRequest,
    Owner,
    Resource,
    SandboxSpec,
    Stray,
    TeardownReport,
)
from mooring_agent.hosts.log_parts import read_container_log
from mooring_agent.hosts.namespace.sandbox_disk import DISK_BYTES
from mooring_agent.kernel import hostile_files
from mooring_agent.sandbox_init.spawner import PROGRAM_SCORE
from mooring_agent.supervisor.log_room import RESERVE_BYTES
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.handlers import ResultFields, TaskContext, TaskHandler
from mooring_agent.tasks.log_read import LogReader, LogReadHandler

LINES_MAX: Final = 50
CONTAINERS_MAX: Final = 256  # of an allocation, ended ones too: each has a log of up to 8 MiB
REMOVALS: Final = 10
REMOVAL_SECONDS: Final = 0.2
LINE_MAX: Final = 2_000
LOG_PATH: Final = "{{.HostConfig.LogConfig.Path}}"
KERNEL_DIRECTORIES: Final = ("dev", "proc", "sys")
"""runc uses files below these while it hides parts of the machine. A link in a volume would lead it to another file."""
NETWORK: Final = "{{.HostConfig.NetworkMode}}"
PID: Final = "{{.State.Pid}}"
NODE: Final = "org.mooring.node"
ALLOCATION: Final = "org.mooring.allocation"
OWNER: Final = "org.mooring.owner"
NAME: Final = "org.mooring.name"
TASK: Final = "org.mooring.task"


class ContainerSandboxes(Protocol):
    """What a host with containers must provide about a sandbox."""

    def network_path(self, allocation_id: str) -> str:
        """The path by which a container joins the sandbox's network."""

    def uid_base(self, allocation_id: str) -> int | None:
        """The first uid of the sandbox's range; none if it has no range of its own."""

    def spec_of(self, allocation_id: str) -> SandboxSpec: ...

    def device_paths(self, allocation_id: str) -> Sequence[str]:
        """The device files of the machine that belong to the sandbox."""


@dataclass(slots=True)
class ContainerTasks:
    """The container tasks of one agent."""

    node_id: str
    podman: Podman
    images: ImageStore
    cache: BlobCache
    sandboxes: ContainerSandboxes
    volumes: ContainerVolumes
    http: httpx.AsyncClient
    history: FetchHistory = field(default_factory=FetchHistory)

    @property
    def secrets(self) -> ContainerSecrets:
        return ContainerSecrets(self.podman)

    def handlers(self, base: Mapping[str, TaskHandler]) -> dict[str, TaskHandler]:
        """The handlers with containers added; teardown removes an owner's containers before the host inspects."""
        return {
            **base,
            "container.launch": TaskHandler(self.launch, is_repeatable=False, room="transfer"),
            "container.control": TaskHandler(self.control, room="program"),
            "container.remove": TaskHandler(self.remove),
            "artifact.fetch": TaskHandler(self.fetch, room="transfer"),
            **LogReadHandler(self.find_log).handlers(),
            "teardown.verify": replace(
                base["teardown.verify"], perform=self._with_container_teardown(base["teardown.verify"])
            ),
            "sandbox.destroy": replace(
                base["sandbox.destroy"], perform=self._with_container_teardown(base["sandbox.destroy"])
            ),
        }

    async def launch(self, host: Host, context: TaskContext, arguments: task_arguments.ContainerLaunch) -> ResultFields:
        owner = context.owner
        present = await self._find_all(Owner(owner.allocation_id))
        existing = next((each for each in present if _is_named(each, owner, arguments.name)), None)
        if existing is None and len(present) >= CONTAINERS_MAX:
            raise HostFailure("capacity", f"the allocation already has {CONTAINERS_MAX} containers; remove some first")
        if existing is not None:
            if existing["Labels"].get(TASK) != context.task.task_id:
                raise HostFailure("refused", f"{owner.name} already has a container {arguments.name!r}")
            if existing["State"] == "created":  # the agent was interrupted between creating and starting it
                await self._begin(owner, arguments.name, "start")
            return await self._container_fields(owner, arguments.name)
        if context.is_resumed:
            raise HostFailure("interrupted", "the agent was interrupted before the container was started")
        arguments = _bounded(self.sandboxes.spec_of(owner.allocation_id), arguments)
        token = None if arguments.image.secret is None else context.secret(arguments.image.secret)
        registry = RegistryRepository(
            self.http, arguments.image.registry, arguments.image.repository, token, arguments.image.private
        )
        image = await self._image(context, registry, arguments.image.digest)
        context.report_progress("start", 0, None, "")
        created = await asyncio.to_thread(self._create_options, context, arguments)
        options = [*created, *await self.secrets.options(context, arguments)]
        await self.podman.call("create", *options, image.image_id, *arguments.argv)
        await self._begin(owner, arguments.name, "start")
        return {**await self._container_fields(owner, arguments.name), "fetched_bytes": image.fetched_bytes}

    async def control(
        self, host: Host, context: TaskContext, arguments: task_arguments.ContainerControl
    ) -> ResultFields:
        owner, name = context.owner, self._name(context.owner, arguments.name)
        if await self._find(owner, arguments.name) is None:
            raise HostFailure("not_found", f"{owner.name} has no container {arguments.name!r}")
        grace = str(int(arguments.grace_seconds))
        if arguments.action == "stop":
            await self.podman.call("stop", "--time", grace, name)
        elif arguments.action == "restart":
            await self._begin(owner, arguments.name, "restart", "--time", grace)
        elif arguments.action == "start":
            await self._begin(owner, arguments.name, "start")
        return await self._container_fields(owner, arguments.name)

    async def _begin(self, owner: Owner, container: str, *words: str) -> None:
        """Start a container in its sandbox's network, or not at all.

        podman finds the network by the number of a process. When the sandbox has ended, another process may have that
        number, and the container would join the network of the machine or of a neighbour.
        """
        name = self._name(owner, container)
        network = self.sandboxes.network_path(owner.allocation_id)
        if (await self.podman.call("inspect", "--format", NETWORK, name)).strip() != f"ns:{network}":
            raise HostFailure("interrupted", f"the sandbox in which {container!r} was made has ended; remove it")
        await self.podman.call(*words, name)
        pid = int(await self.podman.call("inspect", "--format", PID, name))
        if pid and not self._is_inside(pid, owner.allocation_id):
            await self._force_remove(name)
            raise HostFailure("interrupted", f"the sandbox ended while {container!r} was started")

    def _is_inside(self, pid: int, allocation_id: str) -> bool:
        """Whether a container's process is in the network of the sandbox, or has ended already."""
        try:
            network = os.stat(f"/proc/{pid}/ns/net")
        except (FileNotFoundError, ProcessLookupError):
            return True
        try:
            return os.path.samestat(network, os.stat(self.sandboxes.network_path(allocation_id)))
        except (OSError, HostFailure):
            return False

    async def remove(self, host: Host, context: TaskContext, arguments: task_arguments.ContainerRemove) -> ResultFields:
        if await self._find(context.owner, arguments.name) is None:
            await self.secrets.remove_for_container(context.owner, arguments.name)
            return {"removed": False}
        await self._force_remove(self._name(context.owner, arguments.name))
        await self.secrets.remove_for_container(context.owner, arguments.name)
        return {"removed": await self._find(context.owner, arguments.name) is None}

    async def fetch(self, host: Host, context: TaskContext, arguments: task_arguments.ArtifactFetch) -> ResultFields:
        token = None if arguments.secret is None else context.secret(arguments.secret)
        if arguments.kind == "oci":
            address, repository = _registry_of(arguments.source)
            registry = RegistryRepository(self.http, address, repository, token, arguments.private)
            image = await self._image(context, registry, arguments.digest, arguments.no_progress_seconds)
            return {"image_id": image.image_id, "bytes": image.fetched_bytes, "from_cache": image.fetched_bytes == 0}
        if not arguments.source.startswith(("https://", "http://")):
            raise HostFailure("refused", "the source of a blob must be an https:// or http:// URL")
        source = HttpSource(self.http, arguments.source, token, arguments.private)
        was_here = await self.cache.fetch(
            arguments.digest, arguments.size, source, context.report_progress, arguments.no_progress_seconds
        )
        allocation_id = context.owner.allocation_id
        from_cache = was_here and self.history.has(allocation_id, arguments.digest)
        self.history.add(allocation_id, arguments.digest)
        if arguments.destination is not None:
            await self._copy_to_sandbox(host, context, arguments.digest, arguments.destination)
        if arguments.volume is not None:
            await asyncio.to_thread(self._link_into_volume, context.owner, arguments)
        return {"bytes": self.cache.path(arguments.digest).stat().st_size, "from_cache": from_cache}

    async def _image(
        self, context: TaskContext, registry: RegistryRepository, digest: str, no_progress_seconds: float = 60.0
    ) -> StoredImage:
        """Fetch an image; what another allocation fetched before counts as fetched by this one."""
        allocation_id = context.owner.allocation_id
        image = await self.images.ensure(
            registry,
            digest,
            context.report_progress,
            no_progress_seconds,
            is_known=partial(self.history.has, allocation_id),
        )
        self.history.add(allocation_id, *image.blobs)
        return image

    async def _copy_to_sandbox(self, host: Host, context: TaskContext, digest: str, destination: str) -> None:
        with self.cache.using(digest) as path:
            if path.stat().st_size > safe_paths.FILE_MAX_BYTES:
                raise HostFailure(
                    "too_large", f"a file in a sandbox may have at most {safe_paths.FILE_MAX_BYTES} bytes"
                )
            content = await asyncio.to_thread(path.read_bytes)
        await host.write_files(context.owner, [FileSpec(destination, content)])

    def _link_into_volume(self, owner: Owner, arguments: task_arguments.ArtifactFetch) -> None:
        """Put the cached bytes into a volume, readable by any user of the container."""
        name = str(arguments.volume)
        with self.cache.using(arguments.digest) as path:
            self.volumes.add_artifact(owner, name, path, str(arguments.file or name))

    async def find_log(self, context: TaskContext, arguments: task_arguments.LogRead, request: LogRequest) -> LogReader:
        """Find the file in which a container's monitor keeps its log."""
        owner = context.owner
        if await self._find(owner, arguments.name) is None:
            raise HostFailure("not_found", f"{owner.name} has no container {arguments.name!r}")
        path = (await self.podman.call("inspect", "--format", LOG_PATH, self._name(owner, arguments.name))).strip()
        return lambda: asyncio.to_thread(read_container_log, path, request)

    async def sweep(self, secret_name: Collection[str]) -> list[Stray]:
        """Remove containers, volumes and secrets of allocations that the platform does not know.

        The podman store belongs to this agent alone: a container without our label was put there by somebody else.
        """
        strays = []
        for each in await self.podman.containers({}):
            labels, resource = each["Labels"] or {}, Resource("containers", each["Names"][0])
            if NODE not in labels:
                strays.append(Stray(resource, "foreign"))
            elif labels.get(ALLOCATION) not in secret_name or labels[NODE] != self.node_id:
                await self._force_remove(each["Id"])
                strays.append(Stray(resource, "reaped", labels.get(ALLOCATION)))
        self.history.keep_only(set(secret_name))
        unknown = sorted({*self.volumes.holders(), *await self.secrets.allocations()} - set(secret_name))
        for allocation_id in unknown:
            resources = [*await self.secrets.remove(Owner(allocation_id)), *self._clear_volumes(Owner(allocation_id))]
            strays += [Stray(resource, "reaped", allocation_id) for resource in resources]
        return strays

    def _with_container_teardown(self, handler: TaskHandler) -> Any:
        async def perform(host: Host, context: TaskContext, arguments: task_arguments.StrictArguments) -> ResultFields:
            owner = context.owner
            found = await self._find_all(owner)
            for each in found:
                with suppress(HostFailure):  # what is left is reported below
                    await self._force_remove(each["Id"])
            fields = await handler.perform(host, context, arguments)
            left = await self._find_all(owner)
            other_resources = [*self._clear_volumes(owner), *await self.secrets.remove(owner)]
            if context.teardown is not None:
                context.teardown = _with_containers(context.teardown, found, left, other_resources)
                fields = {**fields, "clean": context.teardown.clean}
            return fields

        return perform

    async def _force_remove(self, name: str) -> None:
        """Kill and remove. A mount of it may be busy for a moment in a sandbox that is just being created."""
        for _ in range(REMOVALS - 1):
            status, _, _ = await self.podman.try_call("rm", "--force", "--time", "0", name)
            if status == 0:
                return
            await asyncio.sleep(REMOVAL_SECONDS)
        await self.podman.call("rm", "--force", "--time", "0", name)

    async def _find_all(self, owner: Owner) -> Sequence[dict[str, Any]]:
        labels = {NODE: self.node_id, ALLOCATION: owner.allocation_id}
        return await self.podman.containers({**labels, OWNER: owner.name} if owner.label else labels)

    async def _find(self, owner: Owner, name: str) -> dict[str, Any] | None:
        found = await self.podman.containers({NODE: self.node_id, OWNER: owner.name, NAME: name})
        return found[0] if found else None

    async def _container_fields(self, owner: Owner, name: str) -> ResultFields:
        inspected = json.loads(await self.podman.call("inspect", self._name(owner, name)))[0]
        state = inspected["State"]
        return {
            "container_id": inspected["Id"],
            "state": state["Status"],
            "exit_code": state["ExitCode"] if state["Status"] == "exited" else None,
            "image_digest": inspected["ImageDigest"],
            "last_lines": await self._last_lines(owner, name),
        }

    async def _last_lines(self, owner: Owner, name: str) -> list[str]:
        _, stdout, stderr = await self.podman.try_call("logs", "--tail", str(LINES_MAX), self._name(owner, name))
        return [line[:LINE_MAX] for line in (stdout + stderr).splitlines()[-LINES_MAX:]]

    def _name(self, owner: Owner, name: str) -> str:
        return f"{owner.name.replace('/', '.')}.{name}"

    def _create_options(self, context: TaskContext, arguments: task_arguments.ContainerLaunch) -> list[str]:
        owner = context.owner
        # What an image declares would be left behind: anonymous volumes, and health-check timers on the machine.
        options = ["--pull=never", "--read-only", "--no-hosts", "--init", "--image-volume=tmpfs", "--no-healthcheck"]
        values = {
            "--name": self._name(owner, arguments.name),
            "--cap-drop": "ALL",
            "--security-opt": "no-new-privileges",
            "--user": arguments.user,
            "--pids-limit": str(arguments.pids),
            "--memory": str(arguments.memory_bytes),
            "--cpus": f"{arguments.cpus:g}",
            "--network": f"ns:{self.sandboxes.network_path(owner.allocation_id)}",
            "--restart": "no",
            "--oom-score-adj": str(PROGRAM_SCORE),  # as programs of sandboxes, so that neither end for the other
        }
        options += [word for pair in values.items() for word in pair]
        base = self.sandboxes.uid_base(owner.allocation_id)
        if base is not None:
            options += ["--uidmap", f"0:{base}:65536", "--gidmap", f"0:{base}:65536"]
        labels = {
            NODE: self.node_id,
            ALLOCATION: owner.allocation_id,
            OWNER: owner.name,
            NAME: arguments.name,
            TASK: context.task.task_id,
        }
        options += [option for name, value in labels.items() for option in ("--label", f"{name}={value}")]
        options += [option for name, value in arguments.environment.items() for option in ("--env", f"{name}={value}")]
        options += [
            option for path in self.sandboxes.device_paths(owner.allocation_id) for option in ("--device", path)
        ]
        options += [option for path in arguments.temporary for option in ("--tmpfs", f"{path}:rw,nosuid,nodev")]
        for mount in arguments.mounts:
            options += ["--mount", self._mount(owner, mount, arguments.user, base or 0)]
        return options

    def _mount(self, owner: Owner, mount: task_arguments.MountArguments, user: str, base: int) -> str:
        if "," in mount.target:
            raise HostFailure("path_refused", f"{mount.target!r}: a mount target must not contain a comma")
        if mount.target.split("/")[1] in KERNEL_DIRECTORIES:
            raise HostFailure("path_refused", f"{mount.target!r}: a volume must not be in a directory of the kernel's")
        directory = self.volumes.provide(owner, mount.volume, writable=not mount.read_only)
        uid, _, gid = user.partition(":")
        place = hostile_files.open_directory(directory)
        try:
            os.fchown(place, base + int(uid), base + int(gid))
        finally:
            os.close(place)
        mode = ",readonly" if mount.read_only else ""
        return f"type=bind,source={directory},target={mount.target}{mode}"

    def _clear_volumes(self, owner: Owner) -> list[Resource]:
        return [Resource("files", f"volumes of {owner.name}")] if self.volumes.clear(owner) else []


def _is_named(container: Mapping[str, Any], owner: Owner, name: str) -> bool:
    labels = container["Labels"] or {}
    return (labels.get(OWNER), labels.get(NAME)) == (owner.name, name)


def _registry_of(source: str) -> tuple[str, str]:
    """The registry and repository of `oci://registry/repository` (over https) or `https://registry/v2/repository`."""
    if source.startswith("oci://"):
        host, _, repository = source.removeprefix("oci://").partition("/")
        address = f"https://{host}" if host else ""
    else:
        address, _, repository = source.rpartition("/v2/")
    if not address.startswith(("https://", "http://")) or not repository:
        raise HostFailure("refused", "the source of an image must be oci://registry/repository")
    return address, repository


def _bounded(sandbox: SandboxSpec, arguments: task_arguments.ContainerLaunch) -> task_arguments.ContainerLaunch:
    """The arguments with every limit set: at most the sandbox's own, which is also the default."""
    for name in ("cpus", "memory_bytes", "pids"):
        requested, limit = getattr(arguments, name), getattr(sandbox, name)
        if requested is not None and requested > limit:
            raise HostFailure("capacity", f"the container requests {name} {requested:g}, but its sandbox has {limit:g}")
        if requested is None:
            arguments = msgspec.structs.replace(arguments, **{name: limit})
    return arguments


def _with_containers(
    teardown: TeardownReport,
    found: Sequence[dict[str, Any]],
    left: Sequence[dict[str, Any]],
    other_resources: Sequence[Resource],
) -> TeardownReport:
    remaining = tuple(Resource("containers", each["Names"][0]) for each in left)
    found_resources = tuple(Resource("containers", each["Names"][0]) for each in found)
    return replace(
        teardown,
        found=(*teardown.found, *found_resources, *other_resources),
        removed=(
            *teardown.removed,
            *(resource for resource in found_resources if resource not in remaining),
            *other_resources,
        ),
        remaining=(*teardown.remaining, *remaining),
        looked={**teardown.looked, "containers": teardown.looked.get("containers", 0) + len(found)},
    )


async def create_container_tasks(
    node_id: str,
    directory: Path,
    sandboxes: ContainerSandboxes,
    disk_reserve_bytes: int = RESERVE_BYTES,
    volume_bytes: int = DISK_BYTES,
) -> ContainerTasks:
    podman = Podman(directory / "containers")
    await asyncio.to_thread(podman.prepare)
    room = DiskRoom(directory, disk_reserve_bytes)
    cache = BlobCache(directory / "cache", room=room)
    images = ImageStore(cache, podman, room)
    http = httpx.AsyncClient(timeout=httpx.Timeout(60.0), follow_redirects=False)
    volumes = ContainerVolumes(directory / "volumes", volume_bytes)
    return ContainerTasks(node_id, podman, images, cache, sandboxes, volumes, http)
