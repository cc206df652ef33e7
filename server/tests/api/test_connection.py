"""One HTTP/1.1 connection, spoken to byte by byte: order, framing, bounds, and malformed HTTP."""

import asyncio
import contextlib
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from mooring.api import connection as http
from mooring.api.connection import HttpConnection
from mooring.api.request_cycle import ANSWER, BODY, BODY_BYTES_WAITING_MAX, RequestCycle
from tests.support.waiting import turns, until

pytestmark = pytest.mark.anyio

Application = Callable[..., Any]
TIMEOUT_SECONDS = 60


class RawConnection:
    """A raw connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """The next response: its status, headers and body."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = b""
            if has_body and headers.get("transfer-encoding") == "chunked":
                while size := int(await self._reader.readline(), 16):
                    body += (await self._reader.readexactly(size + 2))[:-2]
                await self._reader.readexactly(2)
            elif has_body:
                body = await self._reader.readexactly(int(headers.get("content-length", "0")))
            return int(head[0].split()[1]), headers, body

    async def piece(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._reader.read(65536)

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.close()


class LoopbackServer:
    def __init__(self, server: uvicorn.Server, port: int) -> None:
        self.server = server
        self._port = port
        self._lines: list[RawConnection] = []

    async def line(self) -> RawConnection:
        line = RawConnection(*await asyncio.open_connection("127.0.0.1", self._port))
        self._lines.append(line)
        return line

    def close(self) -> None:
        for line in self._lines:
            line.close()


@asynccontextmanager
async def serve(application: Application, **settings: Any) -> AsyncIterator[LoopbackServer]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        application,
        loop="none",
        http=HttpConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        **settings,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listening]))
    await until(lambda: server.started)
    served = LoopbackServer(server, listening.getsockname()[1])
    try:
        yield served
    finally:
        served.close()
        server.should_exit = True
        await task


async def read_all(receive: Callable[[], Any]) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body + b"<gone>"
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


async def echo(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Answers with what it was asked."""
    body = await read_all(receive)
    said = {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "headers": {name.decode(): value.decode("latin-1") for name, value in scope["headers"]},
        "body": body.decode("latin-1"),
    }
    raw = json.dumps(said).encode()
    headers = {"content-length": str(len(raw)), "content-type": "application/json"}
    await send({"type": ANSWER, "status": 200, "headers": headers, "body": raw})


def request(target: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    return "\r\n".join((f"{method} {target} HTTP/1.1", "Host: x", *lines, "", "")).encode("latin-1") + body


async def test_requests_on_one_connection_are_answered_one_after_the_other() -> None:
    async with serve(echo) as served:
        line = await served.line()
        for number in range(3):
            line.send(request(f"/a%20b/{number}?q={number}"))
            status, headers, body = await line.answer()
            assert status == 200
            assert "date" in headers
            assert json.loads(body)["path"] == f"/a b/{number}"
            assert json.loads(body)["query"] == f"q={number}"


async def test_pipelined_requests_are_answered_in_their_order_however_long_each_takes() -> None:
    first_may_end = asyncio.Event()
    begun = []

    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        begun.append(scope["path"])
        if scope["path"] == "/0":
            await first_may_end.wait()
        await echo(scope, receive, send)

    async with serve(application) as served:
        line = await served.line()
        line.send(b"".join(request(f"/{number}", "Content-Length: 1", method="POST", body=b"x") for number in range(5)))
        await until(lambda: begun)
        first_may_end.set()
        paths = [json.loads((await line.answer())[2])["path"] for _ in range(5)]
        assert paths == begun == ["/0", "/1", "/2", "/3", "/4"]


async def test_a_request_may_arrive_byte_by_byte() -> None:
    async with serve(echo) as served:
        line = await served.line()
        for byte in request("/x", "Content-Length: 4", method="POST", body=b"abcd"):
            line.send(bytes([byte]))
            await turns()
        assert json.loads((await line.answer())[2])["body"] == "abcd"


async def test_a_chunked_body_arrives_whole() -> None:
    async with serve(echo) as served:
        line = await served.line()
        chunks = b"3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\n\r\n"
        line.send(request("/x", "Transfer-Encoding: chunked", method="POST", body=chunks))
        assert json.loads((await line.answer())[2])["body"] == "abcdefgh"


async def test_a_large_body_is_held_back_until_somebody_reads_it() -> None:
    may_read = asyncio.Event()

    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await may_read.wait()
        body = await read_all(receive)
        headers = {"content-length": str(len(str(len(body))))}
        await send({"type": ANSWER, "status": 200, "headers": headers, "body": str(len(body)).encode()})

    size = 20 * BODY_BYTES_WAITING_MAX
    async with serve(application) as served:
        line = await served.line()
        line.send(request("/x", f"Content-Length: {size}", method="POST", body=bytes(size)))
        (held,) = [await _connection_of(served)]
        await until(lambda: not held._reads)
        assert len(held._current._body) < 4 * BODY_BYTES_WAITING_MAX  # type: ignore[union-attr]
        may_read.set()
        assert (await line.answer())[2] == str(size).encode()


async def test_behind_a_large_body_that_was_refused_unread_the_next_request_is_answered() -> None:
    size = 4 * BODY_BYTES_WAITING_MAX
    held_back = asyncio.Event()

    async def refuse(_scope: dict[str, Any], _receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await held_back.wait()
        await send({"type": ANSWER, "status": 413, "headers": {"content-length": "0"}, "body": b""})

    async with serve(refuse, timeout_keep_alive=60) as served:
        line = await served.line()
        line.send(f"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode())
        line.send(b"x" * (size // 2))
        connection = await _connection_of(served)
        await until(lambda: not connection._reads)
        held_back.set()
        assert (await line.answer())[0] == 413
        line.send(b"x" * (size // 2) + request("/next"))
        assert (await line.answer())[0] == 413


async def _connection_of(served: LoopbackServer) -> HttpConnection:
    (found,) = await until(lambda: served.server.server_state.connections)
    assert isinstance(found, HttpConnection)
    return found


async def test_a_body_that_came_with_its_head_is_taken_without_waiting() -> None:
    taken = []

    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        taken.append((scope[BODY](), scope[BODY]()))
        headers = {"content-length": "0"}
        await send({"type": ANSWER, "status": 200, "headers": headers, "body": b""})

    async with serve(application) as served:
        line = await served.line()
        line.send(request("/x", "Content-Length: 2", method="POST", body=b"ok"))
        await line.answer()
        line.send(request("/x", "Content-Length: 2", method="POST", body=b"o"))
        await line.answer()
        assert taken == [(b"ok", None), (None, None)]


async def test_a_caller_that_expects_100_continue_gets_it_before_the_body_is_read() -> None:
    async with serve(echo) as served:
        line = await served.line()
        line.send(request("/x", "Content-Length: 2", "Expect: 100-continue", method="POST"))
        assert (await line.answer(has_body=False))[0] == 100
        line.send(b"ok")
        assert json.loads((await line.answer())[2])["body"] == "ok"


async def test_a_head_is_answered_without_a_body() -> None:
    async with serve(echo) as served:
        line = await served.line()
        line.send(request("/x", method="HEAD") + request("/y"))
        status, headers, _ = await line.answer(has_body=False)
        assert (status, int(headers["content-length"]) > 0) == (200, True)
        assert json.loads((await line.answer())[2])["path"] == "/y"


async def streaming(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-kind", b"stream")]})
    for piece in (b"one", b"", b"two"):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body"})


async def test_a_stream_goes_out_in_chunks_and_the_connection_stays() -> None:
    async with serve(streaming) as served:
        line = await served.line()
        for _ in range(2):
            line.send(request("/x"))
            status, headers, body = await line.answer()
            assert (status, headers["x-kind"], body) == (200, "stream", b"onetwo")


async def test_an_http_1_0_caller_knows_the_end_of_a_stream_by_the_close_of_the_connection() -> None:
    async with serve(streaming) as served:
        line = await served.line()
        line.send(b"GET /x HTTP/1.0\r\nHost: x\r\n\r\n")
        head, _, body = (await line.rest()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"connection: close" in head
        assert body == b"onetwo"


async def test_a_caller_that_hangs_up_is_noticed() -> None:
    noticed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await receive()
        noticed.set_result((await receive())["type"])

    async with serve(application) as served:
        line = await served.line()
        line.send(request("/x"))
        await _connection_of(served)
        line.close()
        assert await asyncio.wait_for(noticed, TIMEOUT_SECONDS) == "http.disconnect"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /x\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /x HTTP/1.1\nHost: x\n\n",
    ],
    ids=["tls", "no-version", "two-lengths", "length-and-chunked", "space-before-colon", "folded", "not-ascii", "http2",
         "bare-line-feeds"],
)  # fmt: skip
async def test_malformed_http_is_answered_as_a_problem_and_the_connection_closed(sent: bytes) -> None:
    reached = []

    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        reached.append(scope)
        await echo(scope, receive, send)

    async with serve(application) as served:
        line = await served.line()
        line.send(sent)
        status, headers, body = await line.answer()
        assert status == 400
        assert headers["content-type"] == "application/problem+json"
        assert headers["x-correlation-id"] == json.loads(body)["correlation_id"]
        assert json.loads(body)["code"] == "malformed_request"
        assert await line.rest() == b""
        assert not [scope for scope in reached if scope["path"] == "/smuggled"]


async def test_a_body_that_breaks_off_in_nonsense_ends_its_request() -> None:
    async with serve(echo) as served:
        line = await served.line()
        line.send(request("/x", "Transfer-Encoding: chunked", method="POST", body=b"3\r\nabc\r\n"))
        line.send(b"zzz\r\n")
        _, headers, body = await line.answer()
        assert json.loads(body)["body"].endswith("<gone>")
        assert headers["connection"] == "close"
        assert await line.rest() == b""


async def test_a_head_without_end_is_cut_off() -> None:
    async with serve(echo) as served:
        line = await served.line()
        line.send(b"GET /x HTTP/1.1\r\n")
        for number in range(http.HEAD_BYTES_MAX // 1000 + 2):
            line.send(f"X-{number}: {'y' * 1000}\r\n".encode())
        assert (await line.answer())[0] == 400


async def test_a_silent_connection_is_closed() -> None:
    async with serve(echo, timeout_keep_alive=1) as served:
        line = await served.line()
        line.send(request("/x"))
        assert (await line.answer())[0] == 200
        assert await line.rest() == b""


async def test_a_connection_that_falls_silent_after_a_long_request_is_closed_no_later() -> None:
    held = asyncio.Event()

    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await held.wait()
        await echo(scope, receive, send)

    async with serve(application, timeout_keep_alive=1) as served:
        line = await served.line()
        line.send(request("/x"))
        connection = await _connection_of(served)
        far = asyncio.get_running_loop().time() + http.BUSY_CHECK_SECONDS / 2
        await until(lambda: connection._next_check_at >= far, what="a check of the connection while it waited")
        held.set()
        assert (await line.answer())[0] == 200
        assert await line.rest() == b""


async def test_a_connection_is_not_closed_for_a_silence_in_which_the_server_itself_was_held_up() -> None:
    async with serve(echo, timeout_keep_alive=60) as served:
        line = await served.line()
        line.send(request("/x"))
        assert (await line.answer())[0] == 200
        connection = await _connection_of(served)
        line.send(request("/x"))  # nobody has read it when the check runs, a minute too late
        connection._silent_since -= 120
        connection._next_check_at = connection._loop.time() - 60
        connection._check_timeouts()
        assert (await line.answer())[0] == 200
        connection._silent_since -= 120
        connection._check_timeouts()  # in time, and the silence is the caller's
        assert await line.rest() == b""


async def test_a_long_keep_alive_time_does_not_delay_the_check_of_slow_callers() -> None:
    async with serve(echo, timeout_keep_alive=6000) as served:
        line = await served.line()
        line.send(request("/x"))
        assert (await line.answer())[0] == 200
        connection, begun = await _connection_of(served), asyncio.get_running_loop().time()
        assert connection._next_check_at <= begun + http.ARRIVAL_SECONDS_MAX
        connection.pause_writing()
        assert connection._next_check_at <= asyncio.get_running_loop().time() + http.UNREAD_CHECK_SECONDS
        connection._check_timeouts()
        assert connection._next_check_at <= asyncio.get_running_loop().time() + http.ARRIVAL_SECONDS_MAX
        connection.resume_writing()


async def test_neither_a_request_nor_its_connection_is_left_for_the_garbage_collector() -> None:
    async with serve(echo) as served:
        gc.collect()
        gc.disable()
        try:
            line = await served.line()
            for _ in range(3):
                line.send(request("/x", "Content-Length: 1", method="POST", body=b"x"))
                assert (await line.answer())[0] == 200
            connection = await _connection_of(served)
            line.close()
            await until(lambda: not served.server.server_state.connections)
            del connection
            await turns()  # the transport lets go of it
            assert not [each for each in gc.get_objects() if isinstance(each, RequestCycle | HttpConnection)]
        finally:
            gc.enable()


async def test_a_request_that_never_arrives_in_full_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ARRIVAL_SECONDS_MAX", 0.0)
    async with serve(echo, timeout_keep_alive=0) as served:
        line = await served.line()
        line.send(b"GET /x HTTP/1.1\r\nHost:")
        with contextlib.suppress(ConnectionResetError):  # the server aborts such a connection
            assert await line.rest() == b""


async def test_an_unsupported_upgrade_is_ignored_and_the_request_answered() -> None:
    async with serve(echo) as served:
        line = await served.line()
        line.send(request("/x", "Connection: Upgrade", "Upgrade: websocket") + b"\x81\x05hello")
        _, headers, body = await line.answer()
        assert json.loads(body)["path"] == "/x"
        assert headers["connection"] == "close"
        assert await line.rest() == b""


async def test_a_header_cannot_smuggle_another_one() -> None:
    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        await send({"type": ANSWER, "status": 200, "headers": {"x-a": "b\r\nset-cookie: c"}, "body": b""})

    async with serve(application) as served:
        line = await served.line()
        line.send(request("/x"))
        status, headers, body = await line.answer()
        assert status == 500
        assert "set-cookie" not in headers
        assert json.loads(body)["code"] == "internal"


async def test_a_stop_finishes_what_is_under_way_and_takes_no_more() -> None:
    under_way, may_end = asyncio.Event(), asyncio.Event()

    async def application(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        under_way.set()
        await may_end.wait()
        await echo(scope, receive, send)

    async with serve(application) as served:
        idle, busy = await served.line(), await served.line()
        busy.send(request("/x"))
        await under_way.wait()
        for each in list(served.server.server_state.connections):
            each.shutdown()
        assert await idle.rest() == b""
        may_end.set()
        _, headers, _ = await busy.answer()
        assert headers["connection"] == "close"
        assert await busy.rest() == b""
