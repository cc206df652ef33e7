"""A stream as a WebSocket: the same pieces as server-sent events, a message each.

A caller shows his token in the `Authorization` header, or, where he cannot set one as in a browser, in his first
message, `{"token": "…"}`, within a bounded time; never in the address. After that he has nothing to say: what he sends
beyond control frames ends the connection. He is pinged, and one who answers nothing is gone.

Messages are JSON objects with a `kind`: `open` and `still_here` tell the cursor, `item` brings one thing with its
cursor, `closed` says why the stream ends, right before the close frame. A close code of the platform's own is 4000 plus
the status with which HTTP would have answered.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooring.api import websocket
from mooring.api.problem import STATUS, problem
from mooring.api.request_cycle import BYTES, SWITCH
from mooring.api.stream import StreamChunk
from mooring.api.websocket import Opcode, WebSocketError, WebSocketMessage
from mooring.core.kernel.errors import Code, Refusal

FIRST_MESSAGE_SECONDS: Final = 10.0
PING_SECONDS: Final = 20.0
SILENT_SECONDS_MAX: Final = 60.0
CLOSE_SECONDS: Final = 5.0
OWN_CODES: Final = 4000

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
encode = msgspec.json.Encoder().encode


class FirstMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What a caller without a header says first."""

    token: str


@dataclass(frozen=True, slots=True)
class WebSocketResponse:
    """An answer that goes on as a WebSocket: what is told, or how that is found once a token was shown."""

    headers: dict[str, str]
    pieces: AsyncGenerator[StreamChunk, None] | None = None
    admit: Callable[[str], Awaitable["WebSocketResponse"]] | None = None
    ping_seconds: float = PING_SECONDS
    silent_seconds_max: float = SILENT_SECONDS_MAX

    async def send(self, common: dict[str, str], send: Send, receive: Receive) -> None:
        """Switch the protocol, and tell until one of both ends it."""
        await send({"type": SWITCH, "headers": {**common, **self.headers}})
        await _WebSocketSession(self, send, receive, common["x-correlation-id"]).run()


@dataclass(slots=True)
class _WebSocketSession:
    """One WebSocket while it is open."""

    socket: WebSocketResponse
    write: Send
    receive: Receive
    correlation_id: str
    first: "asyncio.Future[bytes]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    heard_at: float = field(default_factory=time.monotonic)
    closed: bool = False  # the close frame of ours is out

    async def run(self) -> None:
        """Read, tell and ping, until one of the three comes to an end."""
        tasks = [asyncio.create_task(each) for each in (self._read(), self._tell(), self._ping())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self.closed and not tasks[0].done():  # the caller answers our close, or does not
                await asyncio.wait(tasks[:1], timeout=CLOSE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        broken = [each for each in outcomes if isinstance(each, Exception)]
        if broken:
            await self._close(websocket.INTERNAL, "Mooring failed; its log says why")
            raise RuntimeError("the WebSocket broke") from broken[0]

    async def _read(self) -> None:
        """Take what the caller sends, until he says or shows that he is through."""
        reader = websocket.WebSocketReader()
        while (message := await self.receive())["type"] == BYTES:
            self.heard_at = time.monotonic()
            try:
                for received in reader.feed(message["body"]):
                    if not await self._heard(received):
                        return
            except WebSocketError as broken:
                await self._close(broken.code, broken.reason)
                return

    async def _heard(self, received: WebSocketMessage) -> bool:
        """One message of the caller's; returns whether more may come."""
        if received.opcode is Opcode.CLOSE:
            await self._close(received.close_code)
            return False
        if received.opcode is Opcode.PING:
            await self._frame(websocket.frame(Opcode.PONG, received.payload))
        elif received.opcode is Opcode.BINARY:
            raise WebSocketError(websocket.UNSUPPORTED, "messages are text")
        elif received.opcode is Opcode.TEXT:
            if self.socket.admit is None or self.first.done():
                raise WebSocketError(websocket.POLICY, "there is nothing to be said here")
            self.first.set_result(received.payload)
        return True

    async def _tell(self) -> None:
        """Tell the pieces, once it is known who the caller is."""
        try:
            told = self.socket.pieces or await self._admitted()
        except Refusal as refusal:
            await self._refuse(refusal)
            return
        async with contextlib.aclosing(told):
            async for piece in told:
                if piece.ends is not None:
                    await self._refuse(piece.ends)
                    return
                await self._piece(piece)
        await self._close(websocket.GOING_AWAY, "the server stops; go on after the last cursor")

    async def _admitted(self) -> AsyncGenerator[StreamChunk, None]:
        """What is told to the caller whose token comes in the first message."""
        if self.socket.admit is None:
            raise ValueError("a WebSocket has pieces, or a way to find them")
        try:
            async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                first = await self.first
        except TimeoutError as error:
            raise Refusal(Code.UNAUTHENTICATED, "no token came: say it in the first message") from error
        try:
            said = msgspec.json.decode(first, type=FirstMessage)
        except msgspec.MsgspecError as error:
            raise Refusal(Code.UNAUTHENTICATED, 'the first message is {"token": "…"}') from error
        admitted = await self.socket.admit(said.token)
        if admitted.pieces is None:
            raise ValueError("an admitted WebSocket has pieces")
        return admitted.pieces

    async def _ping(self) -> None:
        """See whether the caller is still there."""
        while True:
            await asyncio.sleep(self.socket.ping_seconds)
            if time.monotonic() - self.heard_at > self.socket.silent_seconds_max:
                await self._close(websocket.POLICY, "nothing was heard, not even an answer to a ping")
                return
            await self._frame(websocket.frame(Opcode.PING))

    async def _piece(self, piece: StreamChunk) -> None:
        if not piece.items:
            kind = "open" if piece.opens else "still_here"
            await self._text(encode({"kind": kind, "cursor": piece.place.cursor()}))
            return
        await self._frame(
            b"".join(
                websocket.frame(
                    Opcode.TEXT,
                    b'{"kind":"item","cursor":%b,"type":%b,"item":%b}'
                    % (encode(item.cursor), encode(item.type), item.body),
                )
                for item in piece.items
            )
        )

    async def _refuse(self, refusal: Refusal) -> None:
        told = problem(refusal, self.correlation_id)
        await self._text(encode({"kind": "closed", "reason": refusal.detail, "problem": told}))
        await self._close(OWN_CODES + STATUS[refusal.code], refusal.detail)

    async def _text(self, payload: bytes) -> None:
        await self._frame(websocket.frame(Opcode.TEXT, payload))

    async def _close(self, code: int, reason: str = "") -> None:
        if not self.closed:
            await self._frame(websocket.close_frame(code, reason))
            self.closed = True

    async def _frame(self, data: bytes) -> None:
        if not self.closed:
            await self.write({"type": BYTES, "body": data})
