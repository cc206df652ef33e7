"""The HTTP probe returns samples of the wanted metrics, from a real server, and no more than it may."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from mooring_agent.hosts.contract import HostFailure
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.probes import SAMPLES_MAX, probe_http

pytestmark = pytest.mark.anyio
TEXT = """# HELP app_tokens_total Tokens.
# TYPE app_tokens_total counter
app_tokens_total{kind="out"} 40
app_tokens_total{kind="in"} 2
app_tokens_total_created 1
other_total 9
process_start_time_seconds 1.7634e+09
"""


class LoopbackStream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        return await self._reader.read(1_000)

    async def close(self) -> None:
        self._writer.close()


class LoopbackHost:
    """Dials the loopback interface of this process instead of a sandbox's."""

    async def dial(self, allocation_id: str, port: int) -> LoopbackStream:
        return LoopbackStream(*await asyncio.open_connection("127.0.0.1", port))


@asynccontextmanager
async def serving(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def probed(port: int, *metrics: str) -> Any:
    context: Any = SimpleNamespace(task=SimpleNamespace(allocation_id="alc_1"))
    host: Any = LoopbackHost()
    asked = task_arguments.ProbeHttp(port=port, path="/metrics", metrics=metrics, attempts=1)
    return await probe_http(host, context, asked)


async def test_samples_of_the_wanted_metrics_are_in_the_result() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request.splitlines()[0])
        return b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + TEXT.encode()

    async with serving(answer) as port:
        found = await probed(port, "app_tokens_total", "process_start_time_seconds")
        plain = await probed(port)
    lines = TEXT.splitlines()
    assert found["samples"] == [lines[2], lines[3], lines[6]]
    assert "samples" not in plain
    assert requests == [b"GET /metrics HTTP/1.0", b"GET /metrics HTTP/1.1"], "what is read must not be chunked"


async def test_more_samples_than_fit_into_the_result_are_a_failure_and_not_cut() -> None:
    many = "".join(f'app_tokens_total{{n="{number}"}} 1\n' for number in range(SAMPLES_MAX + 1))
    async with serving(lambda _: b"HTTP/1.0 200 OK\r\n\r\n" + many.encode()) as port:
        with pytest.raises(HostFailure, match="at most"):
            await probed(port, "app_tokens_total")
