"""A carrier: one connection that a node dialled, and the streams that are opened through it.

Each stream has room for a bounded number of bytes on the way in each direction, so that a slow reader holds up its own
stream and no other, and neither side piles up what nobody reads.
"""

import asyncio
import json
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from mooring.core.kernel.errors import Code, Refusal
from mooring.relay.frames import (
    CLOSE,
    DATA,
    END,
    ERRORS,
    EXIT,
    FAILURE,
    FRAME_MAX,
    OPEN,
    ROOM,
    WINDOW,
    FrameRefused,
    TunnelFrame,
    packed,
    read_frame,
)
from mooring.relay.http import write

ANSWER_SECONDS: Final = 20.0
STREAMS_MAX: Final = 256
ARRIVED_MAX: Final = 64
"""Frames of one stream that wait: with small ones put together, a whole window is about half of that."""
LAST: Final = (FAILURE, CLOSE)
BYTES: Final = (DATA, ERRORS)
"""Frames that take room."""


LOST: Final = json.dumps({"code": "tunnel_lost", "detail": "the node hung up"}).encode()


@dataclass(slots=True)
class TunnelStream:
    """One stream through a carrier."""

    carrier: "TunnelConnection"
    number: int
    arrived: deque[TunnelFrame] = field(default_factory=deque)
    has_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    answered: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    room: int = 0
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    waiting_bytes: int = 0
    at_end: bool = False

    async def next(self) -> TunnelFrame:
        """What comes next from inside: data, its end, an exit code, a failure or the close."""
        while not self.arrived:
            self.has_arrived.clear()
            await self.has_arrived.wait()
        frame = self.arrived.popleft()
        if frame.kind in BYTES:
            self.waiting_bytes -= len(frame.data)
            with suppress(ConnectionError):  # a node that is gone needs no room: what it sent before is still told
                await self.carrier.send(ROOM, self.number, len(frame.data).to_bytes(4))
        return frame

    def take(self, frame: TunnelFrame) -> None:
        """Keep what came from inside, within bounds; small pieces are put together."""
        if self.at_end and frame.kind in (*BYTES, END):
            raise FrameRefused("the node sends on after its end")
        self.at_end = self.at_end or frame.kind == END
        if frame.kind in BYTES:
            self.waiting_bytes += len(frame.data)
            if self.waiting_bytes > WINDOW:
                raise FrameRefused("the node sends more than there is room for")
            if self._joined(frame):
                return
        if len(self.arrived) >= ARRIVED_MAX:
            raise FrameRefused("the node sends more frames than anybody reads")
        self.arrived.append(frame)
        self.has_arrived.set()

    def _joined(self, frame: TunnelFrame) -> bool:
        """Put a small piece to the one before it of its kind; output and errors, which alternate, are two kinds."""
        for place in range(len(self.arrived) - 1, max(-1, len(self.arrived) - 3), -1):
            before = self.arrived[place]
            if before.kind == frame.kind:  # nothing overtakes what is of its own kind
                if len(before.data) + len(frame.data) > FRAME_MAX:
                    return False
                self.arrived[place] = TunnelFrame(frame.kind, self.number, before.data + frame.data)
                return True
        return False

    async def receive(self) -> bytes:
        """The next bytes from inside; empty at the end. A failure inside is a refusal."""
        while True:
            frame = await self.next()
            if frame.kind == DATA:
                return frame.data
            if frame.kind == FAILURE:
                raise failure_of(frame)
            if frame.kind in (END, CLOSE):
                return b""

    async def send(self, data: bytes) -> None:
        """Bytes for what is inside, as fast as it takes them."""
        for start in range(0, len(data), FRAME_MAX):
            part = data[start : start + FRAME_MAX]
            while self.room < len(part):
                self.has_room.clear()
                await self.has_room.wait()
                if self.carrier.ended:
                    raise ConnectionResetError("the tunnel is gone")
            self.room -= len(part)
            await self.carrier.send(DATA, self.number, part)

    async def tell(self, kind: bytes, data: bytes = b"") -> None:
        """An end, a window size or a signal."""
        await self.carrier.send(kind, self.number, data)

    async def close(self) -> None:
        """Nobody looks at this stream any more."""
        if self.carrier.streams.pop(self.number, None) is not None:
            with suppress(ConnectionError):  # a node that is gone has closed it
                await self.carrier.send(CLOSE, self.number)


class TunnelConnection:
    """A node's connection to this relay, for one owner and these ports, or for one command."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ports: tuple[int, ...]) -> None:
        self.ports = ports
        self.streams: dict[int, TunnelStream] = {}
        self.ended = False
        self._reader = reader
        self._writer = writer
        self._numbers = 0

    async def open(self, asked: dict[str, Any]) -> TunnelStream:
        """A new stream, once the node says that what is inside answers."""
        if len(self.streams) >= STREAMS_MAX:
            raise Refusal(Code.RATE_LIMITED, f"{STREAMS_MAX} connections are open here", {"retry_after_seconds": 5})
        self._numbers += 1
        stream = TunnelStream(self, self._numbers)
        self.streams[stream.number] = stream
        try:
            await self.send(OPEN, stream.number, json.dumps(asked).encode())
            async with asyncio.timeout(ANSWER_SECONDS):
                await stream.answered
        except (TimeoutError, ConnectionError) as error:
            await stream.close()
            raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node does not answer for this connection") from error
        except BaseException:
            await stream.close()
            raise
        return stream

    async def carry(self) -> None:
        """Take what the node sends until it is gone; then every stream ends."""
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self._take(frame)
        except (FrameRefused, ConnectionError):
            return  # a node that speaks otherwise, or is gone, is hung up on: the streams below say so
        finally:
            self.ended = True
            self._writer.close()
            for stream in self.streams.values():
                stream.arrived.append(TunnelFrame(FAILURE, stream.number, LOST))
                stream.has_arrived.set()
                stream.has_room.set()
                _settle(stream, Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node hung up"))

    async def send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        """One frame to the node."""
        if self.ended:
            raise ConnectionResetError("the tunnel is gone")
        await write(self._writer, packed(kind, number, data))

    def hang_up(self) -> None:
        """End the connection; `carry` returns."""
        self._writer.close()

    def _take(self, frame: TunnelFrame) -> None:
        stream = self.streams.get(frame.stream)
        if stream is None:
            return  # it has ended on this side a moment ago
        if frame.kind == ROOM:
            stream.room += int.from_bytes(frame.data[:8])
            if len(frame.data) != 4 or stream.room > WINDOW:
                raise FrameRefused("the node has no such room")
            stream.has_room.set()
            _settle(stream, None)
            return
        if frame.kind not in (*BYTES, END, EXIT, *LAST) or (frame.kind == ERRORS and self.ports):
            raise FrameRefused(f"a node sends no {frame.kind!r}")
        if frame.kind in LAST and not stream.answered.done():
            closed = Refusal(Code.TEMPORARILY_UNAVAILABLE, "inside the sandbox: nothing answers there")
            _settle(stream, failure_of(frame) if frame.kind == FAILURE else closed)
            return
        stream.take(frame)


def failure_of(frame: TunnelFrame) -> Refusal:
    """What a node said that went wrong, as the platform says it."""
    try:
        told = json.loads(frame.data)
        code, detail = str(told["code"])[:60], str(told["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        code, detail = "host_error", "the node said something that cannot be read"
    known = {
        "not_found": Code.NOT_FOUND,
        "refused": Code.PERMISSION_DENIED,
        "permission_denied": Code.PERMISSION_DENIED,
    }
    said = detail if frame.data == LOST else f"inside the sandbox: {detail}"
    return Refusal(known.get(code, Code.TEMPORARILY_UNAVAILABLE), said, {"node_code": code})


def _settle(stream: TunnelStream, refusal: Refusal | None) -> None:
    if stream.answered.done():
        return
    if refusal is None:
        stream.answered.set_result(None)
    else:
        stream.answered.set_exception(refusal)
