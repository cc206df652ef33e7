"""Simulated nodes under the control of a scenario: real agents on the simulated host whose tasks can wait or fail.

Each is an agent as `mooring-agent simulate` runs it: it enrols, polls, verifies, journals, reports and signs receipts.
Only the effect of a task on its machine is simulated: as on the fake nodes of the conformance suite everything
succeeds at once, unless the scenario holds tasks back, fails them, or keeps a member busy. The agents run in a thread
of the test's process.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mooring_adapter.conformance.fake_nodes import OBSERVING
from mooring_adapter.conformance.fake_records import OPENING
from mooring_adapter.conformance.platform_protocol import TaskStatus
from mooring_adapter.conformance.task_rules import PLATFORM_ONLY
from mooring_agent.agent import Agent, AgentParts, NodeRetired
from mooring_agent.control_plane.messages import Task
from mooring_agent.hosts.contract import Host, HostFailure, Owner
from mooring_agent.hosts.simulated import FaultProfile, SimulatedHost
from mooring_agent.simulate import Fleet, Simulation
from mooring_agent.tasks.handlers import ResultFields, TaskContext, TaskHandler

CALM: Final = FaultProfile()
START_SECONDS_MAX: Final = 180.0


@dataclass(slots=True)
class NodeControl:
    """What a scenario does to its nodes; both predicates are None while tasks run normally."""

    view: Callable[[str], TaskStatus]  # a task as users see it; called in a thread
    is_draining: Callable[[str], bool]  # by member
    part_of: Callable[[str], str | None]  # the member's instance and component, which are counted together
    holding: Callable[[TaskStatus], bool] | None = None
    failing: Callable[[TaskStatus], bool] | None = None
    failure: tuple[str, str] = ("", "")  # its code, and the last line of the log
    never_quiet: bool = False
    running: dict[str, set[str]] = field(default_factory=dict)  # by member: the names of the running services
    ever: set[str] = field(default_factory=set)  # members that have run something
    started_twice: list[str] = field(default_factory=list)
    down: dict[str, int] = field(default_factory=dict)  # by component: the most members that were down at once
    done: Callable[[], None] = lambda: None  # called after every task

    def clear(self) -> None:
        """Let tasks run normally again."""
        self.holding = self.failing = None
        self.never_quiet = False
        self.started_twice.clear()
        self.down.clear()

    def start(self, member_id: str, name: str, step: str) -> None:
        """Record the start of a service."""
        running = self.running.setdefault(member_id, set())
        if name in running:
            self.started_twice.append(f"{step}: {name} of {member_id} is already running")
        running.add(name)
        self.ever.add(member_id)

    def stop(self, member_id: str, name: str) -> None:
        """Record the stop of a service, and how many members of its component are down now."""
        self.running.setdefault(member_id, set()).discard(name)
        part = self.part_of(member_id)
        if part is not None:
            down = sum(1 for each in self.ever if not self.running.get(each) and self.part_of(each) == part)
            self.down[part] = max(self.down.get(part, 0), down)

    def forget(self, member_id: str) -> None:
        self.running.pop(member_id, None)
        self.ever.discard(member_id)


class ControlledHost(SimulatedHost):
    """A simulated host whose tasks print the last line that a scenario wants."""

    def __init__(self) -> None:
        super().__init__(CALM)
        self.lines: dict[str, str] = {}

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        text = f"{self.lines.get(key, f'simulated output of {key}')}\n".encode()
        if offset < len(text):
            yield text[offset:]


class ControlledFleet(Simulation):
    """Agents whose tasks ask the scenario's control before they run."""

    def __init__(self, fleet: Fleet, control: NodeControl) -> None:
        super().__init__(fleet)
        self.control = control
        self.changed = asyncio.Condition()
        self.up = asyncio.Event()
        self.agents: dict[str, asyncio.Task[None]] = {}

    async def _run_machine(self, number: int) -> None:
        async with self._enrolling:
            parts = await self._enrol_machine(number)
        parts.host = ControlledHost()
        agent = Agent(parts)
        agent.executor.handlers = {
            name: handler if name in PLATFORM_ONLY - {"teardown.verify"} else self._controlled(name, handler, agent)
            for name, handler in agent.executor.handlers.items()
        }
        work = asyncio.create_task(self._work(agent, parts))
        self.agents[parts.identity.node_id] = work
        if len(self.agents) == self.fleet.count:
            self.up.set()
        await asyncio.gather(work, return_exceptions=True)

    async def _work(self, agent: Agent, parts: AgentParts) -> None:
        try:
            await agent.run()
        except NodeRetired:
            return  # the node was written off
        finally:
            parts.journal.close()

    def lose(self, node_id: str) -> None:
        """Stop the agent for good, as if its machine was gone."""
        self.agents[node_id].cancel()

    def _controlled(self, name: str, handler: TaskHandler, agent: Agent) -> TaskHandler:
        async def perform(host: Host, context: TaskContext, wanted: Any) -> ResultFields:
            if name == "teardown.verify":
                self.control.forget(context.task.label)
                return dict(await handler.perform(host, context, wanted))
            await self._wait_while_held(context.task)
            await self._fail_if_wanted(context.task, agent)
            if name.startswith("probe."):
                fields: ResultFields = {"latency_milliseconds": 1, "attempts": 1, "observed": "simulated"}
            else:
                fields = dict(await handler.perform(host, context, wanted))
            self._record(context.task)
            self.control.done()
            return fields

        return replace(handler, perform=perform)

    async def _wait_while_held(self, task: Task) -> None:
        """Wait while the scenario holds the task back."""
        while (holding := self.control.holding) is not None:
            view = await asyncio.to_thread(self.control.view, task.task_id)
            if not holding(view):
                return
            async with self.changed:
                while self.control.holding is holding:
                    await self.changed.wait()

    async def _fail_if_wanted(self, task: Task, agent: Agent) -> None:
        """Fail the task if the scenario wants it."""
        control = self.control
        if control.failing is not None and control.failing(await asyncio.to_thread(control.view, task.task_id)):
            code, line = control.failure
            tracked = agent.executor.tracked[task.task_id]
            tracked.handler = replace(tracked.handler, streams_output=True)  # every failed task has last lines
            host = agent.parts.host
            assert isinstance(host, ControlledHost)
            host.lines[task.task_id] = line
            raise HostFailure(code, f"simulated: {line}")
        if control.never_quiet and task.type in OBSERVING and await asyncio.to_thread(control.is_draining, task.label):
            raise HostFailure("probe_failed", "simulated: it still has work", 1)

    def _record(self, task: Task) -> None:
        name = str(task.arguments.get("name", ""))
        if task.type in OPENING:
            self.control.start(task.label, name, task.task_id)
        elif task.type == "service.stop":
            self.control.stop(task.label, name)


class ControlledNodes:
    """A fleet that runs in its own thread, and how the test controls it."""

    def __init__(self, fleet: Fleet, control: NodeControl) -> None:
        self.control = control
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nodes of {fleet.region}", daemon=True)
        self._thread.start()
        self._fleet = self._ran(_made(fleet, control)).result(START_SECONDS_MAX)
        self._work = self._ran(self._fleet.run())
        self._ran(self._fleet.up.wait()).result(START_SECONDS_MAX)

    def notify(self) -> None:
        """Wake the tasks that are held back: the control has changed."""
        self._ran(self._wake()).result(START_SECONDS_MAX)

    def lose(self, node_id: str) -> None:
        self._loop.call_soon_threadsafe(self._fleet.lose, node_id)

    def close(self) -> None:
        self._work.cancel()
        self._ran(_settled()).result(START_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS_MAX)
        self._loop.close()

    async def _wake(self) -> None:
        async with self._fleet.changed:
            self._fleet.changed.notify_all()

    def _ran(self, work: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _made(fleet: Fleet, control: NodeControl) -> ControlledFleet:
    return ControlledFleet(fleet, control)


async def _settled() -> None:
    """Cancel all other tasks of the loop and wait for them."""
    others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
