"""One request and its response, on a connection: what the application receives and sends.

A response is complete, comes in pieces, or switches the connection to another protocol; from then on bytes are passed
on in both directions, by messages of the type `mooring.bytes`, under the same bounds as everything else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from mooring.core.kernel.errors import Code, Refusal

BODY_BYTES_WAITING_MAX: Final = 64 * 1024
ANSWER: Final = "mooring.answer"
BODY: Final = "mooring.body"
BYTES: Final = "mooring.bytes"
CERTIFICATE: Final = "mooring.certificate"
GONE: Final = "mooring.gone"
SWITCH: Final = "mooring.switch"
WITHOUT_BODY: Final = (204, 304)

Message = dict[str, Any]
Application = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any]

log = logging.getLogger("mooring.http")


class ConnectionView(Protocol):
    """The connection, as a request cycle sees it."""

    @property
    def is_full(self) -> bool:
        """Whether the caller has to read first."""

    async def drained(self) -> None:
        """Wait until the caller has read."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def resume_reading(self) -> None:
        """Read on: there is room for more of the request's body."""

    def head(self, status: int, headers: Iterable[tuple[str, str]], *, keep_alive: bool) -> bytes:
        """The head of a response."""

    def refusal(self, refusal: Refusal) -> bytes:
        """A complete response that refuses something."""

    def finished(self, cycle: "RequestCycle") -> None:
        """A request is answered, or will never be."""


class RequestCycle:
    """One request and its response."""

    __slots__ = (
        "_asked", "_at", "_body", "_chunked", "_continue", "_delivered", "_started", "_woken", "arrived", "broken",
        "disconnected", "ended", "gone", "keep_alive", "scope", "switched", "task",
    )  # fmt: skip

    def __init__(self, at: ConnectionView, scope: Message, *, keep_alive: bool, expects_continue: bool) -> None:
        self._asked = False  # the application has begun to take the body
        self._at = at
        self._body = bytearray()
        self._chunked = self._started = False
        self._continue = expects_continue
        self._delivered = False  # the application has all of the body
        self._woken: asyncio.Future[None] | None = None
        self.arrived = False
        self.broken = False  # the rest of the body will never arrive
        self.disconnected = self.ended = False
        self.gone: list[Callable[[], object]] = []  # called when the caller hangs up
        self.keep_alive = keep_alive
        self.scope = scope
        self.switched = False  # another protocol: bytes are passed on in both directions
        self.task: asyncio.Task[None] | None = None

    async def run(self, application: Application) -> None:
        """Let the application answer; an unfinished response closes the connection."""
        try:
            await application(self.scope, self.receive, self.send)
        except Exception:
            log.exception("uncaught error in the application; answering 500 if nothing was sent yet")
            if not self._started:
                self._at.write(self._at.refusal(Refusal(Code.INTERNAL, "Mooring failed; its log has the cause")))
        finally:
            self._at.finished(self)

    def take(self, piece: bytes) -> bool:
        """Store a piece of the body; returns whether too much waits for the application now."""
        if self.ended:
            return False  # it is read only to reach the next request behind it
        self._body += piece
        self.wake()
        return len(self._body) > BODY_BYTES_WAITING_MAX

    def whole_body(self) -> bytes | None:
        """The body, if it has arrived and nobody has read a part of it; then nobody has to wait for it."""
        if not self.arrived or self._asked or self.disconnected:
            return None
        self._asked = self._delivered = True
        body, self._body = bytes(self._body), bytearray()
        return body

    def wake(self) -> None:
        """Something happened that `receive` may be waiting for."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def receive(self) -> Message:
        """ASGI: the next piece of the body, and after the last one, that the caller hung up."""
        self._asked = True
        if self._continue and not self._started:
            self._continue = False
            self._at.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._is_over() or self._body or (self.arrived and not self._delivered and not self.switched)):
            self._at.resume_reading()
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken
        if self._is_over():
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        if self.switched:
            return {"type": BYTES, "body": body}
        self._delivered = self.arrived
        return {"type": "http.request", "body": body, "more_body": not self.arrived}

    def _is_over(self) -> bool:
        return self.disconnected or self.ended or self.broken

    async def send(self, message: Message) -> None:
        """ASGI: the response, complete or in pieces."""
        if self._at.is_full and not self.disconnected:
            await self._at.drained()
        if self.disconnected:
            return
        kind = message["type"]
        if kind == ANSWER and not self._started:
            head = self._at.head(message["status"], message["headers"].items(), keep_alive=self.keep_alive)
            self._started = True
            self._at.write(head if self.scope["method"] == "HEAD" else head + message["body"])
            self._end()
        elif kind == "http.response.start" and not self._started:
            self._start(message)
        elif kind == SWITCH and not self._started:
            self._started = self.switched = True
            self._at.write(self._at.head(101, message["headers"].items(), keep_alive=True))
        elif kind == BYTES and self.switched:
            self._at.write(message["body"])
        elif kind == "http.response.body" and self._started and not self.ended and not self.switched:
            self._piece(message.get("body", b""), last=not message.get("more_body", False))
        else:
            raise RuntimeError(f"the message {kind!r} does not follow what was sent before")

    def _start(self, message: Message) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
        status = message["status"]
        if not any(name == "content-length" for name, _ in headers) and status not in WITHOUT_BODY:
            if self.scope["http_version"] == "1.1":
                self._chunked = self.scope["method"] != "HEAD"
                headers.append(("transfer-encoding", "chunked"))
            else:
                self.keep_alive = False  # an HTTP/1.0 caller knows the end by the close of the connection
        head = self._at.head(status, headers, keep_alive=self.keep_alive)
        self._started = True
        self._at.write(head)

    def _piece(self, piece: bytes, *, last: bool) -> None:
        if self.scope["method"] == "HEAD":
            piece = b""
        elif self._chunked:
            piece = (b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b"") + (b"0\r\n\r\n" if last else b"")
        if piece:
            self._at.write(piece)
        if last:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self.wake()


def wants_websocket(scope: Message) -> bool:
    """Whether a request asks to go on as a WebSocket."""
    named = (value for name, value in scope["headers"] if name == b"upgrade")
    return scope["method"] == "GET" and any(value.lower() == b"websocket" for value in named)
