"""One HTTP/1.1 connection: bytes in, requests to the application, bytes out.

uvicorn runs the server: sockets, signals, the drain at a stop. This protocol replaces its own for each connection,
because that one costs more and lacks bounds that we need (decision 24). httptools parses the bytes, in its strict mode.
A complete response goes out by one write, which the application asks for by the extension `mooring.answer`; a stream
takes the usual ASGI messages. A body that came with its head is available by `mooring.body`, without waiting. A request
for a WebSocket may be answered by `mooring.switch`.

Requests of one connection are answered one after the other, in their order. Everything is bounded: the head of a
request, how long a request may take to arrive, what waits in memory for a slow reader or writer, and how long a
connection may be silent.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools
import msgspec

from mooring.api.problem import MEDIA_TYPE, STATUS, problem
from mooring.api.request_cycle import (
    ANSWER,
    BODY,
    CERTIFICATE,
    GONE,
    SWITCH,
    Application,
    Message,
    RequestCycle,
    wants_websocket,
)
from mooring.core.fleet.node_certificate import NodeCertificate
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.clock import SystemClock
from mooring.gateways.tls.node_authority import shown_certificate

HEAD_BYTES_MAX: Final = 256 * 1024
"""The most that is parsed; the application has a lower limit, and refuses with an error code."""
ARRIVAL_SECONDS_MAX: Final = 60.0
UNREAD_SECONDS_MAX: Final = 60.0
"""How long a caller may read nothing of a response that waits for them in memory."""
UNREAD_CHECK_SECONDS: Final = 5.0
"""How often a connection is checked whose caller has something left to read."""
LATE_SECONDS: Final = 0.1
"""A check that runs this much later than planned means that the process itself was held up."""
BUSY_CHECK_SECONDS: Final = 30.0
"""How often a connection is checked whose request takes long, as a long poll does: thousands of them wait."""
EXTENSIONS: Final[dict[str, dict[str, object]]] = {ANSWER: {}, BODY: {}, SWITCH: {}}
ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
STATUS_LINE: Final = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n" for each in HTTPStatus}
VERSIONS: Final = ("1.1", "1.0")

log = logging.getLogger("mooring.http")


class ServerState(Protocol):
    """What all connections of a uvicorn server share."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    total_requests: int
    default_headers: list[tuple[bytes, bytes]]


class HttpConnection(asyncio.Protocol):
    """The protocol of one connection, as uvicorn makes it."""

    def __init__(
        self,
        config: Any,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._application: Application = config.loaded_app
        self._silence_seconds_max: float = config.timeout_keep_alive
        self._unread_check_seconds = min(self._silence_seconds_max, UNREAD_CHECK_SECONDS)
        self._is_last_check = False
        self._state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        self._scheme = "http"
        self._certificate: NodeCertificate | None = None
        self._common: tuple[object, str] = (None, "")  # the headers of every response, and what they were made from
        self._current: RequestCycle | None = None
        self._waiting: deque[RequestCycle] = deque()  # pipelined requests waiting for the current response
        self._receiving: RequestCycle | None = None  # the one whose body is arriving
        self._switching: RequestCycle | None = None  # the last one, which may speak another protocol from here on
        self._reads = True
        self._drained: asyncio.Future[None] | None = None
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_check_at = 0.0
        self._silent_since = 0.0
        self._arriving_since: float | None = None
        self._unread = 0  # bytes unread at the last check, and since when none of them was read
        self._unread_since = 0.0
        self._url, self._head_bytes, self._expects_continue = b"", 0, False
        self._headers: list[tuple[bytes, bytes]] = []

    # What the transport calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._state.connections.add(self)
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        if transport.get_extra_info("sslcontext"):
            self._scheme = "https"
            self._certificate = shown_certificate(transport.get_extra_info("ssl_object"))
        self._silent_since = self._unread_since = self._loop.time()
        self._check_within(self._silent_since, self._silence_seconds_max)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake everything that waits for this connection."""
        self._closing = True
        self._state.connections.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        for cycle in (self._current, *self._waiting):
            if cycle is not None and not cycle.ended:
                cycle.disconnected = True
                cycle.wake()
                for hook in cycle.gone:
                    hook()
        self._waiting.clear()
        del self._parser  # it refers to the connection too, and a cycle would wait for the garbage collector

    def data_received(self, data: bytes) -> None:
        if self._switching is not None and self._switching.take(data):
            self._pause_reading()
        if self._closing or self._switching is not None:
            return
        if self._arriving_since is None:
            self._arriving_since = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # It is the last request: answered as usual, unless it asks for a WebSocket and its route has one.
            self._closing = True
            last = self._waiting[-1] if self._waiting else self._current
            if last is not None:
                last.keep_alive = False
                if wants_websocket(last.scope):
                    self._switching = last
                    last.take(data[int(upgrade.args[0]) :])
        except httptools.HttpParserError:
            self._refuse(Refusal(Code.MALFORMED_REQUEST, "this is not an HTTP/1.1 request"))

    def pause_writing(self) -> None:
        """The caller reads more slowly than we write: check whether they read at all."""
        self._drained = self._loop.create_future()
        self._check_within(self._loop.time(), self._unread_check_seconds)

    def resume_writing(self) -> None:
        self._unread_since = self._loop.time()
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    # What the parser calls ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._head_bytes, self._expects_continue = 0, False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """The head is complete: start the request, or queue it behind the current one."""
        parser = self._parser
        url = self._url
        raw_path, _, query = url.partition(b"?")
        if not url.startswith(b"/"):  # the absolute form, which proxies use
            parsed = httptools.parse_url(url)
            raw_path, query = parsed.path or b"/", parsed.query or b""
        path = raw_path.decode("ascii")
        version = parser.get_http_version()
        if version not in VERSIONS:
            raise ValueError(version)  # ends the parsing
        scope: Message = {
            "type": "http",
            "asgi": ASGI,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": self._scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            "server": self._server,
            "client": self._client,
            "extensions": EXTENSIONS,
        }
        keep_alive = version == "1.1" and parser.should_keep_alive()
        cycle = RequestCycle(self, scope, keep_alive=keep_alive, expects_continue=self._expects_continue)
        scope[BODY] = cycle.whole_body
        scope[GONE] = cycle.gone
        if self._certificate is not None:
            scope[CERTIFICATE] = self._certificate
        self._receiving = cycle
        if self._current is None:
            self._begin(cycle)
        else:
            self._waiting.append(cycle)
            self._pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._receiving is not None and self._receiving.take(body):
            self._pause_reading()

    def on_message_complete(self) -> None:
        self._arriving_since = None
        if self._receiving is not None:
            self._receiving.arrived = True
            self._receiving.wake()
            self._receiving = None

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise OverflowError  # ends the parsing

    # What a request cycle calls --------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the caller has to read first."""
        return self._drained is not None

    async def drained(self) -> None:
        """Wait until the caller has read."""
        if self._drained is not None:
            await asyncio.shield(self._drained)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def resume_reading(self) -> None:
        """Read on: there is room for more of the request's body."""
        if not self._reads and not self._waiting and self._transport is not None:
            self._reads = True
            if self._arriving_since is not None:
                self._arriving_since = self._loop.time()
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._reads and self._transport is not None:
            self._reads = False
            self._transport.pause_reading()

    def head(self, status: int, headers: Iterable[tuple[str, str]], *, keep_alive: bool) -> bytes:
        """The head of a response. A line break in a header would begin another one, so it is refused."""
        common = self._common
        if common[0] is not self._state.default_headers:
            made = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in self._state.default_headers)
            common = self._common = (self._state.default_headers, made)
        lines = [f"{name}: {value}\r\n" for name, value in headers]
        text = "".join(lines)
        if text.count("\n") != len(lines) or text.count("\r") != len(lines):
            raise ValueError("a header's value holds a line break")
        close = "" if keep_alive else "connection: close\r\n"
        return f"{STATUS_LINE[status]}{common[1]}{text}{close}\r\n".encode("latin-1")

    def finished(self, cycle: RequestCycle) -> None:
        """A request is answered: start the next one, or wait for it."""
        self._state.total_requests += 1
        if cycle.task is not None:
            self._state.tasks.discard(cycle.task)
        self._current = None
        cycle.scope, cycle.gone = {}, []  # they refer back to it, and would leave it to the garbage collector
        if self._transport is None:
            return
        if not cycle.ended or not cycle.keep_alive:
            self._close()
            return
        self._silent_since = self._loop.time()
        self._check_within(self._silent_since, self._silence_seconds_max)
        if self._waiting:
            self._begin(self._waiting.popleft())
        self.resume_reading()

    def _begin(self, cycle: RequestCycle) -> None:
        self._current = cycle
        cycle.task = self._loop.create_task(cycle.run(self._application))
        self._state.tasks.add(cycle.task)

    # The end --------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Finish the current request and take no more; uvicorn calls it at a stop."""
        if self._current is None:
            self._close()
        else:
            self._current.keep_alive = False

    @property
    def unread_bytes(self) -> int:
        """How much of what was written the caller has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """Close the connection now, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer malformed HTTP, unless another response is under way, and close."""
        log.info("received malformed HTTP; closing the connection")
        self._closing = True
        if self._current is None:
            self.write(self.refusal(refusal))
            self._close()
            return
        self._current.keep_alive = False
        if self._current is self._receiving:
            self._current.broken = True
            self._current.wake()

    def refusal(self, refusal: Refusal) -> bytes:
        """A complete response that refuses something and closes the connection."""
        correlation_id = SystemClock().mint(Prefix.CORRELATION)
        body = msgspec.json.encode(problem(refusal, correlation_id))
        headers = {"x-correlation-id": correlation_id, "content-type": MEDIA_TYPE, "content-length": str(len(body))}
        return self.head(STATUS[refusal.code], headers.items(), keep_alive=False) + body

    def _check_timeouts(self) -> None:
        """Close a connection that is silent, whose caller does not read, or whose request does not arrive."""
        now = self._loop.time()
        if now > self._next_check_at + LATE_SECONDS:  # nobody could read from a process that was held up
            self._unread_since = now
        if self._is_stalled(now):
            self.cut_off()
            return
        is_arriving = self._arriving_since is not None and self._reads
        if is_arriving:
            left = (self._arriving_since or now) + ARRIVAL_SECONDS_MAX - now
        elif self._current is not None:
            left = BUSY_CHECK_SECONDS
        else:
            left = self._silent_since + self._silence_seconds_max - now
        if left > 0:
            self._is_last_check = False
            self._schedule_check(now, min(left, self._unread_check_seconds) if self._unread else left)
        elif not self._is_last_check:  # the silence may be ours: first read what arrived while this process was held up
            self._is_last_check = True
            self._schedule_check(now, LATE_SECONDS)
        elif self._transport is not None and is_arriving:
            self._transport.abort()
        else:
            self._close()  # which waits for the caller to read what was written, so check again
            self._schedule_check(now, self._unread_check_seconds)

    def _check_within(self, now: float, seconds: float) -> None:
        """Check within this time at the latest."""
        if self._timer is None or self._next_check_at > now + seconds:
            self._schedule_check(now, seconds)

    def _schedule_check(self, now: float, seconds: float) -> None:
        """Check after this time, but never so late that a request that begins to arrive now takes too long."""
        if self._timer is not None:
            self._timer.cancel()
        seconds = min(seconds, ARRIVAL_SECONDS_MAX)
        self._next_check_at, self._timer = now + seconds, self._loop.call_later(seconds, self._check_timeouts)

    def _is_stalled(self, now: float) -> bool:
        """Whether the caller has read nothing for too long of what was written for them."""
        unread = self.unread_bytes
        if not unread or not self._unread or unread < self._unread:
            self._unread_since = now
        self._unread = unread
        return now - self._unread_since > UNREAD_SECONDS_MAX


def _address(info: object) -> tuple[str, int] | None:
    """Host and port of one end, where it has them."""
    return (str(info[0]), int(info[1])) if isinstance(info, tuple) and len(info) >= 2 else None
