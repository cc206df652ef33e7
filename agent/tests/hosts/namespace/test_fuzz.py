"""Random requests to the init and to a supervisor: neither ends, and both go on answering.

An hour of it in `make soak`, a few seconds otherwise.
"""

import asyncio
import json
import os
import random
import socket
import sys
import time
from pathlib import Path

import pytest

from agent.tests.support import fuzzing_supervisor
from agent.tests.support.namespace_sandboxes import spec_of
from agent.tests.support.supervisors import running_supervisor
from mooring_agent.hosts.contract import Owner
from mooring_agent.hosts.namespace import NamespaceHost, init_process
from mooring_agent.hosts.namespace.sandbox_records import sandbox_owner
from tests.support.waiting import until
from tools import soak

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
SECONDS = 1800 if soak.is_soak() else 2
MEMBER = Owner("alc_1", "member")


async def test_an_init_survives_random_requests(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    record, sandbox = host.store.load("alc_1"), host.store.load_init(sandbox_owner("alc_1"))
    assert record is not None
    assert sandbox is not None
    plan = init_process.owner_plan(host.store, record, MEMBER, sandbox)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        fuzzing_supervisor.__file__,
        str(SECONDS),
        str(soak.seed()),
        stdin=-1,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"},
    )
    await process.communicate(json.dumps(plan).encode())
    outcome = host.store.owner(MEMBER) / "fuzzed"
    await until(outcome.exists, SECONDS + 120)
    result = json.loads(outcome.read_text())
    soak.played(result["packets"])
    assert result["alive"]
    assert result["packets"] > 100


async def test_a_supervisor_survives_random_requests(tmp_path: Path) -> None:
    chance = random.Random(soak.seed())
    operations = ["start_run", "find_run", "wait_run", "cancel_run", "start_service", "stop_service", "inspect"]
    operations += ["list", "processes", "open_command", "kill", "status", "dial", "close_owner", "absent"]
    async with running_supervisor(tmp_path) as sandbox:
        place = os.open(sandbox.state, os.O_PATH)
        end, count = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(f"/proc/self/fd/{place}/supervisor.sock")
                connection.send(packet_of(chance, operations))
            count += 1
            soak.played()
            if count % 50 == 0:
                assert (await sandbox.client.status()).pid
        os.close(place)
        assert (await sandbox.client.status()).pid


def packet_of(chance: random.Random, operations: list[str]) -> bytes:
    """Noise, or an operation with fields of every odd type."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(1, 400))
    odd = [None, "", "a", "\\0", 0, -1, 1.5, 10**30, True, [], {}, ["a"], {"argv": ["true"]}, {"argv": "x"}]
    names = [
        "owner",
        "key",
        "name",
        "program",
        "timeout_seconds",
        "grace_seconds",
        "restart",
        "columns",
        "rows",
        "port",
    ]
    message = {"op": chance.choice(operations)} | {name: chance.choice(odd) for name in names if chance.random() < 0.7}
    return b"I" + json.dumps(message).encode()
