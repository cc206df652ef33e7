"""The bench of agents counts what its names say."""

import json
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench import agents
from bench.agent_load import AgentFleet, AgentLoadPlan, AgentLoadSamples, LoadAgent, ResourceUse, TaskConnection
from bench.statements import StatementSamples
from mooring.core.fleet.task_envelope import encode
from mooring.gateways.signing.task_signing import TaskSigner

NODE = "nod_00000000000000000000000000"
ALLOCATION = "alc_00000000000000000000000000"
TASK = "tsk_00000000000000000000000000"


class Wire:
    """What an agent writes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def agent_fleet(key: Ed25519PrivateKey) -> AgentFleet:
    public = encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    made = AgentFleet(
        AgentLoadPlan(
            host="h",
            port=1,
            dsn="",
            server_pid=1,
            postmaster_pid=1,
            members=[],
            unattended=[],
            home=[],
            token="t",
            audience="mooring:key",
            pinned={"key": public},
            heartbeat_seconds=30,
            idle_seconds=1,
            tasks_per_second=1,
            seconds=1,
        )
    )
    made._shared = [TaskConnection(made.counts)]
    return made


def answer(key: Ed25519PrivateKey, *, audience: str = "mooring:key") -> bytes:
    now = time.time()
    task = {
        "v": 1,
        "task_id": TASK,
        "type": "process.run",
        "node_id": NODE,
        "audience": audience,
        "fence": 1,
        "tenant_id": "ten",
        "project_id": "prj",
        "allocation_id": ALLOCATION,
        "owner": ALLOCATION,
        "issued_at": now,
        "expires_at": now + 60,
        "correlation_id": "bench-0",
        "arguments": {},
    }
    raw = key.private_bytes_raw()
    envelope = TaskSigner("key", raw).sign(json.dumps(task).encode())
    sent = {"payload": envelope.payload, "key_id": envelope.key_id, "signature": envelope.signature}
    body = json.dumps({"tasks": [sent]}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def joined(agent_fleet: AgentFleet) -> tuple[LoadAgent, Wire]:
    agent, wire = LoadAgent(agent_fleet, NODE, "token"), Wire()
    agent.connection_made(wire)  # type: ignore[arg-type]
    return agent, wire


def test_a_task_counts_from_its_intent_and_its_agent_polls_again_with_it(
    agent_fleet: AgentFleet, key: Ed25519PrivateKey
) -> None:
    agent, wire = joined(agent_fleet)
    agent_fleet.counts.intents["bench-0"] = time.perf_counter()
    whole = answer(key)
    agent.data_received(whole[:30])
    assert agent_fleet.counts.latencies_ms == []
    agent.data_received(whole[30:])
    assert len(agent_fleet.counts.latencies_ms) == 1
    assert agent_fleet.counts.failure == ""
    assert len(wire.written) == 2
    assert TASK.encode() in wire.written[1]


def test_a_task_that_is_not_believed_ends_the_measurement(agent_fleet: AgentFleet, key: Ed25519PrivateKey) -> None:
    agent, _ = joined(agent_fleet)
    agent.data_received(answer(key, audience="somebody else"))
    assert "wrong_audience" in agent_fleet.counts.failure


def test_the_same_claim_in_two_answers_ends_the_measurement(agent_fleet: AgentFleet, key: Ed25519PrivateKey) -> None:
    agent, _ = joined(agent_fleet)
    agent_fleet.counts.intents["bench-0"] = 0.0
    for _ in range(2):
        agent.data_received(answer(key))
    assert "twice" in agent_fleet.counts.failure


def test_memory_and_cost_are_of_each_agent() -> None:
    def used(server_cpu: float, transactions: int) -> ResourceUse:
        return ResourceUse(10.0, server_cpu, 0.0, 0.0, transactions, 20)

    seen = AgentLoadSamples(
        before_bytes=1_000_000,
        idle_bytes=1_500_000,
        after_bytes=1_600_000,
        empty=used(0.5, 10),
        idle=used(1.5, 30),
        load=used(2.0, 0),
        latencies_ms=[5.0, 6.0, 30.0],
        probes_ms=[1.0],
        tasks=3,
        accepted=3,
        refused=0,
        statements=StatementSamples([2.0]),
    )
    found = agents.result_of(agents.AgentsEffort(agents=100), seen)
    assert found.memory_bytes == 5_000
    assert found.idle.server_cpu_seconds == pytest.approx(1.0 / 10 * 3600 / 100)
    assert (found.idle.transactions_per_second, found.idle.empty_transactions_per_second) == (3.0, 1.0)
    assert (found.latency.p50_ms, found.latency_max_ms) == (6.0, 30.0)
    assert found.ratio == pytest.approx(2.0)
