"""The database driver alone: the server's connection pools, without HTTP and without the work of the API.

A separate program that runs the statement of a read through the server's pools, from as many tasks as the server has
connections. Its cost is the share of the driver in a read.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from mooring.storage.identity import project as projects
from mooring.storage.kernel.database import Acting, Database, PoolSettings


@dataclass(frozen=True)
class DriverPlan:
    """The statement, and for how long it runs."""

    dsn: str
    tenant_id: str
    project_ids: list[str]
    seconds: float


@dataclass(frozen=True)
class DriverSamples:
    """The number of reads and their CPU time."""

    reads: int
    cpu_seconds: float


async def run(plan: DriverPlan) -> DriverSamples:
    """Run the statement on every connection until the time is over."""
    database = Database(PoolSettings(plan.dsn, len(plan.project_ids)))
    await database.open()
    acting = Acting(plan.tenant_id)
    reads = 0

    async def ask(project_id: str, seconds: float) -> None:
        nonlocal reads
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if await projects.find(database, acting, project_id) is None:
                raise LookupError(f"{project_id} is not there")
            reads += 1

    try:
        await asyncio.gather(*(ask(each, min(0.2, plan.seconds)) for each in plan.project_ids))
        reads, begun = 0, time.process_time()
        await asyncio.gather(*(ask(each, plan.seconds) for each in plan.project_ids))
        return DriverSamples(reads, time.process_time() - begun)
    finally:
        await database.close()


def main() -> int:
    """Read a plan, run it, write the samples."""
    given: dict[str, Any] = json.load(sys.stdin)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        json.dump(asdict(runner.run(run(DriverPlan(**given)))), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
