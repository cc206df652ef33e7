"""A tunnel: one connection that a node opened, and the streams through it.

Each stream may have a limited number of bytes in flight in each direction, so that a slow reader delays its own stream
and no other, and neither side buffers without limit.
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
"""The most frames of one stream that wait; as small ones are merged, a full window is about half of that."""
LAST: Final = (FAILURE, CLOSE)
BYTES: Final = (DATA, ERRORS)
"""Frames that use credit."""


LOST: Final = json.dumps({"code": "tunnel_lost", "detail": "the node closed the connection"}).encode()


@dataclass(slots=True)
class TunnelStream:
    """One stream through a tunnel; `room` is the credit that is left for sending."""

    tunnel: "TunnelConnection"
    number: int
    arrived: deque[TunnelFrame] = field(default_factory=deque)
    has_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    answered: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    room: int = 0
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    waiting_bytes: int = 0
    at_end: bool = False

    async def next(self) -> TunnelFrame:
        """The next frame from the sandbox: data, its end, an exit code, a failure or the close."""
        while not self.arrived:
            self.has_arrived.clear()
            await self.has_arrived.wait()
        frame = self.arrived.popleft()
        if frame.kind in BYTES:
            self.waiting_bytes -= len(frame.data)
            with suppress(ConnectionError):  # a node that is gone needs no credit; what it sent is still delivered
                await self.tunnel.send(ROOM, self.number, len(frame.data).to_bytes(4))
        return frame

    def take(self, frame: TunnelFrame) -> None:
        """Queue a frame from the sandbox, within limits; small pieces are merged."""
        if self.at_end and frame.kind in (*BYTES, END):
            raise FrameRefused("the node sent data after its end")
        self.at_end = self.at_end or frame.kind == END
        if frame.kind in BYTES:
            self.waiting_bytes += len(frame.data)
            if self.waiting_bytes > WINDOW:
                raise FrameRefused("the node sent more than its credit")
            if self._merged(frame):
                return
        if len(self.arrived) >= ARRIVED_MAX:
            raise FrameRefused("the node sent too many frames that nobody reads")
        self.arrived.append(frame)
        self.has_arrived.set()

    def _merged(self, frame: TunnelFrame) -> bool:
        """Merge a small piece into the last one of its kind; output and errors may alternate, so two are checked."""
        for index in range(len(self.arrived) - 1, max(-1, len(self.arrived) - 3), -1):
            before = self.arrived[index]
            if before.kind == frame.kind:  # the order within a kind stays
                if len(before.data) + len(frame.data) > FRAME_MAX:
                    return False
                self.arrived[index] = TunnelFrame(frame.kind, self.number, before.data + frame.data)
                return True
        return False

    async def receive(self) -> bytes:
        """The next bytes from the sandbox; empty at the end. Raises a Refusal for a failure in the sandbox."""
        while True:
            frame = await self.next()
            if frame.kind == DATA:
                return frame.data
            if frame.kind == FAILURE:
                raise failure_of(frame)
            if frame.kind in (END, CLOSE):
                return b""

    async def send(self, data: bytes) -> None:
        """Send bytes to the sandbox, as fast as it gives credit."""
        for start in range(0, len(data), FRAME_MAX):
            part = data[start : start + FRAME_MAX]
            while self.room < len(part):
                self.has_room.clear()
                await self.has_room.wait()
                if self.tunnel.ended:
                    raise ConnectionResetError("the tunnel is closed")
            self.room -= len(part)
            await self.tunnel.send(DATA, self.number, part)

    async def send_control(self, kind: bytes, data: bytes = b"") -> None:
        """Send an end, a window size or a signal."""
        await self.tunnel.send(kind, self.number, data)

    async def close(self) -> None:
        """Close the stream on this side and at the node."""
        if self.tunnel.streams.pop(self.number, None) is not None:
            with suppress(ConnectionError):  # the node is gone, and with it the stream
                await self.tunnel.send(CLOSE, self.number)


class TunnelConnection:
    """A node's connection to this relay, for one owner and these ports, or for one command."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ports: tuple[int, ...]) -> None:
        self.ports = ports
        self.streams: dict[int, TunnelStream] = {}
        self.ended = False
        self._reader = reader
        self._writer = writer
        self._numbers = 0

    async def open(self, request: dict[str, Any]) -> TunnelStream:
        """Open a stream; returns once the node reports that the port or the command answers."""
        if len(self.streams) >= STREAMS_MAX:
            raise Refusal(Code.RATE_LIMITED, f"{STREAMS_MAX} connections are open here", {"retry_after_seconds": 5})
        self._numbers += 1
        stream = TunnelStream(self, self._numbers)
        self.streams[stream.number] = stream
        try:
            await self.send(OPEN, stream.number, json.dumps(request).encode())
            async with asyncio.timeout(ANSWER_SECONDS):
                await stream.answered
        except (TimeoutError, ConnectionError) as error:
            await stream.close()
            raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node did not answer in time") from error
        except BaseException:
            await stream.close()
            raise
        return stream

    async def run(self) -> None:
        """Read what the node sends until it is gone; then end every stream."""
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self._take(frame)
        except (FrameRefused, ConnectionError):
            return  # the node broke the protocol or is gone: the streams below end with that failure
        finally:
            self.ended = True
            self._writer.close()
            for stream in self.streams.values():
                stream.arrived.append(TunnelFrame(FAILURE, stream.number, LOST))
                stream.has_arrived.set()
                stream.has_room.set()
                _settle(stream, Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node closed the connection"))

    async def send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        if self.ended:
            raise ConnectionResetError("the tunnel is closed")
        await write(self._writer, packed(kind, number, data))

    def hang_up(self) -> None:
        """Close the connection; `run` returns."""
        self._writer.close()

    def _take(self, frame: TunnelFrame) -> None:
        stream = self.streams.get(frame.stream)
        if stream is None:
            return  # it was closed on this side a moment ago
        if frame.kind == ROOM:
            stream.room += int.from_bytes(frame.data[:8])
            if len(frame.data) != 4 or stream.room > WINDOW:
                raise FrameRefused("the node sent an invalid credit")
            stream.has_room.set()
            _settle(stream, None)
            return
        if frame.kind not in (*BYTES, END, EXIT, *LAST) or (frame.kind == ERRORS and self.ports):
            raise FrameRefused(f"a node must not send {frame.kind!r}")
        if frame.kind in LAST and not stream.answered.done():
            closed = Refusal(Code.TEMPORARILY_UNAVAILABLE, "inside the sandbox: nothing answers there")
            _settle(stream, failure_of(frame) if frame.kind == FAILURE else closed)
            return
        stream.take(frame)


def failure_of(frame: TunnelFrame) -> Refusal:
    """The Refusal for a failure that a node reported."""
    try:
        failure = json.loads(frame.data)
        code, detail = str(failure["code"])[:60], str(failure["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        code, detail = "host_error", "the node sent a malformed failure"
    known = {
        "not_found": Code.NOT_FOUND,
        "refused": Code.PERMISSION_DENIED,
        "permission_denied": Code.PERMISSION_DENIED,
    }
    text = detail if frame.data == LOST else f"inside the sandbox: {detail}"
    return Refusal(known.get(code, Code.TEMPORARILY_UNAVAILABLE), text, {"node_code": code})


def _settle(stream: TunnelStream, refusal: Refusal | None) -> None:
    if stream.answered.done():
        return
    if refusal is None:
        stream.answered.set_result(None)
    else:
        stream.answered.set_exception(refusal)
