"""How long the statement of a month takes, with few and with many lines: `python -m bench.statement`.

The rows are written by SQL with every trigger and constraint of the database at work. The usage records that the lines
name are left out, so looking up the names of a line finds nothing. Pages are read through the API; the export is the
command line as a process of its own, with its peak memory.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import httpx

from bench.bench_platform import BenchPlatform, BenchTenant, running_platform
from bench.measure import median
from mooring.core.kernel.decision import Actor, DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Prefix
from mooring.core.money.statement import Statement, StatementKey, open_statement
from mooring.core.money.statement_line import GroupBy
from mooring.gateways.clock import SystemClock
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.money.statement import totals

LINES = (1_000, 1_000_000)
HOURS = 500
PAGES = 50
AT_ONCE = 50_000
PRICE = """
INSERT INTO price (id, item, item_key, currency, minor, per, granularity_seconds, minimum_seconds, included, tiers,
                   valid_from, reason, created_by, created_at)
VALUES ('prc_bench', 'unit', 'bench/tokens', 'EUR', 30, 1000000, 1, 0, 0, '[]', now(), 'bench', 'bench', now())
ON CONFLICT DO NOTHING"""
LEDGER = """
WITH hours AS (SELECT number, $3::timestamptz + number * interval '1 hour' AS hour,
                      'ltx_' || $1 || lpad(number::text, 6, '0') AS id FROM generate_series(0, $4::int - 1) number),
     booked AS (INSERT INTO ledger_transaction (id, tenant_id, project_id, kind, hour, price_id, currency, revision,
                                                correlation_id, created_at)
                SELECT id, $1, $2, 'charge', hour, 'prc_bench', 'EUR', 0, 'bench', now() FROM hours)
INSERT INTO ledger_entry (transaction_id, line, tenant_id, project_id, account, currency, amount)
SELECT h.id, a.line, $1, $2, a.account, 'EUR', a.sign * $5::bigint
  FROM hours h CROSS JOIN (VALUES (0, 'receivable', 1), (1, 'revenue', -1)) a (line, account, sign)"""
RATED = """
INSERT INTO rated_usage (id, tenant_id, project_id, transaction_id, hour, revision, source, source_id, price_id,
                         currency, unit, billing, started_at, ended_at, quantity, amount, shadow_amount, created_at)
SELECT 'rtu_' || $1 || lpad(n::text, 9, '0'), $1, $2, 'ltx_' || $1 || lpad((n % $4::int)::text, 6, '0'), h.hour, 0,
       'usage', 'use_' || $1 || n, 'prc_bench', 'EUR', 'tokens', 'charged', h.hour, h.hour, 1000000, 30, 0, now()
  FROM generate_series($5::int, $6::int - 1) n
 CROSS JOIN LATERAL (SELECT $3::timestamptz + (n % $4::int) * interval '1 hour' AS hour) h"""


@dataclass(frozen=True)
class StatementFigures:
    """What one statement took."""

    lines: int
    rows_per_second: float  # written, with the triggers
    close_seconds: float  # reading, adding up and hashing all lines
    page_ms: float
    far_page_ms: float
    breakdown_ms: float
    export_seconds: float
    export_peak_mib: float


async def measure(platform: BenchPlatform, tenant: BenchTenant, lines: int) -> StatementFigures:
    month = (datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)).replace(
        day=1
    )
    database = Database(PoolSettings(platform.dsn, 2))
    await database.open()
    try:
        statement = await _opened(database, tenant, month)  # first: the server's worker opens what has none
        spent = await _fill(platform.dsn, tenant, month, lines)
        started = time.perf_counter()
        found = await totals(database, statement)
        close_seconds = time.perf_counter() - started
    finally:
        await database.close()
    if found.line_count != lines:
        raise ValueError(f"the close saw {found.line_count} lines, not {lines}")
    path = f"/api/v1/tenants/{tenant.id}/statements/{statement.id}"
    async with httpx.AsyncClient(base_url=platform.url, timeout=120) as client:
        client.headers["Authorization"] = f"Bearer {tenant.token}"
        first = await _timed(client, f"{path}/lines?limit=100")
        cursor = await _far(client, f"{path}/lines", lines)
        far = await _timed(client, f"{path}/lines?limit=100&cursor={cursor}")
        sums = [await _once(client, f"{path}/breakdown?group_by={each.value}") for each in GroupBy]
    seconds, peak = await asyncio.to_thread(_export, platform, tenant, statement.id)
    return StatementFigures(lines, lines / spent, close_seconds, first, far, median(sums), seconds, peak)


async def _fill(dsn: str, tenant: BenchTenant, month: datetime, lines: int) -> float:
    """Write the month's charges; returns the seconds that the lines took."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(PRICE)
        place, hours = (tenant.id, tenant.projects[0], month), min(HOURS, lines)
        await connection.execute(LEDGER, *place, hours, 30 * lines // hours)
        started = time.perf_counter()
        for begin in range(0, lines, AT_ONCE):
            await connection.execute(RATED, *place, hours, begin, min(lines, begin + AT_ONCE), timeout=600)
        spent = time.perf_counter() - started
        await connection.execute("ANALYZE rated_usage, ledger_transaction, ledger_entry")
    finally:
        await connection.close()
    return spent


async def _opened(database: Database, tenant: BenchTenant, month: datetime) -> Statement:
    clock = SystemClock()
    actor = Actor(PrincipalKind.SYSTEM, "bench")
    context = DecisionContext(actor, clock.now(), clock.mint(Prefix.CORRELATION), "0" * 32, clock.mint)
    decision = open_statement(context, StatementKey(tenant.id, "EUR", month.date()))
    await apply(database, PLATFORM, context, decision)
    return decision.result


async def _once(client: httpx.AsyncClient, path: str) -> float:
    started = time.perf_counter()
    (await client.get(path)).raise_for_status()
    return (time.perf_counter() - started) * 1000


async def _timed(client: httpx.AsyncClient, path: str) -> float:
    return median([await _once(client, path) for _ in range(PAGES)])


async def _far(client: httpx.AsyncClient, path: str, lines: int) -> str:
    """A cursor some thousand lines on, or in the middle of a short list."""
    cursor = ""
    for _ in range(min(20, lines // 200)):
        cursor = (
            (await client.get(path, params={"limit": 100, "cursor": cursor})).raise_for_status().json()["next_cursor"]
        )
    return cursor


def _export(platform: BenchPlatform, tenant: BenchTenant, statement_id: str) -> tuple[float, float]:
    """The seconds and the peak memory of an export as CSV of FOCUS."""
    with tempfile.TemporaryDirectory() as directory:
        environment = os.environ | {"MOORING_URL": platform.url, "MOORING_TOKEN": tenant.token, "HOME": directory}
        words = [
            "statements",
            "export",
            statement_id,
            "--tenant",
            tenant.id,
            "--out",
            str(Path(directory) / "focus.csv"),
        ]
        started = time.perf_counter()
        pid = os.posix_spawn(sys.executable, [sys.executable, "-m", "mooring_cli", *words], environment)
        _, status, used = os.wait4(pid, 0)
        if status:
            raise ValueError(f"the export ended with {status}")
        return time.perf_counter() - started, used.ru_maxrss / 1024


async def run(sizes: tuple[int, ...]) -> list[StatementFigures]:
    async with running_platform(2, tenants=len(sizes)) as platform:
        return [await measure(platform, tenant, lines) for tenant, lines in zip(platform.tenants, sizes, strict=True)]


def lines_of(found: list[StatementFigures]) -> list[str]:
    heads = ("lines", "written/s", "close s", "page ms", "far page ms", "breakdown ms", "export s", "export peak MiB")
    rows = [
        f"{each.lines:>15}{each.rows_per_second:>15.0f}{each.close_seconds:>15.2f}{each.page_ms:>15.2f}"
        f"{each.far_page_ms:>15.2f}{each.breakdown_ms:>15.1f}{each.export_seconds:>15.1f}{each.export_peak_mib:>17.0f}"
        for each in found
    ]
    return ["".join(f"{head:>{17 if head == heads[-1] else 15}}" for head in heads), *rows]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.statement", description=__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=LINES, help="how many lines the statements have")
    options = parser.parse_args(arguments)
    sys.stdout.write("\n".join(lines_of(asyncio.run(run(tuple(options.lines))))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
