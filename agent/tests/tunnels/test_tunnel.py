"""Tunnels with a fake relay: streams to the named ports, one command, and nothing else."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agent.tests.support.fake_platform import FakePlatform
from agent.tests.support.process_sandboxes import host_below, serve, wanted
from mooring_agent.hosts.contract import ByteStream, Host, HostFailure, Owner
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.hosts.streams import SocketStream
from mooring_agent.tasks.arguments import TunnelOpen
from mooring_agent.tasks.handlers import ResultFields, TaskContext
from mooring_agent.tunnels.frames import (
    CLOSE,
    DATA,
    END,
    ERRORS,
    EXIT,
    FAILURE,
    FRAME_MAX,
    HEAD,
    OPEN,
    RESIZE,
    ROOM,
    WINDOW,
    FrameRefused,
    TunnelFrame,
    packed,
    read_frame,
)
from mooring_agent.tunnels.tunnel import tunnel_handlers

pytestmark = pytest.mark.anyio
CREATED = "alc_01hzzzzzzzzzzzzzzzzzzzzzzz"


@dataclass
class RelayEnd:
    """The other end of one tunnel."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: str

    async def say(self, kind: bytes, stream: int, data: bytes = b"") -> None:
        """Send one frame."""
        self.writer.write(packed(kind, stream, data))
        await self.writer.drain()

    async def hear(self, *kinds: bytes) -> TunnelFrame:
        """The next frame of one of these kinds."""
        while True:
            frame = await read_frame(self.reader)
            assert frame is not None, "the agent hung up"
            if frame.kind in kinds:
                return frame

    async def open(self, stream: int, port: int) -> TunnelFrame:
        """Open a stream to a port; returns whether it was opened."""
        await self.say(OPEN, stream, json.dumps({"port": port}).encode())
        while (frame := await self.hear(ROOM, FAILURE)).stream != stream:
            pass
        return frame


@dataclass
class SocketPairHost(SimulatedHost):
    """A host whose sandbox has one end of a socket pair at every port; the test has the other."""

    others: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    async def dial(self, allocation_id: str, port: int) -> ByteStream:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.others.append(theirs)
        return SocketStream(ours)


@asynccontextmanager
async def tunnel(
    host: Host, answer: str = "101 Switching Protocols", **arguments: Any
) -> AsyncIterator[tuple[RelayEnd, "asyncio.Task[ResultFields]"]]:
    """An open tunnel, and its task."""
    arrived: asyncio.Future[RelayEnd] = asyncio.get_running_loop().create_future()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.write(f"HTTP/1.1 {answer}\r\n\r\n".encode())
        await writer.drain()
        arrived.set_result(RelayEnd(reader, writer, head))

    async def authorization() -> str:
        return "Bearer node-token"

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    async with server:
        relay = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wanted = TunnelOpen(relay=relay, **arguments)
        context = TaskContext(FakePlatform().task("tunnel.open", {"relay": relay}))
        work: Any = tunnel_handlers(authorization)["tunnel.open"].perform(host, context, wanted)
        task = asyncio.ensure_future(work)
        made = await arrived
        try:
            yield made, task
        finally:
            made.writer.close()
            await asyncio.gather(task, return_exceptions=True)


async def failure_of(task: "asyncio.Task[ResultFields]") -> str:
    """Why a tunnel broke."""
    with pytest.raises(HostFailure) as failed:
        await task
    return f"{failed.value.code}: {failed.value.detail}"


async def ended(relay: RelayEnd, task: "asyncio.Task[ResultFields]") -> ResultFields:
    """Close the relay's end; returns the task's result."""
    relay.writer.close()
    return await task


async def test_the_agent_says_who_it_is_and_carries_bytes_both_ways() -> None:
    host, loop = SocketPairHost(), asyncio.get_running_loop()
    async with tunnel(host, ports=(8080,)) as (relay, task):
        assert relay.head.startswith("GET /tunnels/tsk_01h")
        assert "Upgrade: mooring-tunnel\r\nAuthorization: Bearer node-token\r\n" in relay.head
        assert (await relay.open(1, 8080)).kind == ROOM
        await relay.say(DATA, 1, b"hello")
        assert await loop.sock_recv(host.others[0], 100) == b"hello"
        await loop.sock_sendall(host.others[0], b"welcome")
        assert (await relay.hear(DATA)).data == b"welcome"
        await relay.say(END, 1)
        assert await loop.sock_recv(host.others[0], 100) == b""
        host.others[0].close()
        assert (await relay.hear(END)).stream == 1
        assert await ended(relay, task) == {"streams": 1, "bytes_in": 5, "bytes_out": 7, "exit_code": None}


@pytest.mark.parametrize(
    "asked", [b'{"port": 22}', b'{"port": "x"}', b"{}", b"[]", b"no json", b'{"host": "10.0.0.1"}']
)
async def test_a_port_that_the_task_does_not_name_is_refused_and_the_tunnel_stands(asked: bytes) -> None:
    host = SocketPairHost()
    async with tunnel(host, ports=(8080,)) as (relay, _):
        await relay.say(OPEN, 1, asked)
        failure = json.loads((await relay.hear(FAILURE)).data)
        assert failure["code"] == "refused"
        assert host.others == []
        assert (await relay.open(2, 8080)).kind == ROOM
        host.others[0].close()


async def test_a_slow_reader_holds_up_its_own_stream_and_no_other() -> None:
    host, loop = SocketPairHost(), asyncio.get_running_loop()
    async with tunnel(host, ports=(1, 2)) as (relay, _):
        await relay.open(1, 1)
        await relay.open(2, 2)
        flood = asyncio.create_task(loop.sock_sendall(host.others[0], b"x" * (3 * WINDOW)))
        came = 0
        while came < WINDOW - FRAME_MAX:
            came += len((await relay.hear(DATA)).data)
        await loop.sock_sendall(host.others[1], b"quick")
        frame = await relay.hear(DATA)
        while frame.stream == 1:
            came += len(frame.data)
            frame = await relay.hear(DATA)
        assert frame.data == b"quick"
        assert came <= WINDOW
        await relay.say(ROOM, 1, (3 * WINDOW).to_bytes(4))
        while came < 3 * WINDOW:
            came += len((await relay.hear(DATA)).data)
        await flood
        for each in host.others:
            each.close()


async def test_a_relay_that_sends_more_than_there_is_room_for_is_cut_off() -> None:
    host = SocketPairHost()
    async with tunnel(host, ports=(1,)) as (relay, task):
        await relay.open(1, 1)
        for _ in range(4 * WINDOW // FRAME_MAX):
            relay.writer.write(packed(DATA, 1, b"x" * FRAME_MAX))
        assert await failure_of(task) == "host_error: the tunnel broke: the relay sends more than its window allows"
        host.others[0].close()


async def test_an_invalid_frame_of_a_relay_breaks_the_tunnel() -> None:
    for data in (packed(EXIT, 1, b"0"), b"GET / HTTP/1.1\r\n\r\n", HEAD.pack(DATA, 1, FRAME_MAX + 1), packed(OPEN, 1)):
        host = SocketPairHost()
        async with tunnel(host, ports=(1,)) as (relay, task):
            await relay.open(1, 1)
            relay.writer.write(data)
            assert (await failure_of(task)).startswith("host_error: the tunnel broke")
            host.others[0].close()


async def test_a_stream_is_closed_and_its_connection_ends() -> None:
    host, loop = SocketPairHost(), asyncio.get_running_loop()
    async with tunnel(host, ports=(1,)) as (relay, _):
        await relay.open(1, 1)
        await relay.say(CLOSE, 1)
        assert await loop.sock_recv(host.others[0], 1) == b""
        host.others[0].close()
        await relay.say(DATA, 1, b"late")  # it has ended a moment ago: nobody minds
        assert (await relay.open(2, 1)).kind == ROOM
        host.others[1].close()


async def test_a_tunnel_that_nobody_uses_ends_by_itself() -> None:
    async with tunnel(SimulatedHost(), ports=(1,), idle_seconds=0.1) as (_, task):
        assert (await task)["streams"] == 0


async def test_a_refusal_of_the_relay_is_reported_with_its_status() -> None:
    async with tunnel(SimulatedHost(), "403 Forbidden", ports=(1,)) as (_, task):
        assert await failure_of(task) == "refused: the relay responded with HTTP/1.1 403 Forbidden"


async def test_a_missing_relay_is_reported() -> None:
    async def authorization() -> str:
        return "Bearer node-token"

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else listens there meanwhile
        wanted = TunnelOpen(relay=f"http://127.0.0.1:{silent.getsockname()[1]}", ports=(1,))
        context = TaskContext(FakePlatform().task("tunnel.open", {"relay": wanted.relay}))
        with pytest.raises(HostFailure, match="host_error: the relay cannot be reached"):
            await tunnel_handlers(authorization)["tunnel.open"].perform(SimulatedHost(), context, wanted)


async def test_a_real_command_is_typed_into_resized_and_ends_once(tmp_path: Path) -> None:
    script = "stty size; read size; stty size; exit 5"
    async with host_below(tmp_path, f"node_{uuid4().hex}") as host:
        await host.create(wanted(CREATED))
        async with tunnel(host, argv=("sh", "-c", script), columns=100, rows=30) as (relay, task):
            await relay.say(OPEN, 1)
            seen = b""
            while b"30 100" not in seen:
                seen += (await relay.hear(DATA)).data
            await relay.say(RESIZE, 1, json.dumps({"columns": 90, "rows": 20}).encode())
            await relay.say(DATA, 1, b"go\n")
            while b"20 90" not in seen:
                seen += (await relay.hear(DATA)).data
            assert (await relay.hear(EXIT)).data == b"5"
            await relay.say(OPEN, 2)
            assert json.loads((await relay.hear(FAILURE)).data)["code"] == "refused"
            assert (await ended(relay, task))["exit_code"] == 5


async def test_a_real_command_without_a_terminal_has_clean_output_its_environment_and_its_directory(
    tmp_path: Path,
) -> None:
    script = "echo of errors >&2; echo $NAME; pwd; cat"
    asked: dict[str, Any] = {"terminal": False, "environment": {"NAME": "a value"}, "directory": "/tmp"}
    async with host_below(tmp_path, f"node_{uuid4().hex}") as host:
        await host.create(wanted(CREATED))
        async with tunnel(host, argv=("sh", "-c", script), **asked) as (relay, task):
            await relay.say(OPEN, 1)
            await relay.say(DATA, 1, b"typed\n")
            await relay.say(END, 1)
            output = errors = b""
            while (frame := await relay.hear(DATA, ERRORS, END)).kind != END:
                output, errors = (
                    output + frame.data * (frame.kind == DATA),
                    errors + frame.data * (frame.kind == ERRORS),
                )
            assert (output.splitlines()[::2], errors) == ([b"a value", b"typed"], b"of errors\n")
            assert output.splitlines()[1].endswith(b"/tmp")
            assert (await relay.hear(EXIT)).data == b"0"
            assert (await ended(relay, task))["exit_code"] == 0


async def test_a_real_server_in_a_sandbox_answers_and_a_strangers_port_does_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        async with host_below(tmp_path, f"node_{uuid4().hex}") as host:
            await host.create(wanted(CREATED))
            port, other = await serve(host, Owner(CREATED, "a"), tmp_path), stranger.getsockname()[1]
            async with tunnel(host, ports=(port, other)) as (relay, _):
                assert (await relay.open(1, port)).kind == ROOM
                await relay.say(DATA, 1, b"GET / HTTP/1.0\r\n\r\n")
                assert (await relay.hear(DATA)).data.startswith(b"HTTP/1.0 200")
                refused = await relay.open(2, other)
                assert json.loads(refused.data)["code"] == "permission_denied"


async def test_frames_are_read_as_they_were_packed_and_truncated_ones_are_refused() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(packed(DATA, 7, b"abc") + packed(END, 7) + packed(DATA, 7, b"cut")[:-1])
    reader.feed_eof()
    assert await read_frame(reader) == TunnelFrame(DATA, 7, b"abc")
    assert await read_frame(reader) == TunnelFrame(END, 7)
    with pytest.raises(FrameRefused):
        await read_frame(reader)
    empty = asyncio.StreamReader()
    empty.feed_eof()
    assert await read_frame(empty) is None
    with pytest.raises(ValueError, match="at most"):
        packed(DATA, 1, b"x" * (FRAME_MAX + 1))
