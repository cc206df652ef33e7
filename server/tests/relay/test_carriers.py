"""Carriers: only the node that was asked may dial, once and in time; one stream delays no other; ends are reported."""

import asyncio
import json

import pytest

from mooring.core.kernel.errors import Refusal
from mooring.relay.frames import (
    CLOSE,
    DATA,
    END,
    ERRORS,
    EXIT,
    FAILURE,
    FRAME_MAX,
    HEAD,
    OPEN,
    ROOM,
    WINDOW,
    FrameRefused,
    TunnelFrame,
    packed,
)
from mooring.relay.http import write
from mooring.relay.listener import Relay
from mooring.relay.tunnel_connection import ARRIVED_MAX, TunnelConnection, TunnelStream, failure_of
from mooring.storage.kernel.database import PLATFORM
from server.tests.support.agent_double import joined_agent
from server.tests.support.relay_peers import PlatformWithRelay

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]


async def test_bytes_pass_both_ways_and_each_direction_ends_by_itself(platform: PlatformWithRelay) -> None:
    viewer, inside, _ = await platform.connected()
    assert inside.asked == {"port": 8_080}
    await viewer.send(DATA, 0, b"ahoy")
    await viewer.send(END)
    assert await inside.until(b"ahoy") == b"ahoy"
    assert (await inside.next()).kind == END
    await inside.send(DATA, b"and back")
    await inside.send(END)
    await inside.send(CLOSE)
    frames = [await viewer.next() for _ in range(3)]
    assert [(each.kind, each.data) for each in frames if each] == [(DATA, b"and back"), (END, b""), (CLOSE, b"")]


async def test_a_second_viewer_shares_the_tunnel(platform: PlatformWithRelay) -> None:
    _, _, tunnel = await platform.connected()
    visiting = asyncio.create_task(platform.visit(await platform.ticket()))
    second = await tunnel.inside()
    await second.accept()
    assert (await visiting)[0] == 101


async def test_only_the_node_that_was_asked_may_dial_and_once(platform: PlatformWithRelay) -> None:
    visiting = asyncio.create_task(platform.visit(await platform.ticket()))
    task = await platform.asked()
    other = await joined_agent(platform.world.client(), platform.world.admin)
    user = platform.tenant.token
    for token, status in ((await platform.node_token(other), 404), (user, 404), ("mrgn_" + "x" * 43, 401)):
        assert (await platform.dial(task["task_id"], token))[0] == status
    assert (await platform.dial("tsk_" + "0" * 26, await platform.node_token()))[0] == 404
    tunnel = await platform.tunnel(task)
    assert (await platform.dial(task["task_id"], await platform.node_token()))[0] == 404
    await (await tunnel.inside()).accept()
    assert (await visiting)[0] == 101
    await other.client.aclose()


async def test_a_node_that_dials_too_late_finds_nobody_and_the_viewer_has_an_error(
    platform: PlatformWithRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = platform.world.running.platform.services.database
    for seconds in (1.0, 4.0, 16.0):  # a relay that was held up itself may not have asked the node when they are over
        monkeypatch.setattr("mooring.relay.tunnel_registry.DIAL_SECONDS", seconds)
        line = await platform.line()
        shown = {"Upgrade": "mooring-visit", "Authorization": f"Bearer {await platform.ticket()}"}
        await line.ask("relay", "/visits", Connection="Upgrade", **shown)
        async with asyncio.timeout(seconds + 60):
            answer = await line.answer()
        assert answer.status == 503
        assert f"did not connect within {seconds:.0f} s" in json.loads(answer.body)["detail"]
        asked = "SELECT count(*) FROM task WHERE type = 'tunnel.open' AND project_id = $1"
        if await database.fetchval(PLATFORM, asked, platform.project_id):
            break
    task, *_ = await platform.agent.claim()
    assert (task["type"], task["arguments"]["relay"]) == ("tunnel.open", platform.relay._tunnels.url)
    assert (await platform.dial(task["task_id"], await platform.node_token()))[0] == 404


async def test_the_viewer_gets_what_the_node_says_about_a_connection(platform: PlatformWithRelay) -> None:
    _, _, tunnel = await platform.connected()
    for frame, status in (
        ((FAILURE, b'{"code": "not_found", "detail": "nothing listens there"}'), 404),
        ((FAILURE, b"\xff not json"), 503),
        ((CLOSE, b""), 503),
    ):
        visiting = asyncio.create_task(platform.visit(await platform.ticket()))
        inside = await tunnel.inside()
        await inside.send(*frame)
        assert (await visiting)[0] == status


@pytest.mark.parametrize(
    "wrong",
    [
        HEAD.pack(b"d", 1, FRAME_MAX + 1),
        packed(b"d", 1, b"x")[:-1],
        HEAD.pack(b"q", 1, 0),
        packed(OPEN, 1, b"{}"),
        packed(ROOM, 1, b"\x00" * 5),
        packed(ROOM, 1, WINDOW.to_bytes(4)),
        packed(END, 1) * 2,
        packed(END, 1) + packed(DATA, 1, b"x"),
        packed(ERRORS, 1, b"x"),
    ],
    ids=[
        "too-large",
        "cut-off",
        "unknown-letter",
        "not-a-nodes",
        "odd-room",
        "more-room",
        "two-ends",
        "after-end",
        "errors-of-a-port",
    ],
)
async def test_a_node_that_breaks_the_protocol_is_hung_up_on_and_its_viewer_gets_an_error(
    platform: PlatformWithRelay, wrong: bytes
) -> None:
    viewer, inside, tunnel = await platform.connected()
    assert inside.number == 1
    inside.tunnel.frames.writer.write(wrong)
    if wrong == packed(b"d", 1, b"x")[:-1]:
        inside.tunnel.frames.writer.close()
    frames = []
    while (frame := await viewer.next()) is not None:
        frames.append(frame)
    assert frames[-1].kind == FAILURE
    assert json.loads(frames[-1].data) == {"code": "tunnel_lost", "detail": "the node closed the connection"}
    await tunnel.ended.wait()


async def test_what_nobody_reads_is_kept_up_to_a_window_and_no_further(platform: PlatformWithRelay) -> None:
    reader, writer = await asyncio.open_connection(*platform.address)
    stream = TunnelStream(TunnelConnection(reader, writer, (8_080,)), 1)
    for _ in range(WINDOW // FRAME_MAX):
        stream.take(TunnelFrame(DATA, 1, b"x" * FRAME_MAX))
    with pytest.raises(FrameRefused, match="more than its credit"):
        stream.take(TunnelFrame(DATA, 1, b"x"))
    many = TunnelStream(TunnelConnection(reader, writer, (8_080,)), 2)
    for _ in range(ARRIVED_MAX):
        many.take(TunnelFrame(EXIT, 2, b"0"))
    with pytest.raises(FrameRefused, match="too many frames"):
        many.take(TunnelFrame(EXIT, 2, b"0"))
    both = TunnelStream(TunnelConnection(reader, writer, ()), 3)
    for _ in range(10 * ARRIVED_MAX):  # a command's output and its errors by turns: neither overtakes itself
        both.take(TunnelFrame(DATA, 3, b"out "))
        both.take(TunnelFrame(ERRORS, 3, b"err "))
    assert [(each.kind, each.data[:8]) for each in both.arrived] == [(DATA, b"out out "), (ERRORS, b"err err ")]
    both.take(TunnelFrame(DATA, 3, b"x" * FRAME_MAX))
    both.take(TunnelFrame(DATA, 3, b"last"))
    assert [each.data[-4:] for each in both.arrived if each.kind == DATA] == [b"out ", b"xxxx", b"last"]
    writer.close()


async def test_a_slow_reader_holds_up_no_other_stream(platform: PlatformWithRelay) -> None:
    slow, first, tunnel = await platform.connected()
    visiting = asyncio.create_task(platform.visit(await platform.ticket()))
    second = await tunnel.inside()
    await second.accept()
    _, quick = await visiting
    for _ in range(WINDOW // FRAME_MAX):  # the slow one takes nothing of a whole window
        await first.send(DATA, b"x" * FRAME_MAX)
    for _ in range(3):
        for _ in range(WINDOW // FRAME_MAX):
            await second.send(DATA, b"y" * FRAME_MAX)
        heard = 0
        while heard < WINDOW:
            frame = await quick.next()
            assert frame is not None
            heard += len(frame.data)
        granted = 0
        while granted < WINDOW:
            granted += int.from_bytes((await second.next()).data)
    heard = 0
    while heard < WINDOW:
        frame = await slow.next()
        assert frame is not None
        assert frame.kind == DATA
        heard += len(frame.data)


async def test_a_viewer_sends_no_more_than_there_is_room_for_inside(platform: PlatformWithRelay) -> None:
    viewer, inside, _ = await platform.connected()
    writing = asyncio.create_task(_flood(platform, viewer.writer))
    heard = 0
    while heard < WINDOW:
        heard += len((await inside.arrived.get()).data)
    assert heard == WINDOW
    assert inside.arrived.empty()
    await inside.send(ROOM, (100_000).to_bytes(4))
    while heard < WINDOW + FRAME_MAX:
        heard += len((await inside.arrived.get()).data)
    assert heard <= WINDOW + 100_000
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


async def _flood(platform: PlatformWithRelay, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(packed(DATA, 0, b"z" * FRAME_MAX))
        await writer.drain()


async def test_many_small_pieces_that_nobody_reads_are_put_together(platform: PlatformWithRelay) -> None:
    viewer, inside, _ = await platform.connected()
    inside.tunnel.frames.writer.write(packed(DATA, 1, b"x") * 10_000)
    await inside.tunnel.frames.writer.drain()
    await inside.send(END)
    heard = b""
    while (frame := await viewer.next()) is not None and frame.kind == DATA:
        heard += frame.data
    assert heard == b"x" * 10_000


async def test_a_carrier_that_dies_ends_its_viewers_with_the_reason_and_the_next_asks_again(
    platform: PlatformWithRelay,
) -> None:
    viewer, _, tunnel = await platform.connected()
    tunnel.frames.writer.close()
    frame = await viewer.next()
    assert frame is not None
    assert (frame.kind, json.loads(frame.data)["code"]) == (FAILURE, "tunnel_lost")
    assert await viewer.next() is None
    again, inside, _ = await platform.connected()
    await inside.send(DATA, b"again")
    frame = await again.next()
    assert frame is not None
    assert frame.data == b"again"


async def test_a_viewer_who_leaves_closes_only_their_stream(platform: PlatformWithRelay) -> None:
    viewer, inside, tunnel = await platform.connected()
    viewer.writer.close()
    assert (await inside.next()).kind == CLOSE
    assert not tunnel.ended.is_set()


@pytest.mark.parametrize(
    "wrong",
    [
        packed(OPEN, 0, b"{}"), packed(EXIT, 0, b"0"), packed(ROOM, 0, b"\x00" * 4), packed(DATA, 1, b"x"),
        packed(b"r", 0, b"{}"), packed(b"s", 0, b"{}"), packed(END, 0, b"x"), packed(END, 0) + packed(DATA, 0, b"x"),
        packed(END, 0) * 2, HEAD.pack(b"d", 0, FRAME_MAX + 1), HEAD.pack(b"!", 0, 0),
    ],
)  # fmt: skip
async def test_a_viewer_who_speaks_otherwise_is_hung_up_on_alone(platform: PlatformWithRelay, wrong: bytes) -> None:
    viewer, inside, tunnel = await platform.connected()
    viewer.writer.write(wrong)
    while await viewer.next() is not None:
        pass
    while (await inside.next()).kind != CLOSE:
        pass
    assert not tunnel.ended.is_set()


async def test_a_command_runs_once_takes_window_sizes_and_its_exit_code_comes_back(platform: PlatformWithRelay) -> None:
    ticket = await platform.command("id", "-u")
    visiting = asyncio.create_task(platform.visit(ticket))
    task = await platform.asked()
    assert task["arguments"]["argv"] == ["id", "-u"]
    assert "ports" not in task["arguments"]
    tunnel = await platform.tunnel(task)
    inside = await tunnel.inside()
    await inside.accept()
    status, viewer = await visiting
    assert status == 101
    await viewer.send(b"r", 0, b'{"columns": 100, "rows": 30}')
    resized = await inside.next()
    assert (resized.kind, json.loads(resized.data)) == (b"r", {"columns": 100, "rows": 30})
    await inside.send(DATA, b"1000\r\n")
    await inside.send(EXIT, b"7")
    frames = [await viewer.next() for _ in range(3)]
    assert [(each.kind, each.data) for each in frames if each] == [(DATA, b"1000\r\n"), (EXIT, b"7")]
    await tunnel.ended.wait()  # its tunnel is for this command alone
    assert (await platform.visit(ticket))[0] == 401


async def test_a_ticket_counts_for_its_kind_and_for_nobody_who_made_none(platform: PlatformWithRelay) -> None:
    link = await platform.ticket("open")
    session = (await platform.session()).partition("=")[2]
    for ticket in (link, session, "mrgv_" + "x" * 43, platform.tenant.token, await platform.node_token()):
        assert (await platform.visit(ticket))[0] == 401
    assert (await platform.open_link(await platform.ticket())).status == 401
    assert (await platform.open_link(await platform.command("id"))).status == 401


async def test_a_ticket_whose_time_is_over_counts_no_more(platform: PlatformWithRelay) -> None:
    ticket = await platform.ticket()
    await _expire_visits(platform)
    assert (await platform.visit(ticket))[0] == 401


async def test_a_ticket_ends_with_its_makers_token_and_with_what_it_is_for(platform: PlatformWithRelay) -> None:
    made = await platform.people.post("/api/v1/tokens", json={"name": "for a while"})
    holder = platform.world.client(made.json()["token"])
    ticket = (await holder.post(f"{platform.path}/endpoints/{platform.app.endpoint_id}/connect")).json()["ticket"]
    assert (await platform.people.delete(f"/api/v1/tokens/{made.json()['id']}")).status_code < 300
    assert (await platform.visit(ticket))[0] == 401
    other = await platform.ticket()
    released = await platform.people.post(f"{platform.path}/allocations/{platform.app.allocation_id}/release")
    assert released.status_code == 200, released.text
    assert (await platform.visit(other))[0] == 404


async def test_what_is_open_ends_when_the_right_to_it_is_taken(
    platform: PlatformWithRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Relay, "poll_interval_seconds", 0.05)
    viewer, inside, tunnel = await platform.connected()
    released = await platform.people.post(f"{platform.path}/allocations/{platform.app.allocation_id}/release")
    assert released.status_code == 200, released.text
    frame = await viewer.next()
    assert frame is not None
    assert (frame.kind, json.loads(frame.data)["code"]) == (FAILURE, "not_found")
    assert await viewer.next() is None
    assert (await inside.next()).kind == CLOSE
    assert not tunnel.ended.is_set()


async def test_beyond_the_limit_a_connection_is_not_taken(platform: PlatformWithRelay) -> None:
    platform.relay.limits.connections_max = 2
    kept = [await platform.line() for _ in range(2)]
    for line in kept:
        await line.send(b"GET ")
    refused = await platform.line()
    assert (await refused.answer()).status == 503
    assert await refused.is_over()
    kept[0].writer.close()
    await kept[0].writer.wait_closed()
    assert (await _status_in_time(platform)) == 401


async def _status_in_time(platform: PlatformWithRelay) -> int:
    """What the relay answers, as soon as it takes one more connection."""
    async with asyncio.timeout(60):
        while True:
            line = await platform.line()
            try:
                await line.ask("relay", "/visits")
                status = (await line.answer()).status
                if status != 503:
                    return status
            except ConnectionError:
                continue


async def test_beyond_the_limit_of_a_tunnel_a_stream_is_refused(
    platform: PlatformWithRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooring.relay.tunnel_connection.STREAMS_MAX", 1)
    await platform.connected()
    assert (await platform.visit(await platform.ticket()))[0] == 429


async def test_no_ticket_is_in_any_log_line_and_a_visit_has_its_beginning_and_end(
    platform: PlatformWithRelay, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="mooring.relay")
    ticket = await platform.ticket()
    visiting = asyncio.create_task(platform.visit(ticket))
    tunnel = await platform.tunnel()
    inside = await tunnel.inside()
    await inside.accept()
    _, viewer = await visiting
    viewer.writer.close()
    assert (await inside.next()).kind == CLOSE
    session = await platform.session()
    await platform.relay.close()  # every connection is at its end
    records = [record for record in caplog.records if record.name == "mooring.relay" and record.levelname == "INFO"]
    assert sorted(record.message for record in records) == [
        "a session at an endpoint started",
        "a visit ended",
        "a visit started",
    ]
    for record in records:
        assert record.__dict__["correlation_id"].startswith("cor_")
        assert record.__dict__["visit_id"].startswith("vis_")
    assert ticket not in caplog.text
    assert session.partition("=")[2] not in caplog.text


async def _expire_visits(platform: PlatformWithRelay) -> None:
    database = platform.world.running.platform.services.database
    async with database.connection(PLATFORM) as connection:
        expire = "UPDATE visit SET expires_at = now() - interval '1 second' WHERE project_id = $1"
        await connection.execute(expire, platform.project_id)


async def test_who_has_hung_up_is_one_error_on_every_event_loop() -> None:
    """The loop that the server runs on says it otherwise than that of the standard library."""
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as listening:
        _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname()[:2])
        writer.close()
        await writer.wait_closed()
        with pytest.raises(ConnectionResetError, match="closed the connection"):
            await write(writer, b"too late")


def test_a_failure_that_a_node_makes_up_is_bounded() -> None:
    refusal = failure_of(TunnelFrame(FAILURE, 1, json.dumps({"code": "x" * 500, "detail": "y" * 5_000}).encode()))
    assert isinstance(refusal, Refusal)
    assert len(refusal.detail) < 600
