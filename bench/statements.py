"""A task without the API: the same statements that create and claim it, one after the other on one connection.

Their time is the share of PostgreSQL and its disk in the latency of a task. They run while the agents get tasks, so
that a slow phase of the disk affects both.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Prefix
from mooring.gateways.clock import SystemClock
from mooring.storage.fleet import task_claim
from mooring.storage.kernel.database import Acting, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import apply

LEASE = timedelta(seconds=90)


@dataclass(frozen=True)
class StatementSamples:
    """The time to create and claim each task."""

    latencies_ms: list[float]


async def alone(
    dsn: str, members: Sequence[Mapping[str, str]], home: tuple[str, str], seconds: float
) -> StatementSamples:
    """Create and claim one task for each of these nodes, whose agents do not poll, spread over so many seconds."""
    clock = SystemClock()
    database = Database(PoolSettings(dsn, 1))
    await database.open()
    taken = []
    try:
        first = time.perf_counter()
        for number, each in enumerate(members):
            await asyncio.sleep(max(0.0, first + number * seconds / len(members) - time.perf_counter()))
            context = DecisionContext(
                Actor(PrincipalKind.SYSTEM, "system"), clock.now(), clock.mint(Prefix.CORRELATION), "0" * 32, clock.mint
            )
            requested = TaskRequest(
                tenant_id=home[0],
                project_id=home[1],
                allocation_id=each["allocation_id"],
                node_id=each["node_id"],
                type="process.run",
                step="bench",
                arguments={"argv": ["/bin/true"]},
            )
            begun = time.perf_counter()
            made = make_task(context, requested)
            decision = Decision(made.task, made.writes, made.events, made.audits)
            await apply(database, Acting(home[0]), context, decision)
            now = clock.now()
            claimed = await task_claim.claim(database, [task_claim.NodeRoom(each["node_id"], 1)], now, now + LEASE)
            taken.append((time.perf_counter() - begun) * 1000)
            if len(claimed) != 1:
                raise LookupError(f"the task for {each['node_id']} was claimed by somebody else")
    finally:
        await database.close()
    return StatementSamples(taken)
