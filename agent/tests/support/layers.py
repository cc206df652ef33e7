"""Images made on the spot for attacks on the agent, a registry that serves them, and a simulated podman."""

import asyncio
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from mooring_agent.artifacts.disk_room import DiskRoom
from mooring_agent.artifacts.http_sources import RegistryRepository
from mooring_agent.containers.podman import Podman

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True)
class Packed:
    """An entry of an archive with its contents."""

    entry: tarfile.TarInfo
    data: bytes


def tar_of(entries: Iterable[Packed], form: int = tarfile.GNU_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for each in entries:
            each.entry.size = len(each.data)
            tar.addfile(each.entry, io.BytesIO(each.data))
    return made.getvalue()


def file_entry(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    return entry


@dataclass
class SimulatedRegistry:
    """Serves one image to the agent."""

    layers: Sequence[bytes]
    config: bytes = b'{"os": "linux"}'
    manifest: bytes = b""
    blobs: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blobs = {digest_of(each): each for each in (self.config, *self.layers)}
        described = [
            {"mediaType": "x", "digest": digest_of(each), "size": len(each)} for each in (self.config, *self.layers)
        ]
        plain = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}
        self.manifest = self.manifest or json.dumps(plain).encode()

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    def repository(self) -> RegistryRepository:
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        return RegistryRepository(http, "http://registry.invalid", "a/b", private=True)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        if "/manifests/" in request.url.path:
            return httpx.Response(200, content=self.manifest)
        if name not in self.blobs:
            return httpx.Response(404)
        return httpx.Response(200, content=_streamed(self.blobs[name]))


async def _streamed(data: bytes) -> AsyncIterator[bytes]:
    yield data


class SimulatedPodman(Podman):
    """Takes every image; while it "unpacks", it can wait to be stopped."""

    def __init__(self, directory: Path, digest: str, *, never_ends: bool = False) -> None:
        super().__init__(directory)
        self.run = directory / "run"
        self.secrets = self.run / "secrets"
        self.digest = digest
        self.never_ends = never_ends
        self.pulled = self.stopped = False

    async def try_call(self, *words: str, stdin: bytes | None = None) -> tuple[int, str, str]:
        if words[0] == "image":
            return (0, self.digest, "") if self.pulled and not self.never_ends else (125, "", "no such image")
        self.pulled = True
        if self.never_ends:
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped = True
        return 0, "", ""


@dataclass(frozen=True)
class SmallDisk(DiskRoom):
    """A disk that has this much left."""

    left: int = 0
    files: int = 1 << 40

    def bytes_left(self) -> int:
        return self.left

    def files_left(self) -> int:
        return self.files


def gzip_of(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)
