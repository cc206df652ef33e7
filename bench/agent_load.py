"""Thousands of simulated agents in one process, and a client that creates tasks for them: a separate program.

Each agent has one connection to the server and behaves as a real one: it polls with its state and the tasks it holds,
waits, verifies the platform's signature of new tasks with the agent's own code, and polls again at once. A task is
simulated: it ends as soon as it is read. Results go over a few shared connections, each with the token of its node.
The latency of a task counts from before the request that creates it until its agent has verified it.

The plan is read from standard input and the samples are written to standard output, both as JSON; tokens are never
passed as arguments.
"""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

import asyncpg
import msgspec
import uvloop

from bench import meters
from bench.load import HEAD_END, LENGTH, LoadFailed
from bench.statements import StatementSamples, alone
from mooring_agent.control_plane.messages import ClaimResponse, ReportResponse, Task, decode
from mooring_agent.tasks.verifier import TaskRefused, TaskVerifier

SHARED_CONNECTIONS = 64
MAKING_CONNECTIONS = 64  # so many that no request waits for another one on our side
PROBES_PER_SECOND = 10
PATIENCE_SECONDS = 60.0
FREE = 64
_CLAIMED = msgspec.json.Decoder(ClaimResponse)
_REPORTED = msgspec.json.Decoder(ReportResponse)
TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@dataclass(frozen=True)
class AgentLoadPlan:
    """Which agents poll which server, and the load meanwhile."""

    host: str
    port: int
    dsn: str
    server_pid: int
    postmaster_pid: int
    members: list[dict[str, str]]
    unattended: list[dict[str, str]]  # nodes whose agents never poll: for the statements alone
    home: list[str]  # tenant and project
    token: str  # of the client that creates tasks
    audience: str
    pinned: dict[str, str]
    heartbeat_seconds: float
    idle_seconds: float
    tasks_per_second: int
    seconds: float


@dataclass(frozen=True)
class ResourceUse:
    """CPU time and transactions over some time."""

    seconds: float
    server_cpu: float
    postgres_cpu: float
    client_cpu: float
    transactions: int
    polls: int


@dataclass(frozen=True)
class AgentLoadSamples:
    """Latencies, memory and resource use of a run."""

    before_bytes: int  # of the server, before the first agent came
    idle_bytes: int  # when all had polled again
    after_bytes: int  # after the load
    empty: ResourceUse
    idle: ResourceUse
    load: ResourceUse
    latencies_ms: list[float]
    probes_ms: list[float]  # a request that asks no database, meanwhile
    tasks: int
    accepted: int
    refused: int
    statements: StatementSamples


@dataclass
class AgentLoadCounts:
    """The counters of all agents."""

    verifying_keys: dict[str, bytes]
    audience: str
    intents: dict[str, float] = field(default_factory=dict)  # when the task of a correlation id was asked for
    latencies_ms: list[float] = field(default_factory=list)
    claims: set[tuple[str, int]] = field(default_factory=set)
    polls: int = 0
    accepted: int = 0
    refused: int = 0
    failure: str = ""

    def fail(self, why: str) -> None:
        """Print the first failure: a measurement with a failure means nothing."""
        self.failure = self.failure or why


class ResponseProtocol(asyncio.Protocol):
    """One connection: collects bytes into whole responses."""

    __slots__ = ("_received", "counts", "transport")

    def __init__(self, counts: AgentLoadCounts) -> None:
        self.counts = counts
        self.transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail: the server must not close the connection."""
        if self.transport is not None:
            self.counts.fail(f"the server closed the connection of {self!r}: {exc or 'no error'}")

    def data_received(self, data: bytes) -> None:
        """Collect bytes, and handle the response once it is complete."""
        answer = self._received + data if self._received else data
        head_end = answer.find(HEAD_END)
        if head_end >= 0:
            at = answer.index(LENGTH) + len(LENGTH)
            begin = head_end + len(HEAD_END)
            if len(answer) >= begin + int(answer[at : answer.index(b"\r", at)]):
                self._received = b""
                if answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
                    self.answered(answer[begin:])
                else:
                    self.counts.fail(answer.decode(errors="replace")[:1000])
                return
        self._received = answer

    def answered(self, body: bytes) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()} after {self.counts.polls} polls, {len(self.counts.claims)} claims"

    def hang_up(self) -> None:
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()


class TaskConnection(ResponseProtocol):
    """A shared connection that sends one request after the other."""

    __slots__ = ("_asked", "_waiting")

    def __init__(self, counts: AgentLoadCounts) -> None:
        super().__init__(counts)
        self._asked: Callable[[bytes], None] | None = None
        self._waiting: deque[tuple[bytes, Callable[[bytes], None]]] = deque()

    def ask(self, request: bytes, heard: Callable[[bytes], None]) -> None:
        """Queue a request behind the earlier ones."""
        if self._asked is not None:
            self._waiting.append((request, heard))
            return
        self._asked = heard
        if self.transport is not None:
            self.transport.write(request)

    def answered(self, body: bytes) -> None:
        """Call the requester back, and send the next request."""
        heard, self._asked = self._asked, None
        if self._waiting:
            self.ask(*self._waiting.popleft())
        if heard is not None:
            heard(body)


class LoadAgent(ResponseProtocol):
    """One simulated agent and its connection."""

    __slots__ = ("_agents", "_running", "_token", "_verifier")

    def __init__(self, agents: "AgentFleet", node_id: str, token: str) -> None:
        super().__init__(agents.counts)
        self._agents = agents
        self._verifier = TaskVerifier(node_id, agents.counts.audience, agents.counts.verifying_keys)
        self._token = token
        self._running: list[Task] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.poll()

    def poll(self) -> None:
        """Send a poll with the state of the agent, and wait for tasks."""
        held = [{"task_id": each.task_id, "fence": each.fence} for each in self._running]
        body = {
            "free": FREE - len(held),
            "wait_seconds": self._agents.plan.heartbeat_seconds,
            "running": held,
            "health": {
                "version": "bench",
                "host": "simulated",
                "uptime_seconds": int(time.monotonic()),
                "running": len(held),
                "results_owed": 0,
                "load": [0.1, 0.2, 0.3],
            },
        }
        if self.transport is not None:
            self.transport.write(self._agents.request("POST", "/api/v1/agent/claims", self._token, body))

    def answered(self, body: bytes) -> None:
        """Verify and perform the tasks of a response, report them, and poll again."""
        counts = self.counts
        counts.polls += 1
        for envelope in _CLAIMED.decode(body).tasks:
            try:
                task = self._verifier.verify(envelope, time.time())
            except TaskRefused as refused:
                counts.fail(f"a task was not believed: {refused}")
                return
            counts.latencies_ms.append((time.perf_counter() - counts.intents[task.correlation_id]) * 1000)
            if (task.task_id, task.fence) in counts.claims:
                counts.fail(f"the task {task.task_id} came twice under the fence {task.fence}")
            counts.claims.add((task.task_id, task.fence))
            self._running.append(task)
            self._report(task)
        self.poll()

    def result_of(self, task: Task) -> dict[str, Any]:
        """The result of a task, as the agent reports it."""
        return {"exit_code": 0}

    def _report(self, task: Task) -> None:
        report = {
            "task_id": task.task_id,
            "fence": task.fence,
            "kind": "result",
            "outcome": "succeeded",
            "result": self.result_of(task),
            "last_lines": ["simulated"],
        }

        def heard(body: bytes) -> None:
            self._running.remove(task)
            for verdict in _REPORTED.decode(body).results:
                self.counts.accepted += verdict.accepted
                self.counts.refused += not verdict.accepted

        request = self._agents.request("POST", "/api/v1/agent/reports", self._token, {"reports": [report]})
        self._agents.lane().ask(request, heard)


class AgentFleet:
    """All agents, the connections they share, and those of the clients that create tasks."""

    def __init__(self, plan: AgentLoadPlan) -> None:
        self.plan = plan
        self.counts = AgentLoadCounts({name: decode(key) for name, key in plan.pinned.items()}, plan.audience)
        self._agents: list[LoadAgent] = []
        self._shared: list[TaskConnection] = []
        self._makers: list[TaskConnection] = []
        self._turn = 0

    def request(self, method: str, path: str, token: str, body: Any = None, correlation_id: str = "") -> bytes:
        """The bytes of a request, with the headers that an agent sends."""
        plan = self.plan
        content = b"" if body is None else msgspec.json.encode(body)
        labelled = f"X-Correlation-ID: {correlation_id}\r\n" if correlation_id else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {plan.host}:{plan.port}\r\nAccept: */*\r\n"
            f"Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nUser-Agent: mooring-bench\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n{labelled}"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    def lane(self) -> TaskConnection:
        """The next shared connection, in turn."""
        self._turn += 1
        return self._shared[self._turn % len(self._shared)]

    async def open(self) -> None:
        """Open the shared connections."""
        self._shared = [await self._connected(lambda: TaskConnection(self.counts)) for _ in range(SHARED_CONNECTIONS)]
        self._makers = [
            await self._connected(lambda: TaskConnection(self.counts)) for _ in range(MAKING_CONNECTIONS + 1)
        ]

    async def come(self) -> None:
        """Connect all agents, spread over one heartbeat, as they would be after a while in any case."""
        begun = time.perf_counter()
        pace = self.plan.heartbeat_seconds / max(1, len(self.plan.members))
        for number, each in enumerate(self.plan.members):
            await self._until(begun + number * pace)

            def made(node_id: str = each["node_id"], token: str = each["token"]) -> LoadAgent:
                return LoadAgent(self, node_id, token)

            self._agents.append(await self._connected(made))

    async def make(self) -> None:
        """Create tasks at an even pace, spread over all agents."""
        plan, begun = self.plan, time.perf_counter()
        path = f"/api/v1/projects/{plan.home[1]}/allocations"
        stride = max(1, len(plan.members) // max(1, int(plan.tasks_per_second * plan.seconds)))
        for number in range(int(plan.tasks_per_second * plan.seconds)):
            await self._until(begun + number / plan.tasks_per_second)
            member = plan.members[number * stride % len(plan.members)]
            body = {"type": "process.run", "arguments": {"argv": ["/bin/true"]}}
            name = f"bench-{number}"
            request = self.request(
                "POST", f"{path}/{member['allocation_id']}/tasks", plan.token, body, correlation_id=name
            )
            self.counts.intents[name] = time.perf_counter()
            self._makers[number % MAKING_CONNECTIONS].ask(request, lambda _: None)

    async def probe(self, latencies_ms: list[float]) -> None:
        """Until cancelled: send requests that need no database, at intervals."""
        request = self.request("GET", "/api/v1/whoami", self.plan.token)
        while True:
            self._makers[-1].ask(request, partial(_note, latencies_ms, time.perf_counter()))
            await asyncio.sleep(1 / PROBES_PER_SECOND)

    async def all_done(self) -> None:
        """Wait until every task was delivered and accepted."""
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while self.counts.accepted + self.counts.refused < len(self.counts.intents):
            self.check()
            if time.perf_counter() > deadline:
                done = self.counts.accepted + self.counts.refused
                raise LoadFailed(f"only {done} of {len(self.counts.intents)} tasks were done")
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """Raise the failure of any connection, which ends the measurement."""
        if self.counts.failure:
            raise LoadFailed(self.counts.failure)

    def close_shared(self) -> None:
        """Close the shared connections."""
        for each in (*self._shared, *self._makers):
            each.hang_up()

    def close(self) -> None:
        self.close_shared()
        for each in self._agents:
            each.hang_up()

    async def rest(self, seconds: float) -> None:
        """Wait while the agents run."""
        await self._until(time.perf_counter() + seconds)

    async def _connected(self, make: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(make, self.plan.host, self.plan.port)
        return protocol

    async def _until(self, when: float) -> None:
        self.check()
        while (left := when - time.perf_counter()) > 0:
            await asyncio.sleep(min(left, 1.0))
            self.check()


def _note(latencies_ms: list[float], begun: float, _: bytes) -> None:
    latencies_ms.append((time.perf_counter() - begun) * 1000)


class ResourceMeter:
    """Measures the resource use between two readings."""

    def __init__(self, agents: AgentFleet, connection: "asyncpg.Connection[Any]") -> None:
        self._agents = agents
        self._connection = connection
        self._last: tuple[float, ...] = (0.0,) * 6

    async def begin(self) -> None:
        self._last = await self._look()

    async def used(self) -> ResourceUse:
        """The resource use since the last reading."""
        now = await self._look()
        seconds, server, postgres, client, transactions, polls = (b - a for a, b in zip(self._last, now, strict=True))
        self._last = now
        return ResourceUse(seconds, server, postgres, client, int(transactions), int(polls))

    async def _look(self) -> tuple[float, ...]:
        plan = self._agents.plan
        await self._connection.execute("SELECT pg_stat_clear_snapshot()")
        return (
            time.perf_counter(),
            meters.cpu_seconds(plan.server_pid),
            meters.family_cpu_seconds(plan.postmaster_pid),
            time.process_time(),
            float(await self._connection.fetchval(TRANSACTIONS)),
            float(self._agents.counts.polls),
        )


async def run(plan: AgentLoadPlan) -> AgentLoadSamples:
    """Measure without agents, with idle agents, and with tasks."""
    agents = AgentFleet(plan)
    connection = await asyncpg.connect(plan.dsn)
    try:
        meter = ResourceMeter(agents, connection)
        await meter.begin()
        await agents.rest(min(5.0, plan.idle_seconds))
        empty, before = await meter.used(), meters.memory(plan.server_pid).resident_bytes
        await agents.come()
        await meter.begin()
        await agents.rest(plan.idle_seconds)
        idle, idle_bytes = await meter.used(), meters.memory(plan.server_pid).resident_bytes
        probes: list[float] = []
        await agents.open()
        probing = asyncio.ensure_future(agents.probe(probes))
        stated = asyncio.ensure_future(alone(plan.dsn, plan.unattended, (plan.home[0], plan.home[1]), plan.seconds))
        await agents.make()
        await agents.all_done()
        statements = await stated
        load, after = await meter.used(), meters.memory(plan.server_pid).resident_bytes
        probing.cancel()
        agents.close_shared()  # nothing is sent on them any more
        agents.check()
    finally:
        agents.close()
        await connection.close()
    counts = agents.counts
    return AgentLoadSamples(
        before,
        idle_bytes,
        after,
        empty,
        idle,
        load,
        counts.latencies_ms,
        probes,
        len(counts.claims),
        counts.accepted,
        counts.refused,
        statements,
    )


def main() -> int:
    """Read a plan, run it, write the samples."""
    given: dict[str, Any] = json.load(sys.stdin)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seen = runner.run(run(AgentLoadPlan(**given)))
    except (LoadFailed, OSError) as error:
        sys.stderr.write(f"the agents failed: {error}\n")
        return 1
    json.dump(asdict(seen), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
