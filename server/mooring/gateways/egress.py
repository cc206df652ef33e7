"""Requests to addresses that somebody else gave: resolved here, checked here, and dialled as checked.

The host's name is resolved once. Each address it resolves to is judged by `core/kernel/address.py`, and the connection
goes to an address that was found good, by number; the name is used only for TLS and the `Host` header. So a name that
answers differently the next time (rebinding) gains nothing. Proxies of the environment are not used, since a proxy
would resolve anew. Redirects are not followed: an answer of 3xx is handed back as it is, and whoever wants to follow
it opens the new address as a request of its own, which is checked in the same way.

Everything is bounded: the time from the first look-up to the last byte, the size of both bodies, how many addresses
are tried and how many look-ups run at once. Each request has a connection of its own. Certificates are verified
against the usual authorities, or those of `SSL_CERT_FILE`.
"""

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
from typing import Final, Protocol
from urllib.parse import parse_qs

import httpx

from mooring.core.kernel.address import Address, Reach, Target, dialled, plain, read_networks, read_url
from mooring.core.kernel.errors import Code, Refusal
from mooring.settings import Settings

ADDRESSES_MAX: Final = 4  # how many addresses of one host are tried
CONNECT_SECONDS: Final = 5.0
LOOK_UPS_MAX: Final = 16
LOOK_UP_SECONDS: Final = 5.0
OWN_SECONDS: Final = 60.0  # how long the look-up of the platform's own hosts counts
ANSWER_LIMIT_BYTES: Final = 4_096
BODY_LIMIT_BYTES: Final = 1_048_576
_HOST: Final = re.compile(r"(?P<scheme>[A-Za-z]+://)(?P<host>[^/?#:@\[\]]+)(?P<rest>.*)", re.DOTALL)


class EgressFailure(StrEnum):
    """How a request came to nothing."""

    UNRESOLVED = "unresolved"
    UNREACHABLE = "unreachable"
    TLS = "tls"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    TOO_LARGE = "too_large"


class EgressFailed(Exception):
    """There is no answer; the reason is one that may be shown to whoever gave the address."""

    def __init__(self, failure: EgressFailure, reason: str) -> None:
        self.failure = failure
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """What is sent, and within which bounds."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterable[bytes] = b""
    deadline_seconds: float = 10.0
    body_limit_bytes: int = BODY_LIMIT_BYTES
    answer_limit_bytes: int = ANSWER_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class EgressAnswer:
    """What came back, its body cut off at the limit."""

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
        """The body as it was sent, not decompressed; refused when there is more than the limit."""
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
        """The body up to the limit; what is beyond it is not waited for."""
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

    def close(self) -> None:
        """End what runs."""
        ...


class SystemResolver:
    """The machine's own resolver, in a few threads of its own, so that slow names hold up nothing else."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(LOOK_UPS_MAX, thread_name_prefix="resolver")

    async def resolve(self, host: str, port: int) -> Sequence[Address]:
        """The addresses of a name, in the order that the machine prefers."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._pool, _look_up, host, port)
        return [ip_address(each) for each in found]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for _, _, _, _, address in found]


class EgressClient:
    """Dials what others name, within a reach."""

    def __init__(self, reach: Reach, *, own_hosts: Sequence[str] = (), resolver: Resolver | None = None) -> None:
        self._reach = reach
        self._own_hosts = tuple(own_hosts)
        self._resolver = resolver or SystemResolver()
        self._own_until = 0.0

    @cached_property
    def _client(self) -> httpx.AsyncClient:
        """Made on first use: reading the authorities' certificates would delay every start."""
        return httpx.AsyncClient(
            verify=httpx.create_ssl_context(),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            headers={"user-agent": "Mooring", "accept-encoding": "identity"},
        )

    async def close(self) -> None:
        """Close what is open."""
        if "_client" in self.__dict__:
            await self._client.aclose()
        self._resolver.close()

    async def check(self, url: str) -> None:
        """Refuse an address that would not be dialled; a name that does not resolve now may resolve later."""
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
        """Send a request and hold its answer open; the deadline counts until it is closed."""
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
            reason = f"there was no answer within {request.deadline_seconds:g} s"
            raise EgressFailed(EgressFailure.TIMEOUT, reason) from error

    async def _addresses(self, target: Target) -> list[Address]:
        """The addresses that are dialled for this target, each of them checked."""
        literal = target.literal
        try:
            found = [literal] if literal is not None else await self._resolver.resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise EgressFailed(EgressFailure.UNRESOLVED, f"{target.host} does not resolve") from error
        await self._learn_own()
        here = frozenset(each for each in map(plain, found) if is_this_machine(each))
        taken, reasons = dialled(found, replace(self._reach, own=self._reach.own | here), target.scheme)
        if not taken and reasons:
            raise _refused(target, reasons)
        if not taken:
            raise EgressFailed(EgressFailure.UNRESOLVED, f"{target.host} does not resolve")
        return taken[:ADDRESSES_MAX]

    async def _learn_own(self) -> None:
        """Where the platform's own hosts are now; a look-up that fails leaves what was known."""
        now = time.monotonic()
        if not self._own_hosts or now < self._own_until:
            return
        self._own_until = now + OWN_SECONDS
        known = set(self._reach.own)
        for host in self._own_hosts:
            try:
                known.update(await self._resolver.resolve(host, 0))
            except (OSError, UnicodeError):
                continue
        self._reach = replace(self._reach, own=frozenset(known))

    async def _dial(
        self, request: EgressRequest, target: Target, addresses: list[Address]
    ) -> tuple[httpx.Response, Address]:
        """The answer of the first of these addresses that takes a connection."""
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
    """The dialer for addresses that tenants give: the internet, and what the admin allows beyond it."""
    reach = Reach(allowed=read_networks(settings.webhook_allow_networks))
    return EgressClient(reach, own_hosts=_own_hosts(settings.listen_host, database_url))


def outbound_public(settings: Settings, database_url: str) -> EgressClient:
    """The dialer for sources of artifacts: the internet alone, whatever webhooks may reach."""
    return EgressClient(Reach(), own_hosts=_own_hosts(settings.listen_host, database_url))


def outbound_inside() -> EgressClient:
    """The dialer for what the platform itself names: its registry, and its sources in private networks."""
    return EgressClient(Reach(allowed=read_networks("0.0.0.0/0, ::/0")))


def _own_hosts(listen_host: str, database_url: str) -> list[str]:
    """Where the platform and its database are; a socket in the file system is out of reach anyhow."""
    # libpq takes several hosts in one address, which Python's own parser may refuse
    address, _, query = database_url.partition("://")[2].partition("?")
    listed = address.partition("/")[0].rpartition("@")[2].split(",")
    named = [each[1:].partition("]")[0] if each.startswith("[") else each.partition(":")[0] for each in listed]
    given = parse_qs(query).get("host", [])
    hosts = [listen_host, *named, *(host for each in given for host in each.split(","))]
    return [host for host in hosts if host and not host.startswith("/") and host not in ("0.0.0.0", "::")]


def is_this_machine(address: Address) -> bool:
    """Whether packets to this address stay on the machine: then the kernel answers from that very address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # a datagram socket sends nothing by connecting
            probe.setblocking(False)
            probe.connect((str(address), 9))
            return ip_address(probe.getsockname()[0]) == address
    except (OSError, ValueError):
        return False


def ascii_url(text: str) -> str:
    """The address with an internationalized host name in its ASCII form; anything else stays as it is."""
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
    return EgressFailed(EgressFailure.TOO_LARGE, f"what was to be sent is larger than {limit_bytes} bytes")


def _refused(target: Target, reasons: list[str]) -> Refusal:
    """The refusal of an address: it says of which kind the network is, not which addresses a name has in it."""
    listed = ", ".join(reasons)
    return Refusal(
        Code.ADDRESS_REFUSED,
        f"{target.host} is in a network that is not dialled: {listed}",
        {"host": target.host, "reasons": reasons},
    )


def _failed(error: httpx.HTTPError) -> EgressFailed:
    if isinstance(error, httpx.TimeoutException):
        return EgressFailed(EgressFailure.TIMEOUT, "the connection or the answer took too long")
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
