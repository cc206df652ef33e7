"""Reading from a source that somebody else operates: every byte is counted, timed and hashed.

A source may lie about a size, never end, send a byte a minute, or redirect elsewhere. So every read has limits: a time
limit for the whole, one for the head of the answer, and a minimum number of bytes in each time window. A body is
streamed chunk by chunk into a *sink*, so memory does not grow with it. The announced size is checked before the first
byte is read, and the hash is checked at the end.

An interrupted transfer is resumed with `Range`, as often as `SourceTimeouts` allows. All bytes that reached the sink
are hashed together, so a source that changes its content in between is detected. Without a digest to compare with, an
interrupted transfer is not resumed. Content is never decompressed on the way, because the digest covers the stored
bytes.

Redirects may go to the source's own origin or to an explicitly allowed host, never from https to http. Each is a new
request by the `Dialer`, which resolves and checks the address. Authorization is sent only to the origin.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn, Protocol, TypeVar
from urllib.parse import urljoin

from mooring.core.kernel.address import Target, read_url
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressFailed, EgressFailure, EgressRequest, OpenEgressAnswer
from mooring.gateways.registry.source_refusals import (
    auth_refused,
    endless,
    malformed,
    mismatch,
    redirect_refused,
    stalled,
    status_refusal,
    too_large,
    too_slow,
)

Sink = Callable[[bytes], Awaitable[None]]
T = TypeVar("T")
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # answers that are worth a retry
PAUSE_SECONDS_MAX: Final = 10.0
SMALL_ANSWER_BYTES: Final = 65_536
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


class Dialer(Protocol):
    """Sends one request to an address that it resolves and checks itself; see `EgressClient`."""

    def open(self, request: EgressRequest) -> AbstractAsyncContextManager[OpenEgressAnswer]:
        """The answer, with its body not read yet."""
        ...


class Authorizer(Protocol):
    """Finds the Authorization header for an origin."""

    async def current(self, scope: str) -> str | None:
        """The header to send before the origin asks for it; None if there is none."""
        ...

    async def answer(self, scope: str, challenge: str | None) -> str:
        """The header to send after a 401; a Refusal when there are no credentials."""
        ...


@dataclass(frozen=True, slots=True)
class SourceTimeouts:
    """The time limits and the number of attempts for a source."""

    total_seconds: float = 3_600.0
    answer_seconds: float = 30.0  # until the head of an answer arrives
    window_seconds: float = 30.0  # the waiting time in which at least `window_bytes` must arrive
    window_bytes: int = 65_536
    attempts: int = 4
    pause_seconds: float = 0.5  # before the second attempt; it doubles with each further one
    attempts_midway: int = 0  # attempts after the first bytes, counted from the last that made progress; 0: `attempts`
    silence_seconds: float = 0.0  # how long a transfer may continue without `window_bytes` more; 0: no extra limit


@dataclass(frozen=True, slots=True)
class RedirectPolicy:
    """Where a source may redirect to, besides its own origin."""

    hosts: frozenset[str] = frozenset()  # `host`, `host:port` or `*.domain`
    hops: int = 3

    def allow(self, origin: Target, target: Target) -> bool:
        """Whether a redirect to this target may be followed."""
        if origin.scheme == "https" and target.scheme != "https":
            return False
        return same_origin(origin, target) or is_named(target, self.hosts)


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One request; its answer may not be larger than the limit."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterable[bytes] = b""
    body_bytes: int = 0
    limit_bytes: int = SMALL_ANSWER_BYTES
    scope: str = ""


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """A small answer with its complete body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class BodyRequest:
    """A body to read, and what is known about it in advance."""

    url: str
    limit_bytes: int
    digest: str | None = None
    size_bytes: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    scope: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """The size and the digest of what was read, computed here and not taken from the source."""

    digest: str
    size_bytes: int
    content_type: str | None = None


class _Interrupted(Exception):
    """An attempt failed, but another one may succeed."""

    def __init__(self, refusal: Refusal, pause_seconds: float = 0.0) -> None:
        self.refusal = refusal
        self.pause_seconds = pause_seconds
        super().__init__(str(refusal))


class _Taken:
    """The progress of a transfer."""

    def __init__(self, digest: str | None) -> None:
        self.algorithm = "sha256" if digest is None else digest.partition(":")[0]
        self.hash = hashlib.new(self.algorithm)
        self.size = 0
        self.content_type: str | None = None
        self._marked = 0
        self._marked_at = asyncio.get_running_loop().time()

    async def take(self, chunk: bytes, sink: Sink | None) -> None:
        self.hash.update(chunk)
        self.size += len(chunk)
        if sink is not None:
            await sink(chunk)

    def mark(self, enough_bytes: int) -> bool:
        """Whether enough bytes arrived since the last time this was true."""
        if self.size - self._marked < enough_bytes:
            return False
        self._marked, self._marked_at = self.size, asyncio.get_running_loop().time()
        return True

    @property
    def silent_seconds(self) -> float:
        """How long ago enough bytes arrived."""
        return asyncio.get_running_loop().time() - self._marked_at

    def received(self) -> ReceivedBody:
        return ReceivedBody(f"{self.algorithm}:{self.hash.hexdigest()}", self.size, self.content_type)


class SourceReader:
    """Reads from one origin within its time limits."""

    def __init__(
        self,
        dialer: Dialer,
        *,
        redirects: RedirectPolicy | None = None,
        patience: SourceTimeouts | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._dialer = dialer
        self._redirects = redirects or RedirectPolicy()
        self._patience = patience or SourceTimeouts()
        self._authorizer = authorizer

    async def ask(self, call: SourceRequest) -> SourceAnswer:
        """Get a small answer with any status; reads are retried after temporary failures."""
        attempts = self._patience.attempts if call.method in ("GET", "HEAD") else 1
        return await self._within(lambda: self._read_whole(call), attempts, host_of(call.url))

    async def stream(self, wanted: BodyRequest, sink: Sink | None = None) -> ReceivedBody:
        """Stream a body into the sink and hash it; a Refusal when it does not match the request."""
        host = host_of(wanted.url)
        if wanted.digest is not None and not _DIGEST.fullmatch(wanted.digest):
            raise Refusal(Code.VALIDATION_FAILED, "digest: sha256 or sha512 in lower-case hex", {"path": "digest"})
        if wanted.size_bytes is not None and wanted.size_bytes > wanted.limit_bytes:
            raise too_large(host, wanted.size_bytes, wanted.limit_bytes)
        taken = _Taken(wanted.digest)

        async def attempt() -> ReceivedBody:
            if wanted.size_bytes is None or taken.size < wanted.size_bytes or taken.size == 0:
                await self._pour(wanted, taken, sink)
            return taken.received()

        def resumable() -> bool:
            return taken.size == 0 or wanted.digest is not None

        received = await self._within(attempt, self._patience.attempts, host, resumable, taken)
        _compare(wanted, received, host)
        return received

    async def _within(
        self,
        attempt: Callable[[], Awaitable[T]],
        attempts: int,
        host: str,
        resumable: Callable[[], bool] = lambda: True,
        taken: _Taken | None = None,
    ) -> T:
        """The result of the first attempt that is not interrupted; all attempts share the total time."""
        number = 0
        try:
            async with asyncio.timeout(self._patience.total_seconds) as limit:
                while True:
                    number += 1
                    try:
                        return await attempt()
                    except _Interrupted as interrupted:
                        number, most = self._counted(number, attempts, taken)
                        if number >= most or not resumable():
                            raise interrupted.refusal from interrupted
                        pause = max(interrupted.pause_seconds, self._patience.pause_seconds * 2 ** (number - 1))
                    await asyncio.sleep(min(pause, PAUSE_SECONDS_MAX))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise too_slow(host, f"it took more than {self._patience.total_seconds:g} s") from error

    def _counted(self, number: int, attempts: int, taken: _Taken | None) -> tuple[int, int]:
        """The number of the attempt since the last progress, and how many are allowed."""
        patience = self._patience
        if taken is None or not taken.size or not patience.attempts_midway:
            return number, attempts
        if taken.mark(patience.window_bytes):
            return 1, patience.attempts_midway
        is_silent = 0 < patience.silence_seconds <= taken.silent_seconds
        return number, number if is_silent else patience.attempts_midway

    async def _read_whole(self, call: SourceRequest) -> SourceAnswer:
        async with self._open(call) as answer:
            if answer.status in PASSING:
                raise _Interrupted(_failing(call.url, answer.status), _asked_pause(answer))
            if call.method == "HEAD":
                return SourceAnswer(answer.status, answer.headers, b"")
            host = host_of(call.url)
            announced = announced_bytes(answer)
            if announced is not None and announced > call.limit_bytes:
                raise too_large(host, announced, call.limit_bytes)
            body = bytearray()
            async for chunk in self._paced(answer, host):
                body += chunk
            return SourceAnswer(answer.status, answer.headers, bytes(body))

    async def _pour(self, wanted: BodyRequest, taken: _Taken, sink: Sink | None) -> None:
        """One attempt to read the missing bytes."""
        headers = dict(wanted.headers)
        if taken.size:
            headers["range"] = f"bytes={taken.size}-"
        most = wanted.limit_bytes if wanted.size_bytes is None else wanted.size_bytes
        call = SourceRequest("GET", wanted.url, headers, limit_bytes=most, scope=wanted.scope)
        host = host_of(wanted.url)
        async with self._open(call) as answer:
            already = _begin(wanted, taken.size, answer, host)
            taken.content_type = answer.headers.get("content-type")
            async for chunk in self._paced(answer, host):
                fresh = chunk[already:]
                already -= len(chunk) - len(fresh)
                if fresh and taken.size + len(fresh) > most:
                    raise endless(host, most)
                if fresh:
                    await taken.take(fresh, sink)

    async def _paced(self, answer: OpenEgressAnswer, host: str) -> AsyncIterator[bytes]:
        """The chunks of a body, as long as enough bytes arrive; only waiting time counts, not the processing."""
        patience, loop = self._patience, asyncio.get_running_loop()
        chunks = answer.chunks()
        left, missing = patience.window_seconds, patience.window_bytes
        while True:
            begun = loop.time()
            try:
                async with asyncio.timeout(left) as limit:
                    chunk = await anext(chunks, None)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                if patience.silence_seconds and loop.time() - begun >= patience.window_seconds / 2:
                    raise _Interrupted(stalled(host, patience.silence_seconds)) from error
                slow = too_slow(host, f"less than {patience.window_bytes} bytes in {patience.window_seconds:g} s")
                raise _Interrupted(slow) from error
            if chunk is None:
                return
            left, missing = left - (loop.time() - begun), missing - len(chunk)
            if missing <= 0:
                left, missing = patience.window_seconds, patience.window_bytes
            yield chunk

    @asynccontextmanager
    async def _open(self, call: SourceRequest) -> AsyncIterator[OpenEgressAnswer]:
        """The answer after redirects and authorization."""
        try:
            async with AsyncExitStack() as stack:
                yield await self._answered(stack, call)
        except EgressFailed as failed:
            _give_up(failed, host_of(call.url), call.limit_bytes)

    async def _answered(self, stack: AsyncExitStack, call: SourceRequest) -> OpenEgressAnswer:
        origin = target = read_url(call.url)
        authorization = None if self._authorizer is None else await self._authorizer.current(call.scope)
        hops, challenged = 0, False
        while True:
            own = authorization if same_origin(origin, target) else None
            answer = await self._dial(stack, replace(call, url=target.url), own)
            if answer.status == 401 and self._authorizer is not None and not challenged and _repeatable(call):
                challenged = True
                challenge = answer.headers.get("www-authenticate")
                await stack.aclose()
                if not same_origin(origin, target):
                    raise auth_refused(target.host, "the redirect target requires credentials")
                authorization = await self._authorizer.answer(call.scope, challenge)
            elif answer.status in REDIRECTS and call.method in ("GET", "HEAD"):
                location = answer.headers.get("location")
                await stack.aclose()
                target = self._followed(origin, target, location)
                hops += 1
                if hops > self._redirects.hops:
                    raise redirect_refused(origin.host, target.host, f"more than {self._redirects.hops} redirects")
            else:
                return answer

    def _followed(self, origin: Target, current: Target, location: str | None) -> Target:
        if location is None:
            raise malformed(origin.host, "a redirect without a location")
        try:
            target = read_url(urljoin(current.url, location))
        except (Refusal, ValueError) as error:
            raise redirect_refused(origin.host, "", "the location is not a valid URL") from error
        if not self._redirects.allow(origin, target):
            raise redirect_refused(origin.host, target.authority, "the host is not allowed for this source")
        return target

    async def _dial(self, stack: AsyncExitStack, call: SourceRequest, authorization: str | None) -> OpenEgressAnswer:
        headers = dict(call.headers)
        if authorization is not None:
            headers["authorization"] = authorization
        request = EgressRequest(
            call.method,
            call.url,
            headers,
            call.body,
            deadline_seconds=self._patience.total_seconds,
            body_limit_bytes=len(call.body) if isinstance(call.body, bytes) else call.body_bytes,
            answer_limit_bytes=call.limit_bytes,
        )
        seconds = self._patience.answer_seconds if not request.body else self._patience.total_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                return await stack.enter_async_context(self._dialer.open(request))
        except TimeoutError as error:
            if not limit.expired():
                raise
            slow = too_slow(host_of(call.url), f"no answer within {seconds:g} s")
            raise _Interrupted(slow) from error


def same_origin(one: Target, other: Target) -> bool:
    """Whether two targets have the same origin, so that credentials may be sent."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def is_named(target: Target, hosts: frozenset[str]) -> bool:
    """Whether a target matches a `host`, `host:port` or `*.domain`; without a port the scheme's default applies."""
    if target.authority in hosts:
        return True
    parts = target.authority.split(".")
    return any(f"*.{'.'.join(parts[index:])}" in hosts for index in range(1, len(parts)))


def host_of(url: str) -> str:
    """The host of a URL, for messages: the rest may contain a secret."""
    return read_url(url).authority


def announced_bytes(answer: OpenEgressAnswer) -> int | None:
    """The size that an answer announces; None if it does not."""
    text = answer.headers.get("content-length", "")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _failing(url: str, status: int) -> Refusal:
    host = host_of(url)
    return Refusal(Code.SOURCE_UNREACHABLE, f"{host} fails with HTTP {status}", {"host": host, "status": status})


def _repeatable(call: SourceRequest) -> bool:
    return isinstance(call.body, bytes)


def _asked_pause(answer: OpenEgressAnswer) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if re.fullmatch("[0-9]{1,6}", text) else 0.0


def _begin(wanted: BodyRequest, offset: int, answer: OpenEgressAnswer, host: str) -> int:
    """Check an answer's head against the request; returns how many of its first bytes are already known."""
    if answer.status in PASSING:
        raise _Interrupted(_failing(wanted.url, answer.status), _asked_pause(answer))
    if answer.status == 206 and offset:
        span = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        if span is None or int(span[1]) != offset:
            raise malformed(host, "a range that was not requested")
        known = 0
    elif answer.status == 200:
        known = offset  # a source without ranges sends everything again
    else:
        raise status_refusal(host, answer.status, wanted.digest or "the file")
    announced = announced_bytes(answer)
    whole = None if announced is None else announced + (offset - known)
    if whole is not None and wanted.size_bytes is not None and whole != wanted.size_bytes:
        raise mismatch(host, wanted.size_bytes, whole)
    if whole is not None and whole > wanted.limit_bytes:
        raise too_large(host, whole, wanted.limit_bytes)
    return known


def _compare(wanted: BodyRequest, received: ReceivedBody, host: str) -> None:
    if wanted.size_bytes is not None and received.size_bytes != wanted.size_bytes:
        raise mismatch(host, wanted.size_bytes, received.size_bytes)
    if wanted.digest is not None and received.digest != wanted.digest:
        raise mismatch(host, wanted.digest, received.digest)


def _give_up(failed: EgressFailed, host: str, limit_bytes: int) -> NoReturn:
    """Turn a connection failure into a refusal, or into a retry."""
    if failed.failure is EgressFailure.TOO_LARGE:
        raise endless(host, limit_bytes) from failed
    if failed.failure is EgressFailure.TIMEOUT:
        raise _Interrupted(too_slow(host, failed.reason)) from failed
    refusal = Refusal(Code.SOURCE_UNREACHABLE, f"{host}: {failed.reason}", {"host": host, "reason": failed.failure})
    if failed.failure is EgressFailure.TLS:
        raise refusal from failed  # a retry does not fix a certificate
    raise _Interrupted(refusal) from failed
