"""Whatever a broken or hostile relay sends through a tunnel: it ends or goes on, within bounds, and never hangs."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tests.support.fake_platform import FakePlatform
from mooring_agent.hosts.contract import ByteStream, CommandStream, HostFailure, Owner, ProcessSpec
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.arguments import TunnelOpen
from mooring_agent.tasks.handlers import TaskContext
from mooring_agent.tunnels.frames import (
    CLOSE,
    DATA,
    END,
    FRAME_MAX,
    KINDS,
    OPEN,
    RESIZE,
    ROOM,
    SIGNAL,
    WINDOW,
    FrameRefused,
    packed,
    read_frame,
)
from mooring_agent.tunnels.tunnel import FRAMES_QUEUED_MAX, Tunnel
from tests.support.fuzzing import mutated, named, thorough
from tests.support.waiting import turns
from tools.soak import played

PORT = json.dumps({"port": 80}).encode()
DEEP = b"[" * 60_000
BODIES = st.sampled_from(
    [b"", PORT, DEEP, b'{"port": Infinity}', b'{"port": 1e999}', b'{"port": "80"}', b"null", b"\xff" * 100,
     b'{"columns": 80, "rows": Infinity}', b'{"signal": 15}', b'{"signal": NaN}', b'{"signal": [[]]}', b"\xff" * 4]
) | st.binary(max_size=20)  # fmt: skip
FRAMES = st.lists(
    st.builds(packed, st.sampled_from(sorted(KINDS)), st.integers(0, 3), BODIES) | st.binary(max_size=15), max_size=25
).map(b"".join)


class StuckStream:
    """A target that takes nothing and says nothing."""

    async def send(self, data: bytes) -> None:
        await asyncio.Event().wait()

    async def send_end(self) -> None:
        return

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def close(self) -> None:
        return

    async def resize(self, columns: int, rows: int) -> None:
        assert 1 <= columns <= 1_000
        assert 1 <= rows <= 1_000

    async def signal(self, number: int) -> None:
        assert number in (1, 2, 3, 15)

    async def exit_code(self) -> int:
        return 0


class EchoStream(StuckStream):
    """A target that takes everything."""

    async def send(self, data: bytes) -> None:
        return


class StreamHost(SimulatedHost):
    def __init__(self, target: type[StuckStream]) -> None:
        super().__init__()
        self.target = target

    async def dial(self, allocation_id: str, port: int) -> ByteStream:
        return self.target()

    async def open_command(self, owner: Owner, process: ProcessSpec, columns: int, rows: int) -> CommandStream:
        return self.target()


class QuietWriter:
    """The relay's side of the connection, which reads everything and keeps nothing."""

    def write(self, data: bytes) -> None:
        return

    async def drain(self) -> None:
        await turns(1)

    def close(self) -> None:
        return


async def _carried(data: bytes, target: type[StuckStream] = EchoStream, **arguments: Any) -> Tunnel:
    """Serve a tunnel through which these bytes come, until the relay is gone."""
    reader = asyncio.StreamReader(limit=2 * FRAME_MAX)
    reader.feed_data(data)
    reader.feed_eof()
    opened = TunnelOpen(relay="http://relay.example", **arguments)
    context = TaskContext(FakePlatform().task("tunnel.open", {"relay": "http://relay.example", "ports": [80]}))
    tunnel = Tunnel(StreamHost(target), context, opened, reader, QuietWriter())  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    unhandled: list[Any] = []
    loop.set_exception_handler(lambda _, about: unhandled.append(about.get("exception")))
    try:
        async with asyncio.timeout(30):
            await tunnel.serve()
    except (FrameRefused, HostFailure):
        pass
    assert not tunnel.streams
    assert not unhandled
    return tunnel


@thorough
@given(FRAMES)
def test_any_frames_end_a_tunnel_or_pass(data: bytes) -> None:
    played()
    asyncio.run(_carried(data, ports=(80,)))
    asyncio.run(_carried(data, argv=("sh",)))


def test_mutated_frames_end_a_tunnel_or_pass() -> None:
    corpus = [
        packed(OPEN, 1, PORT) + packed(DATA, 1, b"hello") + packed(END, 1) + packed(CLOSE, 1),
        packed(OPEN, 1, PORT) + packed(ROOM, 1, WINDOW.to_bytes(4)) + packed(RESIZE, 1, b'{"columns": 1, "rows": 1}'),
        packed(OPEN, 7, PORT) + packed(SIGNAL, 7, b'{"signal": 2}') + packed(DATA, 7, b"x" * 1_000),
    ]
    for data in mutated(corpus):
        with named(data):
            asyncio.run(_carried(data, ports=(80,)))
            asyncio.run(_carried(data, argv=("sh",)))


def test_frames_without_bytes_do_not_fill_the_memory() -> None:
    """Control frames and empty data count too: a target that takes nothing lets only so many of them wait."""

    async def flooded(kind: bytes, data: bytes) -> None:
        reader = asyncio.StreamReader()
        opened = TunnelOpen(relay="http://relay.example", argv=("sh",))
        context = TaskContext(FakePlatform().task("tunnel.open", {"relay": "http://relay.example", "ports": [80]}))
        tunnel = Tunnel(StreamHost(StuckStream), context, opened, reader, QuietWriter())  # type: ignore[arg-type]
        frames = packed(OPEN, 1, PORT) + packed(DATA, 1, b"x") + packed(kind, 1, data) * (FRAMES_QUEUED_MAX + 10)
        reader.feed_data(frames)
        async with asyncio.timeout(30):
            with pytest.raises(FrameRefused, match="window"):
                await tunnel.serve()

    for kind, data in ((DATA, b""), (END, b""), (SIGNAL, b""), (RESIZE, b"")):
        asyncio.run(flooded(kind, data))


def test_credit_is_bounded() -> None:
    for credit in (b"\xff" * 4, b"\xff" * 60_000, b""):
        frames = packed(OPEN, 1, PORT) + packed(ROOM, 1, credit) * 3
        asyncio.run(_carried(frames, ports=(80,)))


def test_read_frame_ends_on_any_bytes() -> None:
    async def read_all(data: bytes) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        try:
            async with asyncio.timeout(10):
                while await read_frame(reader) is not None:
                    pass
        except FrameRefused:
            return

    for data in mutated([packed(DATA, 1, b"x"), b"\xff" * 9, b""]):
        with named(data):
            asyncio.run(read_all(data))
