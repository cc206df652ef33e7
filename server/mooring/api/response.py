"""Answers: a whole one, or one that goes on until somebody ends it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class Response(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    body: bytes
    media_type: str = "application/json"
    headers: dict[str, str] = {}  # each gets a dictionary of its own


@dataclass(frozen=True, slots=True)
class StreamingResponse:
    """An answer in pieces; it ends when the pieces do, or when the caller has gone."""

    pieces: AsyncIterator[bytes]
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, common: dict[str, str], send: Send, receive: Receive) -> None:
        """Send the pieces, and stop at once when the caller hangs up."""
        headers = {**common, **self.headers, "content-type": self.media_type}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        sending = asyncio.create_task(self._pieces(send))
        gone = asyncio.create_task(_hang_up(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
        if sending.done() and not sending.cancelled() and sending.exception() is not None:
            raise RuntimeError("the stream broke") from sending.exception()

    async def _pieces(self, send: Send) -> None:
        async for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
