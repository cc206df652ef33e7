"""What the result of a fetch tells: nothing of what other tenants of the machine have fetched."""

from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest

from agent.tests.support.fake_platform import FakePlatform
from agent.tests.support.layers import Packed, SimulatedPodman, SimulatedRegistry, file_entry, gzip_of, tar_of
from mooring_agent.artifacts.blob_cache import BlobCache
from mooring_agent.containers.container_tasks import ContainerTasks
from mooring_agent.containers.images import ImageStore
from mooring_agent.containers.volumes import ContainerVolumes
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.handlers import TaskContext

pytestmark = pytest.mark.anyio
VICTIM, SPY = "alc_00000000000000000000000001", "alc_00000000000000000000000002"


async def test_a_fetch_does_not_tell_whether_a_neighbour_fetched_the_same(tmp_path: Path) -> None:
    registry = SimulatedRegistry([gzip_of(tar_of([Packed(file_entry("weights"), b"w" * 5_000)]))])
    podman, cache = SimulatedPodman(tmp_path / "containers", registry.digest), BlobCache(tmp_path / "cache")
    http = registry.repository().http
    places = cast(Any, None)
    volumes = ContainerVolumes(tmp_path / "volumes")
    tasks = ContainerTasks("nod_x", podman, ImageStore(cache, podman), cache, places, volumes, http)
    platform = FakePlatform()
    layer = next(iter(set(registry.blobs) - {next(iter(registry.blobs))}))
    address = "http://registry.invalid/v2/a/b"
    image = {"kind": "oci", "digest": registry.digest, "source": address, "private": True}
    blob = {"kind": "blob", "digest": layer, "source": f"{address}/blobs/{layer}", "private": True}

    async def fetch(allocation_id: str, plain: dict[str, Any]) -> dict[str, Any]:
        task = msgspec.structs.replace(platform.task("artifact.fetch", plain), allocation_id=allocation_id)
        arguments = msgspec.convert(plain, task_arguments.ArtifactFetch)
        result = dict(await tasks.fetch(cast(Any, None), TaskContext(task), arguments))
        return {name: result[name] for name in ("bytes", "from_cache")}

    fresh = await fetch(VICTIM, image)
    assert fresh["from_cache"] is False
    assert await fetch(SPY, blob) == {"bytes": len(registry.blobs[layer]), "from_cache": False}
    assert await fetch(SPY, image) == {"bytes": len(registry.config), "from_cache": False}, "the rest was its own"
    third = "alc_00000000000000000000000003"
    assert await fetch(third, image) == fresh, "as if nobody had fetched it before"
    assert await fetch(third, image) == {"bytes": 0, "from_cache": True}, "its own fetch is no secret"
    await http.aclose()


async def test_the_history_of_an_allocation_goes_with_it(tmp_path: Path) -> None:
    podman, cache = SimulatedPodman(tmp_path / "containers", "sha256:x"), BlobCache(tmp_path / "cache")
    async with httpx.AsyncClient() as http:
        places = cast(Any, None)
        volumes = ContainerVolumes(tmp_path / "volumes")
        tasks = ContainerTasks("nod_x", podman, ImageStore(cache, podman), cache, places, volumes, http)
        tasks.history.add(VICTIM, "sha256:1")
        await tasks.sweep({SPY})
        assert not tasks.history.has(VICTIM, "sha256:1")
