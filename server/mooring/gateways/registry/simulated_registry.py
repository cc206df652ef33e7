"""A registry in memory, for demonstrations and for tests of other parts.

It has the read interface that the platform uses, and methods to add content. It behaves like the real client: content
is addressed by digest, missing content is refused with the same code, and sizes are limited. `spoil` replaces the
content under a digest, as in a registry that was tampered with.
"""

from collections.abc import Iterable
from typing import Final

from mooring.gateways.registry.image_manifest import (
    BlobDescriptor,
    ImageManifest,
    digest_name,
    digest_of,
    read_manifest,
    repository_name,
    tag_name,
)
from mooring.gateways.registry.source_refusals import mismatch, not_found, too_large
from mooring.gateways.registry.source_stream import ReceivedBody, Sink

CHUNK_BYTES: Final = 65_536


class SimulatedRegistry:
    """Repositories with content by digest, and tags."""

    def __init__(self, host: str = "registry.simulated") -> None:
        self._host = host
        self._content: dict[tuple[str, str], bytes] = {}
        self._tags: dict[tuple[str, str], str] = {}

    def put_blob(self, repository: str, content: bytes, media_type: str = "application/octet-stream") -> BlobDescriptor:
        """Add a blob."""
        digest = digest_of(content)
        self._content[repository_name(repository), digest] = content
        return BlobDescriptor(media_type=media_type, digest=digest, size=len(content))

    def put_manifest(self, repository: str, raw: bytes, tags: Iterable[str] = ()) -> ImageManifest:
        """Add a manifest, and tags that point to it."""
        manifest = read_manifest(raw)
        self._content[repository_name(repository), manifest.digest] = raw
        for tag in tags:
            self._tags[repository, tag_name(tag)] = manifest.digest
        return manifest

    def spoil(self, repository: str, digest: str, content: bytes) -> None:
        """Replace the content under a digest by other content."""
        self._content[repository, digest] = content

    def remove(self, repository: str, digest: str) -> None:
        """Remove the content under a digest."""
        self._content.pop((repository, digest), None)

    def names(self, repository: str) -> tuple[str, ...]:
        return (f"{self._host}/{repository_name(repository)}",)

    async def manifest(self, repository: str, digest: str) -> ImageManifest:
        return read_manifest(self._taken(repository, digest_name(digest)), digest=digest)

    async def resolve_tag(self, repository: str, tag: str) -> ImageManifest:
        digest = self._tags.get((repository_name(repository), tag_name(tag)))
        if digest is None:
            raise not_found(self._host, f"{repository}:{tag}")
        return await self.manifest(repository, digest)

    async def blob_bytes(self, repository: str, wanted: BlobDescriptor, limit_bytes: int) -> bytes:
        if wanted.size > limit_bytes:
            raise too_large(self._host, wanted.size, limit_bytes)
        return self._taken(repository, wanted.digest)

    async def read_blob(self, repository: str, wanted: BlobDescriptor, sink: Sink | None = None) -> ReceivedBody:
        content = self._taken(repository, wanted.digest)
        if len(content) != wanted.size:
            raise mismatch(self._host, wanted.size, len(content))
        for start in range(0, len(content), CHUNK_BYTES):
            if sink is not None:
                await sink(content[start : start + CHUNK_BYTES])
        return ReceivedBody(wanted.digest, len(content))

    async def referrers(self, repository: str, digest: str) -> tuple[BlobDescriptor, ...]:
        found = []
        for (place, _), content in self._content.items():
            if place == repository and b'"subject"' in content:
                manifest = read_manifest(content)
                if manifest.subject is not None and manifest.subject.digest == digest:
                    found.append(manifest.descriptor)
        return tuple(found)

    def _taken(self, repository: str, digest: str) -> bytes:
        content = self._content.get((repository_name(repository), digest))
        if content is None:
            raise not_found(self._host, f"{repository}@{digest}")
        if digest_of(content) != digest:
            raise mismatch(self._host, digest, digest_of(content))
        return content
