"""HTTP/1.1 on a socket, with h11: what the relay and its proxy read and write."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import h11

from mooring.core.kernel.errors import Refusal

HEAD_MAX: Final = 65_536
READ_BYTES: Final = 65_536
IDLE_SECONDS: Final = 75.0
HEAD_SECONDS: Final = 15.0
"""How long the head of a request may take from its first byte; of a connection's first request, from the connection."""

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
        self._has_served = False

    @property
    def remote_address(self) -> str | None:
        peer = self.writer.get_extra_info("peername")
        return str(peer[0]) if peer else None

    async def request(self) -> h11.Request | None:
        """The head of the next request; None when there is none. It must be complete soon after its first byte."""
        loop = asyncio.get_running_loop()
        has_begun = not self._has_served
        try:
            async with asyncio.timeout(HEAD_SECONDS if has_begun else IDLE_SECONDS) as bound:

                def hurry() -> None:
                    nonlocal has_begun
                    if not has_begun:
                        has_begun = True
                        bound.reschedule(loop.time() + HEAD_SECONDS)

                event = await self.event(on_data=hurry)
        except TimeoutError as error:
            raise PeerGone("the head took too long", 408 if has_begun else 0) from error
        self._has_served = True
        return event if isinstance(event, h11.Request) else None

    @property
    def can_answer(self) -> bool:
        """Whether no part of an answer was sent yet."""
        return self.state.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    async def event(self, seconds: float = IDLE_SECONDS, on_data: Callable[[], None] | None = None) -> Any:
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
            except OSError as error:  # a time-out, a broken connection, or TLS that failed
                raise PeerGone("the peer sent nothing in time") from error
            if on_data is not None and data:
                on_data()
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
        if "retry_after_seconds" in refusal.details:
            kinds.append((b"retry-after", str(refusal.details["retry_after_seconds"]).encode()))
        await self.answer(status, kinds, json.dumps(problem).encode())

    async def refuse_unread(self, refusal: Refusal, status: int) -> None:
        """Answer a connection of which nothing is read."""
        problem = {"code": refusal.code.value, "detail": refusal.detail, "status": status, "title": refusal.code.value}
        body = json.dumps(problem).encode()
        head = (
            f"HTTP/1.1 {status} \r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n"
            f"retry-after: {refusal.details.get('retry_after_seconds', 1)}\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        await write(self.writer, head.encode("ascii") + body)

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
