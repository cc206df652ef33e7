"""Sessions that a policy wants recorded: the user sees it, the recording is sealed, and reading it is audited."""

import asyncio
import json
from contextlib import suppress

import asyncpg
import pytest

from mooring.commands.runtime import exec_recording
from mooring.relay.frames import DATA, EXIT, FAILURE
from mooring.storage.kernel.database import PLATFORM
from server.tests.support.relay_peers import SWITCH_VIEWER, Frames, Inside, PlatformWithRelay
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
SHOWN = "canaryshown ü"


async def want_recordings(platform: PlatformWithRelay) -> None:
    place = f"/api/v1/tenants/{platform.tenant.id}"
    rules = {"rules": {"record_exec": True}, "reason": "the auditors asked for it"}
    put = await platform.people.put(f"{place}/policy", json=rules)
    assert put.status_code in (200, 201), put.text


async def recorded(platform: PlatformWithRelay) -> tuple[Frames, Inside]:
    """A session under a policy that wants it recorded; its viewer has seen the notice."""
    await want_recordings(platform)
    visiting = asyncio.create_task(platform.visit(await platform.command("sh")))
    tunnel = await platform.tunnel()
    inside = await tunnel.inside()
    await inside.accept()
    status, viewer = await visiting
    assert status == 101
    first = await viewer.next()
    assert first is not None
    assert (first.kind, first.data) == (DATA, exec_recording.NOTICE)
    return viewer, inside


async def test_what_a_session_shows_is_recorded_sealed_and_read_by_the_tenants_admin_alone(
    platform: PlatformWithRelay,
) -> None:
    viewer, inside = await recorded(platform)
    await viewer.send(b"r", 0, b'{"columns": 100, "rows": 30}')
    await inside.next()
    whole = SHOWN.encode()
    await inside.send(DATA, whole[:-1])  # a character that two frames share
    await inside.send(DATA, whole[-1:] + b"\r\n")
    await inside.send(EXIT, b"0")
    while (frame := await viewer.next()) is not None and frame.kind != EXIT:
        pass
    database, place = platform.project_rows.database, f"/api/v1/tenants/{platform.tenant.id}/exec-recordings"

    async def ended() -> bool:
        return bool(await database.fetchval(PLATFORM, "SELECT count(*) FROM exec_recording WHERE ended_at IS NOT NULL"))

    await until(ended)
    stored = await database.fetch(PLATFORM, "SELECT content FROM exec_recording_part")
    assert stored
    assert not any(b"canaryshown" in row["content"] for row in stored)

    (listed,) = (await platform.people.get(place)).json()["items"]
    read = await platform.people.post(f"{place}/{listed['id']}/read", json={})
    assert read.status_code == 200, read.text
    lines = [json.loads(line) for line in read.json()["asciicast"].splitlines()]
    assert (lines[0]["version"], lines[0]["width"] > 0) == (2, True)
    assert "".join(each[2] for each in lines[1:] if each[1] == "o") == f"{SHOWN}\r\n"
    assert [each[2] for each in lines[1:] if each[1] == "r"] == ["100x30"]
    audited = "SELECT count(*) FROM audit WHERE action = 'exec_recording.read' AND subject_id = $1"
    assert await database.fetchval(PLATFORM, audited, listed["id"]) == 1


async def test_a_session_whose_recording_is_full_ends(
    platform: PlatformWithRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_recording, "RECORDING_BYTES_MAX", 1_000)
    viewer, inside = await recorded(platform)
    await inside.send(DATA, b"x" * 2_000)
    last = await viewer.next()
    assert last is not None
    assert (last.kind, json.loads(last.data)["code"]) == (FAILURE, "limit_reached")


async def asked_nodes(platform: PlatformWithRelay) -> int:
    return int(
        await platform.project_rows.database.fetchval(PLATFORM, "SELECT count(*) FROM task WHERE type = 'tunnel.open'")
    )


async def test_a_command_whose_recording_cannot_begin_never_reaches_its_node(
    platform: PlatformWithRelay, connection: asyncpg.Connection
) -> None:
    await want_recordings(platform)
    ticket = await platform.command("sh", "-c", "take everything")
    await connection.execute("ALTER TABLE exec_recording ADD CONSTRAINT it_is_full CHECK (false) NOT VALID")
    with suppress(asyncio.IncompleteReadError):  # the relay may hang up without an answer
        status, _ = await asyncio.wait_for(platform.visit(ticket), 20)
        assert status >= 500
    assert await asked_nodes(platform) == 0


async def test_a_viewer_who_never_ends_the_request_starts_no_command(platform: PlatformWithRelay) -> None:
    """A request without an end would run the command, and nothing of it would be recorded."""
    await want_recordings(platform)
    ticket = await platform.command("sh", "-c", "take everything")
    line = await platform.line()
    head = f"POST /visits HTTP/1.1\r\nHost: relay\r\nContent-Length: 9\r\nAuthorization: Bearer {ticket}\r\n"
    await line.send(f"{head}Connection: Upgrade\r\nUpgrade: {SWITCH_VIEWER}\r\n\r\n".encode())
    used = "SELECT count(*) FROM visit WHERE opened_at IS NOT NULL"
    await line.send(b"half")
    refused = await asyncio.wait_for(line.reader.readuntil(b"\r\n\r\n"), 20)
    assert refused.startswith(b"HTTP/1.1 409 ")
    assert (await asked_nodes(platform), await platform.project_rows.database.fetchval(PLATFORM, used)) == (0, 0)
