"""Every command and every query of the runbook works on a platform that charges."""

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from mooring.core.money.charge import HOUR
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.charge import ChargeWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

PAGE = Path(__file__).parents[4] / "docs" / "runbooks" / "app-runtime-billing.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
QUERIES = [each.strip() for kind, text in BLOCKS if kind == "sql" for each in text.split(";") if each.strip()]
COMMANDS = [line for kind, text in BLOCKS if kind == "" for line in text.splitlines() if line.startswith("mooring ")]
MAY_BE_EMPTY = ("FROM meter", "FROM usage_record")
STANDS_FOR = re.compile(r"(alc|prj|ltx)_01m7prfg8vf0b82h3bp844cnk4")


@pytest.fixture
async def site(world: World) -> AllocationSite:
    site = await make_site(world)
    await site.fleet.node(4)
    await site.active(await site.fleet.sku(), gpu_count=2)
    site.later(4 * HOUR)
    await ChargeWorker(world.running.platform.services).tick()
    return site


async def ids(site: AllocationSite) -> dict[str, str]:
    """What the ids of the page stand for."""
    database = site.fleet.database
    allocation = await database.fetchval(PLATFORM, "SELECT max(id) FROM allocation")
    newest = "SELECT id FROM ledger_transaction ORDER BY hour DESC LIMIT 1"
    transaction = await database.fetchval(PLATFORM, newest)
    return {"alc": str(allocation), "prj": site.project_id, "ltx": str(transaction)}


async def run(site: AllocationSite, line: str) -> tuple[int, str]:
    """A tenant's admin proves the tenant; all others are commands of the platform's admin."""
    token = site.tenant.token if "--tenant" in line else await site.world.running.admin_token()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mooring_cli",
        *shlex.split(line)[1:],
        env={**os.environ, "MOORING_URL": site.world.running.url, "MOORING_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode or 0, printed.decode()


async def test_the_runbook_works_as_it_is_written(site: AllocationSite) -> None:
    known = await ids(site)
    assert (len(QUERIES), len(COMMANDS)) == (9, 8)
    for query in QUERIES:
        rows = await site.fleet.database.fetch(PLATFORM, STANDS_FOR.sub(lambda each: known[each[1]], query))
        assert rows or any(each in query for each in MAY_BE_EMPTY), query
    for line in COMMANDS:
        code, printed = await run(site, STANDS_FOR.sub(lambda each: known[each[1]], line))
        if "audit verify" in line:
            assert "BROKEN" not in printed, printed  # rows that no worker chained yet are not a broken chain
        else:
            assert code == 0, f"{line}\n{printed}"
    credited = """SELECT sum(e.amount) FROM ledger_entry e JOIN ledger_transaction t ON t.id = e.transaction_id
                   WHERE t.correction_reason IS NOT NULL AND e.account = 'receivable'"""
    assert await site.fleet.database.fetchval(PLATFORM, credited) == -125 * 10**6
