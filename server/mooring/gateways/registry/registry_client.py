"""A small client for OCI distribution registries that trusts only content it has hashed.

Content is requested by digest, and every received byte is hashed and compared. Only the two methods that say so resolve
a tag, because anybody with push rights can move a tag. `SourceReader` limits the address, the time, the size and the
redirects of each request. The dialer decides which addresses may be dialled at all: the one for tenants' sources
reaches only the public internet, the one for the platform's sources also private networks.

The referrers of a digest (mostly signatures) are found by the referrers API or, if a registry does not have it, under
the fallback tag. `Registry` is the interface for the rest of the platform; `simulated_registry` implements it in
memory.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlencode, urljoin

from mooring.core.kernel.address import Target, read_url
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.image_manifest import (
    ACCEPTED,
    ENTRIES_MAX,
    MANIFEST_BYTES_MAX,
    BlobDescriptor,
    ImageManifest,
    ManifestMalformed,
    digest_name,
    digest_of,
    fallback_tag,
    read_manifest,
    repository_name,
    tag_name,
)
from mooring.gateways.registry.registry_auth import Credentials, RegistryAuthorizer
from mooring.gateways.registry.source_refusals import auth_refused, malformed, mismatch, status_refusal
from mooring.gateways.registry.source_stream import (
    BodyRequest,
    Dialer,
    ReceivedBody,
    RedirectPolicy,
    Sink,
    SourceAnswer,
    SourceReader,
    SourceRequest,
    SourceTimeouts,
    same_origin,
)

BLOB_BYTES_MAX: Final = 64 * 1024**3
BLOB_IN_MEMORY_BYTES_MAX: Final = 16 * 1_048_576
REFERRER_PAGES_MAX: Final = 8
NO_REFERRERS: Final = frozenset({400, 404, 405, 501})  # how registries answer that do not have the API
_NEXT: Final = re.compile(r'<([^<>]{1,2000})>\s*;[^,]*\brel="?next"?')


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """A registry, with its credentials and limits."""

    url: str  # scheme, host and port
    credentials: Credentials | None = field(default=None, repr=False)
    token_hosts: frozenset[str] = frozenset()  # besides its own; `host`, `host:port` or `*.domain`
    redirect_hosts: frozenset[str] = frozenset()  # hosts to which it may redirect for blobs
    known_as: tuple[str, ...] = ()  # other names (`host:port`) under which publishers know it
    blob_limit_bytes: int = BLOB_BYTES_MAX
    patience: SourceTimeouts = field(default_factory=SourceTimeouts)


class Registry(Protocol):
    """Reading from a registry."""

    def names(self, repository: str) -> tuple[str, ...]:
        """The full names of a repository, as publishers and signers write them."""
        ...

    async def manifest(self, repository: str, digest: str) -> ImageManifest:
        """The manifest that a digest names."""
        ...

    async def resolve_tag(self, repository: str, tag: str) -> ImageManifest:
        """The manifest that a tag currently points to."""
        ...

    async def blob_bytes(self, repository: str, wanted: BlobDescriptor, limit_bytes: int) -> bytes:
        """All bytes of a small blob."""
        ...

    async def read_blob(self, repository: str, wanted: BlobDescriptor, sink: Sink | None = None) -> ReceivedBody:
        """Stream a blob of any size into a sink."""
        ...

    async def referrers(self, repository: str, digest: str) -> tuple[BlobDescriptor, ...]:
        """The claimed referrers of a digest; each must be fetched before it can be trusted."""
        ...


class RegistryClient:
    """Reads from one registry over HTTP."""

    def __init__(self, place: RegistryPlace, dialer: Dialer) -> None:
        target = read_url(place.url, "registry")
        if target.path != "/":
            raise Refusal(Code.VALIDATION_FAILED, "registry: an address without a path", {"path": "registry"})
        self._place = place
        self._target = target
        self._dialer = dialer
        self._authorizer = RegistryAuthorizer(
            target,
            dialer,
            credentials=place.credentials,
            token_hosts=place.token_hosts,
            patience=place.patience,
        )
        self.reader = SourceReader(
            dialer,
            redirects=RedirectPolicy(place.redirect_hosts),
            patience=place.patience,
            authorizer=self._authorizer,
        )

    @property
    def target(self) -> Target:
        """The registry's origin."""
        return self._target

    @property
    def host(self) -> str:
        """The registry's host and port, as they appear in a reference."""
        return self._target.authority

    def url(self, repository: str, rest: str) -> str:
        """The URL of `rest`, such as manifests/<digest>, in a repository of this registry."""
        return f"{self._target.scheme}://{self.host}/v2/{repository_name(repository)}/{rest}"

    def names(self, repository: str) -> tuple[str, ...]:
        """The full names of a repository, as publishers and signers write them."""
        return tuple(f"{host}/{repository_name(repository)}" for host in (self.host, *self._place.known_as))

    async def pull_authorization(self, repository: str) -> str | None:
        """The Authorization header with which somebody else may pull from a repository for a while.

        Where the registry has a token service, it is a token for this repository; otherwise it is the password itself,
        which is tried first. None if the registry asks for nothing.
        """
        plain = SourceReader(self._dialer, redirects=RedirectPolicy(hops=0), patience=self._place.patience)
        root = f"{self._target.scheme}://{self.host}/v2/"
        asked = await plain.ask(SourceRequest("GET", root))
        if asked.status == 200:
            return None
        if asked.status != 401:
            raise status_refusal(self.host, asked.status, "/v2/")
        header = await self._authorizer.answer(pull(repository), asked.headers.get("www-authenticate"))
        if header.startswith("Basic "):
            tried = await plain.ask(SourceRequest("GET", root, {"authorization": header}))
            if tried.status != 200:
                raise auth_refused(self.host, f"it does not accept the password (HTTP {tried.status})")
        return header

    async def manifest(self, repository: str, digest: str) -> ImageManifest:
        """The manifest with this digest; a Refusal when the bytes do not match."""
        url = self.url(repository, f"manifests/{digest_name(digest)}")
        raw = bytearray()

        async def take(chunk: bytes) -> None:
            raw.extend(chunk)

        wanted = BodyRequest(url, MANIFEST_BYTES_MAX, digest, headers={"accept": ACCEPTED}, scope=pull(repository))
        received = await self.reader.stream(wanted, take)
        return self._read(bytes(raw), received.content_type, digest)

    async def has_manifest(self, repository: str, digest: str) -> bool:
        """Whether the registry claims to have it; nothing is hashed."""
        return await self._has(repository, f"manifests/{digest_name(digest)}") is not None

    async def blob_size(self, repository: str, digest: str) -> int | None:
        """The size of a blob according to the registry, None when it does not have it; nothing is hashed."""
        return await self._has(repository, f"blobs/{digest_name(digest)}")

    async def resolve_tag(self, repository: str, tag: str) -> ImageManifest:
        """The manifest that a tag currently points to. It is for labels, never to decide what runs."""
        answer = await self._tagged(repository, tag)
        if answer.status != 200:
            raise status_refusal(self.host, answer.status, f"{repository}:{tag}")
        digest = digest_of(answer.body)
        stated = answer.headers.get("docker-content-digest", digest)
        if stated.startswith("sha256:") and stated != digest:
            raise mismatch(self.host, stated, digest)
        return self._read(answer.body, answer.headers.get("content-type"), digest)

    async def confirm_tag(self, repository: str, tag: str, digest: str) -> ImageManifest:
        """The manifest with this digest; a Refusal when the tag points to another one."""
        found = await self.resolve_tag(repository, tag)
        if found.digest != digest_name(digest):
            raise Refusal(
                Code.TAG_MOVED,
                f"{repository}:{tag} names {found.digest} now and not {digest}",
                {"repository": repository, "tag": tag, "expected": digest, "found": found.digest},
            )
        return found

    async def read_blob(self, repository: str, wanted: BlobDescriptor, sink: Sink | None = None) -> ReceivedBody:
        """Stream a blob into a sink and hash it; a Refusal when it does not match the descriptor."""
        return await self.reader.stream(
            BodyRequest(
                self.url(repository, f"blobs/{digest_name(wanted.digest)}"),
                self._place.blob_limit_bytes,
                wanted.digest,
                wanted.size,
                scope=pull(repository),
            ),
            sink,
        )

    async def blob_bytes(
        self, repository: str, wanted: BlobDescriptor, limit_bytes: int = BLOB_IN_MEMORY_BYTES_MAX
    ) -> bytes:
        """All bytes of a small blob."""
        content = bytearray()

        async def take(chunk: bytes) -> None:
            content.extend(chunk)

        url = self.url(repository, f"blobs/{digest_name(wanted.digest)}")
        limit = min(limit_bytes, self._place.blob_limit_bytes)
        await self.reader.stream(BodyRequest(url, limit, wanted.digest, wanted.size, scope=pull(repository)), take)
        return bytes(content)

    async def referrers(
        self, repository: str, digest: str, artifact_type: str | None = None
    ) -> tuple[BlobDescriptor, ...]:
        """The referrers of a digest, by the API or the fallback tag; at most as many as an index may have entries."""
        query = "" if artifact_type is None else f"?{urlencode({'artifactType': artifact_type})}"
        url = self.url(repository, f"referrers/{digest_name(digest)}{query}")
        found: list[BlobDescriptor] = []
        for _ in range(REFERRER_PAGES_MAX):
            answer = await self._ask("GET", url, repository)
            if answer.status in NO_REFERRERS and not found:
                return await self._fallback(repository, digest)
            if answer.status != 200:
                raise status_refusal(self.host, answer.status, f"the referrers of {digest}")
            found += self._read(answer.body, answer.headers.get("content-type"), None).manifests
            following = self._following(url, answer.headers)
            if following is None or len(found) >= ENTRIES_MAX:
                break
            url = following
        return tuple(found[:ENTRIES_MAX])

    async def fallback_index(self, repository: str, digest: str) -> ImageManifest | None:
        """The index under the fallback tag; None if there is none."""
        answer = await self._tagged(repository, fallback_tag(digest))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise status_refusal(self.host, answer.status, f"{repository}:{fallback_tag(digest)}")
        index = self._read(answer.body, answer.headers.get("content-type"), None)
        if not index.is_index:
            raise malformed(self.host, f"{fallback_tag(digest)}, which is not an index")
        return index

    async def _fallback(self, repository: str, digest: str) -> tuple[BlobDescriptor, ...]:
        index = await self.fallback_index(repository, digest)
        return () if index is None else index.manifests

    async def _tagged(self, repository: str, tag: str) -> SourceAnswer:
        return await self._ask("GET", self.url(repository, f"manifests/{tag_name(tag)}"), repository)

    async def _has(self, repository: str, rest: str) -> int | None:
        answer = await self._ask("HEAD", self.url(repository, rest), repository)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise status_refusal(self.host, answer.status, rest)
        size = answer.headers.get("content-length", "")
        if not re.fullmatch("[0-9]{1,18}", size):
            raise malformed(self.host, f"no size of {rest}")
        return int(size)

    async def _ask(self, method: str, url: str, repository: str) -> SourceAnswer:
        headers = {"accept": ACCEPTED}
        return await self.reader.ask(
            SourceRequest(method, url, headers, limit_bytes=MANIFEST_BYTES_MAX, scope=pull(repository))
        )

    def _following(self, url: str, headers: Mapping[str, str]) -> str | None:
        """The URL of the next page, None if there is none; a Refusal when it is on another host."""
        link = _NEXT.search(headers.get("link", ""))
        if link is None:
            return None
        following = read_url(urljoin(url, link[1]))
        if not same_origin(following, self._target):
            raise malformed(self.host, "a next page on another host")
        return following.url

    def _read(self, raw: bytes, content_type: str | None, digest: str | None) -> ImageManifest:
        try:
            return read_manifest(raw, content_type, digest)
        except ManifestMalformed as error:
            raise malformed(self.host, str(error)) from error


def pull(repository: str) -> str:
    """The scope of reading from a repository."""
    return f"repository:{repository}:pull"


def push(repository: str) -> str:
    """The scope of writing to a repository, which includes reading."""
    return f"repository:{repository}:pull,push"
