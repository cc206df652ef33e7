"""Starting at once, starting twice, and stopping while something is under way."""

import asyncio
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from websockets.frames import CloseCode

from server.tests.processes.conftest import execute
from server.tests.support.http_wire import BROKEN, WireClient, stream
from server.tests.support.server_process import (
    FIRST_ADMIN,
    ServerGroup,
    ServerProcess,
    listening,
    make_project,
    make_tenant,
    sign_in,
    sign_in_first_admin,
)
from server.tests.support.socket_client import connect
from tests.support.waiting import linger, until
from tools.ports import LOOPBACK, free_port

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

BLOCKED = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'mooring' AND wait_event_type = 'Lock'"""
GIVEN_UP = {"MOORING_SHUTDOWN_SECONDS": "600", "MOORING_METRICS_LISTEN": "api"}
"""Longer than these tests wait for a stop: a request that ends was ended by the stop, not by this limit."""


async def until_blocked(connection: asyncpg.Connection) -> None:
    """Return once a statement of the server's waits for a lock."""
    await until(lambda: connection.fetchval(BLOCKED))


async def until_answering(url: str, count: int) -> None:
    """Return once the server is answering so many requests, and the one that asks for their number."""
    wanted = f"\nmooring_http_requests_in_flight {count + 1}.0\n".encode()
    async with WireClient(url) as caller:

        async def is_answering() -> bool:
            return wanted in (await caller.call("GET", "/metrics")).body

        await until(is_answering)


async def until_refused(url: str) -> None:
    """Return once the server takes no more connections."""

    async def is_refused() -> bool:
        try:
            async with WireClient(url) as caller:
                await caller.call("GET", "/healthz")
        except BROKEN:
            return True
        return False

    await until(is_refused)


async def test_three_replicas_that_start_at_once_on_an_empty_database_make_one_first_admin(
    empty_database_url: str, tmp_path: Path
) -> None:
    fleet = ServerGroup(tmp_path, {"MOORING_DATABASE_URL": empty_database_url})
    try:
        begun = [await fleet.begin("serve") for _ in range(3)]
        replicas = [await listening(each) for each in begun]
        for replica in replicas:
            async with WireClient(replica.url) as caller:
                assert (await caller.get("/readyz"))["status"] == "ready"
        codes = [replica.code for replica in replicas if replica.code is not None]
        assert len(codes) == 1
        other = next(replica for replica in replicas if replica.code is None)
        admin_token = await sign_in(other.url, FIRST_ADMIN, codes[0])
        connection = await asyncpg.connect(empty_database_url)
        try:
            assert await connection.fetchval("SELECT count(*) FROM membership WHERE role = 'platform_admin'") == 1
            keys = await connection.fetch("SELECT purpose FROM platform_key WHERE retired_at IS NULL")
            assert len(keys) == len({key["purpose"] for key in keys}) > 0
        finally:
            await connection.close()
        # What one of them seals, the others unseal: they have one master key.
        body = {
            "slug": "acme",
            "display_name": "Acme",
            "first_admin": {"email": "admin@acme.example", "display_name": "Admin"},
        }
        answers = []
        for replica in replicas:
            async with WireClient(replica.url, admin_token) as caller:
                answers.append(await caller.call("POST", "/api/v1/tenants", body, {"Idempotency-Key": "once"}))
        assert [answer.status for answer in answers] == [201, 201, 201]
        assert len({answer.body for answer in answers}) == 1
    finally:
        await fleet.close()


async def test_a_port_in_use_is_reported_in_one_line_with_its_setting(database_url: str, tmp_path: Path) -> None:
    fleet = ServerGroup(tmp_path, {"MOORING_DATABASE_URL": database_url})
    try:
        with socket.create_server((LOOPBACK, free_port())) as taken:
            port = taken.getsockname()[1]
            for who, setting, other in (
                ("the relay", "MOORING_RELAY_LISTEN_PORT", "MOORING_LISTEN_PORT"),
                ("the API", "MOORING_LISTEN_PORT", "MOORING_RELAY_LISTEN_PORT"),
            ):
                refused = await fleet.begin("api", **{setting: str(port), other: str(free_port())})
                assert await refused.ended() == 1
                errors = [line for line in refused.log.splitlines() if line.startswith("error: ")]
                what = f"{who} cannot listen on 127.0.0.1 port {port}: Address already in use"
                ways = f"`mooring up --port N`, `make up ARGS='--port N'` or {setting}"
                assert errors == [f"error: {what}; choose another: {ways}"]
                assert "Traceback" not in refused.log
    finally:
        await fleet.close()


async def test_a_second_start_on_the_same_data_is_refused_by_name_and_the_first_goes_on(open_directory: Path) -> None:
    fleet = ServerGroup(open_directory, {"MOORING_DATA_DIR": str(open_directory / "data")})
    try:
        first = await fleet.start("up")
        second = await fleet.begin("up")
        assert await second.ended() != 0
        assert f"in use by process {first.process.pid}" in second.log, second.log
        assert "Traceback" not in second.log
        admin_token = await sign_in_first_admin(first)
        assert (await make_tenant(first.url, admin_token, "acme")).id
        first.send(signal.SIGTERM)
        assert await first.ended() == 0, first.log
    finally:
        await fleet.close()


async def stop(served: ServerProcess) -> None:
    """Ask a server to stop, and wait until it has."""
    served.send(signal.SIGTERM)
    assert await served.ended() == 0, served.log


async def test_a_stop_finishes_the_request_that_is_under_way(fleet: ServerGroup, database_url: str) -> None:
    served = await fleet.start("serve")
    tenant = await make_tenant(served.url, await sign_in_first_admin(served), "acme")
    project_id = await make_project(served.url, tenant, "slow")
    connection, holder = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    try:
        async with WireClient(served.url, tenant.token) as caller:
            holding = holder.transaction()
            await holding.start()
            await holder.execute("SELECT FROM project WHERE id = $1 FOR UPDATE", project_id)
            request = asyncio.create_task(
                caller.call("PATCH", f"/api/v1/projects/{project_id}", {"display_name": "Finished"})
            )
            await until_blocked(connection)
            served.send(signal.SIGTERM)
            await until_refused(served.url)
            assert not request.done()
            await holding.rollback()
            assert (await request).expect(200)["display_name"] == "Finished"
        assert await served.ended() == 0, served.log
        assert await connection.fetchval("SELECT display_name FROM project WHERE id = $1", project_id) == "Finished"
    finally:
        await holder.close()
        await connection.close()


async def test_a_stop_ends_streams_and_waiting_reads_at_once(fleet: ServerGroup) -> None:
    served = await fleet.start("serve", **GIVEN_UP)
    tenant = await make_tenant(served.url, await sign_in_first_admin(served), "acme")
    project_id = await make_project(served.url, tenant, "waited-for")
    async with (
        WireClient(served.url, tenant.token) as waiting,
        stream(served.url, tenant.token, f"{tenant.path}/events/stream", after="beginning") as opened,
    ):
        assert await opened.take(1)
        read = asyncio.create_task(waiting.call("GET", f"/api/v1/projects/{project_id}?wait=60&changed_from=0"))
        ending = asyncio.create_task(opened.end())
        await until_answering(served.url, 2)  # the stream and the read
        await stop(served)
        assert (await read).expect(200)["id"] == project_id
        await ending  # the server ended it: nothing broke


async def test_a_stop_closes_websockets_with_the_code_for_going_away(fleet: ServerGroup) -> None:
    served = await fleet.start("serve", **GIVEN_UP)
    tenant = await make_tenant(served.url, await sign_in_first_admin(served), "acme")
    async with connect(served.url, f"{tenant.path}/events/ws?cursor=beginning", tenant.token) as line:
        assert (await anext(line.messages()))["kind"] == "open"
        ending = asyncio.create_task(line.end())
        await stop(served)
        _, (code, _) = await ending
    assert code == CloseCode.GOING_AWAY


def unsent_bytes(url: str) -> int:
    """What the kernel holds of the answers of a server because nobody reads them."""
    port = f":{urlsplit(url).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(port))


async def until_stuck(url: str) -> None:
    """Return once the server cannot send any more: what waits to be read grows no further."""
    seen = [0]

    async def grows_no_further() -> bool:
        await linger(0.05)
        seen.append(unsent_bytes(url))
        return len(seen) > 4 and len(set(seen[-4:])) == 1 and bool(seen[-1])

    await until(grows_no_further)


FILL = """
INSERT INTO event (id, type, noun, subject_id, tenant_id, actor_kind, actor_id, correlation_id, trace_id, occurred_at,
                   data)
SELECT 'evt_' || n, 'identity.tenant.updated', 'tenant', id, id, 'system', 'system', 'filler', 'filler', now(),
       jsonb_build_object('filler', repeat('x', 10000))
  FROM tenant, generate_series(1, 2000) n"""
"""Twenty megabytes of events: more than the buffers between a server and a reader hold."""


async def test_a_stop_does_not_wait_for_a_reader_that_does_not_read(fleet: ServerGroup, database_url: str) -> None:
    served = await fleet.start("serve", **GIVEN_UP)
    tenant = await make_tenant(served.url, await sign_in_first_admin(served), "acme")
    await execute(database_url, FILL)
    path = f"{tenant.path}/events/stream"
    async with stream(served.url, tenant.token, path, after="beginning", buffer_bytes=4096) as opened:
        assert await opened.take(1)
        await until_stuck(served.url)
        await stop(served)
