"""Real containers from a real registry: pulled by digest, hardened, inspected, stopped, and proven to be gone."""

import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.tests.support.busybox_image import BUSYBOX, busybox_image, push
from agent.tests.support.fake_platform import ALLOCATION, CREATE, seal
from agent.tests.support.podman_machine import (
    REPOSITORY,
    UID_BASE,
    PodmanMachine,
    failure_code,
    is_used,
    launch,
    podman_machine,
)
from agent.tests.support.supervisors import until
from mooring_agent.containers import container_tasks
from mooring_agent.containers.volumes import ContainerVolumes
from mooring_agent.control_plane.messages import TaskResult, decode
from mooring_agent.sandbox_init.spawner import PROGRAM_SCORE
from server.tests.support.registry_process import RunningRegistry, running_registry
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("containers")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunningRegistry]:
    """A registry with a directory of its own, because tests corrupt its contents."""
    directory = tmp_path / "registry"
    directory.mkdir()
    with running_registry(directory) as running:
        yield running


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[PodmanMachine]:
    async with podman_machine(tmp_path) as made:
        yield made


def fetched(network: str, url: str) -> str:
    """A page, fetched from inside a network."""
    command = ["nsenter", f"--net={network}", str(BUSYBOX), "wget", "-qO-", url]
    answers = [subprocess.run(command, capture_output=True, text=True, check=False)]

    def is_answered() -> bool:
        if answers[-1].returncode != 0:
            answers.append(subprocess.run(command, capture_output=True, text=True, check=False))
        return answers[-1].returncode == 0

    until_sync(is_answered, what=lambda: f"{url}: {answers[-1].stderr}")
    return answers[-1].stdout


def status_of(pid: int) -> dict[str, str]:
    """The kernel's status of a process."""
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


def oom_score_of(pid: int) -> int:
    """How early the kernel ends a process when memory runs out."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def arguments_of_all() -> Iterator[bytes]:
    """The arguments of every process on the machine."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield process.read_bytes()


def said_in(result: TaskResult) -> str:
    """The content of a log read."""
    assert result.outcome == "succeeded", result.failure
    return base64.b64decode(result.result["content_base64"]).decode()


async def test_a_container_is_pulled_by_digest_run_hardened_stopped_and_proven_gone(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    owner = {"owner": ALLOCATION + "/web"}
    volume = [{"volume": "data", "target": "/data"}]
    launched = await machine.do("container.launch", launch(registry, image, mounts=volume), **owner)
    assert (launched.outcome, launched.result.get("state")) == ("succeeded", "running"), launched
    assert launched.result["image_digest"] == image.digest
    inspected = json.loads(await machine.containers.podman.call("inspect", launched.result["container_id"]))[0]
    pid = inspected["State"]["Pid"]
    status = status_of(pid)
    assert status["CapEff"].strip() == status["CapBnd"].strip() == "0000000000000000"
    assert status["NoNewPrivs"].strip() == "1"
    assert oom_score_of(pid) == PROGRAM_SCORE
    assert set(status["Uid"].split()) == {str(UID_BASE + 1_000)}
    assert os.readlink(f"/proc/{pid}/ns/net") == os.readlink(machine.place.network_path(ALLOCATION))
    assert fetched(machine.place.network_path(ALLOCATION), "http://127.0.0.1:8080/") == "hello from a container\n"
    read = {"name": "web", "kind": "container", "max_bytes": 1_024}
    first = await machine.do("log.read", {**read, "offset": 0, "wait_seconds": 25}, **owner)
    assert said_in(first).startswith("uid=1000(1000) gid=1000(1000)")
    other = await machine.do("log.read", read, owner=ALLOCATION + "/other")
    assert failure_code(other) == "not_found"
    stopped = await machine.do("container.control", {"name": "web", "action": "stop", "grace_seconds": 1}, **owner)
    assert stopped.result["state"] == "exited"
    assert said_in(await machine.do("log.read", {**read, "tail_lines": 9}, **owner)).startswith(said_in(first))
    gone = await machine.do("teardown.verify", {"close": True}, **owner)
    assert gone.receipt is not None
    receipt = json.loads(decode(gone.receipt.body))
    assert receipt["clean"] is True
    assert {resource["kind"] for resource in receipt["removed"]} == {"containers", "files"}
    assert await machine.containers.podman.containers({}) == []
    with pytest.raises(FileNotFoundError):
        status_of(pid)


async def test_a_container_fills_its_own_disk_only_and_an_allocation_has_a_bounded_number_of_containers(
    machine: PodmanMachine, registry: RunningRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_tasks, "CONTAINERS_MAX", 1)
    machine.containers.volumes = ContainerVolumes(tmp_path / "volumes", 32 << 20)
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    fills = {"argv": ["-c", "dd if=/dev/zero of=/data/fill bs=1M count=200; exec sleep 600"]}
    volume = [{"volume": "data", "target": "/data"}]
    launched = await machine.do("container.launch", launch(registry, image, mounts=volume, **fills))
    assert launched.outcome == "succeeded", launched

    async def is_full() -> bool:
        read = {"name": "web", "kind": "container", "max_bytes": 1_024, "offset": 0}
        return "No space left on device" in said_in(await machine.do("log.read", read))

    await until(is_full)
    second = await machine.do("container.launch", launch(registry, image, name="second"))
    assert failure_code(second) == "capacity"
    destroyed = await machine.do("sandbox.destroy", {})
    assert destroyed.result["clean"] is True
    assert machine.containers.volumes.holders() == []


async def test_a_container_that_wrote_more_than_is_stored_is_read_to_its_end_and_the_gap_is_reported(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    talks = "trap go=1 USR1; echo begun; until [ $go ]; do sleep 0.1; done; "
    much = "yes $(head -c 3000 /dev/zero | tr '\\0' x) | head -n 4000; echo the end; exec sleep 1000"
    launched = await machine.do("container.launch", launch(registry, image, argv=["-c", talks + much]))
    assert launched.outcome == "succeeded", launched.failure
    read = {"name": "web", "kind": "container", "max_bytes": 262_144}
    first = await machine.do("log.read", {**read, "offset": 0, "wait_seconds": 25})
    assert said_in(first) == "begun\n"
    await machine.containers.podman.call("kill", "--signal", "USR1", launched.result["container_id"])
    place, gaps, last = first.result, 0, ""
    for _ in range(200):
        asked = {**read, "offset": place["next_offset"], "log": place["log"], "wait_seconds": 25}
        part = await machine.do("log.read", asked)
        place, gaps, last = part.result, gaps + part.result["truncated_before"], said_in(part)
        assert len(last) <= 262_144
        if last.endswith("the end\n"):
            break
    assert last.endswith("the end\n")
    assert gaps >= 1
    assert said_in(await machine.do("log.read", {**read, "tail_lines": 1})) == "the end\n"


@pytest.mark.parametrize("part", ["manifest", "layer"])
async def test_a_tampered_image_never_starts(machine: PodmanMachine, registry: RunningRegistry, part: str) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    file = registry.file_of(image.digest if part == "manifest" else image.layer_digest)
    spoiled = bytearray(file.read_bytes())
    spoiled[len(spoiled) // 2] ^= 1
    file.write_bytes(spoiled)
    await machine.do("sandbox.create", CREATE)
    result = await machine.do("container.launch", launch(registry, image))
    # docker-registry itself detects a corrupted manifest, and responds with an error of its own.
    assert failure_code(result) in ("digest_mismatch", "image_pull_failed")
    if part == "layer":
        assert failure_code(result) == "digest_mismatch"
    assert await machine.containers.podman.containers({}) == []
    assert (await machine.containers.podman.call("images", "--quiet")).strip() == ""


async def test_an_image_that_is_not_there_says_so(machine: PodmanMachine, registry: RunningRegistry) -> None:
    image = busybox_image()
    await machine.do("sandbox.create", CREATE)
    assert failure_code(await machine.do("container.launch", launch(registry, image))) == "not_found"


async def test_inside_a_container_nothing_of_the_machine_can_be_changed(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    tries = f"touch /x; mount -t tmpfs none /tmp; echo > {machine.place.device}; ls -d /dev/m* /dev/vd*; echo done"
    launched = await machine.do(
        "container.launch", launch(registry, image, argv=["-c", tries + "; ls /root /home /etc; exec sleep 600"])
    )
    assert launched.outcome == "succeeded"
    name = launched.result["container_id"]
    said = ""
    while "done" not in said:
        said = "".join((await machine.containers.podman.try_call("logs", name))[1:])
    assert "touch: /x: Read-only file system" in said
    assert "mount: permission denied" in said or "mount: mounting none on /tmp failed" in said
    # Of the machine's devices, only the sandbox's own exists and works.
    assert "write error: No space left on device" in said
    assert {line for line in said.splitlines() if line.startswith("/dev/m")} == {"/dev/mqueue", machine.place.device}
    assert not [line for line in said.splitlines() if line.startswith("/dev/vd")]


async def test_a_secret_is_in_the_containers_environment_and_in_no_argument(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    keys = machine.executor.keys
    task_id = "tsk_55hzzzzzzzzzzzzzzzzzzzzzzz"
    secret = seal(b"hush-4711", keys.sealing_public, task_id, "artifact_pull", "token")
    arguments = launch(registry, image, environment_secrets={"TOKEN": "token"}, argv=["-c", "env; exec sleep 600"])
    launched = await machine.do("container.launch", arguments, task_id=task_id, secrets=[secret])
    assert launched.outcome == "succeeded", launched
    said = ""
    while "TOKEN" not in said:
        said = (await machine.containers.podman.try_call("logs", launched.result["container_id"]))[1]
    assert "TOKEN=hush-4711" in said
    assert b"hush-4711" not in b"".join(arguments_of_all())
    assert not [each for each in holding(machine, b"hush-4711") if each.name in ("bolt_state.db", "db.sql")]
    restarted = await machine.do("container.control", {"name": "web", "action": "restart", "grace_seconds": 0})
    assert restarted.result["state"] == "running"
    removed = await machine.do("container.remove", {"name": "web"})
    assert removed.result == {"removed": True}
    await until(lambda: not is_used(machine.containers.podman))
    assert holding(machine, b"hush-4711") == [], "nothing of it is left, in no file and no database"
    assert await machine.containers.secrets.allocations() == []


def holding(machine: PodmanMachine, secret: bytes) -> list[Path]:
    """The files of podman, in its store and below /run, that contain these bytes."""
    podman = machine.containers.podman
    files = [each for place in (podman.directory, podman.run) for each in place.rglob("*") if each.is_file()]
    forms = (secret, base64.b64encode(secret)[:-4])
    kept = [each for each in files if "overlay-layers" not in each.parts and "/diff/" not in str(each)]
    return [each for each in kept if any(form in each.read_bytes() for form in forms)]


async def test_what_is_in_the_cache_is_not_fetched_again(machine: PodmanMachine, registry: RunningRegistry) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    source = f"{registry.url}/v2/{REPOSITORY}"
    arguments = {"kind": "oci", "digest": image.digest, "source": source, "private": True}
    first = await machine.do("artifact.fetch", arguments)
    second = await machine.do("artifact.fetch", arguments)
    layer = {
        **arguments,
        "kind": "blob",
        "digest": image.layer_digest,
        "source": f"{source}/blobs/{image.layer_digest}",
    }
    await machine.do("sandbox.create", CREATE)
    put = await machine.do("artifact.fetch", {**layer, "destination": "/srv/layer"})
    assert (put.outcome, put.result["from_cache"]) == ("succeeded", True), put
    destroyed = await machine.do("sandbox.destroy", {})
    assert destroyed.receipt is not None
    assert {"kind": "files", "name": "/srv/layer"} in json.loads(decode(destroyed.receipt.body))["removed"]
    assert (first.result["from_cache"], second.result["from_cache"]) == (False, True)
    assert first.result["bytes"] == sum(len(blob) for blob in image.blobs.values())


async def test_an_artifact_in_a_volume_is_read_by_its_container_and_goes_with_its_owner(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    blob = {"kind": "blob", "digest": image.layer_digest, "private": True, "volume": "weights", "file": "layer"}
    blob["source"] = f"{registry.url}/v2/{REPOSITORY}/blobs/{image.layer_digest}"
    await machine.do("sandbox.create", CREATE)
    put = await machine.do("artifact.fetch", blob)
    assert put.outcome == "succeeded", put
    mounts = [{"volume": "weights", "target": "/models", "read_only": True}]
    argv = ["-c", "cat /models/layer >/dev/null && echo read; touch /models/layer; exec sleep 600"]
    launched = await machine.do("container.launch", launch(registry, image, mounts=mounts, argv=argv))
    assert launched.outcome == "succeeded", launched
    said = ""
    while "touch:" not in said:
        _, out, errors = await machine.containers.podman.try_call("logs", launched.result["container_id"])
        said = out + errors
    assert said.startswith("read"), said
    destroyed = await machine.do("sandbox.destroy", {})
    assert destroyed.receipt is not None
    assert json.loads(decode(destroyed.receipt.body))["clean"] is True
    assert machine.containers.cache.path(image.layer_digest).exists(), "the cache keeps its own name of the bytes"


async def test_a_volume_cannot_replace_a_directory_of_the_kernels(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    """With a link named `null` in a volume at /dev, files of the machine that are hidden in /proc were another file."""
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    for number, target in enumerate(("/dev", "/dev/null", "/proc", "/sys/fs")):
        mounts = [{"volume": "data", "target": target}]
        refused = await machine.do("container.launch", launch(registry, image, name=f"web{number}", mounts=mounts))
        assert failure_code(refused) == "path_refused", target
    assert await machine.containers.podman.containers({}) == []


async def test_a_second_container_of_the_same_name_is_refused(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    await machine.do("container.launch", launch(registry, image))
    assert failure_code(await machine.do("container.launch", launch(registry, image))) == "refused"
    larger = launch(registry, image, name="larger", memory_bytes=1 << 40)
    assert failure_code(await machine.do("container.launch", larger)) == "capacity"


async def test_a_sweep_reaps_containers_volumes_and_secrets_of_what_the_platform_does_not_know(
    machine: PodmanMachine, registry: RunningRegistry
) -> None:
    image = busybox_image()
    push(registry.url, REPOSITORY, image)
    await machine.do("sandbox.create", CREATE)
    volume = [{"volume": "data", "target": "/data"}]
    launched = await machine.do("container.launch", launch(registry, image, mounts=volume))
    # The state after an agent is killed before podman has created the container.
    await machine.containers.podman.call("secret", "create", f"{ALLOCATION}.web.1.0", "-", stdin=b"hush")
    assert await machine.containers.sweep([ALLOCATION]) == []
    assert await machine.containers.secrets.allocations() == [ALLOCATION]
    strays = await machine.containers.sweep([])
    assert {(each.resource.kind, each.verdict, each.allocation_id) for each in strays} == {
        ("containers", "reaped", ALLOCATION),
        ("files", "reaped", ALLOCATION),
        ("secrets", "reaped", ALLOCATION),
    }
    assert launched.result["container_id"] not in str(await machine.containers.podman.containers({}))
    assert await machine.containers.secrets.allocations() == []
    assert await machine.containers.sweep([]) == []
