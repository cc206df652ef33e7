"""HTTP/1.1 heads and bodies on a socket, by h11: what the relay and its proxy read and write."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final

import h11

from mooring.core.errors import Refusal

HEAD_MAX: Final = 65_536
READ_BYTES: Final = 65_536
IDLE_SECONDS: Final = 75.0

Headers = list[tuple[bytes, bytes]]


class Hangup(Exception):
    """The other side is gone, or speaks no HTTP."""


class Served:
    """A connection that somebody made to us."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.state = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)

    @property
    def remote_address(self) -> str | None:
        """Where the other side is."""
        peer = self.writer.get_extra_info("peername")
        return str(peer[0]) if peer else None

    async def event(self, seconds: float = IDLE_SECONDS) -> Any:
        """The next event of the request."""
        while True:
            try:
                event = self.state.next_event()
            except h11.RemoteProtocolError as error:
                raise Hangup(str(error)) from error
            if event is not h11.NEED_DATA:
                return event
            if self.state.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                data = await asyncio.wait_for(self.reader.read(READ_BYTES), seconds)
            except (TimeoutError, ConnectionError) as error:
                raise Hangup("nothing came") from error
            self.state.receive_data(data)

    async def send(self, event: Any) -> None:
        """Write an event of the answer."""
        data = self.state.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """A whole answer; the connection ends with it."""
        told = [*headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        await self.send(h11.Response(status_code=status, headers=told))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def refuse(self, refusal: Refusal, status: int) -> None:
        """A problem document."""
        problem = {"code": refusal.code.value, "detail": refusal.detail, "status": status, "title": refusal.code.value}
        kinds = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store")]
        await self.answer(status, kinds, json.dumps(problem).encode())

    async def switch(self, protocol: bytes) -> bytes:
        """Answer that this connection speaks something else now; the bytes of it that are here already."""
        told = [(b"connection", b"Upgrade"), (b"upgrade", protocol)]
        await self.send(h11.InformationalResponse(status_code=101, headers=told))
        return bytes(self.state.trailing_data[0])


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header; none unless it stands exactly once."""
    found = [value for each, value in headers if each == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


def wants_switch(headers: Iterable[tuple[bytes, bytes]], protocol: str) -> bool:
    """Whether the request asks to speak this protocol from here on."""
    listed = list(headers)
    connection = value_of(listed, b"connection") or ""
    words = {word.strip().lower() for word in connection.split(",")}
    return "upgrade" in words and (value_of(listed, b"upgrade") or "").lower() == protocol
