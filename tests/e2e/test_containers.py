"""A real container through the platform: by digest from a real registry, probed, read, stopped, proven gone."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.tests.support.busybox_image import BUSYBOX, busybox_image, push
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from mooring.embedded.cluster import ClusterLayout
from mooring.storage.kernel.database import Database, PoolSettings
from mooring_agent.containers.podman import Podman
from mooring_sdk import errors
from server.tests.support.lifecycle_rows import CLOCK, ProjectRows, artifact_columns, machines_of
from server.tests.support.registry_process import RunningRegistry, running_registry
from tests.e2e.agent_platform import AgentPlatform, running_agent_platform
from tests.e2e.leftovers import eventually

pytestmark = pytest.mark.real_part("containers")
REPOSITORY = "apps/busybox"
OWNER = "web"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    """A registry on loopback."""
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def place() -> Iterator[AgentPlatform]:
    """A platform with one machine that has podman."""
    if not Podman.on_this_machine() or not os.access(BUSYBOX, os.X_OK):
        pytest.skip("containers need root, podman, runc, conmon and busybox-static")
    with running_agent_platform() as made:
        made.offer()
        made.join("namespace")
        yield made


def allow(place: AgentPlatform, registry: RunningRegistry) -> None:
    """Put a registry on loopback on the platform's list of sources."""
    pattern = f"oci://{registry.url.removeprefix('http://')}/*"
    place.admin.create_platform_artifact_source(name="A registry of the test", pattern=pattern, reaches_private=True)


def register(place: AgentPlatform, registry: RunningRegistry, digest: str) -> None:
    """An artifact of the tenant's, written past the API: foreign registries are read over TLS, and this has none."""
    asyncio.run(_register(place, f"oci://{registry.url.removeprefix('http://')}/{REPOSITORY}", digest))


async def _register(place: AgentPlatform, location: str, digest: str) -> None:
    database = Database(PoolSettings(ClusterLayout(place.mooring.directory / "data").dsn, 1))
    await database.open()
    project_rows = ProjectRows(database, place.tenant.id, place.projects[0].id)
    row = project_rows.row("artifact") | artifact_columns(digest) | {"location": location}
    seen = {
        "id": CLOCK.mint(Prefix.ARTIFACT_EVIDENCE),
        "tenant_id": place.tenant.id,
        "artifact_id": row["id"],
        "kind": "presence",
        "digest": digest,
        "observed_at": CLOCK.now(),
        "size_bytes": row["size_bytes"],
    }
    await project_rows.write(Insert("artifact", row, machines_of("artifact")), Insert("artifact_evidence", seen))
    await database.close()


def launch(registry: RunningRegistry, digest: str) -> dict[str, Any]:
    """The arguments of a launch."""
    return {
        "name": "web",
        "image": {"registry": registry.url, "repository": REPOSITORY, "digest": digest},
        "argv": ["-c", "echo serving; exec httpd -f -p 8080 -h /www"],
        "endpoint": {"name": "web", "port": 8080, "protocol": "http"},
    }


def inspected(place: AgentPlatform, box: Any) -> dict[str, Any]:
    """The container once something that it wrote was taken down, which is done beside it."""

    def look() -> dict[str, Any]:
        looked = place.do(
            place.projects[0], box, "container.control", {"name": "web", "action": "inspect"}, label=OWNER
        )
        assert looked.status == "succeeded", looked
        return dict(looked.result)

    return eventually(look, lambda seen: seen["last_lines"])


def test_a_container_by_digest_is_probed_read_stopped_and_proven_gone(
    place: AgentPlatform, registry: RunningRegistry
) -> None:
    project, image = place.projects[0], busybox_image()
    push(registry.url, REPOSITORY, image)
    box = place.allocate(project)
    wanted = launch(registry, image.digest)
    with pytest.raises(errors.SourceDenied):
        place.tenant_admin.create_allocation_task(project.id, box.id, type="container.launch", arguments=wanted)
    allow(place, registry)
    with pytest.raises(errors.ArtifactNotRegistered):
        place.tenant_admin.create_allocation_task(project.id, box.id, type="container.launch", arguments=wanted)
    register(place, registry, image.digest)
    launched = place.do(project, box, "container.launch", launch(registry, image.digest), label=OWNER)
    assert launched.status == "succeeded", launched
    assert launched.result["image_digest"] == image.digest
    probed = place.do(project, box, "probe.http", {"port": 8080, "attempts": 1_000, "interval_seconds": 0.2})
    assert (probed.status, probed.result["observed"]) == ("succeeded", "200"), probed
    looked = inspected(place, box)
    assert (looked["state"], looked["last_lines"]) == ("running", ["serving"])
    stopped = place.do(
        project, box, "container.control", {"name": "web", "action": "stop", "grace_seconds": 1}, label=OWNER
    )
    assert stopped.result["state"] == "exited"
    place.tenant_admin.release_allocation(project.id, box.id)
    over = place.until(lambda seen: seen.status in ("released", "release_failed"), project, box.id)
    assert over.status == "released", over
    receipt = place.tenant_admin.get_receipt(project.id, over.receipt_id)
    assert receipt.clean
    assert {"kind": "containers", "name": f"{box.id}.{OWNER}.web"} in receipt.document["removed"]


@pytest.mark.parametrize("part", ["manifest", "layer"])
def test_a_tampered_image_never_starts(place: AgentPlatform, tmp_path: Path, part: str) -> None:
    project, image = place.projects[0], busybox_image()
    with running_registry(tmp_path) as registry:
        push(registry.url, REPOSITORY, image)
        allow(place, registry)
        register(place, registry, image.digest)
        file = registry.file_of(image.digest if part == "manifest" else image.layer_digest)
        spoiled = bytearray(file.read_bytes())
        spoiled[len(spoiled) // 2] ^= 1
        file.write_bytes(spoiled)
        box = place.allocate(project)
        # What an honest registry sent before lies in the cache, and would be used: it was hashed.
        cache = place.machines[0].directory / "cache" / "blobs" / "sha256" / image.layer_digest.partition(":")[2]
        cache.unlink(missing_ok=True)
        launched = place.do(project, box, "container.launch", launch(registry, image.digest), label=OWNER)
        assert launched.status == "failed"
        assert launched.failure_code in ("digest_mismatch", "image_pull_failed"), launched
        looked = place.do(project, box, "container.control", {"name": "web", "action": "inspect"}, label=OWNER)
        assert (looked.status, looked.failure_code) == ("failed", "not_found")
        place.tenant_admin.release_allocation(project.id, box.id)
        place.until(lambda seen: seen.status == "released", project, box.id)
