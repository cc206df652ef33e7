"""What a neighbour's queue costs: one tenant queues a thousand programs on a node, another runs a command there.

`python -m bench.fairness`, and a part of `python -m bench`. The same command of the same tenant is measured twice on
the same node in the same run: while the node is idle, and while the other tenant has filled all the room that it may
have. The latency counts from before the request that creates the task until the response that shows its end; the
result is the ratio of the two. Platform and agent are real, the sandboxes are simulated and the programs are real
(`bench/fairness_agent.py`).
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec

from bench import fleet
from bench.bench_platform import BenchPlatform, BenchTenant, running_platform
from bench.measure import ROOT, Latency, latency_of
from mooring_agent.control_plane.keys import load_or_create_keys
from mooring_agent.control_plane.messages import decode

CONNECTIONS = 8
RATIO_MAX = 2.0
OWNERS = 40
"""So many programs of one allocation may run at once, for the tasks of one owner run in order."""
SEEN = """
SELECT count(*) FILTER (WHERE status = 'claimed'), count(*) FILTER (WHERE status = 'queued')
  FROM task WHERE tenant_id = $1"""
SET_KEYS = "UPDATE node SET signing_key = $2, sealing_key = $3 WHERE id = $1"
STARTED_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class FairnessEffort:
    """How many programs one tenant queues, how long each sleeps, and how many commands the other one runs."""

    programs: int = 1_000
    sleep_seconds: float = 20.0
    allocations: int = 4
    commands: int = 300
    held_at_least: int = 64


QUICK = FairnessEffort(programs=80, sleep_seconds=5.0, allocations=2, commands=5)


@dataclass(frozen=True)
class FairnessResult:
    programs: int
    running: int  # of them, claimed by the agent when the measurement under load began and ended
    running_after: int
    commands: int
    idle: Latency
    loaded: Latency
    ratio: float
    ratio_p99: float


@dataclass(frozen=True)
class TasksSeen:
    """A tenant's tasks."""

    claimed: int
    queued: int


class FairnessFailed(Exception):
    """The bench did not measure what it says."""


async def measure(effort: FairnessEffort) -> FairnessResult:
    """Start a platform and an agent of its own, measure, and stop both."""
    async with running_platform(CONNECTIONS, tenants=2) as platform:
        noisy, quiet = platform.tenants
        connection = await asyncpg.connect(platform.dsn)
        try:
            async with _node(platform, connection, (quiet.id, quiet.projects[0])) as node:
                homes = [(noisy.id, noisy.projects[0])] * effort.allocations
                crowded = await fleet.move_in(connection, node.node_id, homes)
                path = _tasks_path(quiet, node.allocation_id)
                async with _client(platform, quiet) as client:
                    await _commands(client, path, max(1, effort.commands // 10))  # everything is warm
                    idle = await _commands(client, path, effort.commands)
                    await _queue(platform, noisy, [each.allocation_id for each in crowded], effort)
                    running = await _filled(connection, noisy.id, effort)
                    loaded = await _commands(client, path, effort.commands)
                    after = await _seen(connection, noisy.id)
                    if not after.queued and effort.programs > effort.held_at_least:
                        raise FairnessFailed("the queue was empty before the measurement ended")
        finally:
            await connection.close()
    return result_of(effort, idle, loaded, running=running, running_after=after.claimed)


def result_of(
    effort: FairnessEffort, idle: list[float], loaded: list[float], *, running: int, running_after: int
) -> FairnessResult:
    """The figures from the samples."""
    alone, beside = latency_of(idle), latency_of(loaded)
    return FairnessResult(
        programs=effort.programs,
        running=running,
        running_after=running_after,
        commands=effort.commands,
        idle=alone,
        loaded=beside,
        ratio=beside.p50_ms / alone.p50_ms,
        ratio_p99=beside.p99_ms / alone.p99_ms,
    )


@asynccontextmanager
async def _node(
    platform: BenchPlatform, connection: "asyncpg.Connection[Any]", home: tuple[str, str]
) -> AsyncIterator[fleet.FleetMember]:
    """A node with a running agent and one allocation of this tenant's project."""
    joined = await fleet.join(platform.dsn, 1, home, fleet.SHARED)
    (member,) = joined.members
    directory: Path = platform.directory / "agent"
    keys = load_or_create_keys(directory)
    await connection.execute(SET_KEYS, member.node_id, decode(keys.signing_public), decode(keys.sealing_public))
    identity = {
        "url": platform.url,
        "node_id": member.node_id,
        "audience": joined.audience,
        "platform_keys": [{"key_id": name, "public_key": key} for name, key in joined.pinned.items()],
    }
    with (platform.directory / "agent.log").open("wb") as log:
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.fairness_agent", cwd=ROOT, stdin=asyncio.subprocess.PIPE, stderr=log
        )
    if agent.stdin is None:
        raise FairnessFailed("the agent has no input")
    agent.stdin.write(json.dumps({"directory": str(directory), "identity": identity}).encode())
    agent.stdin.close()
    try:
        yield member
    finally:
        if agent.returncode is None:
            agent.kill()
        await agent.wait()


def _client(platform: BenchPlatform, tenant: BenchTenant) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {tenant.token}"}
    return httpx.AsyncClient(base_url=f"{platform.url}/api/v1", headers=headers, timeout=120.0)


def _tasks_path(tenant: BenchTenant, allocation_id: str) -> str:
    return f"/projects/{tenant.projects[0]}/allocations/{allocation_id}/tasks"


async def _commands(client: httpx.AsyncClient, path: str, count: int) -> list[float]:
    """Run a command so many times, one after the other; the milliseconds of each."""
    measured = []
    tasks = path.partition("/allocations/")[0] + "/tasks"
    for _ in range(count):
        begun = time.perf_counter()
        made = await _create(client, path, {"argv": ["/bin/echo", "hello"]}, "")
        ended = await client.get(
            f"{tasks}/{made['id']}", params={"until": "succeeded,failed,cancelled,expired", "wait": 30}
        )
        if ended.json().get("status") != "succeeded":
            raise FairnessFailed(f"a command ended otherwise: {ended.text[:500]}")
        measured.append((time.perf_counter() - begun) * 1_000)
    return measured


async def _create(client: httpx.AsyncClient, path: str, arguments: dict[str, Any], label: str) -> dict[str, Any]:
    body: dict[str, Any] = {"type": "process.run", "arguments": arguments, "lifetime_seconds": 3600}
    answer = await client.post(path, json=body | ({"label": label} if label else {}))
    if answer.status_code != 201:
        raise FairnessFailed(f"a task was not created: {answer.text[:500]}")
    made: dict[str, Any] = answer.json()
    return made


async def _queue(
    platform: BenchPlatform, tenant: BenchTenant, allocation_ids: list[str], effort: FairnessEffort
) -> None:
    """Queue the programs, dealt out over allocations and their owners."""
    arguments = {"argv": ["/bin/sleep", f"{effort.sleep_seconds:g}"], "timeout_seconds": 3600.0}
    async with _client(platform, tenant) as client:
        for number in range(effort.programs):
            path = _tasks_path(tenant, allocation_ids[number % len(allocation_ids)])
            await _create(client, path, arguments, f"own{number // len(allocation_ids) % OWNERS}")


async def _seen(connection: "asyncpg.Connection[Any]", tenant_id: str) -> TasksSeen:
    row = await connection.fetchrow(SEEN, tenant_id)
    return TasksSeen(0, 0) if row is None else TasksSeen(*row)


async def _filled(connection: "asyncpg.Connection[Any]", tenant_id: str, effort: FairnessEffort) -> int:
    """Wait until the agent holds as many programs of this tenant as it may."""
    until = time.monotonic() + STARTED_SECONDS_MAX
    while time.monotonic() < until:
        seen = await _seen(connection, tenant_id)
        if seen.claimed >= effort.held_at_least:
            return seen.claimed
        await asyncio.sleep(0.1)
    raise FairnessFailed(f"the node did not run {effort.held_at_least} programs of the busy tenant")


def lines_of(found: FairnessResult) -> Iterator[str]:
    """The report, line by line."""
    idle, loaded = found.idle, found.loaded
    yield f"One tenant queues {found.programs:,} programs on a node; another one runs {found.commands:,} commands there"
    yield f"  on the idle node                 p50 {idle.p50_ms:8.1f} ms   p99 {idle.p99_ms:8.1f} ms"
    yield (
        f"  beside {found.running:3d} running programs     p50 {loaded.p50_ms:8.1f} ms   p99 {loaded.p99_ms:8.1f} ms"
        f"   ({found.running_after} ran at the end)"
    )
    yield (
        f"  ratio                            p50 {found.ratio:8.2f}      p99 {found.ratio_p99:8.2f}"
        f"      goal p99 {RATIO_MAX:.1f}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure fairness alone; the exit code says whether the goal was reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that it runs")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    found = asyncio.run(measure(QUICK if options.quick else FairnessEffort()))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(asdict(found))).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines_of(found)) + "\n")
    return 0 if options.quick or found.ratio_p99 <= RATIO_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
