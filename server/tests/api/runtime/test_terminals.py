"""Terminals over WebSocket: a command in a browser that survives a reload, within bounds and only with the right."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from mooring.api.browser_session import COOKIE
from mooring.commands.live import terminal_session
from mooring.commands.live.terminal_session import BUFFER_BYTES, CREDIT_BYTES, PIECES_MAX, OutputBuffer
from mooring.commands.runtime import exec_recording
from mooring.relay import frames
from mooring.relay.frames import DATA, EXIT, FRAME_MAX, RESIZE
from mooring.storage.kernel.database import PLATFORM
from mooring.wiring import relay
from server.tests.conftest import World
from server.tests.support.relay_peers import Inside, PlatformWithRelay, platform_with_relay
from server.tests.support.socket_client import PATIENCE_SECONDS, OpenWebSocket, Refused, connect, masked
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def platform(world: World) -> AsyncIterator[PlatformWithRelay]:
    async with relay(world.running.platform) as listening, platform_with_relay(world, listening) as made:
        yield made


@dataclass
class Ticket:
    """A terminal that was granted, and not started yet."""

    id: str
    ticket: str
    path: str


async def granted(platform: PlatformWithRelay, **command: object) -> Ticket:
    path = f"{platform.path}/allocations/{platform.app.allocation_id}/exec"
    made = await platform.people.post(path, json={"argv": ["sh"], **command})
    assert made.status_code == 201, made.text
    answer = made.json()
    return Ticket(answer["id"], answer["ticket"], f"{platform.path}/terminals/{answer['id']}/ws")


@dataclass
class Window:
    """A page's WebSocket to a terminal."""

    line: OpenWebSocket
    opened: dict[str, Any]
    heard: bytes = b""

    async def next(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                opcode, payload = await self.line.frame()
                if opcode == 9:
                    await self.line.send(masked(10, payload))
                else:
                    return opcode, payload

    async def until(self, text: bytes) -> bytes:
        """All that came, once this has come; what was shown is acknowledged."""
        while text not in self.heard:
            opcode, payload = await self.next()
            assert (opcode, payload[:1]) == (2, DATA), payload
            self.heard += payload[1:]
            await self.say(b"a", (len(payload) - 1).to_bytes(4))
        return self.heard

    async def say(self, letter: bytes, data: bytes = b"") -> None:
        await self.line.send(masked(2, letter + data))

    async def end(self) -> tuple[dict[str, Any], int]:
        """The reason that the platform gives, and the code of the close."""
        async with aclosing(self.line.messages()) as messages:
            said = [each async for each in messages]
        assert self.line.closed is not None
        return (said[-1] if said else {}), self.line.closed[0]


@asynccontextmanager
async def window(
    platform: PlatformWithRelay, ticket: Ticket, first: Mapping[str, object] | None = None, **headers: str
) -> AsyncIterator[Window]:
    """A window that starts the terminal with its ticket, unless its first message is another."""
    async with connect(platform.world.running.url, ticket.path, **headers) as line:
        await line.say({"ticket": ticket.ticket} if first is None else first)
        made = Window(line, {})
        opcode, payload = await made.next()
        assert opcode == 1, payload
        made.opened = json.loads(payload)
        yield made


async def opened(made: Window) -> dict[str, Any]:
    """Wait until the command runs."""
    while made.opened["kind"] == "opening":
        made.opened = json.loads((await made.next())[1])
    assert made.opened["kind"] == "open", made.opened
    return made.opened


async def command_of(platform: PlatformWithRelay) -> Inside:
    """The node opens the command that it is asked for."""
    inside = await (await platform.tunnel()).inside()
    await inside.accept()
    return inside


def bearer(platform: PlatformWithRelay) -> dict[str, str]:
    return {"Authorization": f"Bearer {platform.tenant.token}"}


async def test_a_terminal_runs_a_command_and_a_reload_within_the_time_resumes_it(platform: PlatformWithRelay) -> None:
    ticket = await granted(platform)
    async with window(platform, ticket) as first:
        inside = await command_of(platform)
        shown = await opened(first)
        assert (shown["user"], shown["argv"], shown["offset"]) == ("app", ["sh"], 0)
        await first.say(DATA, b"ls\n")
        await inside.until(b"ls\n")
        await first.say(RESIZE, b'{"columns": 100, "rows": 30}')
        assert json.loads((await inside.next()).data) == {"columns": 100, "rows": 30}
        await inside.send(DATA, b"a file\r\n")
        assert await first.until(b"file\r\n") == b"a file\r\n"
    await inside.send(DATA, b"while away\r\n")
    listed = (await platform.people.get(f"{platform.path}/terminals")).json()["items"]
    assert [(each["id"], each["user"]) for each in listed] == [(ticket.id, "app")]
    async with window(platform, ticket, {"after": 2}, **bearer(platform)) as second:
        assert second.opened["offset"] == 2
        assert await second.until(b"away\r\n") == b"file\r\nwhile away\r\n"
        async with window(platform, ticket, {"ticket": ticket.ticket}) as third:  # the ticket leads there too
            assert await third.until(b"away\r\n") == b"a file\r\nwhile away\r\n"
            taken, code = await second.end()
            assert (code, taken["problem"]["details"]) == (4409, {"terminal": "taken_over"})
            await inside.send(EXIT, b"3")
            assert (await third.next(), (await third.next())[0]) == ((2, EXIT + b"3"), 8)
    database = platform.project_rows.database

    async def recorded() -> bool:
        return bool(await database.fetchval(PLATFORM, "SELECT 1 FROM visit WHERE ended_at IS NOT NULL"))

    await until(recorded)
    assert (await platform.people.get(f"{platform.path}/terminals")).json()["items"] == []
    async with window(platform, ticket, {}, **bearer(platform)) as late:  # it is over, and says how
        assert (await late.until(b"away\r\n"), await late.next()) == (b"a file\r\nwhile away\r\n", (2, EXIT + b"3"))


async def test_only_its_own_page_its_own_user_and_a_whole_ticket_lead_to_a_terminal(
    platform: PlatformWithRelay,
) -> None:
    ticket = await granted(platform)
    url, cookie = platform.world.running.url, {"Cookie": f"{COOKIE}={platform.tenant.token}"}
    for foreign in ({**cookie, "Origin": "https://evil.example"}, cookie):
        with pytest.raises(Refused) as refused:
            async with connect(url, ticket.path, **foreign):
                pass
        assert (refused.value.status, refused.value.body["code"]) == (403, "cross_site_request")
    other = await platform.world.tenant("other")
    with pytest.raises(Refused) as refused:
        async with connect(url, ticket.path, other.token):
            pass
    assert refused.value.status == 404
    another = await granted(platform)
    refusals: tuple[tuple[dict[str, str], dict[str, str], int], ...] = (
        ({}, {}, 4401),
        ({"ticket": "mrgv_" + "x" * 43}, {}, 4401),
        ({"ticket": another.ticket}, {}, 4401),
        ({"token": "mrgu_" + "x" * 43}, {}, 4401),
        ({"token": other.token}, {}, 4404),
        ({}, {**cookie, "Origin": url}, 4404),  # it is not started
    )
    for first, headers, code in refusals:
        async with window(platform, ticket, first, **headers) as made:
            _, closed = await made.end()
            assert (first, closed) == (first, code)
    async with window(platform, ticket, None, **cookie, Origin=url) as made:
        assert made.opened["kind"] == "opening"
    async with connect(url, ticket.path, platform.tenant.token) as line:
        await line.send(masked(2, b"d first"))  # binary, before the first message
        assert (await line.frame())[0] == 8


async def test_a_right_that_is_taken_away_ends_the_terminal_and_names_it(
    platform: PlatformWithRelay, connection: asyncpg.Connection
) -> None:
    platform.world.running.platform.tools.terminals.check_seconds = 0.2
    await connection.execute("SET session_replication_role = replica")  # nobody needs to administer this tenant
    visit = "FROM visit WHERE id = $1)"
    for taken, code, reason in (
        (
            f"UPDATE token SET revoked_at = now() WHERE id = (SELECT token_id {visit}",
            4401,
            "the sign-in or token that opened it is over",
        ),
        (
            f"DELETE FROM membership WHERE user_id = (SELECT principal_id {visit}",
            4403,
            "the right instance.exec was taken away",
        ),
    ):
        ticket = await granted(platform)
        async with window(platform, ticket) as made:
            await command_of(platform)
            await opened(made)
            assert await connection.execute(taken, ticket.id) in ("UPDATE 1", "DELETE 1")
            said, closed = await made.end()
        assert (closed, said["reason"]) == (code, reason)
        await connection.execute("UPDATE token SET revoked_at = NULL")


async def test_its_user_ends_a_terminal_and_the_trail_says_so(platform: PlatformWithRelay) -> None:
    ticket = await granted(platform)
    async with window(platform, ticket) as made:
        await command_of(platform)
        await opened(made)
        assert (await platform.people.delete(f"{platform.path}/terminals/{ticket.id}")).status_code == 204
        said, code = await made.end()
    assert (code, said["reason"]) == (4409, "its user ended it")
    assert (await platform.people.delete(f"{platform.path}/terminals/{ticket.id}")).status_code == 404
    trail = "SELECT reason FROM audit WHERE subject_id = $1 AND action = 'instance.exec' ORDER BY id"
    rows = await platform.project_rows.database.fetch(PLATFORM, trail, ticket.id)
    assert [row["reason"] for row in rows] == [None, None, "its user ended it"]


async def test_one_that_another_process_holds_is_named_and_one_that_nobody_holds_is_gone(
    platform: PlatformWithRelay,
) -> None:
    ticket = await granted(platform)
    held = "UPDATE visit SET opened_at = now(), held_until = now() + $2::interval WHERE id = $1 RETURNING id"
    for seconds, code, details in ((60, 4409, {"terminal": "elsewhere"}), (-60, 4404, {})):
        interval = timedelta(seconds=seconds)
        await platform.project_rows.database.fetch(PLATFORM, held, ticket.id, interval)
        async with window(platform, ticket, {}, **bearer(platform)) as made:
            said, closed = await made.end()
        problem = made.opened.get("problem") or said["problem"]
        assert (closed, problem.get("details", {})) == (code, details)


async def test_the_number_of_terminals_is_bounded_and_one_without_a_viewer_ends_in_time(
    platform: PlatformWithRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals = platform.world.running.platform.tools.terminals
    few = replace(terminals._services.settings, terminals_per_principal=1, terminal_resume_seconds=0.2)
    monkeypatch.setattr(terminals, "_services", replace(terminals._services, settings=few))
    ticket = await granted(platform)
    async with window(platform, ticket) as made:
        inside = await command_of(platform)
        await opened(made)
        async with window(platform, await granted(platform)) as over:
            assert (over.opened["problem"]["code"], over.opened["problem"]["details"]) == (
                "limit_reached",
                {"limit": 1},
            )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await inside.tunnel.ended.wait()


async def test_a_program_that_prints_without_end_is_read_only_as_fast_as_its_viewer_takes_it(
    platform: PlatformWithRelay,
) -> None:
    ticket = await granted(platform)
    async with window(platform, ticket) as made:
        inside = await command_of(platform)
        await opened(made)
        for _ in range(frames.WINDOW // FRAME_MAX):  # all that it may send, and nobody takes it
            await inside.send(DATA, b"y" * FRAME_MAX)
        received = 0
        while received < CREDIT_BYTES:
            received += len((await made.next())[1]) - 1
        session = platform.world.running.platform.tools.terminals._sessions[ticket.id]
        assert session.output.end <= received + BUFFER_BYTES
        assert session.output.end - session.output.begin <= BUFFER_BYTES
        await made.say(b"a", FRAME_MAX.to_bytes(4))
        while received < CREDIT_BYTES + FRAME_MAX:
            received += len((await made.next())[1]) - 1


async def test_a_terminal_that_a_policy_wants_recorded_says_so_and_is(platform: PlatformWithRelay) -> None:
    rules = {"rules": {"record_exec": True}, "reason": "the auditors asked for it"}
    put = await platform.people.put(f"/api/v1/tenants/{platform.tenant.id}/policy", json=rules)
    assert put.status_code in (200, 201), put.text
    async with window(platform, await granted(platform)) as made:
        inside = await command_of(platform)
        assert (await opened(made))["recorded"] is True
        assert exec_recording.NOTICE in await made.until(exec_recording.NOTICE)
        await inside.send(DATA, b"shown")
        await made.until(b"shown")
        await inside.send(EXIT, b"0")

    async def stored() -> bool:
        return bool(await platform.project_rows.database.fetchval(PLATFORM, "SELECT 1 FROM exec_recording_part"))

    await until(stored)


def test_the_buffer_keeps_the_newest_output_and_few_pieces() -> None:
    output = OutputBuffer()
    for _ in range(3 * BUFFER_BYTES):
        output.add(b"d", b"x")
    assert output.end == 3 * BUFFER_BYTES
    assert output.end - output.begin <= BUFFER_BYTES
    for number in range(10_000):  # output and errors by turns cannot be put together
        output.add(b"d" if number % 2 else b"w", b"y")
    assert len(output.pieces) <= PIECES_MAX
    assert output.would_lose(output.begin - 1, 1) is True
    last = output.after(output.end - 1)
    assert last is not None
    assert (last.kind, last.data, last.end) == (b"d", b"y", output.end)
    assert output.after(output.end) is None


def test_the_letters_are_those_of_the_relay() -> None:
    mine = terminal_session
    assert (mine.OUTPUT, mine.ERRORS, mine.END, mine.RESIZE) == (frames.DATA, frames.ERRORS, frames.END, frames.RESIZE)
    assert (mine.SIGNAL, mine.EXIT, mine.FAILURE) == (frames.SIGNAL, frames.EXIT, frames.FAILURE)
