"""Thousands of agents at one server process: what each costs, and how soon a task is with its agent.

`python -m bench.agents --agents 10000 --seconds 60`, and a part of `python -m bench`. One PostgreSQL, one server
process, one process with all agents (`bench/agent_load.py`) on one machine. Memory is the growth of the server's
resident memory from before the first agent connected until all had polled again; the idle cost is the CPU time of an
interval without tasks. Two limits are measured in the same minute as the latency: the statements that create and claim
a task alone, without the API, and a request that needs no database.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import msgspec

from bench import agent_load, fleet
from bench.bench_platform import running_platform
from bench.measure import Latency, latency_of, program

AGENTS = 10_000
SECONDS = 60.0
TASKS_PER_SECOND = 100
HEARTBEAT_SECONDS = 30.0
UNATTENDED = 200
CONNECTIONS = 16
"""Twice the default: 100 results a second are as many commits, which fill eight when each takes 80 ms."""
MEMORY_GOAL_BYTES = 50_000
LATENCY_GOAL_MS = 250.0
HOUR = 3600


@dataclass(frozen=True)
class AgentsEffort:
    """How many agents, with how much to do."""

    agents: int = AGENTS
    seconds: float = SECONDS
    tasks_per_second: int = TASKS_PER_SECOND
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    unattended: int = UNATTENDED


QUICK = AgentsEffort(agents=20, seconds=0.25, tasks_per_second=40, heartbeat_seconds=0.3, unattended=2)


@dataclass(frozen=True)
class IdleCost:
    """The cost of agents without tasks."""

    polls_per_second: float
    transactions_per_second: float  # of PostgreSQL
    empty_transactions_per_second: float  # before the first agent came: the workers look by themselves
    server_cpu_share: float  # of one core
    server_cpu_seconds: float  # for one agent and one hour
    postgres_cpu_seconds: float


@dataclass(frozen=True)
class AgentsResult:
    """What was measured."""

    agents: int
    heartbeat_seconds: float
    memory_bytes: float  # of the server for each idle agent
    memory_after_bytes: float  # the same after the load
    idle: IdleCost
    tasks: int
    refused: int
    seconds: float
    claims_per_second: float
    latency: Latency
    latency_max_ms: float
    bare: Latency  # a request that asks no database, while the load runs
    statements: Latency  # a task's own statements alone
    ratio: float  # the median beside both limits together, and the 99th percentile
    ratio_p99: float
    server_cpu_share: float  # of one core, under load
    postgres_cpu_share: float


async def measure(effort: AgentsEffort) -> AgentsResult:
    """Start a platform of its own, measure, and stop it."""
    async with running_platform(CONNECTIONS, tenants=1) as platform:
        tenant = platform.tenants[0]
        home = (tenant.id, tenant.projects[0])
        joined = await fleet.join(platform.dsn, effort.agents + effort.unattended, home)
        members = [asdict(each) for each in joined.members]
        plan = agent_load.AgentLoadPlan(
            host=platform.host,
            port=platform.port,
            dsn=platform.dsn,
            server_pid=platform.server_pid,
            postmaster_pid=platform.postmaster_pid,
            members=members[: effort.agents],
            unattended=members[effort.agents :],
            home=list(home),
            token=tenant.token,
            audience=joined.audience,
            pinned=joined.pinned,
            heartbeat_seconds=effort.heartbeat_seconds,
            idle_seconds=effort.heartbeat_seconds,
            tasks_per_second=effort.tasks_per_second,
            seconds=effort.seconds,
        )
        given = await program("bench.agent_load", asdict(plan))
    return result_of(effort, msgspec.convert(given, agent_load.AgentLoadSamples))


def result_of(effort: AgentsEffort, seen: agent_load.AgentLoadSamples) -> AgentsResult:
    """The figures from the samples."""
    latency, bare, statements = (
        latency_of(each) for each in (seen.latencies_ms, seen.probes_ms, seen.statements.latencies_ms)
    )
    idle, empty, load = seen.idle, seen.empty, seen.load
    per_agent_hour = HOUR / idle.seconds / effort.agents
    return AgentsResult(
        agents=effort.agents,
        heartbeat_seconds=effort.heartbeat_seconds,
        memory_bytes=(seen.idle_bytes - seen.before_bytes) / effort.agents,
        memory_after_bytes=(seen.after_bytes - seen.before_bytes) / effort.agents,
        idle=IdleCost(
            polls_per_second=idle.polls / idle.seconds,
            transactions_per_second=idle.transactions / idle.seconds,
            empty_transactions_per_second=empty.transactions / empty.seconds,
            server_cpu_share=idle.server_cpu / idle.seconds,
            server_cpu_seconds=(idle.server_cpu - empty.server_cpu * idle.seconds / empty.seconds) * per_agent_hour,
            postgres_cpu_seconds=(idle.postgres_cpu - empty.postgres_cpu * idle.seconds / empty.seconds)
            * per_agent_hour,
        ),
        tasks=seen.tasks,
        refused=seen.refused,
        seconds=load.seconds,
        claims_per_second=seen.tasks / load.seconds,
        latency=latency,
        latency_max_ms=max(seen.latencies_ms),
        bare=bare,
        statements=statements,
        ratio=latency.p50_ms / (bare.p50_ms + statements.p50_ms),
        ratio_p99=latency.p99_ms / (bare.p99_ms + statements.p99_ms),
        server_cpu_share=load.server_cpu / load.seconds,
        postgres_cpu_share=load.postgres_cpu / load.seconds,
    )


def lines_of(found: AgentsResult) -> Iterator[str]:
    """The report, line by line."""
    idle = found.idle
    yield (
        f"{found.agents:,} simulated agents, one connection each, a heartbeat every {found.heartbeat_seconds:.0f} s; "
        f"{CONNECTIONS} connections to the database in each pool"
    )
    yield (
        f"  memory of the server for each idle agent       {found.memory_bytes / 1000:8.1f} KB"
        f"   goal {MEMORY_GOAL_BYTES / 1000:.0f} KB; after the load {found.memory_after_bytes / 1000:.1f} KB"
    )
    yield (
        f"  an idle agent costs in an hour                 {idle.server_cpu_seconds:8.3f} s of the server's CPU time, "
        f"{idle.postgres_cpu_seconds:.3f} s of PostgreSQL's"
    )
    yield (
        f"  all of them, idle                              {idle.polls_per_second:8.0f} polls/s, "
        f"{idle.transactions_per_second:.1f} statements/s (without any {idle.empty_transactions_per_second:.1f}), "
        f"{idle.server_cpu_share:.0%} of a core"
    )
    latency = found.latency
    yield (
        f"  {found.tasks:,} tasks, {found.claims_per_second:.0f} claims/s: intent to agent"
        f"   p50 {latency.p50_ms:.1f} ms, p99 {latency.p99_ms:.1f} ms, max {found.latency_max_ms:.1f} ms"
        f"   goal p99 {LATENCY_GOAL_MS:.0f} ms"
    )
    yield (
        f"  limits meanwhile: its statements p50 {found.statements.p50_ms:.1f} ms, "
        f"p99 {found.statements.p99_ms:.1f} ms; a bare request p50 {found.bare.p50_ms:.1f} ms, "
        f"p99 {found.bare.p99_ms:.1f} ms; "
        f"the way takes {found.ratio:.1f} and {found.ratio_p99:.1f} times both"
    )
    yield (
        f"  under load: server {found.server_cpu_share:.0%} of a core, PostgreSQL {found.postgres_cpu_share:.0%}; "
        f"{found.refused} reports refused"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure agents alone; the exit code says whether the goals were reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.agents", description=__doc__)
    parser.add_argument("--agents", type=int, default=AGENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long tasks are made")
    parser.add_argument("--tasks-per-second", type=int, default=TASKS_PER_SECOND)
    parser.add_argument("--heartbeat-seconds", type=float, default=HEARTBEAT_SECONDS)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    effort = AgentsEffort(options.agents, options.seconds, options.tasks_per_second, options.heartbeat_seconds)
    found = asyncio.run(measure(effort))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(asdict(found))).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines_of(found)) + "\n")
    reached = found.memory_bytes <= MEMORY_GOAL_BYTES and found.latency.p99_ms < LATENCY_GOAL_MS
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
