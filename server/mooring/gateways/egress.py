"""Requests to URLs that users gave: resolved, checked and dialled here.

The host name is resolved once. `core/kernel/address.py` checks each address that it resolves to, and the connection
goes to a checked IP address; the name is used only for TLS and the `Host` header. So a name that resolves differently
the next time (DNS rebinding) gains nothing. Proxies from the environment are not used, because a proxy would resolve
the name again. Redirects are not followed: a 3xx answer is returned, and a caller that wants to follow it opens the new
URL as a separate request, which is checked in the same way.

Everything is bounded: the time from the first look-up to the last byte, the size of both bodies, the number of
addresses tried and the number of parallel look-ups. Each request has its own connection. Certificates are verified
against the usual authorities, or those of `SSL_CERT_FILE`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from mooring.core.kernel.address import (
    Address,
    Reach,
    Target,
    dialled,
    plain,
    read_networks,
    read_url,
    refused_because,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.lazy_import import lazy_module
from mooring.settings import Settings

if TYPE_CHECKING:
    import httpx
else:
    httpx = lazy_module("httpx")

ADDRESSES_MAX: Final = 4  # how many addresses of one host are tried
CONNECT_SECONDS: Final = 5.0
LOOK_UPS_MAX: Final = 16
LOOK_UP_SECONDS: Final = 5.0
OWN_SECONDS: Final = 60.0  # how long the addresses of the platform's own hosts are cached
ANSWER_LIMIT_BYTES: Final = 4_096
BODY_LIMIT_BYTES: Final = 1_048_576
_HOST: Final = re.compile(r"(?P<scheme>[A-Za-z]+://)(?P<host>[^/?#:@\[\]]+)(?P<rest>.*)", re.DOTALL)


class EgressFailure(StrEnum):
    """Why a request failed."""

    UNRESOLVED = "unresolved"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    TOO_LARGE = "too_large"


class EgressFailed(Exception):
    """There is no answer; the reason may be shown to the user who gave the URL."""

    def __init__(self, failure: EgressFailure, reason: str) -> None:
        self.failure = failure
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """A request, with its time-out and size limits."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterable[bytes] = b""
    deadline_seconds: float = 10.0
    body_limit_bytes: int = BODY_LIMIT_BYTES
    answer_limit_bytes: int = ANSWER_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class EgressAnswer:
    """An answer, with its body truncated at the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    address: str
    seconds: float


class OpenEgressAnswer:
    """An answer whose body is still to be read."""

    def __init__(self, response: httpx.Response, address: Address, limit_bytes: int) -> None:
        self._response = response
        self._limit = limit_bytes
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.address = str(address)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it was sent, not decompressed; raises `EgressFailed` beyond the limit."""
        size = 0
        try:
            async for chunk in self._response.aiter_raw():
                size += len(chunk)
                if size > self._limit:
                    raise EgressFailed(EgressFailure.TOO_LARGE, f"the answer is larger than {self._limit} bytes")
                yield chunk
        except httpx.HTTPError as error:
            raise _failed(error) from error

    async def beginning(self) -> bytes:
        """The body up to the limit; the rest is not read."""
        taken = b""
        try:
            async for chunk in self._response.aiter_raw():
                taken += chunk
                if len(taken) >= self._limit:
                    break
        except httpx.HTTPError as error:
            raise _failed(error) from error
        return taken[: self._limit]


class Resolver(Protocol):
    """Turns a host's name into addresses."""

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        """The addresses of a name, best first; OSError when there are none."""
        ...

    def close(self) -> None: ...


class SystemResolver:
    """The machine's own resolver, in its own threads, so that slow names do not block other work."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(LOOK_UPS_MAX, thread_name_prefix="resolver")

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        """The addresses of a name, in the order that the machine prefers."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._pool, _look_up, host, port)
        return [ip_address(each) for each in found]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for _, _, _, _, address in found]


class EgressClient:
    """Sends requests to URLs from users, limited to the addresses that `reach` allows."""

    def __init__(
        self,
        reach: Reach,
        *,
        own_hosts: Sequence[str] = (),
        inner_hosts: Sequence[str] = (),
        resolver: Resolver | None = None,
    ) -> None:
        self._reach = reach
        self._own_hosts = tuple(own_hosts)
        self._inner_hosts = tuple(inner_hosts)
        self._resolver = resolver or SystemResolver()
        self._own_until = 0.0

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        """Created on first use, because reading the CA certificates would delay every start."""
        return httpx.AsyncClient(
            verify=httpx.create_ssl_context(),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            headers={"user-agent": "Mooring", "accept-encoding": "identity"},
        )

    async def close(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()
        self._resolver.close()

    async def check(self, url: str) -> None:
        """Refuse a URL that must not be dialled. A name that does not resolve now is accepted: it may resolve later."""
        target = read_url(url)
        if target.scheme != "https" and not self._reach.allowed:
            raise _refused(target, ["not allowed without TLS"])
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                await self._addresses(target)
        except (EgressFailed, TimeoutError):
            return

    async def send(self, request: EgressRequest) -> EgressAnswer:
        """Send a request and read its answer up to the limit."""
        begun = time.monotonic()
        async with self.open(request) as answer:
            body = await answer.beginning()
            seconds = time.monotonic() - begun
            return EgressAnswer(answer.status, answer.headers, body, answer.address, seconds)

    @asynccontextmanager
    async def open(self, request: EgressRequest) -> AsyncIterator[OpenEgressAnswer]:
        """Send a request and keep its answer open; the deadline includes the time until it is closed."""
        target = read_url(request.url)
        try:
            async with asyncio.timeout(request.deadline_seconds) as limit:
                response, address = await self._dial(request, target, await self._addresses(target))
                try:
                    yield OpenEgressAnswer(response, address, request.answer_limit_bytes)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            if not limit.expired():
                raise
            reason = f"no complete answer within {request.deadline_seconds:g} s"
            raise EgressFailed(EgressFailure.TIMEOUT, reason) from error

    async def _addresses(self, target: Target) -> list[Address]:
        """The addresses to dial for this target, all of them checked."""
        literal = target.literal
        try:
            found = [literal] if literal is not None else await self._resolver.resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise EgressFailed(EgressFailure.UNRESOLVED, f"{target.host} does not resolve") from error
        await self._learn_own()
        local = frozenset(each for each in map(plain, found) if is_this_machine(each))
        allowed, reasons = dialled(found, replace(self._reach, own=self._reach.own | local), target.scheme)
        if not allowed and reasons:
            raise _refused(target, reasons)
        if not allowed:
            raise EgressFailed(EgressFailure.UNRESOLVED, f"{target.host} does not resolve")
        return allowed[:ADDRESSES_MAX]

    async def _learn_own(self) -> None:
        """Refresh the addresses of the platform's own hosts; after a failed look-up the old ones stay."""
        now = time.monotonic()
        if not (self._own_hosts or self._inner_hosts) or now < self._own_until:
            return
        self._own_until = now + OWN_SECONDS
        known = set(self._reach.own)
        for host in (*self._own_hosts, *self._inner_hosts):
            try:
                found = await self._resolver.resolve(host, 0)
            except (OSError, UnicodeError):
                continue
            # A public address of an inner host may be that of a provider, and then it is many others' too.
            known.update(each for each in map(plain, found) if host in self._own_hosts or _is_private(each))
        self._reach = replace(self._reach, own=frozenset(known))

    async def _dial(
        self, request: EgressRequest, target: Target, addresses: list[Address]
    ) -> tuple[httpx.Response, Address]:
        """The answer of the first address that accepts a connection."""
        for address in addresses:
            try:
                return await self._client.send(self._made(request, target, address), stream=True), address
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if address == addresses[-1]:
                    raise _failed(error) from error
            except httpx.HTTPError as error:
                raise _failed(error) from error
        raise AssertionError("unreachable: there is at least one address")

    def _made(self, request: EgressRequest, target: Target, address: Address) -> httpx.Request:
        content: bytes | AsyncIterable[bytes]
        if isinstance(request.body, bytes):
            if len(request.body) > request.body_limit_bytes:
                raise _body_too_large(request.body_limit_bytes)
            content = request.body
        else:
            content = _bounded(request.body, request.body_limit_bytes)
        return self._client.build_request(
            request.method,
            httpx.URL(scheme=target.scheme, host=str(address), port=target.port, raw_path=target.path.encode("ascii")),
            headers={**request.headers, "host": target.authority},
            content=content,
            timeout=httpx.Timeout(request.deadline_seconds, connect=min(CONNECT_SECONDS, request.deadline_seconds)),
            extensions={"sni_hostname": target.host},
        )


def outbound_for(settings: Settings, database_url: str) -> EgressClient:
    """The client for URLs from tenants: the internet, and the networks that the admin allows, but never the platform
    itself.
    """
    reach = Reach(allowed=read_networks(settings.webhook_allow_networks))
    own_hosts = _own_hosts(settings.listen_host, database_url)
    return EgressClient(reach, own_hosts=own_hosts, inner_hosts=_inner_hosts(settings))


def outbound_public(settings: Settings, database_url: str) -> EgressClient:
    """The client for sources of artifacts: only the internet, whatever webhooks may reach."""
    return EgressClient(Reach(), own_hosts=_own_hosts(settings.listen_host, database_url))


def outbound_inside() -> EgressClient:
    """The client for URLs that the platform itself configures: its registry, and its sources in private networks."""
    return EgressClient(Reach(allowed=read_networks("0.0.0.0/0, ::/0"), own_allowed=True))


def _own_hosts(listen_host: str, database_url: str) -> list[str]:
    """The hosts of the platform and its database; Unix sockets are left out, because no URL can reach them."""
    # libpq accepts several hosts in one URL, which Python's own parser may refuse.
    address, _, query = database_url.partition("://")[2].partition("?")
    listed = address.partition("/")[0].rpartition("@")[2].split(",")
    named = [each[1:].partition("]")[0] if each.startswith("[") else each.partition(":")[0] for each in listed]
    given = parse_qs(query).get("host", [])
    hosts = [listen_host, *named, *(host for each in given for host in each.split(","))]
    return [host for host in hosts if host and not host.startswith("/") and host not in ("0.0.0.0", "::")]


def _inner_hosts(settings: Settings) -> list[str]:
    """Other parts of the platform, which may stand in a network that is allowed for receivers."""
    urls = (settings.registry_url, settings.otlp_endpoint, settings.relay_url)
    return [host for host in (urlsplit(each).hostname for each in urls if each) if host]


def _is_private(address: Address) -> bool:
    return refused_because(address, Reach()) is not None


def is_this_machine(address: Address) -> bool:
    """Whether this is an address of this machine: then the kernel uses the same address as the source."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting a datagram socket sends nothing
            probe.setblocking(False)
            probe.connect((str(address), 9))
            return ip_address(probe.getsockname()[0]) == address
    except (OSError, ValueError):
        return False


def ascii_url(text: str) -> str:
    """The URL with an internationalized host name in its ASCII form; other URLs stay unchanged."""
    parts = _HOST.fullmatch(text)
    if parts is None or parts["host"].isascii():
        return text
    try:
        host = httpx.URL(scheme="https", host=parts["host"]).raw_host.decode("ascii")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Refusal(Code.VALIDATION_FAILED, "url: a host name that IDNA knows", {"path": "url"}) from error
    return f"{parts['scheme']}{host}{parts['rest']}"


async def _bounded(body: AsyncIterable[bytes], limit_bytes: int) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > limit_bytes:
            raise _body_too_large(limit_bytes)
        yield chunk


def _body_too_large(limit_bytes: int) -> EgressFailed:
    return EgressFailed(EgressFailure.TOO_LARGE, f"the request body is larger than {limit_bytes} bytes")


def _refused(target: Target, reasons: list[str]) -> Refusal:
    """The refusal of a URL; it names the kind of the network, and never the addresses behind the name."""
    listed = ", ".join(reasons)
    return Refusal(
        Code.ADDRESS_REFUSED,
        f"{target.host} is in a network that the platform does not dial: {listed}",
        {"host": target.host, "reasons": reasons},
    )


def _failed(error: httpx.HTTPError) -> EgressFailed:
    if isinstance(error, httpx.TimeoutException):
        return EgressFailed(EgressFailure.TIMEOUT, "connecting or answering took too long")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return EgressFailed(EgressFailure.TLS, f"the certificate is not accepted: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError):
            return EgressFailed(EgressFailure.TLS, f"TLS failed: {cause.reason or 'no reason given'}")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError):
        return EgressFailed(EgressFailure.UNREACHABLE, "no connection could be made")
    return EgressFailed(EgressFailure.BROKEN, f"the connection broke ({type(error).__name__})")
