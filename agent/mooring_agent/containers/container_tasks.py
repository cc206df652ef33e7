"""Containers in a sandbox: an image by digest, hardened, in the sandbox's network and in its range of uids.

A container has all capabilities dropped, no new privileges, a read-only root, a user that is not root, bounds on
memory, processors and processes, and no network but the sandbox's. It carries labels that say whose it is, so that a
new agent finds it again, and teardown looks by label and finds none.
"""

import asyncio
import json
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import msgspec

from mooring_agent.artifacts.blob_cache import Cache
from mooring_agent.artifacts.http_sources import HttpSource, Registry
from mooring_agent.containers.container_secrets import ContainerSecrets
from mooring_agent.containers.images import Images
from mooring_agent.containers.podman import Podman
from mooring_agent.hosts import safe_paths
from mooring_agent.hosts.contract import FileSpec, Host, HostFailure, LogWish, Look, Owner, SandboxSpec, Stray, Thing
from mooring_agent.hosts.log_parts import container_part
from mooring_agent.hosts.namespace import root_filesystem
from mooring_agent.tasks import arguments as taken
from mooring_agent.tasks.handlers import Doing, Family, Fields
from mooring_agent.tasks.log_read import LogReads, Looker

LINES_MAX: Final = 50
REMOVALS: Final = 10
REMOVAL_SECONDS: Final = 0.2
LINE_MAX: Final = 2_000
LOG_PATH: Final = "{{.HostConfig.LogConfig.Path}}"
NODE: Final = "org.mooring.node"
ALLOCATION: Final = "org.mooring.allocation"
OWNER: Final = "org.mooring.owner"
NAME: Final = "org.mooring.name"
TASK: Final = "org.mooring.task"


class ContainerHost(Protocol):
    """What a host with containers tells of a sandbox."""

    def network_path(self, allocation_id: str) -> str:
        """The path that a container joins the sandbox's network by."""

    def uid_base(self, allocation_id: str) -> int | None:
        """Where the sandbox's range of uids begins; none where it has no range of its own."""

    def spec_of(self, allocation_id: str) -> SandboxSpec:
        """What the sandbox was made with."""

    def device_paths(self, allocation_id: str) -> Sequence[str]:
        """The machine's devices that are the sandbox's."""


@dataclass(slots=True)
class Containers:
    """The containers of one agent."""

    node_id: str
    podman: Podman
    images: Images
    cache: Cache
    place: ContainerHost
    volumes: Path
    http: httpx.AsyncClient

    @property
    def secrets(self) -> ContainerSecrets:
        """What containers are told in confidence."""
        return ContainerSecrets(self.podman)

    def families(self, base: Mapping[str, Family]) -> dict[str, Family]:
        """The families with containers; teardown removes an owner's containers before the host looks."""
        return {
            **base,
            "container.launch": Family(self.launch, repeats=False),
            "container.control": Family(self.control),
            "container.remove": Family(self.remove),
            "artifact.fetch": Family(self.fetch),
            **LogReads(self.find_log).families(),
            "teardown.verify": replace(base["teardown.verify"], perform=self._after(base["teardown.verify"])),
            "sandbox.destroy": replace(base["sandbox.destroy"], perform=self._after(base["sandbox.destroy"])),
        }

    async def launch(self, host: Host, doing: Doing, wanted: taken.ContainerLaunch) -> Fields:
        """`container.launch`."""
        owner = doing.owner
        there = await self._find(owner, wanted.name)
        if there is not None:
            if there["Labels"].get(TASK) != doing.task.task_id:
                raise HostFailure("refused", f"{owner.name} has a container {wanted.name!r} already")
            if there["State"] == "created":  # the agent was cut off before it could start what it had made
                await self.podman.call("start", self._name(owner, wanted.name))
            return await self._told(owner, wanted.name)
        if doing.found_again:
            raise HostFailure("interrupted", "the agent was cut off before the container was started")
        wanted = _bounded(self.place.spec_of(owner.allocation_id), wanted)
        token = None if wanted.image.secret is None else doing.secret(wanted.image.secret)
        registry = Registry(self.http, wanted.image.registry, wanted.image.repository, token, wanted.image.private)
        image = await self.images.have(registry, wanted.image.digest, doing.tell)
        doing.tell("start", 0, None, "")
        words = [*self._words(doing, wanted), *await self.secrets.words(doing, wanted)]
        await self.podman.call("create", *words, image.image_id, *wanted.argv)
        await self.podman.call("start", self._name(owner, wanted.name))
        return {**await self._told(owner, wanted.name), "fetched_bytes": image.fetched_bytes}

    async def control(self, host: Host, doing: Doing, wanted: taken.ContainerControl) -> Fields:
        """`container.control`."""
        owner, name = doing.owner, self._name(doing.owner, wanted.name)
        if await self._find(owner, wanted.name) is None:
            raise HostFailure("not_found", f"{owner.name} has no container {wanted.name!r}")
        grace = str(int(wanted.grace_seconds))
        if wanted.action in ("stop", "restart"):
            await self.podman.call(wanted.action, "--time", grace, name)
        elif wanted.action == "start":
            await self.podman.call("start", name)
        return await self._told(owner, wanted.name)

    async def remove(self, host: Host, doing: Doing, wanted: taken.ContainerRemove) -> Fields:
        """`container.remove`."""
        if await self._find(doing.owner, wanted.name) is None:
            await self.secrets.forget_container(doing.owner, wanted.name)
            return {"removed": False}
        await self._take_away(self._name(doing.owner, wanted.name))
        await self.secrets.forget_container(doing.owner, wanted.name)
        return {"removed": await self._find(doing.owner, wanted.name) is None}

    async def fetch(self, host: Host, doing: Doing, wanted: taken.ArtifactFetch) -> Fields:
        """`artifact.fetch`."""
        token = None if wanted.secret is None else doing.secret(wanted.secret)
        if wanted.kind == "oci":
            address, repository = _registry_of(wanted.source)
            registry = Registry(self.http, address, repository, token, wanted.private)
            image = await self.images.have(registry, wanted.digest, doing.tell, wanted.no_progress_seconds)
            return {"image_id": image.image_id, "bytes": image.fetched_bytes, "from_cache": image.fetched_bytes == 0}
        if not wanted.source.startswith(("https://", "http://")):
            raise HostFailure("refused", "the source of a blob is an address that begins with https:// or http://")
        source = HttpSource(self.http, wanted.source, token, wanted.private)
        was_here = await self.cache.fetch(wanted.digest, wanted.size, source, doing.tell, wanted.no_progress_seconds)
        if wanted.destination is not None:
            await self._put(host, doing, wanted.digest, wanted.destination)
        if wanted.volume is not None:
            await asyncio.to_thread(self._put_into, doing.owner, wanted)
        return {"bytes": self.cache.path(wanted.digest).stat().st_size, "from_cache": was_here}

    async def _put(self, host: Host, doing: Doing, digest: str, destination: str) -> None:
        with self.cache.using(digest) as path:
            if path.stat().st_size > safe_paths.FILE_MAX_BYTES:
                raise HostFailure(
                    "too_large", f"at most {safe_paths.FILE_MAX_BYTES} bytes are put into a sandbox as a file"
                )
            content = await asyncio.to_thread(path.read_bytes)
        await host.write_files(doing.owner, [FileSpec(destination, content)])

    def _put_into(self, owner: Owner, wanted: taken.ArtifactFetch) -> None:
        """A second name for the cached bytes, which any user of the container may read: nothing is copied."""
        place = self._volumes_of(owner) / str(wanted.volume)
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = place / f".{wanted.file or wanted.volume}.new"
        new.unlink(missing_ok=True)
        with self.cache.using(wanted.digest) as path:
            os.link(path, new)
            new.chmod(0o444)
        new.rename(place / str(wanted.file or wanted.volume))

    async def find_log(self, doing: Doing, wanted: taken.LogRead, wish: LogWish) -> Looker:
        """Where a container's monitor writes what it says, to be read in parts."""
        owner = doing.owner
        if await self._find(owner, wanted.name) is None:
            raise HostFailure("not_found", f"{owner.name} has no container {wanted.name!r}")
        place = (await self.podman.call("inspect", "--format", LOG_PATH, self._name(owner, wanted.name))).strip()
        return lambda: asyncio.to_thread(container_part, place, wish)

    async def sweep(self, known: Collection[str]) -> list[Stray]:
        """Remove containers, volumes and secrets of allocations that the platform does not know; what became of them.

        The store is this agent's alone: whatever container is in it without our label was put there by somebody else.
        """
        strays = []
        for each in await self.podman.containers({}):
            labels, thing = each["Labels"] or {}, Thing("containers", each["Names"][0])
            if NODE not in labels:
                strays.append(Stray(thing, "foreign"))
            elif labels.get(ALLOCATION) not in known or labels[NODE] != self.node_id:
                await self._take_away(each["Id"])
                strays.append(Stray(thing, "reaped", labels.get(ALLOCATION)))
        unknown = sorted({*self._volume_holders(), *await self.secrets.holders()} - set(known))
        for allocation_id in unknown:
            things = [*await self.secrets.forget(Owner(allocation_id)), *self._clear_volumes(Owner(allocation_id))]
            strays += [Stray(thing, "reaped", allocation_id) for thing in things]
        return strays

    def _volume_holders(self) -> list[str]:
        """The allocations that have volumes."""
        return [path.name for path in self.volumes.iterdir()] if self.volumes.exists() else []

    def _after(self, family: Family) -> Any:
        async def perform(host: Host, doing: Doing, wanted: taken.Strict) -> Fields:
            owner = doing.owner
            found = await self._all(owner)
            for each in found:
                with suppress(HostFailure):  # what is left is named below
                    await self._take_away(each["Id"])
            fields = await family.perform(host, doing, wanted)
            left = await self._all(owner)
            others = [*self._clear_volumes(owner), *await self.secrets.forget(owner)]
            if doing.look is not None:
                doing.look = _joined(doing.look, found, left, others)
                fields = {**fields, "clean": doing.look.clean}
            return fields

        return perform

    async def _take_away(self, name: str) -> None:
        """Kill and remove; a mount of it may be busy for a moment, in the view of a sandbox that is just being made."""
        for _ in range(REMOVALS - 1):
            status, _, _ = await self.podman.attempt("rm", "--force", "--time", "0", name)
            if status == 0:
                return
            await asyncio.sleep(REMOVAL_SECONDS)
        await self.podman.call("rm", "--force", "--time", "0", name)

    async def _all(self, owner: Owner) -> Sequence[dict[str, Any]]:
        labels = {NODE: self.node_id, ALLOCATION: owner.allocation_id}
        return await self.podman.containers({**labels, OWNER: owner.name} if owner.label else labels)

    async def _find(self, owner: Owner, name: str) -> dict[str, Any] | None:
        found = await self.podman.containers({NODE: self.node_id, OWNER: owner.name, NAME: name})
        return found[0] if found else None

    async def _told(self, owner: Owner, name: str) -> Fields:
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
        _, said, complained = await self.podman.attempt("logs", "--tail", str(LINES_MAX), self._name(owner, name))
        return [line[:LINE_MAX] for line in (said + complained).splitlines()[-LINES_MAX:]]

    def _name(self, owner: Owner, name: str) -> str:
        return f"{owner.name.replace('/', '.')}.{name}"

    def _words(self, doing: Doing, wanted: taken.ContainerLaunch) -> list[str]:
        owner = doing.owner
        words = [
            "--name", self._name(owner, wanted.name), "--pull=never", "--read-only", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", "--user", wanted.user, "--pids-limit", str(wanted.pids),
            "--memory", str(wanted.memory_bytes), "--cpus", f"{wanted.cpus:g}", "--no-hosts", "--init",
            "--network", f"ns:{self.place.network_path(owner.allocation_id)}", "--restart", "no",
            # What an image declares would be left behind: volumes without a name, and timers of the machine.
            "--image-volume", "tmpfs", "--no-healthcheck",
        ]  # fmt: skip
        base = self.place.uid_base(owner.allocation_id)
        if base is not None:
            words += ["--uidmap", f"0:{base}:65536", "--gidmap", f"0:{base}:65536"]
        labels = {
            NODE: self.node_id, ALLOCATION: owner.allocation_id, OWNER: owner.name, NAME: wanted.name,
            TASK: doing.task.task_id,
        }  # fmt: skip
        words += [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        words += [word for name, value in wanted.environment.items() for word in ("--env", f"{name}={value}")]
        words += [word for path in self.place.device_paths(owner.allocation_id) for word in ("--device", path)]
        words += [word for path in wanted.temporary for word in ("--tmpfs", f"{path}:rw,nosuid,nodev")]
        for mount in wanted.mounts:
            words += ["--mount", self._mount(owner, mount, wanted.user, base or 0)]
        return words

    def _mount(self, owner: Owner, mount: taken.MountArguments, user: str, base: int) -> str:
        if "," in mount.target:
            raise HostFailure("path_refused", f"{mount.target!r}: a target has no comma")
        place = self._volumes_of(owner) / mount.volume
        place.mkdir(mode=0o750, parents=True, exist_ok=True)
        uid, _, gid = user.partition(":")
        os.chown(place, base + int(uid), base + int(gid))
        mode = ",readonly" if mount.read_only else ""
        return f"type=bind,source={place},target={mount.target}{mode}"

    def _volumes_of(self, owner: Owner) -> Path:
        return self.volumes / owner.allocation_id / (f"@{owner.label}" if owner.label else "_")

    def _clear_volumes(self, owner: Owner) -> list[Thing]:
        place = self._volumes_of(owner) if owner.label else self.volumes / owner.allocation_id
        if not place.exists():
            return []
        root_filesystem.remove(place)
        return [Thing("files", f"volumes of {owner.name}")]


def _registry_of(source: str) -> tuple[str, str]:
    """Where an image lies: `oci://registry/repository` (over https), or `https://registry/v2/repository`."""
    if source.startswith("oci://"):
        host, _, repository = source.removeprefix("oci://").partition("/")
        address = f"https://{host}" if host else ""
    else:
        address, _, repository = source.rpartition("/v2/")
    if not address.startswith(("https://", "http://")) or not repository:
        raise HostFailure("refused", "the source of an image is oci://registry/repository")
    return address, repository


def _bounded(sandbox: SandboxSpec, wanted: taken.ContainerLaunch) -> taken.ContainerLaunch:
    """A container is bounded by itself, and so by no more than its sandbox has; what is not said is all of that."""
    for name in ("cpus", "memory_bytes", "pids"):
        asked, most = getattr(wanted, name), getattr(sandbox, name)
        if asked is not None and asked > most:
            raise HostFailure("capacity", f"the container asks for {name} {asked:g}, and its sandbox has {most:g}")
        if asked is None:
            wanted = msgspec.structs.replace(wanted, **{name: most})
    return wanted


def _joined(
    look: Look, found: Sequence[dict[str, Any]], left: Sequence[dict[str, Any]], others: Sequence[Thing]
) -> Look:
    remaining = tuple(Thing("containers", each["Names"][0]) for each in left)
    seen = tuple(Thing("containers", each["Names"][0]) for each in found)
    return replace(
        look,
        found=(*look.found, *seen, *others),
        removed=(*look.removed, *(thing for thing in seen if thing not in remaining), *others),
        remaining=(*look.remaining, *remaining),
        looked={**look.looked, "containers": look.looked.get("containers", 0) + len(found)},
    )


async def containers_of(node_id: str, directory: Path, place: ContainerHost) -> Containers:
    """The containers of a machine that has podman."""
    podman = Podman(directory / "containers")
    await asyncio.to_thread(podman.prepare)
    cache = Cache(directory / "cache")
    images = Images(cache, podman)
    http = httpx.AsyncClient(timeout=httpx.Timeout(60.0), follow_redirects=False)
    return Containers(node_id, podman, images, cache, place, directory / "volumes", http)
