"""What the control plane takes to add many members to one instance, all at once.

`python -m bench.members`, and a part of `python -m bench`. One PostgreSQL, one server process, an adapter of the kit as
a separate process (`bench/member_adapter.py`), and simulated nodes in this process, each with an active allocation;
they perform every task at once. Measured is the time from before the request that adds the members until the response
that shows the operation as succeeded, minus the time of the nodes. A limit is measured in the same run: as many tasks
on the same nodes, created by the API without an instance, in the same three rounds.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bench import agent_load, fleet, instance_rows
from bench.agent_load import AgentFleet, LoadAgent, TaskConnection
from bench.bench_platform import BenchPlatform, running_platform
from bench.load import LoadFailed
from mooring.core.identity.platform_key import encoded
from mooring_agent.control_plane.messages import ClaimResponse, Task
from mooring_agent.tasks.verifier import TaskRefused

CONNECTIONS = 8
MEMBERS = 200
TASKS_PER_MEMBER = 3  # files, a process, a probe: see bench/member_adapter.py
GOAL_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 25.0
LANES = 16
OVER = "succeeded,failed,cancelled"
ROOT = Path(__file__).resolve().parents[1]
_CLAIMED = msgspec.json.Decoder(ClaimResponse)
_RESULTS: dict[str, dict[str, Any]] = {
    "files.write": {"written": 1},
    "service.start": {"state": "running", "pid": 1, "started_at": 1},
    "probe.tcp": {"latency_milliseconds": 1, "attempts": 1, "observed": "simulated"},
}


@dataclass(frozen=True)
class MembersEffort:
    """How many members, and how often."""

    members: int = MEMBERS
    rounds: int = 3


QUICK = MembersEffort(members=5, rounds=1)


@dataclass(frozen=True)
class MembersResult:
    """What was measured: the median of the rounds, in seconds."""

    members: int
    tasks: int
    total: float
    nodes: float  # what the slowest node took for its own tasks, of the total
    overhead: float
    overhead_max: float  # of the slowest round
    alone: float  # the same tasks without an instance
    ratio: float


class WorkingAgent(LoadAgent):
    """A simulated agent that performs every task at once, and records how long that took."""

    __slots__ = ("node_id", "took")

    def __init__(self, agents: AgentFleet, node_id: str, token: str) -> None:
        super().__init__(agents, node_id, token)
        self.node_id = node_id
        self.took = 0.0

    def answered(self, body: bytes) -> None:
        """Verify and perform the tasks of a response, report them, and poll again."""
        self.counts.polls += 1
        for envelope in _CLAIMED.decode(body).tasks:
            begun = time.perf_counter()
            try:
                task = self._verifier.verify(envelope, time.time())
            except TaskRefused as refused:
                self.counts.fail(f"a task was not believed: {refused}")
                return
            self.counts.claims.add((task.task_id, task.fence))
            self._running.append(task)
            self._report(task)
            self.took += time.perf_counter() - begun
        self.poll()

    def result_of(self, task: Task) -> dict[str, Any]:
        """The result of a task, as the agent reports it."""
        return _RESULTS.get(task.type, {"exit_code": 0})


class WorkingFleet(AgentFleet):
    """All simulated nodes, connected at once."""

    async def come(self) -> None:
        """Connect and poll."""
        self._shared = [await self._connected(lambda: TaskConnection(self.counts)) for _ in range(LANES)]
        for each in self.plan.members:

            def made(node_id: str = each["node_id"], token: str = each["token"]) -> WorkingAgent:
                return WorkingAgent(self, node_id, token)

            self._agents.append(await self._connected(made))

    def took(self) -> float:
        """The time of the slowest node since the last call."""
        doers = [each for each in self._agents if isinstance(each, WorkingAgent)]
        slowest = max(each.took for each in doers)
        for each in doers:
            each.took = 0.0
        return slowest


async def measure(effort: MembersEffort) -> MembersResult:
    """Start a platform of its own, measure, and stop it."""
    async with running_platform(CONNECTIONS, tenants=1) as platform, AsyncExitStack() as stack:
        tenant = platform.tenants[0]
        home = (tenant.id, tenant.projects[0])
        joined = await fleet.join(platform.dsn, (effort.members + 1) * effort.rounds, home)
        members = [asdict(each) for each in joined.members]
        agents = WorkingFleet(_plan(platform, members, joined, tenant.token))
        stack.callback(agents.close)
        await agents.come()
        people = await stack.enter_async_context(httpx.AsyncClient(base_url=platform.url, timeout=PATIENCE_SECONDS))
        people.headers["Authorization"] = f"Bearer {tenant.token}"
        app = await stack.enter_async_context(_adapter(platform))
        place = f"/api/v1/projects/{home[1]}"
        totals, nodes, alone = [], [], []
        for number in range(effort.rounds):
            first, *rest = members[number * (effort.members + 1) : (number + 1) * (effort.members + 1)]
            instance = await _launched(people, place, app, (f"wide-{number}", first["allocation_id"]))
            alone.append(await _tasks_alone(agents, people, place, rest))
            agents.took()
            totals.append(await _added(people, f"{place}/app-instances/{instance}", rest))
            nodes.append(agents.took())
            agents.check()
    overheads = [total - own for total, own in zip(totals, nodes, strict=True)]
    middle = sorted(range(effort.rounds), key=overheads.__getitem__)[effort.rounds // 2]
    return MembersResult(
        members=effort.members,
        tasks=effort.members * TASKS_PER_MEMBER,
        total=totals[middle],
        nodes=nodes[middle],
        overhead=overheads[middle],
        overhead_max=max(overheads),
        alone=alone[middle],
        ratio=totals[middle] / alone[middle],
    )


def _plan(
    platform: BenchPlatform, members: list[dict[str, str]], joined: fleet.JoinedFleet, token: str
) -> agent_load.AgentLoadPlan:
    return agent_load.AgentLoadPlan(
        host=platform.host,
        port=platform.port,
        dsn=platform.dsn,
        server_pid=platform.server_pid,
        postmaster_pid=platform.postmaster_pid,
        members=members,
        unattended=[],
        home=[],
        token=token,
        audience=joined.audience,
        pinned=joined.pinned,
        heartbeat_seconds=POLL_SECONDS,
        idle_seconds=0,
        tasks_per_second=0,
        seconds=0,
    )


@asynccontextmanager
async def _adapter(platform: BenchPlatform) -> AsyncIterator[instance_rows.Launchable]:
    """The app, and its adapter as a process."""
    private = Ed25519PrivateKey.generate()
    app = await instance_rows.make_launchable(
        platform, platform.tenants[0], encoded(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    )
    key = platform.directory / "adapter.key"
    key.touch(mode=0o600)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with (platform.directory / "adapter.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.member_adapter",
            "--url",
            platform.url,
            "--key-file",
            str(key),
            cwd=ROOT,
            env={**os.environ},
            stdout=log,
            stderr=log,
        )
    try:
        yield app
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _launched(people: httpx.AsyncClient, place: str, app: instance_rows.Launchable, what: tuple[str, str]) -> str:
    """Launch an instance with one member and wait until it runs."""
    name, allocation_id = what
    body = {
        "app": instance_rows.SLUG,
        "name": name,
        "topology": {"worker": 1},
        "placement": {"allocations": [allocation_id]},
        "service_account_id": app.service_account_id,
    }
    made = await _sent(people, f"{place}/app-instances", body)
    path = f"{place}/app-instances/{made['id']}"
    seen = (await people.get(f"{path}?wait=60&until=running,failed")).raise_for_status().json()
    if seen["status"] != "running":
        raise LoadFailed(f"the instance is {seen['status']}: {seen['failure_detail']}")
    return str(made["id"])


async def _added(people: httpx.AsyncClient, path: str, members: list[dict[str, str]]) -> float:
    """Add members and wait for the end of the operation; the time it took."""
    placement = {"allocations": [each["allocation_id"] for each in members]}
    begun = time.perf_counter()
    made = await _sent(
        people,
        f"{path}/members",
        {
            "component": "worker",
            "count": len(members),
            "placement": placement,
        },
    )
    answer = await people.get(f"{path}/operations/{made['id']}?wait=60&until={OVER}")
    took = time.perf_counter() - begun
    seen = answer.raise_for_status().json()
    if seen["status"] != "succeeded":
        raise LoadFailed(f"the add is {seen['status']}: {seen['failure_detail'] or seen['blocker']}")
    return took


async def _tasks_alone(
    agents: WorkingFleet, people: httpx.AsyncClient, place: str, members: list[dict[str, str]]
) -> float:
    """As many tasks, one round after the other, without an instance; the time they took."""
    begun = time.perf_counter()
    for _ in range(TASKS_PER_MEMBER):
        wanted = agents.counts.accepted + len(members)
        body = {"type": "process.run", "arguments": {"argv": ["/bin/true"]}}
        await asyncio.gather(
            *(_sent(people, f"{place}/allocations/{each['allocation_id']}/tasks", body) for each in members)
        )
        while agents.counts.accepted < wanted:
            agents.check()
            if time.perf_counter() - begun > PATIENCE_SECONDS:
                raise LoadFailed(f"only {agents.counts.accepted} of {wanted} tasks were done")
            await asyncio.sleep(0.002)
    return time.perf_counter() - begun


async def _sent(people: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await people.post(path, json=body)
    if answer.status_code not in (201, 202):
        raise LoadFailed(f"POST {path} was answered {answer.status_code}: {answer.text[:500]}")
    found: dict[str, Any] = answer.json()
    return found


def lines_of(found: MembersResult) -> Iterator[str]:
    """The report, line by line."""
    yield (
        f"{found.members} members added at once on simulated nodes: {found.total:.2f} s, of which the nodes took "
        f"{found.nodes * 1000:.1f} ms: overhead {found.overhead:.2f} s, at most {found.overhead_max:.2f} s"
        f"   goal {GOAL_SECONDS:.0f} s"
    )
    yield f"  limit of the same run: the same {found.tasks} tasks alone {found.alone:.2f} s   ratio {found.ratio:.2f}"


def reached(found: MembersResult) -> bool:
    """Whether the goal was reached."""
    return found.overhead < GOAL_SECONDS


def main(arguments: list[str] | None = None) -> int:
    """Measure members alone; the exit code says whether the goal was reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.members", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that it runs, not how fast it is")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    found = asyncio.run(measure(QUICK if options.quick else MembersEffort()))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(asdict(found))).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines_of(found)) + "\n")
    return 0 if options.quick or reached(found) else 1


if __name__ == "__main__":
    sys.exit(main())
