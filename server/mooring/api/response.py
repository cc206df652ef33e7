"""Responses: a whole one, or a stream."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Response(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    body: bytes
    media_type: str = "application/json"
    headers: dict[str, str] = {}  # msgspec copies the default for each instance


@dataclass(frozen=True, slots=True)
class StreamingResponse:
    """A response in pieces; it ends with the pieces, or when the caller disconnects."""

    pieces: AsyncIterator[bytes]
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, common: dict[str, str], send: Send, receive: Receive) -> None:
        """Send the pieces, and stop at once when the caller disconnects."""
        headers = {**common, **self.headers, "content-type": self.media_type}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        sending = asyncio.create_task(self._pieces(send))
        disconnect = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnect):
                task.cancel()
            await asyncio.gather(sending, disconnect, return_exceptions=True)
        if sending.done() and not sending.cancelled() and sending.exception() is not None:
            raise RuntimeError("the stream broke") from sending.exception()

    async def _pieces(self, send: Send) -> None:
        async for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
