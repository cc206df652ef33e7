"""Many writers that all want to change one row.

`python -m bench.hot_row`, and a part of `python -m bench`. Sixteen connections change one project, each one request
after the other; and 200 members of one instance are reported at once, each in a request of its own, with a step of the
same operation. The limits are of the same run: pgbench with the same statements on the same row, and the same 200
reports one after the other. No request may be refused as a conflict: none of the callers caused one.
"""

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace

import httpx
import msgspec

from bench import fleet, instance_rows, load, meters, pgbench
from bench.bench_platform import BenchPlatform, running_platform
from bench.instances import BenchAdapter, callers
from bench.measure import Latency, latency_of, median, mutation_of, program

CONNECTIONS = 8
WRITERS = 16
MEMBERS = 200
REPORTED = (("joining", "running"), ("ready", "done"))
"""What every member reports: its status, and that of its step."""
RATIO_GOAL = 0.5
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class HotRowEffort:
    """How many writers and members, how long and how often."""

    seconds: float = 4.0
    rounds: int = 3
    writers: int = WRITERS
    members: int = MEMBERS


QUICK = HotRowEffort(seconds=0.05, rounds=1, writers=4, members=5)


@dataclass(frozen=True)
class HotRowResult:
    """What was measured: medians of the rounds, latencies of all of them."""

    writers: int
    per_second: float
    latency: Latency
    conflicts: int
    server_cpu_us: float
    postgres_cpu_us: float
    locked_per_second: float  # pgbench, which locks the row, reads it and writes
    blind_per_second: float  # pgbench, which writes without having read
    ratio: float  # to the faster of both


@dataclass(frozen=True)
class ReportsResult:
    """What was measured: medians of the rounds, in seconds, and the latencies of all reports."""

    members: int
    at_once: float
    latency: Latency
    conflicts: int
    one_by_one: float
    ratio: float


@dataclass(frozen=True)
class HotResult:
    """Both parts."""

    row: HotRowResult
    reports: ReportsResult


async def measure(effort: HotRowEffort) -> HotResult:
    """Start a platform of its own, measure, and stop it."""
    async with running_platform(CONNECTIONS, tenants=1) as platform, AsyncExitStack() as stack:
        row = await _row(platform, effort)
        return HotResult(row, await _reports(platform, stack, effort))


async def _row(platform: BenchPlatform, effort: HotRowEffort) -> HotRowResult:
    """Rounds of the API and of pgbench in turn, with as many writers on each side."""
    tenant = platform.tenants[0]
    lanes = [[mutation_of(tenant, tenant.projects[0])]] * effort.writers
    warm = await _load(platform, lanes, min(1.0, effort.seconds))
    wide, session = replace(platform, connections=effort.writers), pgbench.PgbenchSession(tenant)
    locked = pgbench.locked_mutation_script(tenant, warm.last_body.encode())
    blind = pgbench.blind_mutation_script(tenant, warm.last_body.encode())
    rounds, locked_rates, blind_rates, server_cpu, postgres_cpu = [], [], [], 0.0, 0.0
    for _ in range(effort.rounds):
        server, postgres = meters.cpu_seconds(platform.server_pid), meters.family_cpu_seconds(platform.postmaster_pid)
        rounds.append(await _load(platform, lanes, effort.seconds))
        server_cpu += meters.cpu_seconds(platform.server_pid) - server
        postgres_cpu += meters.family_cpu_seconds(platform.postmaster_pid) - postgres
        locked_rates.append((await pgbench.run(wide, locked, session, effort.seconds)).per_second)
        blind_rates.append((await pgbench.run(wide, blind, session, effort.seconds)).per_second)
    rates = [(each.requests - each.conflicts) / each.seconds for each in rounds]
    limits = [max(pair) for pair in zip(locked_rates, blind_rates, strict=True)]
    count = sum(each.requests for each in rounds)
    return HotRowResult(
        writers=effort.writers,
        per_second=median(rates),
        latency=latency_of([each for one in rounds for each in one.latencies_ms]),
        conflicts=sum(each.conflicts for each in rounds),
        server_cpu_us=server_cpu / count * 1e6,
        postgres_cpu_us=postgres_cpu / count * 1e6,
        locked_per_second=median(locked_rates),
        blind_per_second=median(blind_rates),
        ratio=median([rate / limit for rate, limit in zip(rates, limits, strict=True)]),
    )


async def _load(
    platform: BenchPlatform, lanes: list[list[dict[str, str]]], seconds: float, *, once: bool = False
) -> load.LoadSamples:
    plan = load.LoadPlan(platform.host, platform.port, seconds, lanes, counts_conflicts=True, once=once)
    return load.LoadSamples(**await program("bench.load", asdict(plan)))


async def _reports(platform: BenchPlatform, stack: AsyncExitStack, effort: HotRowEffort) -> ReportsResult:
    """In each round the members of one instance report at once, and those of another one after the other."""
    people, operator, app = await callers(platform, stack)
    tenant, adapter = platform.tenants[0], BenchAdapter(operator)
    token = operator.headers["Authorization"].removeprefix("Bearer ")
    joined = await fleet.join(platform.dsn, effort.members * effort.rounds * 2, (tenant.id, tenant.projects[0]))
    allocations = iter([each.allocation_id for each in joined.members])

    async def claimed(name: str) -> ClaimedInstance:
        body = {
            "app": instance_rows.SLUG,
            "name": name,
            "topology": {"worker": effort.members},
            "placement": {"allocations": list(itertools.islice(allocations, effort.members))},
            "service_account_id": app.service_account_id,
        }
        made = await people.post(f"/api/v1/projects/{tenant.projects[0]}/app-instances", json=body)
        return await _claimed(operator, adapter, str(made.raise_for_status().json()["id"]), token)

    at_once, one_by_one, samples = [], [], []
    for number in range(effort.rounds):
        here, there = await claimed(f"at-once-{number}"), await claimed(f"in-turn-{number}")
        together = [await _load(platform, [[each] for each in _targets(here, *how)], 0, once=True) for how in REPORTED]
        in_turn = [await _load(platform, [_targets(there, *how)], 0, once=True) for how in REPORTED]
        at_once.append(sum(each.seconds for each in together))
        one_by_one.append(sum(each.seconds for each in in_turn))
        samples += together
    return ReportsResult(
        members=effort.members,
        at_once=median(at_once),
        latency=latency_of([each for one in samples for each in one.latencies_ms]),
        conflicts=sum(each.conflicts for each in samples),
        one_by_one=median(one_by_one),
        ratio=median([mine / other for mine, other in zip(at_once, one_by_one, strict=True)]),
    )


@dataclass(frozen=True)
class ClaimedInstance:
    """An instance under the adapter's claim, with an operation that has begun."""

    path: str
    fence: int
    operation_id: str
    member_ids: list[str]
    token: str


async def _claimed(operator: httpx.AsyncClient, adapter: BenchAdapter, instance_id: str, token: str) -> ClaimedInstance:
    """Claim the instance and begin its operation."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while instance_id not in adapter.held:
            await adapter.poll(5)
    path, fence = f"/api/v1/runtime/instances/{instance_id}", adapter.held[instance_id]
    seen = (await operator.get(path, params={"fence": fence})).raise_for_status().json()
    operation_id = str(seen["operations"][0]["id"])
    begun = {"fence": fence, "operation_id": operation_id, "begin": True}
    (await operator.post(f"{path}/reports", json=begun)).raise_for_status()
    members = [str(each["id"]) for each in seen["members"]]
    return ClaimedInstance(f"{path}/reports", fence, operation_id, members, token)


def _targets(claimed: ClaimedInstance, status: str, step: str) -> list[dict[str, str]]:
    """One report for each member, as the load takes it: the member's status, and its step of the operation."""
    return [
        {
            "method": "POST",
            "path": claimed.path,
            "token": claimed.token,
            "body": json.dumps(
                {
                    "fence": claimed.fence,
                    "operation_id": claimed.operation_id,
                    "steps": [{"name": f"start {number}", "status": step}],
                    "members": [{"id": member_id, "status": status, "health": "healthy"}],
                }
            ),
        }
        for number, member_id in enumerate(claimed.member_ids)
    ]


def lines_of(found: HotResult) -> Iterator[str]:
    """The report, line by line."""
    row, reports = found.row, found.reports
    yield (
        f"{row.writers} writers change one row: {row.per_second:.0f}/s, p50 {row.latency.p50_ms:.1f} ms, "
        f"p99 {row.latency.p99_ms:.1f} ms, {row.conflicts} refused as conflicts   goal 0"
    )
    yield (
        f"  pgbench on the same row: locked, read and written {row.locked_per_second:.0f}/s, "
        f"written blindly {row.blind_per_second:.0f}/s   ratio to the faster {row.ratio:.2f}   goal {RATIO_GOAL}"
    )
    yield f"  CPU time of each change: server {row.server_cpu_us:.0f} us, PostgreSQL {row.postgres_cpu_us:.0f} us"
    yield (
        f"{reports.members} members report at once, twice, each a step of one operation: {reports.at_once:.2f} s, "
        f"p50 {reports.latency.p50_ms:.0f} ms, p99 {reports.latency.p99_ms:.0f} ms, "
        f"{reports.conflicts} refused as conflicts   goal 0"
    )
    yield f"  the same reports one after the other: {reports.one_by_one:.2f} s   ratio {reports.ratio:.2f}"


def reached(found: HotResult) -> bool:
    """Whether the goals were reached."""
    return found.row.ratio >= RATIO_GOAL and found.row.conflicts == found.reports.conflicts == 0


def main(arguments: list[str] | None = None) -> int:
    """Measure the hot row alone; the exit code says whether the goals were reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.hot_row", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that it runs, not how fast it is")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    found = asyncio.run(measure(QUICK if options.quick else HotRowEffort()))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(asdict(found))).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines_of(found)) + "\n")
    return 0 if options.quick or reached(found) else 1


if __name__ == "__main__":
    sys.exit(main())
