"""Reading from a source that somebody else runs: every byte counted, timed and hashed.

A source may lie about a size, never end, send a byte a minute, or send the reader on to somewhere else. So nothing is
read without a bound. The whole has a time limit, the answer's head has one, and within each window of waiting at
least so many bytes must come. A body goes chunk by chunk into a *sink*, so memory does not grow with it. What the
source announces is checked before the first byte is taken, and the hash of what came is checked at the end.

A transfer that breaks off is taken up where it stopped, by `Range`, as often as `SourceTimeouts` says; what the sink
got is hashed as one, so a source that changes its content meanwhile is found out. Without a digest to compare with, a
broken transfer is not taken up. Content is never decompressed on the way: the digest names the bytes as they are
stored.

Redirects stay with the source's own origin or go to a host that is allowed by name, never from https to http, and each
is dialled anew by the `Dialer`, which resolves and checks the address. Authorization goes to the origin alone.
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
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})  # answers that may be better the next time
PAUSE_SECONDS_MAX: Final = 10.0
SMALL_ANSWER_BYTES: Final = 65_536
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


class Dialer(Protocol):
    """Sends one request to an address that it has resolved and checked itself: `Outbound`."""

    def open(self, request: EgressRequest) -> AbstractAsyncContextManager[OpenEgressAnswer]:
        """The answer, its body still to be read."""
        ...


class Authorizer(Protocol):
    """Finds the Authorization header for an origin."""

    async def current(self, scope: str) -> str | None:
        """What to send without being asked, if anything."""
        ...

    async def answer(self, scope: str, challenge: str | None) -> str:
        """What to send after the origin has refused; a Refusal when there is nothing to send."""
        ...


@dataclass(frozen=True, slots=True)
class SourceTimeouts:
    """How long and how often a source is waited for."""

    total_seconds: float = 3_600.0
    answer_seconds: float = 30.0  # until the head of an answer is there
    window_seconds: float = 30.0  # waiting in which at least `window_bytes` must come
    window_bytes: int = 65_536
    attempts: int = 4
    pause_seconds: float = 0.5  # before the second attempt; doubled before each further one
    attempts_midway: int = 0  # more of them once bytes have come, counted anew after each that brought some; 0: no more
    silence_seconds: float = 0.0  # how long a transfer may go on without `window_bytes` more; 0: as the rest says


@dataclass(frozen=True, slots=True)
class RedirectPolicy:
    """Where a source may send its readers besides its own origin."""

    hosts: frozenset[str] = frozenset()  # `host`, `host:port` or `*.domain`
    hops: int = 3

    def allow(self, origin: Target, target: Target) -> bool:
        """Whether this target may be followed to."""
        if origin.scheme == "https" and target.scheme != "https":
            return False
        return same_origin(origin, target) or is_named(target, self.hosts)


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One request of ours; its answer is no larger than the limit."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | AsyncIterable[bytes] = b""
    body_bytes: int = 0
    limit_bytes: int = SMALL_ANSWER_BYTES
    scope: str = ""


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """A small answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class BodyRequest:
    """A body to be read, and what is known of it beforehand."""

    url: str
    limit_bytes: int
    digest: str | None = None
    size_bytes: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    scope: str = ""


@dataclass(frozen=True, slots=True)
class ReceivedBody:
    """What was read: its digest is computed here, whatever the source says."""

    digest: str
    size_bytes: int
    content_type: str | None = None


class _Interrupted(Exception):
    """An attempt failed in a way that another one may not."""

    def __init__(self, refusal: Refusal, pause_seconds: float = 0.0) -> None:
        self.refusal = refusal
        self.pause_seconds = pause_seconds
        super().__init__(str(refusal))


class _Taken:
    """How far a transfer is."""

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
        """Whether enough came since this was last so."""
        if self.size - self._marked < enough_bytes:
            return False
        self._marked, self._marked_at = self.size, asyncio.get_running_loop().time()
        return True

    @property
    def silent_seconds(self) -> float:
        """How long it is since enough came."""
        return asyncio.get_running_loop().time() - self._marked_at

    def received(self) -> ReceivedBody:
        return ReceivedBody(f"{self.algorithm}:{self.hash.hexdigest()}", self.size, self.content_type)


class SourceReader:
    """Asks one origin, within the bounds of its patience."""

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
        """A small answer, whatever its status; reads are tried again when the source fails in passing."""
        attempts = self._patience.attempts if call.method in ("GET", "HEAD") else 1
        return await self._within(lambda: self._read_whole(call), attempts, host_of(call.url))

    async def stream(self, wanted: BodyRequest, sink: Sink | None = None) -> ReceivedBody:
        """Pour a body into the sink, hashed; refused unless it is what was wanted, byte for byte."""
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
        """The result of the first attempt that is not interrupted, all of them within the total time."""
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
        """Which attempt this was since the last that brought something, and how many there may be."""
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
        """One attempt at what is still missing."""
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
        """The chunks of a body, as long as enough of them come; only the waiting counts, not what is done with them."""
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
                    raise auth_refused(target.host, "the place that it redirects to wants credentials")
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
            raise redirect_refused(origin.host, "", "the location is not an address that is taken") from error
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
    """Whether two targets are the same server for credentials."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def is_named(target: Target, hosts: frozenset[str]) -> bool:
    """Whether a target's host is among these: `host`, `host:port` or `*.domain`, the port being the scheme's own."""
    if target.authority in hosts:
        return True
    parts = target.authority.split(".")
    return any(f"*.{'.'.join(parts[index:])}" in hosts for index in range(1, len(parts)))


def host_of(url: str) -> str:
    """The host of an address, for messages: the rest may hold what only its holder should know."""
    return read_url(url).authority


def announced_bytes(answer: OpenEgressAnswer) -> int | None:
    """The size that an answer announces, if it does."""
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
    """Check an answer's head against what is wanted from the offset on; how many bytes of it are known already."""
    if answer.status in PASSING:
        raise _Interrupted(_failing(wanted.url, answer.status), _asked_pause(answer))
    if answer.status == 206 and offset:
        span = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        if span is None or int(span[1]) != offset:
            raise malformed(host, "a part that was not asked for")
        known = 0
    elif answer.status == 200:
        known = offset  # without ranges everything comes again
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
    """What a failure of the connection means for whoever wanted the content."""
    if failed.failure is EgressFailure.TOO_LARGE:
        raise endless(host, limit_bytes) from failed
    if failed.failure is EgressFailure.TIMEOUT:
        raise _Interrupted(too_slow(host, failed.reason)) from failed
    refusal = Refusal(Code.SOURCE_UNREACHABLE, f"{host}: {failed.reason}", {"host": host, "reason": failed.failure})
    if failed.failure is EgressFailure.TLS:
        raise refusal from failed  # a certificate does not become better by asking again
    raise _Interrupted(refusal) from failed
