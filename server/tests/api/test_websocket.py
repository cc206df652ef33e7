"""Streams as WebSockets, through the public API: the same events and bounds as server-sent events."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import asyncpg
import httpx
import pytest
from websockets.frames import CloseCode

from mooring.api import websocket_session
from mooring.api.request_cycle import BYTES
from mooring.api.socket import WebSocketResponse
from mooring.api.stream import StreamChunk
from mooring.api.websocket import MESSAGE_BYTES_MAX, WebSocket
from mooring.core.kernel.event import BEGINNING
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.socket_client import PATIENCE_SECONDS, OpenWebSocket, Refused, connect, masked
from tests.support.waiting import turns

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]


async def rename(client: httpx.AsyncClient, project_id: str, name: str) -> None:
    path, headers = f"/api/v1/projects/{project_id}", {"X-Correlation-ID": name}
    answer = await client.patch(path, json={"display_name": name}, headers=headers)
    assert answer.status_code == 200, answer.text


async def home(world: World) -> tuple[TenantWithAdmin, str, httpx.AsyncClient]:
    tenant = await world.tenant("acme")
    return tenant, await world.project(tenant, "train"), world.client(tenant.token)


def events_of(project_id: str, **query: str) -> str:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return f"/api/v1/projects/{project_id}/events/ws" + (f"?{asked}" if asked else "")


async def first_items(line: OpenWebSocket, count: int, last: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(line.items()) as items:
        async for item in items:
            found.append(item)
            if len(found) == count or item["item"]["correlation_id"] == last:
                break
    return found


# The stream ---------------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_cut_again_and_again_misses_nothing_and_repeats_nothing(
    world: World, connection: asyncpg.Connection
) -> None:
    tenant, project_id, client = await home(world)
    turns = 40
    last = f"turn-{turns - 1}"

    async def write() -> None:
        for turn in range(turns):
            await rename(client, project_id, f"turn-{turn}")

    async def read() -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        cursor = "beginning"
        while not messages or messages[-1]["item"]["correlation_id"] != last:
            async with connect(world.running.url, events_of(project_id, cursor=cursor), tenant.token) as line:
                messages += await first_items(
                    line, 1 + len(messages) % 3, last
                )  # and then it is cut, between two frames or within
            cursor = messages[-1]["cursor"]
        return messages

    writing = asyncio.create_task(write())
    messages = await read()
    await writing
    rows = await connection.fetch("SELECT id FROM event WHERE project_id = $1 ORDER BY epoch, tx, seq", project_id)
    assert [each["item"]["id"] for each in messages] == [row["id"] for row in rows]


async def test_the_cursor_comes_before_the_first_event_so_that_nothing_is_lost_between(world: World) -> None:
    tenant, project_id, client = await home(world)
    async with connect(world.running.url, events_of(project_id), tenant.token) as line:
        opened = await anext(line.messages())
    assert opened["kind"] == "open"
    await rename(client, project_id, "while-nobody-looked")
    async with connect(world.running.url, events_of(project_id, cursor=opened["cursor"]), tenant.token) as line:
        # The creation of the project may come before it.
        messages = await first_items(line, 10, last="while-nobody-looked")
    assert messages[-1]["item"]["correlation_id"] == "while-nobody-looked"


# The caller ----------------------------------------------------------------------------------------------------------


async def test_a_token_comes_in_the_first_message_where_no_header_can_be_set(world: World) -> None:
    tenant, project_id, _ = await home(world)
    async with connect(world.running.url, events_of(project_id, cursor="beginning")) as line:
        await line.say({"token": tenant.token})
        messages = await first_items(line, 1)
    assert messages[0]["item"]["project_id"] == project_id


@pytest.mark.parametrize(
    "first", [{"token": "wrong"}, {"cursor": "beginning"}, {"token": 5}, {"token": "a\r\nb"}, ["token"]]
)
async def test_a_first_message_without_a_good_token_ends_it_with_a_problem(world: World, first: object) -> None:
    _, project_id, _ = await home(world)
    async with connect(world.running.url, events_of(project_id)) as line:
        await line.say(first)
        messages, (code, _) = await line.end()
    assert (code, [each["kind"] for each in messages]) == (4401, ["closed"])
    assert messages[0]["problem"]["code"] == "unauthenticated"


async def test_a_caller_who_sends_no_token_is_refused_after_a_bounded_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, project_id, _ = await home(world)
    monkeypatch.setattr(websocket_session, "FIRST_MESSAGE_SECONDS", 0.0)
    async with connect(world.running.url, events_of(project_id)) as line:
        _, (code, reason) = await line.end()
    assert code == 4401
    assert "first message" in reason


async def test_a_token_in_the_address_is_refused(world: World) -> None:
    tenant, project_id, _ = await home(world)
    with pytest.raises(Refused) as refused:
        async with connect(world.running.url, events_of(project_id, token="secret"), tenant.token):
            pass
    assert refused.value.status == 422


async def test_a_foreign_project_is_not_found_by_header_or_by_message(world: World) -> None:
    _, project_id, _ = await home(world)
    other = await world.tenant("other")
    with pytest.raises(Refused) as refused:
        async with connect(world.running.url, events_of(project_id), other.token):
            pass
    assert (refused.value.status, refused.value.body["code"]) == (404, "not_found")
    async with connect(world.running.url, events_of(project_id)) as line:
        await line.say({"token": other.token})
        messages, (code, _) = await line.end()
    assert (code, messages[-1]["problem"]["code"]) == (4404, "not_found")


async def test_a_caller_who_loses_their_permission_is_closed_and_gets_nothing_more(world: World) -> None:
    tenant, project_id, client = await home(world)
    session = await world.member(tenant, project_id, "project_viewer", "reader")
    made = (await world.client(session).post("/api/v1/tokens", json={"name": "follower"})).json()
    async with connect(world.running.url, events_of(project_id), made["token"]) as line:
        revoked = await world.client(session).delete(f"/api/v1/tokens/{made['id']}")
        assert revoked.status_code == 200, revoked.text
        await rename(client, project_id, "after-the-end")
        messages, (code, _) = await line.end()
    assert code == 4401
    assert "after-the-end" not in str(messages)
    assert messages[-1]["kind"] == "closed"


async def test_one_caller_holds_a_bounded_number_of_streams(world: World) -> None:
    tenant, project_id, _ = await home(world)
    limit = world.running.settings.streams_per_principal
    streams = world.running.platform.tools.streams
    me = (await world.client(tenant.token).get("/api/v1/whoami")).json()["id"]
    streams[me] = limit
    with pytest.raises(Refused) as refused:
        async with connect(world.running.url, events_of(project_id), tenant.token):
            pass
    assert refused.value.status == 429


# How it ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("private_platform")
async def test_a_server_that_stops_says_so(world: World) -> None:
    tenant, project_id, _ = await home(world)
    async with connect(world.running.url, events_of(project_id), tenant.token) as line:
        assert (await anext(line.messages()))["kind"] == "open"
        await world.running.platform.services.hub.close()
        _, (code, _) = await line.end()
    assert code == CloseCode.GOING_AWAY


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\x02hi", CloseCode.PROTOCOL_ERROR),  # not masked
        (masked(1, b"hi", reserved=0x40), CloseCode.PROTOCOL_ERROR),  # an extension that was not negotiated
        (masked(3), CloseCode.PROTOCOL_ERROR),  # no such kind
        (masked(9, final=False), CloseCode.PROTOCOL_ERROR),  # a control frame in fragments
        (masked(0, b"hi"), CloseCode.PROTOCOL_ERROR),  # the rest of nothing
        (masked(8, b"\x03"), CloseCode.PROTOCOL_ERROR),  # half a code
        (masked(8, (1005).to_bytes(2)), CloseCode.PROTOCOL_ERROR),  # a code that is never sent
        (masked(1, b"\xff\xfe"), CloseCode.INVALID_DATA),
        (masked(2, b"hi"), CloseCode.UNSUPPORTED_DATA),
        (masked(1, b"{}"), CloseCode.POLICY_VIOLATION),  # no message is expected
        (masked(1, bytes(17_000)), CloseCode.MESSAGE_TOO_BIG),
        (masked(1, bytes(9_000), final=False) + masked(0, bytes(9_000)), CloseCode.MESSAGE_TOO_BIG),
        (masked(8, (1000).to_bytes(2)), CloseCode.NORMAL_CLOSURE),
        (masked(8), CloseCode.NORMAL_CLOSURE),
    ],
    ids=itertools.count(),  # masks are random in each process
)
async def test_a_violation_of_the_protocol_ends_it_with_the_code_of_the_rfc(
    world: World, sent: bytes, code: int
) -> None:
    tenant, project_id, _ = await home(world)
    async with connect(world.running.url, events_of(project_id), tenant.token) as line:
        await line.send(sent)
        _, (closed_with, _) = await line.end()
    assert closed_with == code


async def test_a_ping_is_answered_with_its_own_bytes(world: World) -> None:
    tenant, project_id, _ = await home(world)
    async with connect(world.running.url, events_of(project_id), tenant.token) as line:
        await line.send(masked(9, b"are you there"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await line.frame())[0] != 10:
                pass
    assert answer == (10, b"are you there")


async def test_a_caller_who_answers_no_ping_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    silent = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> dict[str, Any]:
        await silent.wait()
        return {"type": "http.disconnect"}

    async def pieces() -> AsyncGenerator[Any, None]:
        await silent.wait()
        yield None

    socket = WebSocketResponse({}, pieces(), ping_seconds=0.0, silent_seconds_max=0.0)
    monkeypatch.setattr(websocket_session, "CLOSE_SECONDS", 0.0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await socket.send({"x-correlation-id": "test"}, send, receive)
    assert sent[-1][0] == 0x88
    assert int.from_bytes(sent[-1][2:4]) == CloseCode.POLICY_VIOLATION


async def test_the_address_of_a_websocket_refuses_a_plain_request_and_says_what_it_needs(world: World) -> None:
    _, project_id, client = await home(world)
    plain = await client.get(f"/api/v1/projects/{project_id}/events/ws")
    assert (plain.status_code, plain.json()["code"]) == (400, "malformed_request")
    token = client.headers["Authorization"].removeprefix("Bearer ")
    for header, value in {"Sec-WebSocket-Version": "8", "Sec-WebSocket-Key": "short"}.items():
        with pytest.raises(Refused) as refused:
            async with connect(world.running.url, events_of(project_id), token, **{header: value}):
                pass
        assert refused.value.body["code"] == "header_invalid"


# Without I/O ---------------------------------------------------------------------------------------------------------


def test_a_message_may_come_in_fragments_and_byte_by_byte_with_a_ping_between_them() -> None:
    socket, found = WebSocket(), []
    for byte in masked(1, b"one ", final=False) + masked(9, b"?") + masked(0, b"two"):
        found += socket.receive(bytes([byte]))
    assert found == [b"one two"]
    assert socket.outgoing() == b"\x8a\x01?"


def test_a_message_is_measured_over_all_its_fragments_as_soon_as_its_length_is_known() -> None:
    socket = WebSocket()
    assert socket.receive(masked(1, bytes(MESSAGE_BYTES_MAX), final=False)) == []
    assert socket.is_open
    assert socket.receive(masked(0, bytes(200))[:8]) == []
    assert socket.is_finished
    assert int.from_bytes(socket.outgoing()[2:4]) == CloseCode.MESSAGE_TOO_BIG


def test_after_a_violation_nothing_more_is_read() -> None:
    socket = WebSocket()
    assert socket.receive(masked(1, b"first") + masked(3) + masked(1, b"second")) == [b"first"]
    assert socket.receive(masked(1, b"third") + masked(9)) == []
    assert socket.is_finished
    assert socket.outgoing()[0] == 0x88


def test_a_long_reason_is_cut_between_two_characters() -> None:
    socket = WebSocket()
    socket.close(4404, "é" * 200)
    frame = socket.outgoing()
    assert (frame[0], frame[1], frame[4:].decode()) == (0x88, 124, "é" * 61)


def test_no_token_gets_into_the_log_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert WebSocket().receive(masked(1, b'{"token": "secret"}')) == [b'{"token": "secret"}']
    assert "secret" not in caplog.text


async def test_a_close_frame_is_the_last_one_also_where_the_caller_reads_slowly() -> None:
    sent: list[bytes] = []
    is_full, may_write, writes = asyncio.Event(), asyncio.Event(), itertools.count()
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(message: dict[str, Any]) -> None:
        if "body" in message:
            if next(writes) == 0:
                is_full.set()
                await may_write.wait()
            sent.append(message["body"])

    async def pieces() -> AsyncGenerator[Any, None]:
        while True:
            await turns()
            yield StreamChunk(BEGINNING)

    talking = asyncio.create_task(
        WebSocketResponse({}, pieces()).send({"x-correlation-id": "test"}, send, received.get)
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await is_full.wait()
        await received.put({"type": BYTES, "body": masked(2, b"not text")})
        await turns()
        may_write.set()
        await talking
    assert [frame[0] for frame in sent] == [0x81] * (len(sent) - 1) + [0x88]
