"""HTTP/1.1 on a socket, with h11: what the relay and its proxy read and write."""

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
    """The other side is gone, or does not speak HTTP; `status` is the answer for it, or 0 for none."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send bytes and wait until there is room for more; raises ConnectionResetError on every kind of event loop."""
    if writer.is_closing():
        raise ConnectionResetError("the peer closed the connection")
    writer.write(data)
    await writer.drain()


class ServedConnection:
    """The server side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.state = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)

    @property
    def remote_address(self) -> str | None:
        peer = self.writer.get_extra_info("peername")
        return str(peer[0]) if peer else None

    async def request(self) -> h11.Request | None:
        """The head of the next request; None when there is none. It must be complete within the idle time."""
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                event = await self.event()
        except TimeoutError as error:
            raise PeerGone("the head took too long") from error
        return event if isinstance(event, h11.Request) else None

    @property
    def can_answer(self) -> bool:
        """Whether no part of an answer was sent yet."""
        return self.state.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    async def event(self, seconds: float = IDLE_SECONDS) -> Any:
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
                raise PeerGone("the peer sent nothing in time") from error
            self.state.receive_data(data)

    async def send(self, event: Any) -> None:
        data = self.state.send(event)
        if data:
            await write(self.writer, data)

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a whole answer, after which the connection is closed."""
        all_headers = [*headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        await self.send(h11.Response(status_code=status, headers=all_headers))
        await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())

    async def refuse(self, refusal: Refusal, status: int) -> None:
        """Answer with a problem document."""
        problem = {"code": refusal.code.value, "detail": refusal.detail, "status": status, "title": refusal.code.value}
        kinds = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store")]
        await self.answer(status, kinds, json.dumps(problem).encode())

    async def switch(self, protocol: bytes) -> bytes:
        """Switch protocols with a 101 answer; returns bytes of the new protocol that were received already."""
        headers = [(b"connection", b"Upgrade"), (b"upgrade", protocol)]
        await self.send(h11.InformationalResponse(status_code=101, headers=headers))
        return bytes(self.state.trailing_data[0])


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header; None unless it occurs exactly once."""
    found = [value for each, value in headers if each == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


def list_items(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[str]:
    """The items of a list header, in lower case."""
    joined = ",".join(value.decode("latin-1") for each, value in headers if each == name)
    return {item.strip().lower() for item in joined.split(",") if item.strip()}


def wants_switch(headers: Iterable[tuple[bytes, bytes]], protocol: str) -> bool:
    """Whether the request asks to switch to this protocol."""
    listed = list(headers)
    return "upgrade" in list_items(listed, b"connection") and (value_of(listed, b"upgrade") or "").lower() == protocol
