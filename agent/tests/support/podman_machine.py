"""A machine with real podman, whose sandbox is a network namespace and a device."""

import os
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.tests.support.busybox_image import BUSYBOX, BuiltImage
from agent.tests.support.fake_platform import FakePlatform
from agent.tests.support.supervisors import until
from mooring_agent.artifacts.blob_cache import BlobCache
from mooring_agent.containers.container_tasks import ContainerTasks
from mooring_agent.containers.images import ImageStore
from mooring_agent.containers.podman import Podman
from mooring_agent.containers.volumes import ContainerVolumes
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.messages import TaskResult
from mooring_agent.hosts.contract import HostFailure, Network, Owner, SandboxSpec
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS
from mooring_agent.tasks.journal import Journal
from server.tests.support.registry_process import RunningRegistry

REPOSITORY = "apps/busybox"
UID_BASE = 400_000


@dataclass
class ContainerNamespace:
    """A network namespace, as a sandbox has one, and a device in place of a GPU."""

    holder: "subprocess.Popen[bytes]"
    device: str

    def network_path(self, allocation_id: str) -> str:
        if self.holder.poll() is not None:
            raise HostFailure("not_found", f"the sandbox of {allocation_id} is not running")
        return f"/proc/{self.holder.pid}/ns/net"

    def uid_base(self, allocation_id: str) -> int | None:
        return UID_BASE

    def spec_of(self, allocation_id: str) -> SandboxSpec:
        network = Network("prj-1", "10.77.0.2", "10.77.0.0/24")
        return SandboxSpec(allocation_id, "ten_1", "prj_1", "box", 2.0, 1 << 30, 4_096, (), network)

    def device_paths(self, allocation_id: str) -> Sequence[str]:
        return (self.device,)


@dataclass
class PodmanMachine:
    """An agent with podman; the sandbox is simulated, the containers are real."""

    executor: Executor
    journal: Journal
    containers: ContainerTasks
    fake_platform: FakePlatform
    place: ContainerNamespace

    async def do(self, type: str, arguments: dict[str, Any], **other: Any) -> TaskResult:
        """Run one task to its end."""
        task = self.fake_platform.task(type, arguments, **other)
        self.executor.accept(task)
        await self.executor.wait_until_idle()
        entry = self.journal.find(task.task_id)
        assert entry is not None
        assert entry.result is not None
        return entry.result


@asynccontextmanager
async def podman_machine(directory: Path) -> AsyncIterator[PodmanMachine]:
    """A machine whose store and containers are removed afterwards."""
    podman = Podman(directory / "containers")
    if not Podman.on_this_machine() or not os.access(BUSYBOX, os.X_OK):
        pytest.skip("containers need root, podman, runc, conmon and busybox-static")
    podman.prepare()
    holder = network_holder()
    journal = Journal(directory / "journal.sqlite")
    async with httpx.AsyncClient(timeout=180) as http:
        cache = BlobCache(directory / "cache")
        place = ContainerNamespace(holder, device_node())
        images = ImageStore(cache, podman)
        volumes = ContainerVolumes(directory / "volumes")
        containers = ContainerTasks("nod_x", podman, images, cache, place, volumes, http)
        handlers = containers.handlers(HANDLERS)
        executor = Executor(SimulatedHost(), journal, make_keys(), time.time, lambda: None, 4, handlers)
        try:
            yield PodmanMachine(executor, journal, containers, FakePlatform(), place)
        finally:
            try:
                await until(lambda: no_container_is_left(podman))
                for allocation_id in containers.volumes.holders():
                    containers.volumes.clear(Owner(allocation_id))
                await podman.try_call("rmi", "--all", "--force")
                await until(lambda: not is_used(podman))
            finally:
                os.unlink(place.device)
                place.holder.kill()
                place.holder.wait()
                journal.close()
            remove_store(podman)


def launch(registry: RunningRegistry, image: BuiltImage, **other: Any) -> dict[str, Any]:
    """The arguments of a launch."""
    return {
        "name": "web",
        "image": {"registry": registry.url, "repository": REPOSITORY, "digest": image.digest, "private": True},
        "argv": ["-c", "id; exec httpd -f -p 8080 -h /www"],
        **other,
    }


async def no_container_is_left(podman: Podman) -> bool:
    """Remove all containers, repeatedly: one that was just being created or ended may still appear."""
    await podman.try_call("rm", "--all", "--force", "--time", "0")
    return await podman.containers({}) == []


def is_used(podman: Podman) -> bool:
    """Whether a process uses the store: one that cleans up after a container mounts it again."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if f"{podman.directory}/".encode() in each.read_bytes():
                return True
    return False


def remove_store(podman: Podman) -> None:
    """Unmount the store, which podman mounts onto itself, and remove it."""
    for place in (podman.directory / "storage" / "overlay", podman.run):
        if place.is_mount():
            subprocess.run(["umount", str(place)], check=True)
    shutil.rmtree(podman.run, ignore_errors=True)
    shutil.rmtree(podman.directory)


def network_holder() -> "subprocess.Popen[bytes]":
    """A process that holds a network namespace of its own, ready for use when this returns."""
    ready = "ip link set lo up && echo ready && exec sleep 600"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", ready], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    holder.stdout.close()
    return holder


def device_node() -> str:
    """A device of the machine that nothing else uses; it behaves like /dev/full."""
    path = f"/dev/mooring-test-{secrets.token_hex(6)}"
    os.mknod(path, stat.S_IFCHR, os.makedev(1, 7))
    os.chmod(path, 0o666)
    return path


def failure_code(result: TaskResult) -> str:
    """Why a task failed."""
    assert result.failure is not None
    return result.failure.code
