"""What is measured, in which order.

Both sides take turns: a round of the API, then a round of pgbench on the same database, and again. A machine that is
slower for a while is slower for both, and each ratio comes from two adjacent rounds; the median over the rounds is
reported. Latencies are pooled over all rounds.
"""

import asyncio
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import driver, load, meters, pgbench, streams
from bench.bench_platform import BenchPlatform, BenchTenant
from mooring.gateways.passwords import digest

ROOT = Path(__file__).resolve().parent.parent
RENAME = '{"display_name": "{key}"}'


@dataclass(frozen=True)
class BenchEffort:
    """How long and how often."""

    seconds: float
    rounds: int
    followers: int
    changes: int
    versions: tuple[int, int]  # in the catalog: few, and many


@dataclass(frozen=True)
class Latency:
    """Half are at most this slow, and 99 of 100."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class ComparisonSide:
    """One side of a comparison."""

    per_second: float
    latency: Latency
    postgres_cpu_us: float  # of each request or transaction
    server_cpu_us: float = 0.0
    client_cpu_us: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """The API beside pgbench."""

    api: ComparisonSide
    pgbench: ComparisonSide
    ratio: float


@dataclass(frozen=True)
class SecondLock:
    """Reads per second by pgbench and through the API, and what the lock costs of them."""

    pgbench_without: float
    pgbench_with: float
    pgbench_renamed_each_time: float
    pgbench_cost: float
    pgbench_cost_renamed: float
    api_one_tenant: float
    api_as_many_tenants_as_connections: float
    api_twice_as_many: float
    api_cost_as_many: float
    api_cost_twice_as_many: float


@dataclass(frozen=True)
class CpuShares:
    """Where the server's CPU time of one read goes, in microseconds."""

    whole: float
    without_database: float  # an authenticated request that asks no database
    driver: float  # the driver and the pools alone
    rest: float


@dataclass(frozen=True)
class CatalogLine:
    """One kind of request for the catalog, with few versions and with many."""

    name: str
    few: Latency
    many: Latency
    ratio: float  # of the two p99, in the median round


@dataclass(frozen=True)
class CatalogResult:
    """What the number of versions does to the catalog."""

    few_versions: int
    many_versions: int
    lines: list[CatalogLine]


@dataclass(frozen=True)
class BenchResult:
    """Everything that was measured."""

    connections: int
    read: Comparison
    read_with_token: Comparison
    mutation: Comparison
    second_lock: SecondLock
    shares: CpuShares
    streams: Latency
    followers: int
    memory: meters.ProcessMemory
    catalog: CatalogResult | None = None  # measured on stands of its own


def latency_of(measured: list[float]) -> Latency:
    """The percentiles of what was measured."""
    ordered = sorted(measured)
    return Latency(ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)])


def median(values: list[float]) -> float:
    """The median, so that one disturbed round does not count."""
    return statistics.median(values)


@dataclass(frozen=True)
class BenchRound:
    """One round of one side."""

    per_second: float
    count: int
    latencies_ms: list[float]
    postgres_cpu: float
    server_cpu: float = 0.0
    client_cpu: float = 0.0


def side_of(rounds: list[BenchRound]) -> ComparisonSide:
    """A side, of its rounds."""
    count = sum(each.count for each in rounds)
    return ComparisonSide(
        per_second=median([each.per_second for each in rounds]),
        latency=latency_of([each for one in rounds for each in one.latencies_ms]),
        postgres_cpu_us=sum(each.postgres_cpu for each in rounds) / count * 1e6,
        server_cpu_us=sum(each.server_cpu for each in rounds) / count * 1e6,
        client_cpu_us=sum(each.client_cpu for each in rounds) / count * 1e6,
    )


class Bench:
    """The measurements on one platform."""

    def __init__(self, platform: BenchPlatform, effort: BenchEffort) -> None:
        self._platform = platform
        self._effort = effort
        self._first = platform.tenants[0]
        self.last_body = b""

    async def run(self) -> BenchResult:
        """All of them."""
        await self._api(self._reads())  # the first seconds of a process are not its usual ones
        await self._api(self._mutations())
        tenant = pgbench.PgbenchSession(self._first)
        reading = pgbench.read_script(self._first)
        look_up = pgbench.read_with_token_script(self._first, digest(self._first.token))
        writing = pgbench.mutation_script(self._first, self.last_body)
        read_api, read_limit, token_limit, write_api, write_limit = [], [], [], [], []
        for _ in range(self._effort.rounds):
            read_api.append(await self._api(self._reads()))
            read_limit.append(await self._pgbench(reading, tenant))
            # A token is looked up for the platform: who its holder is, is found out by it.
            token_limit.append(await self._pgbench(look_up, pgbench.PgbenchSession(None)))
            write_api.append(await self._api(self._mutations()))
            write_limit.append(await self._pgbench(writing, tenant))
        shares = await self._shares(side_of(read_api).server_cpu_us)
        memory = meters.memory(self._platform.server_pid)
        second_lock = await self._second_lock()
        return BenchResult(
            connections=self._platform.connections,
            read=_comparison(read_api, read_limit),
            read_with_token=_comparison(read_api, token_limit),
            mutation=_comparison(write_api, write_limit),
            second_lock=second_lock,
            shares=shares,
            streams=await self._streams(),
            followers=self._effort.followers,
            memory=memory,
        )

    def _reads(self) -> list[list[dict[str, str]]]:
        return [[_read(self._first, project)] for project in self._first.projects]

    def _mutations(self) -> list[list[dict[str, str]]]:
        return [[mutation_of(self._first, project)] for project in self._first.projects]

    async def _api(self, lanes: list[list[dict[str, str]]]) -> BenchRound:
        platform = self._platform
        server, postgres = meters.cpu_seconds(platform.server_pid), meters.family_cpu_seconds(platform.postmaster_pid)
        plan = load.LoadPlan(platform.host, platform.port, self._effort.seconds, lanes)
        seen = load.LoadSamples(**await program("bench.load", asdict(plan)))
        self.last_body = seen.last_body.encode()
        return BenchRound(
            per_second=seen.requests / seen.seconds,
            count=seen.requests,
            latencies_ms=seen.latencies_ms,
            postgres_cpu=meters.family_cpu_seconds(platform.postmaster_pid) - postgres,
            server_cpu=meters.cpu_seconds(platform.server_pid) - server,
            client_cpu=seen.cpu_seconds,
        )

    async def _pgbench(self, script: pgbench.PgbenchScript, session: pgbench.PgbenchSession) -> BenchRound:
        postgres = meters.family_cpu_seconds(self._platform.postmaster_pid)
        limit = await pgbench.run(self._platform, script, session, self._effort.seconds)
        used = meters.family_cpu_seconds(self._platform.postmaster_pid) - postgres
        return BenchRound(limit.per_second, limit.transactions, limit.latencies_ms, used)

    async def _shares(self, whole: float) -> CpuShares:
        """Take the same path apart: without the database, and the database's driver alone."""
        lanes = [[_target(self._first, "/api/v1/whoami")]] * self._platform.connections
        without = side_of([await self._api(lanes)]).server_cpu_us
        plan = driver.DriverPlan(self._platform.dsn, self._first.id, list(self._first.projects), self._effort.seconds)
        seen = driver.DriverSamples(**await program("bench.driver", asdict(plan)))
        alone = seen.cpu_seconds / seen.reads * 1e6
        return CpuShares(whole, without, alone, whole - without - alone)

    async def _second_lock(self) -> SecondLock:
        first = self._first
        sticky, renamed = pgbench.read_script(first), pgbench.renaming_read_script(self._platform.tenants)
        tenants = [_read(each, each.projects[0]) for each in self._platform.tenants]
        half = len(tenants) // 2
        lanes_half = [[each] for each in tenants[:half]]
        lanes_all = [list(pair) for pair in zip(tenants[::2], tenants[1::2], strict=True)]
        without, with_lock, renaming, one, as_many, twice = [], [], [], [], [], []
        for _ in range(self._effort.rounds):
            without.append((await self._pgbench(sticky, pgbench.PgbenchSession(None))).per_second)
            with_lock.append((await self._pgbench(sticky, pgbench.PgbenchSession(first))).per_second)
            renaming.append((await self._pgbench(renamed, pgbench.PgbenchSession(first))).per_second)
            one.append((await self._api(self._reads())).per_second)
            as_many.append((await self._api(lanes_half)).per_second)
            twice.append((await self._api(lanes_all)).per_second)
        return SecondLock(
            pgbench_without=median(without),
            pgbench_with=median(with_lock),
            pgbench_renamed_each_time=median(renaming),
            pgbench_cost=_cost(with_lock, without),
            pgbench_cost_renamed=_cost(renaming, without),
            api_one_tenant=median(one),
            api_as_many_tenants_as_connections=median(as_many),
            api_twice_as_many=median(twice),
            api_cost_as_many=_cost(as_many, one),
            api_cost_twice_as_many=_cost(twice, one),
        )

    async def _streams(self) -> Latency:
        platform, first = self._platform, self._first
        plan = streams.StreamsPlan(
            host=platform.host,
            port=platform.port,
            token=first.token,
            stream_path=f"/api/v1/tenants/{first.id}/events/stream",
            change=mutation_of(first, first.projects[0]),
            followers=self._effort.followers,
            changes=self._effort.changes,
        )
        return latency_of(streams.StreamsSamples(**await program("bench.streams", asdict(plan))).latencies_ms)


def _comparison(api: list[BenchRound], limit: list[BenchRound]) -> Comparison:
    ratios = [mine.per_second / other.per_second for mine, other in zip(api, limit, strict=True)]
    return Comparison(side_of(api), side_of(limit), median(ratios))


def _cost(rates: list[float], compared_with: list[float]) -> float:
    """What part of the rate is lost."""
    return 1 - median([mine / other for mine, other in zip(rates, compared_with, strict=True)])


def _target(tenant: BenchTenant, path: str) -> dict[str, str]:
    return {"method": "GET", "path": path, "token": tenant.token}


def _read(tenant: BenchTenant, project_id: str) -> dict[str, str]:
    return _target(tenant, f"/api/v1/projects/{project_id}")


def mutation_of(tenant: BenchTenant, project_id: str) -> dict[str, str]:
    """The target of a mutation, as the load takes it."""
    return {**_read(tenant, project_id), "method": "PATCH", "body": RENAME}


class ProgramFailed(Exception):
    """A program of the bench ended with an error."""


async def program(module: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one of the bench's own programs with a plan, and return what it saw."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    output, complaint = await process.communicate(json.dumps(plan).encode())
    if process.returncode != 0:
        raise ProgramFailed(f"{module}: {complaint.decode(errors='replace')[-2000:]}")
    seen: dict[str, Any] = json.loads(output)
    return seen
