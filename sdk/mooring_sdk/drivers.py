"""Perform the effects of flows with httpx: once blocking, once on asyncio.

This is the only module that touches the network. The two drivers are the same line by line except for `await`; all
decisions are made by the flows. Redirects are not followed, certificates are verified, and every answer is limited in
size and time.
"""

import asyncio
import os
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import httpx

from mooring_sdk.flow import Authorize, Backoff, Close, Effect, Emit, Flow, Open, Read, Request, Response, Send
from mooring_sdk.mooring_error import ConnectionFailed, DeadlineExceeded, MooringError, UnexpectedAnswer
from mooring_sdk.session import AddressRefusedHere, Session, is_this_machine

CA_FILE: Final = "MOORING_CA_FILE"
CONNECT_SECONDS_MAX: Final = 10.0
NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class FlowResult(Generic[Result]):
    """The result of a finished flow."""

    value: Result


def advance(flow: Flow[Result], outcome: Any) -> Effect | FlowResult[Result]:
    """Give a flow the outcome of its last effect; returns its next effect or its result."""
    try:
        return flow.throw(outcome) if isinstance(outcome, MooringError) else flow.send(outcome)
    except StopIteration as end:
        return FlowResult(end.value)


def client_arguments(session: Session) -> dict[str, Any]:
    """Settings of httpx for a session. An address on this machine is reached without a proxy."""
    parts = urlsplit(session.url)
    return {
        "base_url": session.url,
        "verify": tls_context(parts.scheme, session.settings.ca_file or os.environ.get(CA_FILE) or None),
        "follow_redirects": False,
        "trust_env": not is_this_machine(parts.hostname or ""),
    }


def tls_context(scheme: str, ca_file: str | None) -> ssl.SSLContext:
    """Certificates are always verified; for plain http none are loaded, which saves time at every start."""
    if scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise AddressRefusedHere(f"cannot read CA certificates from {ca_file}: {error}") from error


def request_arguments(request: Request) -> dict[str, Any]:
    """One request, as httpx takes it."""
    seconds = max(request.read_timeout_seconds, 0.001)
    return {
        "method": request.method,
        "url": request.target,
        "headers": request.headers,
        "content": request.content,
        "timeout": httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS_MAX)),
    }


def failure_of(error: httpx.HTTPError, session: Session) -> ConnectionFailed:
    """What broke, without anything that was sent."""
    was_sent = not isinstance(error, NOT_SENT)
    if isinstance(error, httpx.TimeoutException):
        what = "did not answer in time" if was_sent else "could not be reached in time"
        return ConnectionFailed(f"{session.url} {what}", was_sent=was_sent)
    said = str(error) or type(error).__name__
    what = "broke the connection" if was_sent else "could not be reached"
    return ConnectionFailed(f"{session.url} {what}: {said}", was_sent=was_sent)


class BoundedBody:
    """The body of an answer, collected chunk by chunk within its limits."""

    def __init__(self, session: Session, request: Request) -> None:
        self._pieces: list[bytes] = []
        self._left = session.settings.answer_limit_bytes
        self._monotonic = session.settings.timing.monotonic
        self._until = self._monotonic() + request.total_timeout_seconds

    def add(self, piece: bytes) -> None:
        """Add a chunk, or raise if that exceeds a limit."""
        self._left -= len(piece)
        if self._left < 0:
            raise UnexpectedAnswer("the answer exceeds the size limit of this client")
        if self._monotonic() > self._until:
            raise DeadlineExceeded("the answer was not complete before the deadline")
        self._pieces.append(piece)

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)


class SyncStream:
    """The streamed answer that a flow holds open, if any."""

    def __init__(self) -> None:
        self.response: httpx.Response | None = None
        self.pieces: Iterator[bytes] = iter(())

    def open(self, response: httpx.Response) -> None:
        self.close()
        self.response, self.pieces = response, response.iter_bytes()

    def close(self) -> None:
        if self.response is not None:
            self.response.close()
        self.response, self.pieces = None, iter(())


class SyncDriver:
    """Performs flows on the calling thread. Safe to share between threads."""

    def __init__(self, session: Session, transport: httpx.BaseTransport | None = None) -> None:
        self.session = session
        self._http = httpx.Client(transport=transport, **client_arguments(session))
        self._lock = threading.Lock()

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[Result]) -> Result:
        """Perform a flow and return its result."""
        stream = SyncStream()
        try:
            step = advance(flow, None)
            while not isinstance(step, FlowResult):
                step = advance(flow, self._perform(step, stream))
            return step.value
        finally:
            stream.close()
            flow.close()

    def iterate(self, flow: Flow[None]) -> Generator[Any, None, None]:
        """Perform a flow and yield what it emits; closing the generator closes the connection."""
        stream = SyncStream()
        try:
            step = advance(flow, None)
            while not isinstance(step, FlowResult):
                if isinstance(step, Emit):
                    yield step.item
                    step = advance(flow, None)
                else:
                    step = advance(flow, self._perform(step, stream))
        finally:
            stream.close()
            flow.close()

    def _perform(self, effect: Effect, stream: SyncStream) -> Any:
        try:
            match effect:
                case Send(request):
                    return self._send(request)
                case Open(request):
                    return self._open(request, stream)
                case Read():
                    return next(stream.pieces, b"")
                case Close():
                    return stream.close()
                case Backoff(seconds):
                    return self.session.settings.timing.sleep(seconds)
                case Authorize(stale):
                    with self._lock:
                        return self.run(self.session.authorize(stale))
                case _:
                    raise TypeError(f"{effect!r} is only for iterations")
        except httpx.HTTPError as error:
            return failure_of(error, self.session)
        except MooringError as error:
            return error

    def _send(self, request: Request) -> Response:
        with self._http.stream(**request_arguments(request)) as answer:
            return self._whole(request, answer)

    def _whole(self, request: Request, answer: httpx.Response) -> Response:
        collected = BoundedBody(self.session, request)
        for piece in answer.iter_bytes():
            collected.add(piece)
        return Response(answer.status_code, dict(answer.headers), collected.body)

    def _open(self, request: Request, stream: SyncStream) -> Response:
        arguments = request_arguments(request)
        answer = self._http.send(self._http.build_request(**arguments), stream=True)
        if not answer.is_success:
            try:
                return self._whole(request, answer)
            finally:
                answer.close()
        stream.open(answer)
        return Response(answer.status_code, dict(answer.headers))


class AsyncStream:
    """The streamed answer that a flow holds open, if any."""

    def __init__(self) -> None:
        self.response: httpx.Response | None = None
        self.pieces: AsyncIterator[bytes] | None = None

    async def open(self, response: httpx.Response) -> None:
        await self.close()
        self.response, self.pieces = response, response.aiter_bytes()

    async def read(self) -> bytes:
        return b"" if self.pieces is None else await anext(self.pieces, b"")

    async def close(self) -> None:
        if self.response is not None:
            await self.response.aclose()
        self.response = self.pieces = None


class AsyncDriver:
    """Performs flows on asyncio's event loop."""

    def __init__(self, session: Session, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.session = session
        self._http = httpx.AsyncClient(transport=transport, **client_arguments(session))
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[Result]) -> Result:
        """Perform a flow and return its result."""
        stream = AsyncStream()
        try:
            step = advance(flow, None)
            while not isinstance(step, FlowResult):
                step = advance(flow, await self._perform(step, stream))
            return step.value
        finally:
            await stream.close()
            flow.close()

    async def iterate(self, flow: Flow[None]) -> AsyncGenerator[Any, None]:
        """Perform a flow and yield what it emits; closing the generator closes the connection."""
        stream = AsyncStream()
        try:
            step = advance(flow, None)
            while not isinstance(step, FlowResult):
                if isinstance(step, Emit):
                    yield step.item
                    step = advance(flow, None)
                else:
                    step = advance(flow, await self._perform(step, stream))
        finally:
            await stream.close()
            flow.close()

    async def _perform(self, effect: Effect, stream: AsyncStream) -> Any:
        try:
            match effect:
                case Send(request):
                    return await self._send(request)
                case Open(request):
                    return await self._open(request, stream)
                case Read():
                    return await stream.read()
                case Close():
                    return await stream.close()
                case Backoff(seconds):
                    return await self.session.settings.timing.sleep_async(seconds)
                case Authorize(stale):
                    async with self._lock:
                        return await self.run(self.session.authorize(stale))
                case _:
                    raise TypeError(f"{effect!r} is only for iterations")
        except httpx.HTTPError as error:
            return failure_of(error, self.session)
        except MooringError as error:
            return error

    async def _send(self, request: Request) -> Response:
        async with self._http.stream(**request_arguments(request)) as answer:
            return await self._whole(request, answer)

    async def _whole(self, request: Request, answer: httpx.Response) -> Response:
        collected = BoundedBody(self.session, request)
        async for piece in answer.aiter_bytes():
            collected.add(piece)
        return Response(answer.status_code, dict(answer.headers), collected.body)

    async def _open(self, request: Request, stream: AsyncStream) -> Response:
        arguments = request_arguments(request)
        answer = await self._http.send(self._http.build_request(**arguments), stream=True)
        if not answer.is_success:
            try:
                return await self._whole(request, answer)
            finally:
                await answer.aclose()
        await stream.open(answer)
        return Response(answer.status_code, dict(answer.headers))
