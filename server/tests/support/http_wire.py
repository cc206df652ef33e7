"""HTTP/1.1 and server-sent events, spoken by hand over one connection.

The tests of processes send tens of thousands of requests from the core that the servers run on, break connections in
the middle of an answer, and hold streams without reading them. A small client of their own does that cheaply and
hides nothing: a request is written, an answer is read, and what breaks is raised.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

BROKEN = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)
"""What a request raises when the server went away under it."""
ANSWER_SECONDS_MAX = 60.0
READ_BYTES = 1 << 16


class RawAnswer(NamedTuple):
    """The head and the body of an answer, as they came."""

    head: str
    body: str


async def exchange_raw(url: str, raw: bytes) -> RawAnswer:
    """Send bytes to the server of this URL, and read the answer until the server closes."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(raw)
    answer = (await asyncio.wait_for(reader.read(), ANSWER_SECONDS_MAX)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return RawAnswer(head, body)


@dataclass(frozen=True)
class WireAnswer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        """The problem's code, when this is a refusal."""
        return str(self.json["code"]) if self.status >= 400 else None

    def expect(self, status: int) -> Any:
        """The body of an answer that must be this one."""
        assert self.status == status, f"{self.status}: {self.body.decode(errors='replace')}"
        return self.json if self.body else None


class WireClient:
    """A client with a token, on one connection that is opened again after it broke."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Break the connection at once."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> WireAnswer:
        """Send a request and read its answer; one of BROKEN when the connection breaks in between."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            try:
                reader, writer = self._streams or await self._connect()
                writer.write(request_bytes(self.url, self.token, (method, path), body, headers))
                answer = await _read_answer(reader)
            except BaseException:
                self.hang_up()
                raise
        if answer.headers.get("connection") == "close":
            self.hang_up()
        return answer

    async def get(self, path: str) -> Any:
        """The body of a read that succeeds."""
        return (await self.call("GET", path)).expect(200)

    async def post(self, path: str, body: object = None, *, status: int = 201) -> Any:
        """The body of a mutation that succeeds."""
        return (await self.call("POST", path, body)).expect(status)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        self._streams = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 22)
        return self._streams


def request_bytes(
    url: str, token: str | None, line: tuple[str, str], body: object = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """A request as it goes over the wire."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{line[0]} {line[1]} HTTP/1.1", f"Host: {urlsplit(url).netloc}", f"Content-Length: {len(content)}"]
    if body is not None:
        lines.append("Content-Type: application/json")
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + content


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split(" ", 2)[1]), {name.lower(): value for name, value in headers.items()}


async def _read_answer(reader: asyncio.StreamReader) -> WireAnswer:
    status, headers = await _read_head(reader)
    return WireAnswer(status, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event: its cursor, its type, and its data."""

    cursor: str
    type: str
    data: Any


class Stream:
    """An open event stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""

    async def batches(self) -> AsyncIterator[list[StreamEvent]]:
        """The events as they arrive; ends when the server ends the stream, raises one of BROKEN when it breaks."""
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            piece = (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                return
            *whole, self._rest = (self._rest + piece).split(b"\n\n")
            events = [each for each in map(_parse_event, whole) if each is not None]
            if events:
                yield events

    async def events(self) -> AsyncIterator[StreamEvent]:
        """One event after the other."""
        async for batch in self.batches():
            for event in batch:
                yield event

    async def take(self, count: int) -> list[StreamEvent]:
        """The next events, at least so many."""
        taken: list[StreamEvent] = []
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            async for batch in self.batches():
                taken += batch
                if len(taken) >= count:
                    return taken
        raise ConnectionError(f"the stream ended after {len(taken)} of {count} events")

    async def end(self) -> list[StreamEvent]:
        """Everything up to the end that the server makes."""
        return [event async for event in self.events()]

    def abort(self) -> None:
        """Break the connection at once, whatever is on its way."""
        self._writer.transport.abort()


def _parse_event(block: bytes) -> StreamEvent | None:
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
    if b"data" not in fields:
        return None
    return StreamEvent(fields.get(b"id", b"").decode(), fields[b"event"].decode(), json.loads(fields[b"data"]))


@asynccontextmanager
async def stream(
    url: str, token: str, path: str, *, after: str | None = None, buffer_bytes: int | None = None
) -> AsyncIterator[Stream]:
    """Open an event stream, after a cursor if one is given. A small buffer makes a consumer that is slow at once."""
    parts = urlsplit(url)
    plain = socket.socket()
    plain.setblocking(False)
    if buffer_bytes is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    await asyncio.get_running_loop().sock_connect(plain, (parts.hostname, parts.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=buffer_bytes or 1 << 22)
    try:
        headers = {} if after is None else {"Last-Event-ID": after}
        writer.write(request_bytes(url, token, ("GET", path), None, headers))
        status, answered = await _read_head(reader)
        if status != 200:
            body = await reader.readexactly(int(answered["content-length"]))
            raise AssertionError(f"the stream was refused: {status} {body.decode()}")
        yield Stream(reader, writer)
    finally:
        writer.transport.abort()
