"""`python -m bench`: measure the API beside PostgreSQL's own limit, and print what came of it."""

import argparse
import asyncio
import sys
from dataclasses import asdict, replace

import msgspec

from bench import agents, fairness, hot_row, instances, members, slurm
from bench.bench_platform import running_platform
from bench.catalog import measure_catalog
from bench.measure import Bench, BenchEffort, BenchResult
from bench.report import lines_of

CONNECTIONS = 8
FULL = BenchEffort(seconds=4, rounds=3, followers=200, changes=50, versions=(1_000, 100_000))
QUICK = BenchEffort(seconds=0.05, rounds=1, followers=3, changes=2, versions=(100, 300))
QUICK_CONNECTIONS = 1


async def measure(connections: int, effort: BenchEffort) -> BenchResult:
    """Start the platforms, measure, and stop them."""
    async with running_platform(connections) as platform:
        result = await Bench(platform, effort).run()
    return replace(result, catalog=await measure_catalog(effort))


def main(arguments: list[str] | None = None) -> int:
    """Run the bench; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that it runs, not how fast it is")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--agents", type=int, default=agents.AGENTS, help="how many simulated agents")
    parser.add_argument("--seconds", type=float, default=agents.SECONDS, help="how long they are given tasks")
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else FULL
    connections = QUICK_CONNECTIONS if options.quick else CONNECTIONS
    crowd = agents.QUICK if options.quick else agents.AgentsEffort(options.agents, options.seconds)
    width = members.QUICK if options.quick else members.MembersEffort()
    result = asyncio.run(measure(connections, effort))
    waited = asyncio.run(agents.measure(crowd))
    grown = asyncio.run(members.measure(width))
    hot = asyncio.run(hot_row.measure(hot_row.QUICK if options.quick else hot_row.HotRowEffort()))
    shared = asyncio.run(fairness.measure(fairness.QUICK if options.quick else fairness.FairnessEffort()))
    # Its quick form, `python -m bench.instances --quick`, starts three servers more.
    launched = None if options.quick else asyncio.run(instances.measure(instances.InstancesEffort()))
    # Its quick form is `python -m bench.slurm --quick`, as root.
    no_cluster_because = "" if options.quick else slurm.is_missing()
    cluster = None if options.quick or no_cluster_because else slurm.measure(slurm.SlurmEffort())
    if options.json:
        report = asdict(result) | {"agents": asdict(waited), "members": asdict(grown), "fairness": asdict(shared)}
        report["hot_row"] = asdict(hot)
        if launched is not None:
            report["instances"] = asdict(launched)
        if cluster is not None:
            report["slurm"] = asdict(cluster)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        parts = [lines_of(result), hot_row.lines_of(hot), agents.lines_of(waited), members.lines_of(grown)]
        parts.append(fairness.lines_of(shared))
        if launched is not None:
            parts.append(instances.lines_of(launched))
        if cluster is not None:
            parts.append(slurm.lines_of(cluster))
        elif no_cluster_because:
            parts.append(iter([f"Real Slurm is left out: {no_cluster_because}"]))
        sys.stdout.write("\n\n".join("\n".join(part) for part in parts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
