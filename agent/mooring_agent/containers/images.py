"""Images: every byte is hashed into the cache, then handed to podman as an OCI layout.

The manifest is requested by its digest and hashed before it is parsed; its blobs are fetched by digest and size. podman
sees the image only when all of it is here, and the digest that podman then reports must be the requested one. So a
tampered layer, config or manifest never becomes an image.

An image takes at most what the disk has without its reserve. Its layers are measured before podman unpacks them, and
the disk is watched while it does.
"""

import asyncio
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mooring_agent.artifacts.blob_cache import BlobCache, ProgressCallback
from mooring_agent.artifacts.disk_room import DiskRoom
from mooring_agent.artifacts.http_sources import INDEXES, MANIFESTS, ImageManifest, RegistryRepository
from mooring_agent.containers import layer_size
from mooring_agent.containers.podman import Podman
from mooring_agent.hosts.contract import HostFailure

LAYERS_MAX: Final = 256
CONFIG_BYTES_MAX: Final = 4 * 1_048_576
WATCH_SECONDS: Final = 0.2
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST: Final = msgspec.json.Decoder(ImageManifest)


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image in podman's store, by the id of its config."""

    digest: str
    image_id: str
    fetched_bytes: int
    blobs: tuple[str, ...] = ()


class ImageStore:
    def __init__(self, cache: BlobCache, podman: Podman, room: DiskRoom | None = None) -> None:
        self._cache = cache
        self._podman = podman
        self._room = room or DiskRoom(podman.directory)
        self._load_lock = asyncio.Lock()

    async def ensure(
        self,
        registry: RegistryRepository,
        digest: str,
        report_progress: ProgressCallback,
        no_progress_seconds: float = 60.0,
        *,
        is_known: Callable[[str], bool] = lambda digest: True,
    ) -> StoredImage:
        """Make sure podman has this image, verified; blobs that are in the cache are not fetched again.

        Blobs that were here count as fetched all the same unless `is_known` says that the caller knows about them.
        """
        raw, manifest = await self._manifest(registry, digest)
        if manifest.media_type in INDEXES:
            digest = _select_platform(manifest)
            raw, manifest = await self._manifest(registry, digest)
        if manifest.config is None or not 1 <= len(manifest.layers) <= LAYERS_MAX:
            raise HostFailure("image_pull_failed", f"{digest} is not an image of 1 to {LAYERS_MAX} layers")
        if manifest.config.size > CONFIG_BYTES_MAX:
            raise HostFailure("too_large", f"the image's config is larger than {CONFIG_BYTES_MAX} bytes")
        wanted = (manifest.config, *manifest.layers)
        total, done, fetched = sum(blob.size for blob in wanted), 0, 0
        for blob in wanted:
            before = done

            def report(stage: str, got: int, size: int | None, unit: str, before: int = before) -> None:
                report_progress("pull", before + got, total, unit)

            was_here = await self._cache.fetch(
                blob.digest, blob.size, registry.blob(blob.digest), report, no_progress_seconds
            )
            done += blob.size
            fetched += 0 if was_here and is_known(blob.digest) else blob.size
        report_progress("pull", total, total, "bytes")
        async with self._load_lock:
            image_id = await self._load(digest, raw, manifest)
        return StoredImage(digest, image_id, fetched, tuple(blob.digest for blob in wanted))

    async def _manifest(self, registry: RegistryRepository, digest: str) -> tuple[bytes, ImageManifest]:
        raw = await registry.manifest(digest)
        seen = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        if seen != digest:
            raise HostFailure("digest_mismatch", f"the registry's manifest is {seen}, not {digest}")
        try:
            manifest = _MANIFEST.decode(raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise HostFailure("image_pull_failed", f"{digest} is not a manifest: {str(error)[:200]}") from error
        if manifest.media_type not in (*MANIFESTS, *INDEXES):
            raise HostFailure("image_pull_failed", f"{digest} has the unsupported type {manifest.media_type[:100]}")
        return raw, manifest

    async def _load(self, digest: str, raw: bytes, manifest: ImageManifest) -> str:
        config = manifest.config
        if config is None:
            raise ValueError("an image without a config cannot be loaded")
        image_id = config.digest.partition(":")[2]
        if await self._digest_of(image_id) == digest:
            return image_id
        self._podman.prepare()
        # podman derives a name from the directory's, so it is a plain one, relative to where podman runs.
        layout = self._podman.layouts / secrets.token_hex(16)
        try:
            _write_layout(layout, self._cache, digest, raw, manifest)
            await self._require_room(layout, manifest)
            policy = ("--signature-policy", str(self._podman.policy))
            await self._watched(
                self._podman.call("pull", "--quiet", *policy, f"oci:{layout.name}:image", code="image_pull_failed")
            )
        finally:
            shutil.rmtree(layout)
            shutil.rmtree(self._podman.temporary, ignore_errors=True)  # podman leaves its part there when it is killed
        got = await self._digest_of(image_id)
        if got != digest:
            raise HostFailure("digest_mismatch", f"podman has {got or 'nothing'} for {digest}")
        return image_id

    async def _require_room(self, layout: Path, manifest: ImageManifest) -> None:
        """Measure the layers. podman keeps a copy of each compressed one while it unpacks it."""
        copies = sum(blob.size for blob in manifest.layers)
        limits = layer_size.SizeLimits.of_disk(self._room.bytes_left() - copies, self._room.files_left())
        blobs = layout / "blobs" / "sha256"
        layers = [blobs / blob.digest.partition(":")[2] for blob in manifest.layers]
        await asyncio.to_thread(layer_size.measure, layers, limits)

    async def _watched(self, pull: Awaitable[str]) -> None:
        """Wait for podman, and stop it when it uses the reserve: a layer may unpack to more than was measured."""
        running = asyncio.ensure_future(pull)
        try:
            while not (await asyncio.wait({running}, timeout=WATCH_SECONDS))[0]:
                if self._room.bytes_left() < 0 or self._room.files_left() < 0:
                    raise HostFailure("too_large", "the image does not fit on this machine's disk")
            await running
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})

    async def _digest_of(self, image_id: str) -> str:
        status, output, _ = await self._podman.try_call("image", "inspect", "--format", "{{.Digest}}", image_id)
        return output.strip() if status == 0 else ""


def _select_platform(index: ImageManifest) -> str:
    machine = MACHINES.get(os.uname().machine, os.uname().machine)
    for blob in index.manifests:
        if blob.platform is not None and (blob.platform.get("os"), blob.platform.get("architecture")) == (
            "linux",
            machine,
        ):
            return blob.digest
    raise HostFailure("image_pull_failed", f"the index has no image for linux/{machine}")


def _write_layout(layout: Path, cache: BlobCache, digest: str, raw: bytes, manifest: ImageManifest) -> None:
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    (blobs / digest.partition(":")[2]).write_bytes(raw)
    for blob in (*manifest.layers, manifest.config):
        if blob is None:
            continue
        place = blobs / blob.digest.partition(":")[2]
        if not place.exists():
            with cache.using(blob.digest) as source:
                os.link(source, place)
    top = {
        "mediaType": manifest.media_type,
        "digest": digest,
        "size": len(raw),
        "annotations": {"org.opencontainers.image.ref.name": "image"},
    }
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
