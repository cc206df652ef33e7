"""A dump, restored into a new cluster whose transaction ids start over: the stream goes on from old cursors.

The place of an event is made of an epoch and the transaction that wrote it. In the new cluster transactions count
from the beginning, far below those of the old events, so the first start there begins a new epoch. Without it the old
events would be invisible, and new ones would stand before cursors that were handed out.
"""

import asyncio
import signal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog

from mooring.embedded import EmbeddedPostgres
from mooring.embedded.binaries import find_installation
from server.tests.processes.conftest import execute
from server.tests.support.http_wire import WireClient, stream
from server.tests.support.server_process import (
    ProcessTenant,
    ServerGroup,
    ServerProcess,
    make_project,
    make_tenant,
    sign_in_first_admin,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

SPEND_TRANSACTIONS = """
DO $$ BEGIN FOR turn IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"""
NEXT_TRANSACTION = "SELECT (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint"
ORDER = "SELECT id FROM event WHERE tenant_id = $1 ORDER BY epoch, tx, seq"


async def copy(source: str, target: str) -> None:
    """What an operator does: the role first, then a dump, restored by psql."""
    await execute(target, "CREATE ROLE mooring_tenant NOLOGIN NOBYPASSRLS")
    installation = find_installation()
    dump = await _output(str(installation.program("pg_dump")), "--dbname", source)
    restore = (str(installation.program("psql")), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1")
    await _output(*restore, "--dbname", target, given=dump)


async def _output(*command: str, given: bytes | None = None) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate(given)
    assert process.returncode == 0, errors.decode()
    return output


async def value(dsn: str, query: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def ids_in_order(dsn: str, tenant: ProcessTenant) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row["id"] for row in await connection.fetch(ORDER, tenant.id)]
    finally:
        await connection.close()


async def rename(url: str, tenant: ProcessTenant, project_id: str, times: int) -> None:
    async with WireClient(url, tenant.token) as caller:
        for turn in range(times):
            body = {"display_name": f"renamed {turn} times"}
            (await caller.call("PATCH", f"/api/v1/projects/{project_id}", body)).expect(200)


async def events_from(served: ServerProcess, tenant: ProcessTenant, cursor: str, count: int) -> list[str]:
    """The ids of what a stream shows from a cursor on."""
    path = f"{tenant.path}/events/stream"
    async with stream(served.url, tenant.token, path, after=cursor) as opened:
        return [event.data["id"] for event in await opened.take(count)]


async def test_the_stream_goes_on_from_old_cursors_after_dump_and_restore_into_a_new_cluster(
    fleet: ServerGroup, database_url: str, open_directory: Path
) -> None:
    await execute(database_url, SPEND_TRANSACTIONS)
    before = await fleet.start("api")
    tenant = await make_tenant(before.url, await sign_in_first_admin(before), "acme")
    project_id = await make_project(before.url, tenant, "moved")
    await rename(before.url, tenant, project_id, 20)
    old = await ids_in_order(database_url, tenant)
    async with stream(before.url, tenant.token, f"{tenant.path}/events/stream", after="beginning") as opened:
        events = await opened.take(len(old))
    assert [each.data["id"] for each in events] == old
    early, late = events[9].cursor, events[-1].cursor
    before.send(signal.SIGTERM)
    assert await before.ended() == 0, before.log

    async with EmbeddedPostgres(open_directory / "restored", log=structlog.get_logger()) as server:
        await copy(database_url, server.dsn)
        stored = await value(server.dsn, "SELECT max(tx) FROM event")
        assert await value(server.dsn, NEXT_TRANSACTION) < stored, "the new cluster is not behind: this shows nothing"
        after = await fleet.start("api", MOORING_DATABASE_URL=server.dsn)
        assert await events_from(after, tenant, "beginning", len(old)) == old
        assert await events_from(after, tenant, early, len(old) - 10) == old[10:]
        following = asyncio.create_task(events_from(after, tenant, late, 5))
        await rename(after.url, tenant, project_id, 5)
        everything = await ids_in_order(server.dsn, tenant)
        assert everything[: len(old)] == old
        new = everything[len(old) :]
        assert len(new) == 5
        assert await following == new
        assert await events_from(after, tenant, early, len(old) - 5) == old[10:] + new
        assert await value(server.dsn, "SELECT current FROM event_epoch") == 2
        await after.kill()
        again = await fleet.start("api", MOORING_DATABASE_URL=server.dsn)
        assert await events_from(again, tenant, early, len(old) - 5) == old[10:] + new
        assert await value(server.dsn, "SELECT current FROM event_epoch") == 2, "a new epoch is for a new cluster only"
        await again.kill()
