"""Tunnels: how users reach what runs in a sandbox, although nothing connects to this machine.

`tunnel.open` is a task like any other: signed, for one owner, refused when that owner is closed. The agent dials the
platform's relay and authenticates with its own token; from then on the relay opens streams: connections to the ports
that the task names, inside that sandbox, or the one command that it names. The agent connects to nothing else, and
never to an address that the relay chooses.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import msgspec

from mooring_agent.control_plane.tls import PlatformTls
from mooring_agent.hosts.contract import ByteStream, CommandStream, Host, HostFailure, PipedCommandStream, ProcessSpec
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.handlers import ResultFields, TaskContext, TaskHandler
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
    FrameRefused,
    TunnelFrame,
    packed,
    read_frame,
)

STREAMS_MAX: Final = 256
DIAL_SECONDS: Final = 15.0
UPGRADE: Final = "mooring-tunnel"
FRAMES_QUEUED_MAX: Final = 4_096
"""How many frames may wait for one stream: frames without bytes need memory too."""
CREDIT_BYTES: Final = 4
CREDIT_MAX: Final = 16 * WINDOW
SIGNALS: Final = frozenset((1, 2, 3, 15))

log = logging.getLogger("mooring.agent")


class _OpenRequest(msgspec.Struct, frozen=True):
    port: int


class _WindowSize(msgspec.Struct, frozen=True):
    columns: int
    rows: int


class _SignalRequest(msgspec.Struct, frozen=True):
    signal: int


@dataclass(slots=True)
class _Stream:
    """One stream: its target in the sandbox, the frames queued for it, and how much may still be sent."""

    target: "asyncio.Future[ByteStream]"
    inward: "asyncio.Queue[TunnelFrame]" = field(default_factory=asyncio.Queue)
    room: int = WINDOW
    has_room: asyncio.Event = field(default_factory=asyncio.Event)
    queued: int = 0
    work: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Tunnel:
    """One tunnel while it is open."""

    host: Host
    context: TaskContext
    arguments: task_arguments.TunnelOpen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    streams: dict[int, _Stream] = field(default_factory=dict)
    opened: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    exit_code: int | None = None

    async def serve(self) -> None:
        """Serve streams until the relay closes the connection, or is idle for too long."""
        try:
            while True:
                async with asyncio.timeout(self.arguments.idle_seconds if not self.streams else None):
                    frame = await read_frame(self.reader)
                if frame is None:
                    return
                await self._handle(frame)
        except TimeoutError:
            return
        finally:
            works = [stream.work for stream in self.streams.values() if stream.work is not None]
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            self.writer.close()

    async def _handle(self, frame: TunnelFrame) -> None:
        if frame.kind == OPEN:
            self._open(frame)
            return
        stream = self.streams.get(frame.stream)
        if stream is None:
            return  # it has just ended on this side
        if frame.kind == ROOM:
            if len(frame.data) != CREDIT_BYTES or stream.room + int.from_bytes(frame.data) > CREDIT_MAX:
                raise FrameRefused("the relay gives more credit than there can be")
            stream.room += int.from_bytes(frame.data)
            stream.has_room.set()
        elif frame.kind == CLOSE:
            if stream.work is not None:
                stream.work.cancel()
        elif frame.kind in (DATA, END, RESIZE, SIGNAL):
            stream.queued += len(frame.data)
            if stream.queued > 2 * WINDOW or stream.inward.qsize() >= FRAMES_QUEUED_MAX:
                raise FrameRefused("the relay sends more than its window allows")
            stream.inward.put_nowait(frame)
        else:
            raise FrameRefused(f"the relay must not send {frame.kind!r}")

    def _open(self, frame: TunnelFrame) -> None:
        if frame.stream in self.streams or len(self.streams) >= STREAMS_MAX:
            raise FrameRefused("a stream was opened twice, or too many are open")
        self.opened += 1
        stream = _Stream(asyncio.get_running_loop().create_future())
        self.streams[frame.stream] = stream
        stream.work = asyncio.create_task(self._serve(frame.stream, stream, frame.data))
        # Not at the end of `_serve`: a stream that is closed at once is cancelled before that begins.
        stream.work.add_done_callback(lambda _: self.streams.pop(frame.stream, None))

    async def _serve(self, number: int, stream: _Stream, request: bytes) -> None:
        target: ByteStream | None = None
        try:
            target = await self._open_target(request)
            await self._send(ROOM, number, WINDOW.to_bytes(4))
            if self.arguments.argv is None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump_out(number, stream, target))
                    group.create_task(self._pump_in(number, stream, target))
            else:
                await self._command(number, stream, target)
        except HostFailure as failure:
            problem = {"code": failure.code, "detail": failure.detail[:500]}
            await self._send(FAILURE, number, json.dumps(problem).encode())
        except (OSError, ExceptionGroup) as error:
            log.info("a tunnel stream failed; closing it: %s", error)
            await self._send(CLOSE, number)
        finally:
            if target is not None:
                await target.close()

    async def _command(self, number: int, stream: _Stream, target: ByteStream) -> None:
        command: CommandStream = target  # type: ignore[assignment]  # the host gave one
        inward = asyncio.create_task(self._pump_in(number, stream, target))
        try:
            if isinstance(target, PipedCommandStream):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(number, stream, target.receive_errors, ERRORS))
                    group.create_task(self._pump(number, stream, target.receive, DATA))
                await self._send(END, number)
            else:
                await self._pump_out(number, stream, target)
            self.exit_code = await command.exit_code()
            await self._send(EXIT, number, str(self.exit_code).encode())
        finally:
            inward.cancel()
            await asyncio.gather(inward, return_exceptions=True)

    async def _open_target(self, request: bytes) -> ByteStream:
        arguments, owner = self.arguments, self.context.owner
        if arguments.argv is not None:
            if self.opened > 1:
                raise HostFailure("refused", "a tunnel for a command carries that command only once")
            spec = ProcessSpec(arguments.argv, arguments.environment, arguments.user, arguments.directory)
            if not arguments.terminal:
                return await self.host.open_piped(owner, spec)
            return await self.host.open_command(owner, spec, arguments.columns, arguments.rows)
        try:
            port = msgspec.json.decode(request, type=_OpenRequest).port
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise HostFailure("refused", "a stream must name its port") from error
        if port not in arguments.ports:
            raise HostFailure("refused", f"this tunnel is not for port {port}")
        return await self.host.dial(owner.allocation_id, port)

    async def _pump_out(self, number: int, stream: _Stream, target: ByteStream) -> None:
        await self._pump(number, stream, target.receive, DATA)
        await self._send(END, number)

    async def _pump(self, number: int, stream: _Stream, receive: Callable[[], Awaitable[bytes]], kind: bytes) -> None:
        while data := await receive():
            for start in range(0, len(data), FRAME_MAX):
                part = data[start : start + FRAME_MAX]
                while stream.room < len(part):
                    stream.has_room.clear()
                    await stream.has_room.wait()
                stream.room -= len(part)
                self.bytes_out += len(part)
                await self._send(kind, number, part)

    async def _pump_in(self, number: int, stream: _Stream, target: ByteStream) -> None:
        while True:
            frame = await stream.inward.get()
            stream.queued -= len(frame.data)
            if frame.kind == DATA:
                await target.send(frame.data)
                self.bytes_in += len(frame.data)
                await self._send(ROOM, number, len(frame.data).to_bytes(4))
            elif frame.kind == END:
                await target.send_end()
                if self.arguments.argv is None:
                    return
            else:
                await _control(target, frame)

    async def _send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        self.writer.write(packed(kind, number, data))
        await self.writer.drain()


async def _control(target: ByteStream, frame: TunnelFrame) -> None:
    command: CommandStream = target  # type: ignore[assignment]  # a connection is asked for its method first
    if not hasattr(command, "resize"):
        raise HostFailure("refused", "a connection has no window size and accepts no signals")
    try:
        if frame.kind == RESIZE:
            size = msgspec.json.decode(frame.data, type=_WindowSize)
            await command.resize(min(1_000, max(1, size.columns)), min(1_000, max(1, size.rows)))
        else:
            number = msgspec.json.decode(frame.data, type=_SignalRequest).signal
            if number in SIGNALS:
                await command.signal(number)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise HostFailure("refused", "a control frame is malformed") from error


async def dial(
    url: str, tunnel_id: str, authorization: str, tls: PlatformTls
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the platform's relay and switch to frames."""
    parts = urlsplit(url)
    try:
        secure = tls.context_for(url)
    except ValueError as error:
        raise HostFailure("refused", f"the relay's URL is refused: {error}") from error
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=2 * FRAME_MAX)
    request = (
        f"GET /tunnels/{tunnel_id} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
        f"Upgrade: {UPGRADE}\r\nAuthorization: {authorization}\r\n\r\n"
    )
    writer.write(request.encode("ascii"))
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 101 "):
        writer.close()
        problem = head.partition(b"\r\n")[0].decode("ascii", "replace")
        raise HostFailure("refused", f"the relay responded with {problem}")
    return reader, writer


def tunnel_handlers(
    authorization: Callable[[], Awaitable[str]], tls: PlatformTls | None = None
) -> dict[str, TaskHandler]:
    """The handler of `tunnel.open`; `authorization` returns this node's Authorization header."""
    trust = tls or PlatformTls()

    async def open_tunnel(host: Host, context: TaskContext, arguments: task_arguments.TunnelOpen) -> ResultFields:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                reader, writer = await dial(arguments.relay, context.task.task_id, await authorization(), trust)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise HostFailure("host_error", f"the relay cannot be reached: {type(error).__name__}") from error
        tunnel = Tunnel(host, context, arguments, reader, writer)
        try:
            await tunnel.serve()
        except (FrameRefused, ConnectionError) as error:
            raise HostFailure("host_error", f"the tunnel broke: {error}") from error
        return {
            "streams": tunnel.opened,
            "bytes_in": tunnel.bytes_in,
            "bytes_out": tunnel.bytes_out,
            "exit_code": tunnel.exit_code,
        }

    return {"tunnel.open": TaskHandler(open_tunnel, is_repeatable=False, unordered=True, room="tunnel")}
