"""Reading bytes over HTTP: blobs by URL, and the contents of an OCI registry.

Nothing received here is trusted; the cache hashes it. A token is sent only to the host that the task names: a registry
may redirect a blob to its storage, and the redirected request carries no token. Unless the platform allows a private
address, only public internet addresses are dialled, and exactly the address that was checked.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Annotated, Any, Final
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from mooring_agent.hosts.contract import HostFailure

REDIRECTS_MAX: Final = 3
_PUBLIC_V6: Final = IPv6Network("2000::/3")
_CARRIERS: Final = (IPv6Network("2001::/23"), IPv6Network("2002::/16"))
_METADATA: Final = (IPv4Address("168.63.129.16"),)
"""A public address that belongs to a cloud's own metadata service."""
MANIFEST_MAX: Final = 4 * 1_048_576
MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


@dataclass(slots=True)
class HttpSource:
    http: httpx.AsyncClient
    url: str
    token: bytes | None = field(default=None, repr=False)
    private: bool = False

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        """Yield bytes from this offset on; if the source cannot resume, it starts over and the beginning is skipped."""
        url, token = self.url, self.token
        for _ in range(REDIRECTS_MAX + 1):
            headers = {"Accept-Encoding": "identity"}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            if token is not None:
                headers["Authorization"] = _authorization(token)
            try:
                async with self.http.stream(
                    "GET", **await _pinned_request(url, headers, private=self.private)
                ) as response:
                    if response.is_redirect:
                        url, token = _redirect_target(url, response.headers.get("location", "")), None
                        continue
                    skip = offset if response.status_code == 200 else 0
                    _check_status(response, url)
                    async for chunk in response.aiter_raw(1_048_576):
                        if len(chunk) > skip:  # an empty chunk would mean the end
                            yield chunk[skip:]
                        skip = max(0, skip - len(chunk))
                    return
            except httpx.HTTPError as error:
                raise HostFailure("image_pull_failed", f"{_redacted(url)}: {type(error).__name__}: {error}") from error
        raise HostFailure("image_pull_failed", f"{_redacted(self.url)} redirects more than {REDIRECTS_MAX} times")


@dataclass(frozen=True, slots=True)
class RegistryRepository:
    """One repository of an OCI registry."""

    http: httpx.AsyncClient
    address: str
    repository: str
    token: bytes | None = field(default=None, repr=False)
    private: bool = False

    def blob(self, digest: str) -> HttpSource:
        """The source of a layer or config."""
        return HttpSource(self.http, f"{self.address}/v2/{self.repository}/blobs/{digest}", self.token, self.private)

    async def manifest(self, digest: str) -> bytes:
        """The bytes of a manifest, as the registry stores them under this digest."""
        headers = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
        if self.token is not None:
            headers["Authorization"] = _authorization(self.token)
        url = f"{self.address}/v2/{self.repository}/manifests/{digest}"
        read = bytearray()
        try:
            async with self.http.stream("GET", **await _pinned_request(url, headers, private=self.private)) as response:
                _check_status(response, url)
                async for chunk in response.aiter_bytes():
                    read += chunk
                    if len(read) > MANIFEST_MAX:
                        raise HostFailure("too_large", f"the manifest is larger than {MANIFEST_MAX} bytes")
        except httpx.HTTPError as error:
            raise HostFailure("image_pull_failed", f"{_redacted(url)}: {type(error).__name__}: {error}") from error
        return bytes(read)


class BlobDescriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A manifest's entry for one blob."""

    media_type: str
    digest: str
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
    platform: dict[str, Any] | None = None


class ImageManifest(msgspec.Struct, frozen=True, rename="camel"):
    """An image manifest, or an index of several."""

    media_type: str = MANIFESTS[0]
    config: BlobDescriptor | None = None
    layers: tuple[BlobDescriptor, ...] = ()
    manifests: tuple[BlobDescriptor, ...] = ()


async def _pinned_request(url: str, headers: dict[str, str], *, private: bool) -> dict[str, Any]:
    """The request with its address resolved, checked and pinned, so a second DNS answer cannot change the target."""
    if private:
        return {"url": url, "headers": headers}
    parts = urlsplit(url)
    if parts.scheme != "https" or parts.hostname is None or "@" in parts.netloc:
        raise HostFailure("permission_denied", f"{_redacted(url)}: a public source needs an https URL")
    loop = asyncio.get_running_loop()
    try:
        answers = await loop.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise HostFailure("image_pull_failed", f"{parts.hostname} cannot be resolved") from error
    addresses = [ip_address(str(each[4][0]).partition("%")[0]) for each in answers]
    if not all(_is_public(each) for each in addresses):
        raise HostFailure("permission_denied", f"{parts.hostname} is not on the public internet")
    host = f"[{addresses[0]}]" if addresses[0].version == 6 else str(addresses[0])
    pinned = parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()
    headers_with_host = {**headers, "Host": parts.netloc}
    return {"url": pinned, "headers": headers_with_host, "extensions": {"sni_hostname": parts.hostname}}


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is on the public internet. IPv6 addresses that embed an IPv4 address are not accepted."""
    if isinstance(address, IPv6Address):
        return address in _PUBLIC_V6 and address.is_global and not any(address in each for each in _CARRIERS)
    return address.is_global and not address.is_multicast and address not in _METADATA


def _authorization(token: bytes) -> str:
    """The header for a token; a registry without tokens has `Basic …`, with the blank that no token contains."""
    text = token.decode("ascii", "replace")
    return text if text.startswith("Basic ") else f"Bearer {text}"


def _check_status(response: httpx.Response, url: str) -> None:
    if response.status_code in (200, 206):
        return
    if response.status_code == 404:
        raise HostFailure("not_found", f"{_redacted(url)} does not exist")
    if response.status_code in (401, 403):
        raise HostFailure("permission_denied", f"{_redacted(url)} denies access: {response.status_code}")
    raise HostFailure("image_pull_failed", f"{_redacted(url)} responded with {response.status_code}")


def _redirect_target(url: str, location: str) -> str:
    target = urljoin(url, location)
    if urlsplit(target).scheme not in ("http", "https") or (url.startswith("https:") and target.startswith("http:")):
        raise HostFailure("image_pull_failed", f"{_redacted(url)} redirects to an address that is not allowed")
    return target


def _redacted(url: str) -> str:
    """The URL without its query, which may hold a signature."""
    return urlsplit(url)._replace(query="", fragment="").geturl()
