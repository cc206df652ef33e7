"""One WebSocket while it is open: three tasks read, send and ping, until one of them ends.

It is imported when the first WebSocket is opened, since the library behind it takes a while to load.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from websockets.frames import CloseCode

from mooring.api.problem import STATUS, problem
from mooring.api.request_cycle import BYTES
from mooring.api.stream import StreamChunk
from mooring.api.websocket import WebSocket
from mooring.core.kernel.errors import Code, Refusal

if TYPE_CHECKING:
    from mooring.api.socket import WebSocketResponse

FIRST_MESSAGE_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
OWN_CODES: Final = 4000

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
encode = msgspec.json.Encoder().encode


class FirstMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What a caller without an `Authorization` header sends first."""

    token: str


@dataclass(slots=True)
class WebSocketSession:
    """One WebSocket while it is open."""

    socket: "WebSocketResponse"
    write: Send
    receive: Receive
    correlation_id: str
    protocol: WebSocket = field(default_factory=WebSocket)
    first: "asyncio.Future[bytes]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    received_at: float = field(default_factory=time.monotonic)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Read, send and ping, until one of the three ends."""
        tasks = [asyncio.create_task(each) for each in (self._read(), self._send_pieces(), self._ping())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not self.protocol.is_open and not tasks[0].done():  # the caller answers our close, or does not
                await asyncio.wait(tasks[:1], timeout=CLOSE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [each for each in outcomes if isinstance(each, Exception)]
        if failures:
            await self._close(CloseCode.INTERNAL_ERROR, "Mooring failed; its log says why")
            raise RuntimeError("the WebSocket failed") from failures[0]

    async def _read(self) -> None:
        """Take what the caller sends, until they close or break a rule."""
        while (message := await self.receive())["type"] == BYTES:
            self.received_at = time.monotonic()
            for text in self.protocol.receive(message["body"]):
                if self.socket.admit is None or self.first.done():
                    self.protocol.fail(CloseCode.POLICY_VIOLATION, "this WebSocket takes no messages")
                    break
                self.first.set_result(text)
            await self._flush()
            if self.protocol.is_finished:
                return

    async def _send_pieces(self) -> None:
        """Send the pieces, once the caller is known."""
        try:
            pieces = self.socket.pieces or await self._admitted()
        except Refusal as refusal:
            await self._refuse(refusal)
            return
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if piece.ends is not None:
                    await self._refuse(piece.ends)
                    return
                await self._send(_messages(piece))
        await self._close(CloseCode.GOING_AWAY, "the server stops; continue after the last cursor")

    async def _admitted(self) -> AsyncGenerator[StreamChunk, None]:
        """The pieces for the caller whose token comes in the first message."""
        if self.socket.admit is None:
            raise ValueError("a WebSocket has pieces, or a way to get them")
        try:
            async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                first = await self.first
        except TimeoutError as error:
            raise Refusal(Code.UNAUTHENTICATED, "no token came: send it in the first message") from error
        try:
            decoded = msgspec.json.decode(first, type=FirstMessage)
        except msgspec.MsgspecError as error:
            raise Refusal(Code.UNAUTHENTICATED, 'the first message is {"token": "…"}') from error
        admitted = await self.socket.admit(decoded.token)
        if admitted.pieces is None:
            raise ValueError("an admitted WebSocket has pieces")
        return admitted.pieces

    async def _ping(self) -> None:
        """Cut off a caller who sends nothing, not even an answer to a ping."""
        while True:
            await asyncio.sleep(self.socket.ping_seconds)
            if time.monotonic() - self.received_at > self.socket.silent_seconds_max:
                await self._close(CloseCode.POLICY_VIOLATION, "nothing was received, not even an answer to a ping")
                return
            if self.protocol.is_open:
                self.protocol.ping()
                await self._flush()

    async def _refuse(self, refusal: Refusal) -> None:
        body = problem(refusal, self.correlation_id)
        await self._send([encode({"kind": "closed", "reason": refusal.detail, "problem": body})])
        await self._close(OWN_CODES + STATUS[refusal.code], refusal.detail)

    async def _send(self, messages: Iterable[bytes]) -> None:
        if self.protocol.is_open:
            self.protocol.send(messages)
            await self._flush()

    async def _close(self, code: int, reason: str) -> None:
        if self.protocol.is_open:
            self.protocol.close(code, reason)
            await self._flush()

    async def _flush(self) -> None:
        """Send what is to be sent, one task after the other, so that nothing overtakes and the close comes last."""
        async with self.writing:
            if data := self.protocol.outgoing():
                await self.write({"type": BYTES, "body": data})


def _messages(piece: StreamChunk) -> list[bytes]:
    if not piece.items:
        return [encode({"kind": "open" if piece.opens else "still_here", "cursor": piece.place.cursor()})]
    return [
        b'{"kind":"item","cursor":%b,"type":%b,"item":%b}' % (encode(item.cursor), encode(item.type), item.body)
        for item in piece.items
    ]
