"""Containers whose sandbox has ended: they must not be in the network of another process."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.tests.support.busybox_image import busybox_image, push
from agent.tests.support.fake_platform import CREATE
from agent.tests.support.podman_machine import (
    REPOSITORY,
    PodmanMachine,
    failure_code,
    launch,
    network_holder,
    podman_machine,
)
from server.tests.support.registry_process import RunningRegistry, running_registry

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("containers")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunningRegistry]:
    directory = tmp_path / "registry"
    directory.mkdir()
    with running_registry(directory) as running:
        yield running


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[PodmanMachine]:
    async with podman_machine(tmp_path) as made:
        yield made


def process_with(pid: int) -> "subprocess.Popen[bytes]":
    """A process of the machine that has this number, as after a reboot, or when the numbers have gone round."""
    while True:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "600"])
        if process.pid == pid:
            return process
        process.kill()
        process.wait()


@pytest.mark.parametrize("action", ["start", "restart"])
async def test_a_container_does_not_outlive_its_sandbox_into_the_machines_network(
    machine: PodmanMachine, registry: RunningRegistry, action: str
) -> None:
    """Its network is the one of a process by number, and another process has that number when the sandbox has ended."""
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    assert (await machine.do("container.launch", launch(registry, image))).outcome == "succeeded"
    await machine.do("container.control", {"name": "web", "action": "stop", "grace_seconds": 0})
    machine.place.holder.kill()
    machine.place.holder.wait()
    other = process_with(machine.place.holder.pid)
    try:
        begun = await machine.do("container.control", {"name": "web", "action": action, "grace_seconds": 0})
        assert failure_code(begun) == "not_found"
        seen = await machine.do("container.control", {"name": "web", "action": "inspect"})
        assert seen.result["state"] == "exited"
        removed = await machine.do("container.remove", {"name": "web"})
        assert removed.result["removed"] is True
    finally:
        other.kill()
        other.wait()


async def test_a_container_whose_sandbox_ends_while_it_is_started_is_removed(
    machine: PodmanMachine, registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    made, call = machine.place.holder, machine.containers.podman.call

    async def started(*words: str, **other: Any) -> str:
        said = await call(*words, **other)
        if words[0] == "start":
            machine.place.holder = network_holder()
        return said

    monkeypatch.setattr(machine.containers.podman, "call", started)
    begun = await machine.do("container.launch", launch(registry, image))
    made.kill()
    made.wait()
    assert failure_code(begun) == "interrupted"
    assert await machine.containers.podman.containers({}) == []
