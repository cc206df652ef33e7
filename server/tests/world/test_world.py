"""The simulated world: seeded fault schedules, and a death at every step.

A seed chooses who steps next, what goes wrong, the ids and the times; the storage is the real one. A failing seed is
named, and `python -m server.tests.world SEED` shows its run step by step, the same every time.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest
import uvloop

from mooring.commands.fleet.task import expire_tasks
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_report import ReportCode
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import copied_database
from server.tests.support.postgres import SOAK
from server.tests.world.checks import ReplayWatch, wrong_at_the_end
from server.tests.world.deaths import CASES, GROUPS, Death, end_of
from server.tests.world.node import SimulatedNode
from server.tests.world.prepared_database import PreparedDatabase, prepared_database
from server.tests.world.scenario import faults_of, run_seed
from server.tests.world.schedule import Faults
from tools.gates import ENVIRONMENT, SYSTEM
from tools.soak import seed

pytestmark = [pytest.mark.real_part("postgresql")]

IS_SYSTEM = os.environ.get(ENVIRONMENT) == SYSTEM
FIRST, SEEDS = (seed() * 20_000, 20_000) if SOAK else (400, 2_000) if IS_SYSTEM else (0, 400)
"""Each gate has seeds of its own; a soak has others in every run."""
PARTS = SEEDS // 100
STEPS_MAX = 60
IDLE = ("drain", "upgrade", "rollback", "reconcile", "repair", "restart", "action", "attach", "detach")
"""What an adapter does alone: the worker only looks."""
Result = TypeVar("Result")
Sail = Callable[[Callable[[PreparedDatabase], Awaitable[Any]]], Any]


@pytest.fixture(scope="module")
def sail(template: str) -> Iterator[Sail]:
    """Runs something in a database that the tests of this module share."""
    with copied_database(template) as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        stack = AsyncExitStack()
        made = runner.run(stack.enter_async_context(prepared_database(url)))

        async def run(what: Callable[[PreparedDatabase], Awaitable[Any]]) -> Any:
            return await what(made)

        yield lambda what: runner.run(run(what))
        runner.run(stack.aclose())


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_schedule_comes_to_its_end(sail: Sail, part: int) -> None:
    async def schedules(prepared: PreparedDatabase) -> None:
        for number in range(FIRST + part, FIRST + SEEDS, PARTS):
            await run_seed(prepared, number)

    sail(schedules)


def test_a_replay_of_any_moment_is_what_was_read_at_that_moment(sail: Sail) -> None:
    """Without processes that wait between a decision and its write: a replay goes by the times of the decisions."""

    def without_stalls(chance: Random) -> Faults:
        return replace(faults_of(chance), stalls=0.0)

    async def replayed(prepared: PreparedDatabase) -> None:
        watches: list[ReplayWatch] = []
        for number in range(FIRST, FIRST + SEEDS // 20):
            await run_seed(
                prepared, number, faults_of=without_stalls, watch_also=lambda world: watches.append(ReplayWatch(world))
            )
            assert await watches[-1].differences() == [], number
        assert sum(len(each.live) for each in watches) > SEEDS // 2

    sail(replayed)


def test_a_seed_gives_the_same_run_every_time(sail: Sail) -> None:
    async def twice(prepared: PreparedDatabase) -> None:
        for number in range(10_000, 10_004):
            first = (await run_seed(prepared, number)).trace
            await run_seed(prepared, number + 1)
            assert (await run_seed(prepared, number)).trace == first

    sail(twice)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("case", CASES)
def test_a_death_after_any_step_does_not_change_the_end(sail: Sail, case: str, group: str) -> None:
    async def deaths(prepared: PreparedDatabase) -> None:
        whole, _ = await end_of(prepared, case, Death(group, 0))
        for kind in ("after", "middle") if group == "the agent" else ("after",):
            for number in range(1, STEPS_MAX):
                end, world = await end_of(prepared, case, Death(group, number, kind))
                said = "\n".join(world.trace[-30:])
                assert end == whole, f"{case}: {group} died {kind} step {number}\n{said}"
                if not (world.interrupted if kind == "middle" else world.deaths):
                    break
            else:
                pytest.fail(f"{case} has more than {STEPS_MAX} steps of {group}")
            assert number > 1 or (group == "the worker" and case in (*IDLE, "action of an attached project"))

    sail(deaths)


def test_a_receipt_that_comes_after_its_lease_keeps_its_place_in_the_chain_of_its_node(sail: Sail) -> None:
    async def late(prepared: PreparedDatabase) -> None:
        world = await prepared.world("running", 1)
        world.person.intents = ["stop"]
        world.wake_all()
        verifying: list[tuple[SimulatedNode, Task]] = []
        while not verifying:
            await world.step(next(iter(world.awake)) if world.awake else "person")
            verifying = [(node, each) for node in world.nodes for each in node.held if each.type == "teardown.verify"]
        node, task = verifying[0]
        node.held.remove(task)
        node.perform(task)
        world.leap(95)
        await expire_tasks(world.services)
        assert await node.report(task) == ReportCode.LEASE_LOST  # the agent takes it for reported, as agents do
        (receipt,) = await world.database.fetch(PLATFORM, "SELECT clean, late FROM receipt WHERE task_id = $1", task.id)
        assert tuple(receipt) == (True, True)
        world.leap(3_700)  # and the task is never offered again
        await expire_tasks(world.services)
        assert await world.database.fetchval(PLATFORM, "SELECT status FROM task WHERE id = $1", task.id) == "expired"
        await world.settle(world.is_over)
        assert await wrong_at_the_end(world) == []

    sail(late)


def test_a_task_that_is_offered_again_ends_with_the_receipt_that_came_late(sail: Sail) -> None:
    async def again(prepared: PreparedDatabase) -> None:
        world = await prepared.world("single", 1)
        world.person.intents = ["stop"]
        world.wake_all()
        while not any(each.type == "teardown.verify" for node in world.nodes for each in node.held):
            await world.step(next(iter(world.awake)) if world.awake else "person")
        (node,) = [node for node in world.nodes if node.held]
        (task,) = node.held
        node.held.clear()
        node.perform(task)
        world.leap(95)
        await expire_tasks(world.services)
        assert await node.report(task) == ReportCode.LEASE_LOST
        assert await node.claim()
        assert await node.report(node.held.pop()) is None
        ended = await world.database.fetch(PLATFORM, "SELECT status FROM task WHERE id = $1", task.id)
        assert [row[0] for row in ended] == ["succeeded"]
        await world.settle(world.is_over)
        assert await wrong_at_the_end(world) == []

    sail(again)


def test_a_machine_that_is_destroyed_for_ever_is_named_is_charged_no_more_and_ends_by_a_write_off(sail: Sail) -> None:
    async def destroyed(prepared: PreparedDatabase) -> None:
        world = await prepared.world("running", 1)
        places = await world.database.fetch(PLATFORM, "SELECT DISTINCT node_id FROM allocation")
        (lost,) = [node for node in world.nodes if node.node_id == places[0][0]]
        lost.gone = True
        await world.unreachable(lost)
        world.person.intents = ["stop"]
        world.wake_all()
        for _ in range(12):
            await still(world)
            world.leap(86_400)
        (stop,) = await world.database.fetch(PLATFORM, "SELECT * FROM operation WHERE kind = 'decommission'")
        assert (stop["status"], stop["blocker_code"]) == ("blocked", "node_unreachable")
        assert f"node {lost.node_id} unreachable since" in stop["blocker"]
        rows = await world.database.fetch(PLATFORM, "SELECT status, releasing_at FROM allocation")
        assert {row["status"] for row in rows} == {"releasing"}  # from then on nothing is charged
        assert all(row["releasing_at"] is not None for row in rows)
        assert await world.database.fetchval(PLATFORM, "SELECT status FROM instance") == "stopping"
        await world.give_up(lost)
        await world.settle(world.is_over)
        assert await wrong_at_the_end(world) == []
        (ended,) = await world.database.fetch(PLATFORM, "SELECT status, teardown_proof FROM instance")
        assert tuple(ended) == ("stopped", "written_off")

    async def still(world: Any) -> None:
        while world.awake or world.person.intents:
            await world.step(next(iter(world.awake)) if world.awake else "person")

    sail(destroyed)
