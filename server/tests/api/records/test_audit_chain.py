"""The audit trail against somebody who can write the database, and against callers who are refused without end."""

import asyncio
import os
import sys
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from mooring.commands.live.denial_log import KINDS_MAX, WINDOW_SECONDS, DenialLog
from mooring.commands.records.audit_chain import chain_next
from mooring.core.kernel.errors import Refusal
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.workers.audit_chain import STEP_ROWS, AuditChainWorker
from mooring.workers.janitor import Janitor
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.later_clock import ShiftedClock
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

FORGERIES = {
    "changed": ("UPDATE audit SET action = 'project.read' WHERE seq = {seq}", "was changed after it was chained"),
    "deleted": ("DELETE FROM audit WHERE seq = {seq}", "the row was deleted"),
    "deleted with its link": (
        "DELETE FROM audit WHERE seq = {seq}; DELETE FROM audit_link WHERE seq = {seq}",
        "is missing",
    ),
    "put in": (
        "INSERT INTO audit (id, occurred_at, outcome, action, tenant_id, actor_kind, actor_id, correlation_id,"
        " trace_id, epoch, tx, seq) SELECT 'aud_forged', occurred_at, outcome, action, tenant_id, actor_kind, actor_id,"
        " correlation_id, trace_id, epoch, tx, -1 FROM audit WHERE seq = {seq}",
        "1 rows more than its chain",
    ),
    "relinked": (
        "UPDATE audit_link SET link = sha256(link) WHERE tenant_id = '{tenant}'",
        "was changed after it was chained",
    ),
    "signed by somebody else": (
        "UPDATE audit_link SET signature = sha512(link) WHERE signature IS NOT NULL",
        "the platform did not sign this link",
    ),
}


MANY_ROWS = """
INSERT INTO audit (id, occurred_at, outcome, action, tenant_id, actor_kind, actor_id, correlation_id, trace_id)
SELECT 'aud_' || lpad(n::text, 26, '0'), now(), 'done', 'project.update', $1, 'user', 'usr_1', 'cor_1', 'trace'
  FROM generate_series(1, $2::integer) n"""


async def chained(world: World) -> None:
    """Chain every row, once other databases of the cluster no longer hold the horizon."""
    services = world.running.platform.services

    async def all_linked() -> bool:
        await chain_next(services)
        count = "SELECT (SELECT count(*) FROM audit) = (SELECT count(*) FROM audit_link)"
        return bool(await services.database.fetchval(PLATFORM, count))

    await until(all_linked, 60)


async def command(world: World, token: str, *arguments: str) -> tuple[int, str]:
    """Run `mooring audit` as an auditor would; returns the exit code and everything that it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mooring_cli",
        "audit",
        *arguments,
        env={**os.environ, "MOORING_URL": world.running.url, "MOORING_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode or 0, printed.decode()


async def forge(url: str, statement: str) -> None:
    """What somebody does who owns the tables and switches the triggers off."""
    connection = await asyncpg.connect(url)
    tables = ("audit", "audit_link")
    try:
        await connection.execute("".join(f"ALTER TABLE {table} DISABLE TRIGGER ALL;" for table in tables))
        await connection.execute(statement)
    finally:
        await connection.execute("".join(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER append_only;" for table in tables))
        await connection.close()


@pytest.fixture
async def acme(world: World) -> TenantWithAdmin:
    tenant = await world.tenant("acme")
    for number in range(3):
        await world.project(tenant, f"project-{number}")
    return tenant


async def test_the_owner_of_the_tables_cannot_rewrite_the_audit_trail(
    world: World, acme: TenantWithAdmin, connection: asyncpg.Connection
) -> None:
    await chained(world)

    async def refused(statement: str) -> None:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)

    for table in ("audit", "audit_link"):
        await refused(f"UPDATE {table} SET seq = seq + 1")
        await refused(f"DELETE FROM {table}")
        await refused(f"TRUNCATE {table} CASCADE")
        await refused(f"SET session_replication_role = replica; DELETE FROM {table}")
        await connection.execute("RESET session_replication_role")


async def test_a_forged_trail_is_found_and_an_export_is_verified_without_the_platform(
    world: World, acme: TenantWithAdmin, tmp_path: Path
) -> None:
    await chained(world)
    code, printed = await command(world, acme.token, "verify")
    assert (code, "rows, chain whole" in printed) == (0, True), printed
    assert (await command(world, world.admin.headers["Authorization"][7:], "verify"))[0] == 0

    # An export goes on where an earlier one ended, and is verified offline as one.
    first = (await command(world, acme.token, "export", "--format", "ndjson"))[1]
    await world.project(acme, "later")
    await chained(world)
    rest = (await command(world, acme.token, "export", "--after", str(first.count("\n") - 1)))[1]
    file = tmp_path / "export.ndjson"
    file.write_text(first + rest)
    code, printed = await command(world, "none", "verify", "--file", str(file))
    assert (code, "rows, chain whole" in printed) == (0, True), printed
    file.write_text((first + rest).replace('"project.create"', '"project.delete"', 1))
    code, printed = await command(world, "none", "verify", "--file", str(file))
    assert (code, "was changed after it was chained" in printed) == (1, True), printed

    url = world.running.settings.database_url
    for what, (statement, found) in FORGERIES.items():
        seq = await world.running.platform.services.database.fetchval(
            PLATFORM, "SELECT seq FROM audit WHERE tenant_id = $1 ORDER BY seq OFFSET 2 LIMIT 1", acme.id
        )
        async with restored(url):
            await forge(url, statement.format(seq=seq, tenant=acme.id))
            code, printed = await command(world, acme.token, "verify")
            assert (code, found in printed) == (1, True), (what, printed)
    assert (await command(world, acme.token, "verify"))[0] == 0


class restored:
    """Puts the trail back as it was, so that one platform serves every forgery."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> None:
        await forge(self._url, "CREATE TABLE kept AS TABLE audit; CREATE TABLE kept_link AS TABLE audit_link")

    async def __aexit__(self, *_: object) -> None:
        columns = "epoch, tx, seq, tenant_id, position, link, key_id, signature"
        await forge(
            self._url,
            f"""DELETE FROM audit; INSERT INTO audit SELECT * FROM kept; DROP TABLE kept; DELETE FROM audit_link;
            INSERT INTO audit_link ({columns}) SELECT {columns} FROM kept_link; DROP TABLE kept_link""",
        )


async def test_retention_deletes_the_oldest_rows_and_leaves_a_checkpoint_from_which_the_chain_goes_on(
    world: World, acme: TenantWithAdmin
) -> None:
    services = world.running.platform.services
    old = await services.database.fetchval(PLATFORM, "SELECT count(*) FROM audit WHERE tenant_id = $1", acme.id)
    # The tokens of the test expire within these days: they are kept, so that it does not live on a cached sign-in.
    kept = replace(services.settings, audit_retention_days=30, token_retention_days=365)
    late = replace(services, clock=ShiftedClock(timedelta(days=31)), settings=kept)
    await Janitor(late).sweep()
    count = "SELECT count(*) FROM audit"
    assert await services.database.fetchval(PLATFORM, count) > 0, "a row that is not chained yet stays"
    await chained(world)
    await Janitor(late).sweep()
    assert await services.database.fetchval(PLATFORM, count) == 0
    await world.project(acme, "young")

    async def linked() -> bool:
        return await chain_next(services) > 0

    await until(linked, 60)
    code, printed = await command(world, acme.token, "verify")
    assert (code, f"1 rows, chain whole\n  position {old + 1}," in printed) == (0, True), printed
    checkpoint = (await world.client(acme.token).get(f"/api/v1/tenants/{acme.id}/audit/chain")).json()["checkpoint"]
    assert checkpoint["position"] == old


async def test_the_worker_chains_in_steps_that_leave_the_event_loop_to_others(
    world: World, acme: TenantWithAdmin
) -> None:
    services = world.running.platform.services
    await services.database.fetch(PLATFORM, MANY_ROWS, acme.id, 3 * STEP_ROWS)
    worker, count = AuditChainWorker(services), "SELECT count(*) FROM audit_link WHERE tenant_id = $1"

    async def all_linked() -> bool:
        await worker.tick()
        return bool(await services.database.fetchval(PLATFORM, count, acme.id) >= 3 * STEP_ROWS)

    await until(all_linked, 60)
    signed = "SELECT position FROM audit_link WHERE tenant_id = $1 AND signature IS NOT NULL ORDER BY position"
    ends = [0, *(row[0] for row in await services.database.fetch(PLATFORM, signed, acme.id))]
    assert max(end - begin for begin, end in pairwise(ends)) <= STEP_ROWS


async def test_a_caller_who_is_refused_without_end_fills_no_table(world: World, acme: TenantWithAdmin) -> None:
    services, clock = world.running.platform.services, [0.0]
    denials = DenialLog(lambda: clock[0])
    object.__setattr__(services, "denials", denials)
    database = services.database
    rows = "SELECT outcome, action, count FROM audit WHERE outcome <> 'done' ORDER BY epoch, tx, seq"
    stranger, member = world.client("mrgp_unknown"), world.client(acme.token)

    async def hammer(client: httpx.AsyncClient, path: str, status: int) -> None:
        answers = await asyncio.gather(*(client.get(path) for _ in range(50)))
        assert {each.status_code for each in answers} == {status}

    await hammer(stranger, "/api/v1/tenants", 401)
    await hammer(member, "/api/v1/platform/audit", 403)
    found = [tuple(row) for row in await database.fetch(PLATFORM, rows)]
    assert found == [("refused", "tenant.read", 1), ("denied", "audit.read", 1)]
    clock[0] = WINDOW_SECONDS
    await denials.flush(database)
    found = [tuple(row) for row in await database.fetch(PLATFORM, rows)][2:]
    assert found == [("refused", "tenant.read", 49), ("denied", "audit.read", 49)]

    shown = await member.get(f"/api/v1/tenants/{acme.id}/audit", params={"outcome": "denied"})
    assert [each["count"] for each in shown.json()["items"]] == [49, 1]


async def test_refusals_of_many_kinds_are_bounded_too(world: World, acme: TenantWithAdmin) -> None:
    services, clock = world.running.platform.services, [0.0]
    denials = DenialLog(lambda: clock[0])
    object.__setattr__(services, "denials", denials)
    stranger = world.client("mrgp_unknown")
    database = services.database
    before = await database.fetchval(PLATFORM, "SELECT count(*) FROM audit")
    # Each address is a kind of its own; a proxy in front of the platform names them.
    application: Any = world.running.platform.application
    transports = [
        httpx.ASGITransport(application, client=(f"2001:db8::{number:x}", 1)) for number in range(KINDS_MAX + 30)
    ]
    for transport in transports:
        async with httpx.AsyncClient(transport=transport, base_url="http://mooring", headers=stranger.headers) as one:
            assert (await one.get("/api/v1/tenants")).status_code == 401
    after = await database.fetchval(PLATFORM, "SELECT count(*) FROM audit")
    assert after - before == KINDS_MAX + 1
    await denials.flush(database, everything=True)
    last = await database.fetchrow(PLATFORM, "SELECT action, count FROM audit ORDER BY epoch DESC, tx DESC LIMIT 1")
    assert last is not None
    assert tuple(last) == ("audit.collapsed", 29)


async def test_a_count_that_could_not_be_written_is_not_lost(world: World, acme: TenantWithAdmin) -> None:
    services, clock = world.running.platform.services, [0.0]
    denials = DenialLog(lambda: clock[0])
    object.__setattr__(services, "denials", denials)
    stranger = world.client("mrgp_unknown")
    for _ in range(5):
        assert (await stranger.get("/api/v1/tenants")).status_code == 401
    clock[0] = WINDOW_SECONDS
    closed = Database(PoolSettings(world.running.settings.database_url, 1))
    with pytest.raises(Refusal):
        await denials.flush(closed)
    await denials.flush(services.database)
    counts = "SELECT count FROM audit WHERE outcome = 'refused' ORDER BY epoch, tx, seq"
    assert [row["count"] for row in await services.database.fetch(PLATFORM, counts)] == [1, 4]
