"""How many meter events per second the API stores, beside the same rows by a raw statement.

`python -m bench.usage`. Senders post batches of events, each a new one, to one server; then as many writers insert the
same columns with one `unnest` for each batch into the same table of the same database, in turns, in one run. What is
stored is counted at the end. Usage is readable when its request is answered, so the time from an event to readable
usage is the latency of a request with one event; charging is hourly, and comes after that.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal

import asyncpg
import httpx
import msgspec

from bench import instance_rows
from bench.bench_platform import BenchPlatform, BenchTenant, running_platform
from bench.instances import callers
from bench.measure import Latency, latency_of, median

CONNECTIONS = 4
PER_SECOND_GOAL = 10_000
RATIO_GOAL = 0.25
INSTANCE = f"ins_{0:026}"
RAW_BATCH = """
INSERT INTO meter_batch (id, tenant_id, project_id, principal_id, accepted, late, duplicates, correlation_id,
                         created_at)
VALUES ($1, $2, $3, 'bench', $4, 0, 0, 'bench', now())"""
RAW = """
INSERT INTO usage_record (id, tenant_id, project_id, instance_id, record_id, unit, started_at, ended_at, quantity,
                          usage_source, app_slug, correlation_id, trace_id, created_at, event_source, event_id,
                          batch_id)
SELECT u.id, $1, $2, $3, u.key, 'tokens', u.at, u.at, u.quantity, 'meter_event', $4, 'bench', 'bench', now(), '//raw',
       u.id, $5
  FROM unnest($6::text[], $7::text[], $8::timestamptz[], $9::numeric[]) u (id, key, at, quantity) ORDER BY u.key"""
STORED = "SELECT count(*) FROM usage_record WHERE usage_source = 'meter_event'"


@dataclass(frozen=True)
class UsageEffort:
    """How many senders, how large their batches are, and how often."""

    senders: int = 4
    batch: int = 5_000
    batches: int = 4  # of each sender, in each round
    rounds: int = 3
    singles: int = 300


QUICK = UsageEffort(senders=2, batch=20, batches=1, rounds=1, singles=5)


@dataclass(frozen=True)
class UsageResult:
    """What was measured: medians of the rounds, latencies of all batches."""

    batch: int
    per_second: float
    latency: Latency
    raw_per_second: float
    ratio: float
    single: Latency
    stored: int
    sent: int


@dataclass(frozen=True)
class Target:
    """Where events are sent, and by whom."""

    platform: BenchPlatform
    tenant: BenchTenant
    client: httpx.AsyncClient

    @property
    def path(self) -> str:
        return f"/api/v1/projects/{self.tenant.projects[0]}/meter-events"


async def measure(effort: UsageEffort) -> UsageResult:
    async with running_platform(CONNECTIONS, tenants=1) as platform:
        tenant = platform.tenants[0]
        async with AsyncExitStack() as stack:
            _, _, app = await callers(platform, stack)
        await instance_rows.fill(platform, tenant, app, 2)
        limits = httpx.Limits(max_connections=effort.senders)
        headers = {"authorization": f"Bearer {tenant.token}", "content-type": "application/x-ndjson"}
        async with httpx.AsyncClient(base_url=platform.url, headers=headers, limits=limits, timeout=60) as client:
            return await _rounds(Target(platform, tenant, client), effort)


async def _rounds(target: Target, effort: UsageEffort) -> UsageResult:
    numbers = itertools.count(1)
    rates, raws, latencies = [], [], []
    each_round = effort.senders * effort.batches * effort.batch
    await _post(target, _bodies(numbers, 1, effort.batch)[0])  # plans are made, pages are warm
    for _ in range(effort.rounds):
        bodies = [_bodies(numbers, effort.batches, effort.batch) for _ in range(effort.senders)]
        begun = time.perf_counter()
        measured = await asyncio.gather(*(_send(target, each) for each in bodies))
        rates.append(each_round / (time.perf_counter() - begun))
        latencies += [each for sender in measured for each in sender]
        raws.append(each_round / await _raw(target, numbers, effort))
    singles = [await _post(target, _bodies(numbers, 1, 1)[0]) for _ in range(effort.singles)]
    connection = await asyncpg.connect(target.platform.dsn)
    stored = int(await connection.fetchval(STORED))
    await connection.close()
    sent = effort.batch + 2 * effort.rounds * each_round + effort.singles
    per_second, raw = median(rates), median(raws)
    return UsageResult(
        effort.batch, per_second, latency_of(latencies), raw, per_second / raw, latency_of(singles), stored, sent
    )


def _bodies(numbers: Iterator[int], count: int, size: int) -> list[bytes]:
    at = datetime.now(UTC).isoformat()
    shared = {"specversion": "1.0", "type": "mooring.usage", "source": "//bench", "subject": INSTANCE, "time": at}
    return [
        b"\n".join(
            json.dumps({**shared, "id": f"e{number}", "data": {"unit": "tokens", "quantity": number % 997}}).encode()
            for number in itertools.islice(numbers, size)
        )
        for _ in range(count)
    ]


async def _send(target: Target, bodies: list[bytes]) -> list[float]:
    return [await _post(target, each) for each in bodies]


async def _post(target: Target, body: bytes) -> float:
    begun = time.perf_counter()
    answer = await target.client.post(target.path, content=body)
    if answer.status_code != 200 or answer.json()["duplicates"]:
        raise RuntimeError(f"a batch was answered with {answer.status_code}: {answer.text[:300]}")
    return (time.perf_counter() - begun) * 1_000


async def _raw(target: Target, numbers: Iterator[int], effort: UsageEffort) -> float:
    """How long the same rows take without the API, with as many connections."""
    at = datetime.now(UTC)
    batches = []
    for _ in range(effort.senders * effort.batches):
        taken = list(itertools.islice(numbers, effort.batch))
        ids = [f"use_{number:026}" for number in taken]
        keys = [f"{number * 2_654_435_761 % 2**128:032x}" for number in taken]
        batches.append((f"mbt_{taken[0]:026}", ids, keys, [at] * len(taken), [Decimal(n % 997) for n in taken]))
    place = (target.tenant.id, target.tenant.projects[0])
    connections = [await asyncpg.connect(target.platform.dsn) for _ in range(effort.senders)]

    async def write(connection: "asyncpg.Connection[asyncpg.Record]", number: int) -> None:
        for batch_id, *columns in batches[number :: effort.senders]:
            async with connection.transaction():
                await connection.execute(RAW_BATCH, batch_id, *place, effort.batch)
                await connection.execute(RAW, *place, INSTANCE, instance_rows.SLUG, batch_id, *columns)

    begun = time.perf_counter()
    await asyncio.gather(*(write(each, number) for number, each in enumerate(connections)))
    taken_seconds = time.perf_counter() - begun
    for each in connections:
        await each.close()
    return taken_seconds


def lines_of(found: UsageResult) -> Iterator[str]:
    """What was measured, for people."""
    yield f"meter events in batches of {found.batch}"
    yield f"  through the API: {found.per_second:,.0f}/s   (goal {PER_SECOND_GOAL:,}/s)"
    yield f"  a batch: {found.latency.p50_ms:.0f} ms p50, {found.latency.p99_ms:.0f} ms p99"
    yield f"  the same rows by unnest: {found.raw_per_second:,.0f}/s   ratio {found.ratio:.2f} (goal {RATIO_GOAL})"
    yield f"  one event until it is readable: {found.single.p50_ms:.1f} ms p50, {found.single.p99_ms:.1f} ms p99"
    yield f"  stored {found.stored:,} of {found.sent:,} that were sent"


def reached(found: UsageResult) -> bool:
    """Whether the goals were reached."""
    return found.per_second >= PER_SECOND_GOAL and found.ratio >= RATIO_GOAL and found.stored == found.sent


def main(arguments: list[str] | None = None) -> int:
    """Measure; the exit code says whether the goals were reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.usage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that it runs, not how fast it is")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    found = asyncio.run(measure(QUICK if options.quick else UsageEffort()))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(asdict(found))).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines_of(found)) + "\n")
    return 0 if options.quick or reached(found) else 1


if __name__ == "__main__":
    sys.exit(main())
