"""Pushing to a registry: for what the platform itself publishes, for signatures, for the demo and for tests.

Publishers push with their own tools directly to the registry; the API never carries image bytes. Content that is pushed
here is small, or a stream of known size and digest. Uploads follow the location that the registry returns, as long as
that is the registry itself.
"""

from collections.abc import AsyncIterable, Mapping
from typing import Final
from urllib.parse import urlencode, urljoin

import msgspec

from mooring.core.kernel.address import read_url
from mooring.core.kernel.errors import Refusal
from mooring.gateways.registry.image_manifest import (
    MANIFEST_BYTES_MAX,
    OCI_INDEX,
    BlobDescriptor,
    ImageManifest,
    digest_name,
    digest_of,
    fallback_tag,
    read_manifest,
    tag_name,
)
from mooring.gateways.registry.registry_client import RegistryClient, push
from mooring.gateways.registry.source_refusals import (
    auth_refused,
    malformed,
    mismatch,
    redirect_refused,
    status_refusal,
)
from mooring.gateways.registry.source_stream import SourceAnswer, SourceRequest, same_origin

CHUNK_BYTES: Final = 8 * 1_048_576
OCTETS: Final = {"content-type": "application/octet-stream"}


class RegistryPusher:
    """Writes to one registry."""

    def __init__(self, client: RegistryClient) -> None:
        self.client = client

    async def blob(
        self, repository: str, content: bytes, media_type: str = "application/octet-stream"
    ) -> BlobDescriptor:
        """Push a blob in one request, unless the registry has it already."""
        wanted = BlobDescriptor(media_type=media_type, digest=digest_of(content), size=len(content))
        if await self.client.blob_size(repository, wanted.digest) is None:
            place = await self._begin(repository)
            await self._finish(repository, place, wanted.digest, content, len(content))
        return wanted

    async def stream(self, repository: str, content: AsyncIterable[bytes], wanted: BlobDescriptor) -> None:
        """Push a blob of known digest and size in one request, without loading it into memory."""
        place = await self._begin(repository)
        await self._finish(repository, place, wanted.digest, content, wanted.size)

    async def chunked(
        self,
        repository: str,
        content: bytes,
        media_type: str = "application/octet-stream",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> BlobDescriptor:
        """Push a blob in several requests."""
        place = await self._begin(repository)
        for start in range(0, len(content), chunk_bytes):
            piece = content[start : start + chunk_bytes]
            headers = {**OCTETS, "content-range": f"{start}-{start + len(piece) - 1}"}
            answer = await self._send("PATCH", place, repository, headers, piece)
            if answer.status != 202:
                raise status_refusal(self.client.host, answer.status, "the next piece of an upload")
            place = self._location(place, answer.headers)
        digest = digest_of(content)
        await self._finish(repository, place, digest, b"", 0)
        return BlobDescriptor(media_type=OCTETS["content-type"], digest=digest, size=len(content))

    async def manifest(self, repository: str, document: Mapping[str, object], tag: str | None = None) -> ImageManifest:
        """Push a manifest by its digest, optionally under a tag; a referrer is also listed under the fallback tag."""
        return await self.manifest_bytes(repository, msgspec.json.encode(document), tag)

    async def manifest_bytes(self, repository: str, raw: bytes, tag: str | None = None) -> ImageManifest:
        """Push the exact bytes of a manifest."""
        made = read_manifest(raw)
        answer = await self._put_manifest(repository, made, made.digest)
        if tag is not None:
            await self._put_manifest(repository, made, tag_name(tag))
        if made.subject is not None and answer.headers.get("oci-subject") != made.subject.digest:
            await self._list_by_fallback(repository, made)
        return made

    async def _put_manifest(self, repository: str, made: ImageManifest, reference: str) -> SourceAnswer:
        url = self.client.url(repository, f"manifests/{reference}")
        answer = await self._send("PUT", url, repository, {"content-type": made.media_type}, made.raw)
        if answer.status != 201:
            raise status_refusal(self.client.host, answer.status, f"a place for {reference}")
        stated = answer.headers.get("docker-content-digest", made.digest)
        if stated != made.digest:
            raise mismatch(self.client.host, made.digest, stated)
        return answer

    async def _list_by_fallback(self, repository: str, made: ImageManifest) -> None:
        """Add a manifest to the referrers of its subject. Two writers at once may lose one entry, because a tag has no
        compare-and-set; signing reads the list again and repeats."""
        if made.subject is None:
            return
        index = await self.client.fallback_index(repository, made.subject.digest)
        listed = [] if index is None else list(index.manifests)
        if any(each.digest == made.digest for each in listed):
            return
        document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*listed, made.descriptor]}
        raw = msgspec.json.encode(document)
        await self._put_manifest(repository, read_manifest(raw), fallback_tag(made.subject.digest))

    async def _begin(self, repository: str) -> str:
        url = self.client.url(repository, "blobs/uploads/")
        answer = await self._send("POST", url, repository, {}, b"")
        if answer.status in (401, 403):
            raise auth_refused(self.client.host, f"pushing to {repository} is refused (HTTP {answer.status})")
        if answer.status != 202:
            raise status_refusal(self.client.host, answer.status, f"an upload to {repository}")
        return self._location(url, answer.headers)

    async def _finish(
        self, repository: str, place: str, digest: str, content: bytes | AsyncIterable[bytes], size: int
    ) -> None:
        url = f"{place}{'&' if '?' in place else '?'}{urlencode({'digest': digest_name(digest)})}"
        headers = {**OCTETS, "content-length": str(size)}
        answer = await self._send("PUT", url, repository, headers, content)
        if answer.status == 400:
            raise mismatch(self.client.host, digest, "something else")
        if answer.status != 201:
            raise status_refusal(self.client.host, answer.status, f"a place for {digest}")

    async def _send(
        self, method: str, url: str, repository: str, headers: Mapping[str, str], body: bytes | AsyncIterable[bytes]
    ) -> SourceAnswer:
        call = SourceRequest(
            method,
            url,
            headers,
            body,
            body_bytes=int(headers.get("content-length", 0)),
            limit_bytes=MANIFEST_BYTES_MAX,
            scope=push(repository),
        )
        return await self.client.reader.ask(call)

    def _location(self, url: str, headers: Mapping[str, str]) -> str:
        """The URL where the upload continues."""
        location = headers.get("location")
        if location is None:
            raise malformed(self.client.host, "no location of an upload")
        try:
            target = read_url(urljoin(url, location))
        except (Refusal, ValueError) as error:
            raise malformed(self.client.host, "a location that is not a URL") from error
        if not same_origin(target, self.client.target):
            raise redirect_refused(self.client.host, target.authority, "uploads must stay at the registry")
        return target.url
