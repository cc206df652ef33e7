"""Tunnels: how somebody reaches what runs in a sandbox, although nothing dials into this machine.

`tunnel.open` is a task like any other: signed, for one owner, refused when that owner is closed. The agent dials the
platform's relay, says who it is by its own token, and from then on the relay opens streams: connections to the ports
that the task names, inside that sandbox, or the one command that it names. It connects to nothing else, and never to an
address.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from mooring_agent.hosts.contract import ByteStream, Command, Host, HostFailure, PipedCommand, ProcessSpec
from mooring_agent.tasks import arguments as taken
from mooring_agent.tasks.handlers import Doing, Family, Fields
from mooring_agent.tunnels.frames import (
    CLOSE,
    DATA,
    END,
    ERRORS,
    EXIT,
    FAILURE,
    FRAME_MAX,
    OPEN,
    RESIZE,
    ROOM,
    SIGNAL,
    WINDOW,
    Frame,
    FrameRefused,
    packed,
    read_frame,
)

STREAMS_MAX: Final = 256
DIAL_SECONDS: Final = 15.0
UPGRADE: Final = "mooring-tunnel"
SIGNALS: Final = frozenset((1, 2, 3, 15))

log = logging.getLogger("mooring.agent")


@dataclass(slots=True)
class _Stream:
    """One stream: what is inside, what was told to go in, and how much may still go out."""

    inside: "asyncio.Future[ByteStream]"
    inward: "asyncio.Queue[Frame]" = field(default_factory=asyncio.Queue)
    room: int = WINDOW
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    queued: int = 0
    work: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Tunnel:
    """One tunnel for as long as it stands."""

    host: Host
    doing: Doing
    wanted: taken.TunnelOpen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    streams: dict[int, _Stream] = field(default_factory=dict)
    opened: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    exit_code: int | None = None

    async def carry(self) -> None:
        """Serve streams until the relay hangs up, or is silent for too long."""
        try:
            while True:
                async with asyncio.timeout(self.wanted.idle_seconds if not self.streams else None):
                    frame = await read_frame(self.reader)
                if frame is None:
                    return
                await self._take(frame)
        except TimeoutError:
            return
        finally:
            works = [stream.work for stream in self.streams.values() if stream.work is not None]
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            self.writer.close()

    async def _take(self, frame: Frame) -> None:
        if frame.kind == OPEN:
            self._open(frame)
            return
        stream = self.streams.get(frame.stream)
        if stream is None:
            return  # it has ended on this side a moment ago
        if frame.kind == ROOM:
            stream.room += int.from_bytes(frame.data)
            stream.has_room.set()
        elif frame.kind == CLOSE:
            if stream.work is not None:
                stream.work.cancel()
        elif frame.kind in (DATA, END, RESIZE, SIGNAL):
            stream.queued += len(frame.data)
            if stream.queued > 2 * WINDOW:
                raise FrameRefused("the relay sends more than there is room for")
            stream.inward.put_nowait(frame)
        else:
            raise FrameRefused(f"the relay sends no {frame.kind!r}")

    def _open(self, frame: Frame) -> None:
        if frame.stream in self.streams or len(self.streams) >= STREAMS_MAX:
            raise FrameRefused("a stream was opened twice, or too many are open")
        self.opened += 1
        stream = _Stream(asyncio.get_running_loop().create_future())
        self.streams[frame.stream] = stream
        stream.work = asyncio.create_task(self._serve(frame.stream, stream, frame.data))

    async def _serve(self, number: int, stream: _Stream, asked: bytes) -> None:
        inside: ByteStream | None = None
        try:
            inside = await self._inside(asked)
            await self._send(ROOM, number, WINDOW.to_bytes(4))
            if self.wanted.argv is None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._outward(number, stream, inside))
                    group.create_task(self._inward(number, stream, inside))
            else:
                await self._command(number, stream, inside)
        except HostFailure as failure:
            told = {"code": failure.code, "detail": failure.detail[:500]}
            await self._send(FAILURE, number, json.dumps(told).encode())
        except (OSError, ExceptionGroup) as error:
            log.info("a stream ended: %s", error)
            await self._send(CLOSE, number)
        finally:
            self.streams.pop(number, None)
            if inside is not None:
                await inside.close()

    async def _command(self, number: int, stream: _Stream, inside: ByteStream) -> None:
        command: Command = inside  # type: ignore[assignment]  # the host gave one
        inward = asyncio.create_task(self._inward(number, stream, inside))
        try:
            if isinstance(inside, PipedCommand):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pumped(number, stream, inside.receive_errors, ERRORS))
                    group.create_task(self._pumped(number, stream, inside.receive, DATA))
                await self._send(END, number)
            else:
                await self._outward(number, stream, inside)
            self.exit_code = await command.exit_code()
            await self._send(EXIT, number, str(self.exit_code).encode())
        finally:
            inward.cancel()
            await asyncio.gather(inward, return_exceptions=True)

    async def _inside(self, asked: bytes) -> ByteStream:
        wanted, owner = self.wanted, self.doing.owner
        if wanted.argv is not None:
            if self.opened > 1:
                raise HostFailure("refused", "a tunnel for a command carries that command once")
            spec = ProcessSpec(wanted.argv, wanted.environment, wanted.user, wanted.directory)
            if not wanted.terminal:
                return await self.host.open_piped(owner, spec)
            return await self.host.open_command(owner, spec, wanted.columns, wanted.rows)
        try:
            port = int(json.loads(asked)["port"])
        except (ValueError, KeyError, TypeError) as error:
            raise HostFailure("refused", "a stream names its port") from error
        if port not in wanted.ports:
            raise HostFailure("refused", f"this tunnel is not for port {port}")
        return await self.host.dial(owner.allocation_id, port)

    async def _outward(self, number: int, stream: _Stream, inside: ByteStream) -> None:
        await self._pumped(number, stream, inside.receive, DATA)
        await self._send(END, number)

    async def _pumped(self, number: int, stream: _Stream, receive: Callable[[], Awaitable[bytes]], kind: bytes) -> None:
        while data := await receive():
            for start in range(0, len(data), FRAME_MAX):
                part = data[start : start + FRAME_MAX]
                while stream.room < len(part):
                    stream.has_room.clear()
                    await stream.has_room.wait()
                stream.room -= len(part)
                self.bytes_out += len(part)
                await self._send(kind, number, part)

    async def _inward(self, number: int, stream: _Stream, inside: ByteStream) -> None:
        while True:
            frame = await stream.inward.get()
            stream.queued -= len(frame.data)
            if frame.kind == DATA:
                await inside.send(frame.data)
                self.bytes_in += len(frame.data)
                await self._send(ROOM, number, len(frame.data).to_bytes(4))
            elif frame.kind == END:
                await inside.send_end()
                if self.wanted.argv is None:
                    return
            else:
                await _controlled(inside, frame)

    async def _send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        self.writer.write(packed(kind, number, data))
        await self.writer.drain()


async def _controlled(inside: ByteStream, frame: Frame) -> None:
    command: Command = inside  # type: ignore[assignment]  # a connection is asked for its method first
    if not hasattr(command, "resize"):
        raise HostFailure("refused", "a connection has no window and takes no signal")
    try:
        said = json.loads(frame.data)
        if frame.kind == RESIZE:
            await command.resize(min(1_000, max(1, int(said["columns"]))), min(1_000, max(1, int(said["rows"]))))
        elif int(said["signal"]) in SIGNALS:
            await command.signal(int(said["signal"]))
    except (ValueError, KeyError, TypeError) as error:
        raise HostFailure("refused", "a control frame cannot be read") from error


async def dial(url: str, tunnel_id: str, authorization: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the platform's relay and switch to frames."""
    parts = urlsplit(url)
    if parts.hostname is None:
        raise HostFailure("refused", "the relay's address has no host")
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=2 * FRAME_MAX)
    asked = (
        f"GET /tunnels/{tunnel_id} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
        f"Upgrade: {UPGRADE}\r\nAuthorization: {authorization}\r\n\r\n"
    )
    writer.write(asked.encode("ascii"))
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 101 "):
        writer.close()
        told = head.partition(b"\r\n")[0].decode("ascii", "replace")
        raise HostFailure("refused", f"the relay answered {told}")
    return reader, writer


def tunnel_families(authorization: Callable[[], Awaitable[str]]) -> dict[str, Family]:
    """The family `tunnel.open`; `authorization` is how this node says who it is."""

    async def open_tunnel(host: Host, doing: Doing, wanted: taken.TunnelOpen) -> Fields:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                reader, writer = await dial(wanted.relay, doing.task.task_id, await authorization())
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise HostFailure("host_error", f"the relay cannot be reached: {type(error).__name__}") from error
        tunnel = Tunnel(host, doing, wanted, reader, writer)
        try:
            await tunnel.carry()
        except (FrameRefused, ConnectionError) as error:
            raise HostFailure("host_error", f"the tunnel broke: {error}") from error
        return {
            "streams": tunnel.opened, "bytes_in": tunnel.bytes_in, "bytes_out": tunnel.bytes_out,
            "exit_code": tunnel.exit_code,
        }  # fmt: skip

    return {"tunnel.open": Family(open_tunnel, repeats=False, beside=True)}
