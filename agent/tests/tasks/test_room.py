"""One tenant's tasks delay that tenant alone: programs hold no worker, and workers are shared in turn."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.tests.support.fake_platform import CREATE, FakePlatform
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.hosts.contract import Host
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS, ResultFields, TaskContext, TaskHandler
from mooring_agent.tasks.journal import Journal
from mooring_agent.tasks.probes import PROBES
from tests.support.waiting import turns, until

pytestmark = pytest.mark.anyio

NOISY, QUIET = "ten_noisy", "ten_quiet"
QUIET_PLACE = "999"
ROOMY = 100
"""More than any bound of a tenant in tasks/room.py."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class BlockedMachine:
    """An agent on which the tasks of the noisy tenant never end by themselves, whatever they are."""

    def __init__(self, directory: Path) -> None:
        self.platform = FakePlatform()
        self.started: list[tuple[str, str]] = []  # tenant and owner of what runs, in order
        self.release = asyncio.Event()
        handlers = {**HANDLERS, **PROBES, "tunnel.open": TaskHandler(self.hang, unordered=True, room="tunnel")}
        self.handlers = {name: self._blocking(each) for name, each in handlers.items()}
        self.journal = Journal(directory / "journal.sqlite")
        self.executor = Executor(
            SimulatedHost(), self.journal, make_keys(), time.time, lambda: None, handlers=self.handlers
        )

    async def hang(self, host: Host, context: TaskContext, arguments: Any) -> ResultFields:
        return {}

    def _blocking(self, handler: TaskHandler) -> TaskHandler:
        async def perform(host: Host, context: TaskContext, arguments: Any) -> ResultFields:
            self.started.append((context.task.tenant_id, context.task.owner))
            if context.task.tenant_id == NOISY:
                await self.release.wait()
                return {}
            return dict(await handler.perform(host, context, arguments))

        return TaskHandler(perform, handler.is_repeatable, handler.closes_owner, handler.unordered, room=handler.room)

    def give(self, tenant_id: str, type: str, arguments: dict[str, Any], owner: str) -> str:
        """Give the agent a task of `<number of an allocation>/<label>`."""
        number, _, label = owner.partition("/")
        allocation_id = f"alc_{int(number):026d}"
        task = self.platform.task(
            type,
            arguments,
            tenant_id=tenant_id,
            allocation_id=allocation_id,
            owner=f"{allocation_id}/{label}" if label else allocation_id,
        )
        self.executor.accept(task)
        return str(task.task_id)

    def outcome(self, task_id: str) -> str | None:
        entry = self.journal.find(task_id)
        return None if entry is None or entry.result is None else entry.result.outcome

    def running(self, tenant_id: str) -> int:
        return sum(1 for each, _ in self.started if each == tenant_id)


@asynccontextmanager
async def blocked_machine(directory: Path) -> AsyncIterator[BlockedMachine]:
    machine = BlockedMachine(directory)
    try:
        yield machine
    finally:
        await machine.executor.stop()
        machine.journal.close()


@pytest.mark.parametrize(
    ("type", "arguments"),
    [
        ("process.run", {"argv": ["sleep", "3600"], "timeout_seconds": 7200}),
        ("probe.tcp", {"port": 80, "attempts": 1000, "interval_seconds": 300}),
        ("service.stop", {"name": "web", "grace_seconds": 3600}),
        ("service.start", {"name": "web", "argv": ["web"]}),
        ("files.write", {"files": [{"path": "/a", "content": "a"}]}),
    ],
)
async def test_a_neighbours_task_starts_while_one_tenant_has_filled_its_room(
    tmp_path: Path, type: str, arguments: dict[str, Any]
) -> None:
    async with blocked_machine(tmp_path) as machine:
        machine.give(NOISY, "process.run", {"argv": ["sleep"]}, "0/first")
        for number in range(ROOMY):
            machine.give(NOISY, type, arguments, f"{number % 20}/own{number}")
        await until(lambda: machine.running(NOISY) > 4)
        await turns(20)
        assert machine.running(NOISY) <= 65
        assert machine.executor.free > 0
        created = machine.give(QUIET, "sandbox.create", CREATE, QUIET_PLACE)
        echo = machine.give(QUIET, "process.run", {"argv": ["echo", "hello"]}, QUIET_PLACE)
        await until(lambda: machine.outcome(echo) == "succeeded")
        assert machine.outcome(created) == "succeeded"
        torn = machine.give(QUIET, "sandbox.destroy", {}, QUIET_PLACE)
        await until(lambda: machine.outcome(torn) == "succeeded")


async def test_one_allocation_runs_a_bounded_number_of_programs_and_the_rest_wait(tmp_path: Path) -> None:
    async with blocked_machine(tmp_path) as machine:
        waiting = [machine.give(NOISY, "process.run", {"argv": ["x"]}, f"0/own{each}") for each in range(40)]
        await until(lambda: machine.running(NOISY) == 32)
        await turns(20)
        assert machine.running(NOISY) == 32
        machine.release.set()
        await machine.executor.wait_until_idle()
        assert {machine.outcome(each) for each in waiting} == {"succeeded"}


async def test_workers_go_to_the_tenant_that_has_the_fewest(tmp_path: Path) -> None:
    """Three tenants want workers; none gets more than half of them, and what is free goes to the last."""
    async with blocked_machine(tmp_path) as machine:
        write = {"files": [{"path": "/a", "content": "a"}]}
        for number in range(20):
            machine.give(NOISY, "files.write", write, f"{number}")
        await until(lambda: machine.running(NOISY) == 8)
        last = machine.give(QUIET, "files.write", write, QUIET_PLACE)
        await until(lambda: machine.outcome(last) is not None)
        assert machine.running(NOISY) == 8


async def test_tunnels_over_the_bound_of_their_allocation_fail_and_the_neighbours_open(tmp_path: Path) -> None:
    async with blocked_machine(tmp_path) as machine:
        tunnel = {"relay": "http://relay.example", "ports": [80]}
        opened = [machine.give(NOISY, "tunnel.open", tunnel, "0") for _ in range(65)]
        await until(lambda: machine.outcome(opened[-1]) == "failed")
        failed = machine.journal.find(opened[-1])
        assert failed is not None
        assert failed.result is not None
        assert failed.result.failure is not None
        assert failed.result.failure.code == "capacity"
        assert machine.running(NOISY) == 64
        other = machine.give(QUIET, "tunnel.open", tunnel, QUIET_PLACE)
        await until(lambda: machine.outcome(other) == "succeeded")


async def test_a_cancelled_task_gives_back_its_place_in_the_queue_and_in_the_room(tmp_path: Path) -> None:
    async with blocked_machine(tmp_path) as machine:
        given = [machine.give(NOISY, "process.run", {"argv": ["x"]}, f"0/own{each}") for each in range(34)]
        await until(lambda: machine.running(NOISY) == 32)
        machine.executor.cancel(given[32])  # waits for room
        await until(lambda: machine.outcome(given[32]) == "cancelled")
        machine.executor.cancel(given[0])  # runs: its place goes to the last one
        await until(lambda: machine.running(NOISY) == 33)
        assert machine.outcome(given[0]) == "cancelled"
