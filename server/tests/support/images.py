"""Small images and other artifacts, made in pure Python: tar, gzip and JSON, the same bytes every time."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mooring.gateways.registry.image_manifest import (
    EMPTY_CONFIG,
    OCI_CONFIG,
    OCI_EMPTY,
    OCI_INDEX,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    BlobDescriptor,
    ImageManifest,
    ImagePlatform,
    digest_of,
    read_manifest,
)
from mooring.gateways.registry.registry_push import RegistryPusher

PROGRAM = b"\x7fELF of a kind"


@dataclass(frozen=True)
class SampleLayer:
    """A layer, packed and not."""

    packed: bytes
    unpacked: bytes
    media_type: str = OCI_LAYER_GZIP

    @property
    def descriptor(self) -> BlobDescriptor:
        return describe(self.packed, self.media_type)


@dataclass(frozen=True)
class SampleArtifact:
    """A manifest, and every blob that it needs by digest."""

    manifest: ImageManifest
    blobs: Mapping[str, bytes]
    parts: tuple["SampleArtifact", ...] = ()  # the images of an index

    @property
    def digest(self) -> str:
        return self.manifest.digest


@dataclass(frozen=True)
class About:
    """What an image's config says."""

    entrypoint: Sequence[str] = ("/bin/program",)
    os: str = "linux"
    architecture: str = "amd64"
    further: Mapping[str, Any] = field(default_factory=dict)


def describe(content: bytes, media_type: str) -> BlobDescriptor:
    return BlobDescriptor(media_type=media_type, digest=digest_of(content), size=len(content))


@dataclass(frozen=True)
class ArchivedFile:
    content: bytes
    mode: int = 0o755


def archive(
    files: Mapping[str, bytes | ArchivedFile],
    links: Mapping[str, str] | None = None,
    form: int = tarfile.PAX_FORMAT,
) -> bytes:
    """A tar archive of files and links by name; bytes stand for a file that may be executed."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for name, given in files.items():
            file = given if isinstance(given, ArchivedFile) else ArchivedFile(given)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(file.content), file.mode
            tar.addfile(entry, io.BytesIO(file.content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return made.getvalue()


def layer(unpacked: bytes) -> SampleLayer:
    return SampleLayer(gzip.compress(unpacked, mtime=0), unpacked)


def image(layers: Sequence[SampleLayer] | None = None, about: About | None = None) -> SampleArtifact:
    """An image; without a word about it, one that could be started."""
    made = list(layers) if layers is not None else [layer(archive({"bin/program": PROGRAM}))]
    said = about or About()
    config = msgspec.json.encode(
        {
            "os": said.os,
            "architecture": said.architecture,
            "config": {"Entrypoint": list(said.entrypoint), **said.further},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(each.unpacked) for each in made]},
        }
    )
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": describe(config, OCI_CONFIG),
        "layers": [each.descriptor for each in made],
    }
    blobs = {digest_of(each.packed): each.packed for each in made} | {digest_of(config): config}
    return SampleArtifact(read_manifest(msgspec.json.encode(document)), blobs)


def index(images: Mapping[str, SampleArtifact]) -> SampleArtifact:
    """An index of images by `os/architecture`."""
    entries = []
    for platform, part in images.items():
        system, _, architecture = platform.partition("/")
        entries.append(
            msgspec.structs.replace(
                part.manifest.descriptor, platform=ImagePlatform(os=system, architecture=architecture)
            )
        )
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    return SampleArtifact(read_manifest(msgspec.json.encode(document)), {}, tuple(images.values()))


def payload(files: Mapping[str, bytes]) -> SampleArtifact:
    """Files that are no image, one layer each."""
    layers = [
        msgspec.structs.replace(
            describe(content, "application/octet-stream"), annotations={"org.opencontainers.image.title": name}
        )
        for name, content in files.items()
    ]
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": "application/vnd.example.weights",
        "config": describe(EMPTY_CONFIG, OCI_EMPTY),
        "layers": layers,
    }
    blobs = {digest_of(content): content for content in (*files.values(), EMPTY_CONFIG)}
    return SampleArtifact(read_manifest(msgspec.json.encode(document)), blobs)


async def push(pusher: RegistryPusher, repository: str, artifact: SampleArtifact, tag: str | None = None) -> str:
    """Push all of an artifact; its digest."""
    for part in artifact.parts:
        await push(pusher, repository, part)
    for content in artifact.blobs.values():
        await pusher.blob(repository, content)
    await pusher.manifest_bytes(repository, artifact.manifest.raw, tag)
    return artifact.digest
