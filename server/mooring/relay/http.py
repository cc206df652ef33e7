"""HTTP/1.1 heads and bodies on a socket, by h11: what the relay and its proxy read and write."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final

import h11

from mooring.core.kernel.errors import Refusal

HEAD_MAX: Final = 65_536
READ_BYTES: Final = 65_536
IDLE_SECONDS: Final = 75.0

Headers = list[tuple[bytes, bytes]]


class PeerGone(Exception):
    """The other side is gone, or speaks no HTTP; `status` is what it is told, where it can be told anything."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send bytes, and wait until there is room for more; that nobody reads them is one error on every event loop."""
    if writer.is_closing():
        raise ConnectionResetError("the other side hung up")
    writer.write(data)
    await writer.drain()


class ServedConnection:
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

    async def request(self) -> h11.Request | None:
        """The next request's head, which is here whole within the time that a connection may idle; none: no more."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                event = await self.event()
        except TimeoutError as error:
            raise PeerGone("the head took too long") from error
        return event if isinstance(event, h11.Request) else None

    @property
    def can_answer(self) -> bool:
        """Whether nothing of an answer was sent yet."""
        return self.state.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    async def event(self, seconds: float = IDLE_SECONDS) -> Any:
        """The next event of the request."""
        while True:
            try:
                event = self.state.next_event()
            except h11.RemoteProtocolError as error:
                raise PeerGone(str(error), error.error_status_hint) from error
            if event is not h11.NEED_DATA:
                return event
            if self.state.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                async with asyncio.timeout(seconds):
                    data = await self.reader.read(READ_BYTES)
            except (TimeoutError, ConnectionError) as error:
                raise PeerGone("nothing came") from error
            self.state.receive_data(data)

    async def send(self, event: Any) -> None:
        """Write an event of the answer."""
        data = self.state.send(event)
        if data:
            await write(self.writer, data)

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


def words_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[str]:
    """The words of a header that is a list, in lower case."""
    joined = ",".join(value.decode("latin-1") for each, value in headers if each == name)
    return {word.strip().lower() for word in joined.split(",") if word.strip()}


def wants_switch(headers: Iterable[tuple[bytes, bytes]], protocol: str) -> bool:
    """Whether the request asks to speak this protocol from here on."""
    listed = list(headers)
    return "upgrade" in words_of(listed, b"connection") and (value_of(listed, b"upgrade") or "").lower() == protocol
