"""The reader for all artifacts, of any kind and from any source.

A location is read within the limits of the source that allows it: a source of a tenant, and by default a source of the
platform, reaches only the public internet; a source of the platform with `reaches_private` may be in any network. The
platform's own registry is read with tokens that the platform issues to itself; its repositories begin with the place
that they belong to, so nobody can register those of another place.

There are two ways to read. A query (does the source have the digest, what do its manifests say, who signed it) has a
fixed time limit, because a caller waits for the answer. The bytes themselves, which may be hundreds of gigabytes, are
read by a check, which may take as long as bytes keep arriving.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from mooring.core.catalog.artifact import ArtifactKind
from mooring.core.catalog.artifact_location import ArtifactSource, Location, SourceType
from mooring.core.kernel.address import read_url
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.lazy_import import lazy_module
from mooring.gateways.registry.image_manifest import BlobDescriptor, ImageManifest
from mooring.gateways.registry.registry_token import RegistryTokenIssuer
from mooring.gateways.registry.source_refusals import mismatch, not_found, too_large, too_slow
from mooring.gateways.registry.source_stream import Dialer, Sink, SourceTimeouts
from mooring.gateways.signing.cosign_keys import TrustedKey
from mooring.settings import Settings

if TYPE_CHECKING:
    from mooring.gateways.registry import blob_source, image_smoke, registry_client
    from mooring.gateways.registry.registry_auth import RegistryPassword
    from mooring.gateways.signing import cosign
else:
    blob_source = lazy_module("mooring.gateways.registry.blob_source")
    image_smoke = lazy_module("mooring.gateways.registry.image_smoke")
    registry_client = lazy_module("mooring.gateways.registry.registry_client")
    cosign = lazy_module("mooring.gateways.signing.cosign")

IMAGES_MAX: Final = 32
BLOB_MEDIA_TYPE: Final = "application/octet-stream"
PLATFORM_NAMESPACE: Final = "platform"
ATTEMPTS_MIDWAY: Final = 12
ANSWER_SECONDS_MAX: Final = 30.0
UNSTATED: Final = frozenset({Code.REGISTRY_AUTH_REFUSED, Code.SOURCE_MALFORMED})
"""Refusals of a size query that are not fatal: a URL that is signed for reading accepts no other request."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HashedBytes:
    """The digest and the size of bytes that were read from a source."""

    digest: str
    size_bytes: int
    media_type: str


@dataclass(frozen=True, slots=True)
class StatedContent:
    """What a source claims about a digest before its bytes are read."""

    media_type: str
    size_bytes: int | None
    is_hashed: bool = False  # True if the size is proven by hashed manifests; otherwise it is only a claim


class ByteCounter:
    """Counts the bytes that a check reads."""

    def __init__(self) -> None:
        self.bytes_done = 0

    async def take(self, chunk: bytes) -> None:
        """Count a chunk; its content is not kept."""
        self.bytes_done += len(chunk)

    async def update(self, bytes_done: int) -> None:
        """Set the count from another counter."""
        self.bytes_done = bytes_done


@dataclass(frozen=True, slots=True)
class OwnRegistry:
    """The registry that the platform issues tokens for."""

    url: str
    issuer: RegistryTokenIssuer

    @property
    def authority(self) -> str:
        """Its host and port, as they appear in a location."""
        return read_url(self.url, "registry").authority


class SourcePasswords(Protocol):
    """Finds the credentials of sources."""

    async def password(self, source: ArtifactSource) -> RegistryPassword | None:
        """The user name and the password of a source, None if it has none."""
        ...


class KeptUploads(Protocol):
    """Finds the bytes that tenants uploaded."""

    async def content(self, location: Location) -> bytes | None:
        """The bytes at this location, None if there are none."""
        ...


class ArtifactReader:
    """Reads artifacts from their sources."""

    def __init__(
        self,
        settings: Settings,
        public: Dialer,
        inside: Dialer,
        own: OwnRegistry | None = None,
        passwords: SourcePasswords | None = None,
    ) -> None:
        self._passwords = passwords
        self.uploads: KeptUploads | None = None
        self._public = public
        self._inside = inside
        self.own = own
        self._settings = settings
        self._seconds = settings.source_timeout_seconds
        self._patience = SourceTimeouts(total_seconds=settings.source_timeout_seconds, attempts=2)
        self._patience_of_checks = SourceTimeouts(
            total_seconds=settings.check_hours_max * 3_600,
            answer_seconds=min(ANSWER_SECONDS_MAX, settings.source_timeout_seconds),
            window_seconds=settings.source_timeout_seconds / 2,
            attempts=2,
            attempts_midway=ATTEMPTS_MIDWAY,
            silence_seconds=settings.source_timeout_seconds,
        )
        self._limit_bytes = settings.source_limit_bytes

    def is_own(self, location: Location) -> bool:
        """Whether the location is in the platform's own registry."""
        return (
            self.own is not None
            and location.source_type is SourceType.OCI
            and location.rest.partition("/")[0] == self.own.authority
        )

    def _blob_source(self, source: ArtifactSource | None, patience: SourceTimeouts) -> blob_source.BlobSource:
        settings = self._settings
        hosts = filter(None, (each.strip() for each in settings.source_redirect_hosts.split(",")))
        limits = blob_source.BlobSourceSettings(
            s3_endpoint=settings.source_bucket_endpoint,
            huggingface_endpoint=settings.source_huggingface_endpoint,
            file_directory=settings.source_file_directory,
            redirect_hosts=frozenset(hosts),
            limit_bytes=settings.source_limit_bytes,
            patience=patience,
        )
        return blob_source.BlobSource(limits, self._dialer(source))

    async def look(
        self, kind: ArtifactKind, location: Location, digest: str, source: ArtifactSource | None
    ) -> HashedBytes:
        """Read and hash an image's manifests, or every byte of a blob; a Refusal when the digest does not match."""
        work = self._look(kind, location, digest, source, patience=self._patience, sink=ByteCounter().take)
        return await self._bounded(work, location)

    async def state(
        self, kind: ArtifactKind, location: Location, digest: str, source: ArtifactSource | None
    ) -> StatedContent:
        """What the source claims about a digest; a Refusal when it does not have it."""
        return await self._bounded(self._state(kind, location, digest, source), location)

    async def read(
        self, kind: ArtifactKind, location: Location, digest: str, source: ArtifactSource | None, tally: ByteCounter
    ) -> HashedBytes:
        """Like `look`, but without a time limit as long as bytes keep arriving."""
        return await self._look(kind, location, digest, source, patience=self._patience_of_checks, sink=tally.take)

    async def content(
        self, kind: ArtifactKind, location: Location, digest: str, source: ArtifactSource | None, limit_bytes: int
    ) -> bytes:
        """The bytes of a small blob; a Refusal when the digest does not match, or beyond `limit_bytes`."""
        content = bytearray()

        async def collect(chunk: bytes) -> None:
            if len(content) + len(chunk) > limit_bytes:
                raise too_large(_host(location), len(content) + len(chunk), limit_bytes)
            content.extend(chunk)

        work = self._look(kind, location, digest, source, patience=self._patience, sink=collect)
        await self._bounded(work, location)
        return bytes(content)

    async def signatures(
        self, location: Location, digest: str, source: ArtifactSource | None, keys: Sequence[TrustedKey], now: datetime
    ) -> cosign.CosignVerdict:
        """All signatures of a digest in its registry."""
        client, repository = await self._registry(location, source, self._patience)
        return await self._bounded(cosign.verify(client, repository, digest, keys, now=now), location)

    async def smoke(
        self, location: Location, digest: str, source: ArtifactSource | None, tally: ByteCounter
    ) -> image_smoke.SmokeResult:
        """The smoke check of content in a registry; without a time limit as long as bytes keep arriving."""
        client, repository = await self._registry(location, source, self._patience_of_checks)
        limits = image_smoke.SmokeLimits(total_bytes=self._limit_bytes)
        return await image_smoke.smoke(client, repository, digest, limits=limits, progress=tally.update)

    async def _state(
        self, kind: ArtifactKind, location: Location, digest: str, source: ArtifactSource | None
    ) -> StatedContent:
        if location.source_type is SourceType.UPLOAD:
            return StatedContent(BLOB_MEDIA_TYPE, len(await self._upload(location, digest)), is_hashed=True)
        if location.source_type is not SourceType.OCI:
            return await self._state_of_blob(location, source)
        client, repository = await self._registry(location, source, self._patience)
        try:
            manifest = await client.manifest(repository, digest)
        except Refusal as refusal:
            if kind is not ArtifactKind.BLOB or refusal.code is not Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
                raise
            return StatedContent(BLOB_MEDIA_TYPE, (await self._descriptor(client, repository, digest)).size)
        return StatedContent(manifest.media_type, await self._size(client, repository, manifest), is_hashed=True)

    async def _state_of_blob(self, location: Location, source: ArtifactSource | None) -> StatedContent:
        try:
            size = await self._blob_source(source, self._patience).size(blob_source.read_place(location.text))
        except Refusal as refusal:
            if refusal.code not in UNSTATED or location.source_type is SourceType.FILE:
                raise
            return StatedContent(BLOB_MEDIA_TYPE, None)
        if size is not None and size > self._limit_bytes:
            raise too_large(_host(location), size, self._limit_bytes)
        return StatedContent(BLOB_MEDIA_TYPE, size)

    async def _look(
        self,
        kind: ArtifactKind,
        location: Location,
        digest: str,
        source: ArtifactSource | None,
        *,
        patience: SourceTimeouts,
        sink: Sink,
    ) -> HashedBytes:
        if location.source_type is SourceType.UPLOAD:
            kept = await self._upload(location, digest)
            await sink(kept)
            return HashedBytes(digest, len(kept), BLOB_MEDIA_TYPE)
        if location.source_type is not SourceType.OCI:
            reader = self._blob_source(source, patience)
            received = await reader.read(blob_source.read_place(location.text), sink, digest=digest)
            return HashedBytes(received.digest, received.size_bytes, BLOB_MEDIA_TYPE)
        client, repository = await self._registry(location, source, patience)
        try:
            manifest = await client.manifest(repository, digest)
        except Refusal as refusal:
            if kind is not ArtifactKind.BLOB or refusal.code is not Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
                raise
            received = await client.read_blob(repository, await self._descriptor(client, repository, digest), sink)
            return HashedBytes(received.digest, received.size_bytes, BLOB_MEDIA_TYPE)
        if kind is ArtifactKind.BLOB:
            for part in manifest.layers:
                await client.read_blob(repository, part, sink)
        return HashedBytes(manifest.digest, await self._size(client, repository, manifest), manifest.media_type)

    async def _upload(self, location: Location, digest: str) -> bytes:
        """The bytes of an upload, hashed; a Refusal when they are not there, or not of this digest."""
        kept = None if self.uploads is None else await self.uploads.content(location)
        if kept is None:
            raise not_found(_host(location), digest)
        found = f"sha256:{hashlib.sha256(kept).hexdigest()}"
        if found != digest:
            raise mismatch(_host(location), digest, found)
        return kept

    @staticmethod
    async def _descriptor(client: registry_client.RegistryClient, repository: str, digest: str) -> BlobDescriptor:
        """The descriptor of a blob without a manifest."""
        size = await client.blob_size(repository, digest)
        if size is None:
            raise not_found(client.host, digest)
        return BlobDescriptor(media_type=BLOB_MEDIA_TYPE, digest=digest, size=size)

    async def _size(self, client: registry_client.RegistryClient, repository: str, manifest: ImageManifest) -> int:
        """The total size of a digest's content, according to its manifests."""
        if not manifest.is_index:
            parts = (*manifest.layers, *(() if manifest.config is None else (manifest.config,)))
            sizes: list[int] = [part.size for part in parts]
            return len(manifest.raw) + sum(sizes)
        if len(manifest.manifests) > IMAGES_MAX:
            raise Refusal(Code.SOURCE_TOO_LARGE, f"an index may have at most {IMAGES_MAX} images")
        total = len(manifest.raw)
        for each in manifest.manifests:
            part = await client.manifest(repository, each.digest)
            if part.is_index:
                raise Refusal(Code.SOURCE_MALFORMED, "an index inside of an index is not supported")
            total += await self._size(client, repository, part)
        return total

    async def pull_authorization(self, source: ArtifactSource, repository: str) -> str | None:
        """The Authorization header with which a node pulls from a repository of this source; None if it needs none."""
        location = Location(SourceType.OCI, f"{SourceType.OCI}://{source.authority}/{repository}")
        client, _ = await self._registry(location, source, self._patience)
        return await self._bounded(client.pull_authorization(repository), location)

    async def _registry(
        self, location: Location, source: ArtifactSource | None, patience: SourceTimeouts
    ) -> tuple[registry_client.RegistryClient, str]:
        authority, _, repository = location.rest.partition("/")
        limit = self._limit_bytes
        if self.own is not None and self.is_own(location):
            place = registry_client.RegistryPlace(
                self.own.url, credentials=self.own.issuer, blob_limit_bytes=limit, patience=patience
            )
            return registry_client.RegistryClient(place, self._inside), repository
        place = registry_client.RegistryPlace(
            f"https://{authority}",
            credentials=await self._password(source),
            token_hosts=frozenset() if source is None or source.token_host is None else frozenset({source.token_host}),
            blob_limit_bytes=limit,
            patience=patience,
        )
        return registry_client.RegistryClient(place, self._dialer(source)), repository

    async def _password(self, source: ArtifactSource | None) -> RegistryPassword | None:
        return None if source is None or self._passwords is None else await self._passwords.password(source)

    def _dialer(self, source: ArtifactSource | None) -> Dialer:
        private = source is not None and source.tenant_id is None and source.reaches_private
        return self._inside if private else self._public

    async def _bounded(self, work: Awaitable[T], location: Location) -> T:
        """The result of the work; a Refusal when it exceeds the time limit."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise too_slow(_host(location), f"it took more than {self._seconds:g} s") from error


def _host(location: Location) -> str:
    """The host to name in messages."""
    if location.source_type in (SourceType.FILE, SourceType.UPLOAD):
        return location.source_type.value
    return location.rest.partition("/")[0]


def namespace(tenant_id: str | None, project_id: str | None) -> str:
    """The prefix of a place's repositories in the platform's own registry."""
    if tenant_id is None:
        return PLATFORM_NAMESPACE
    return tenant_id if project_id is None else f"{tenant_id}/{project_id}"
