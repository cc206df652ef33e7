"""Simulated machines with a hand in them: whole agents over the simulated host, which a scenario lets wait or fail.

Each is an agent as `mooring-agent simulate` runs it: it enrols, polls, verifies, journals, reports and signs receipts.
Only what a task does on its machine is played: as in the conformance suite's own nodes everything succeeds at once,
unless the scenario wants it held back, failed, or never quiet. They live in a thread of the test's process.
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
from mooring_adapter.conformance.platform_rules import PLATFORM_ONLY
from mooring_agent.agent import Agent, AgentParts, NodeRetired
from mooring_agent.control_plane.messages import Task
from mooring_agent.hosts.contract import Host, HostFailure, Owner
from mooring_agent.hosts.simulated import FaultProfile, SimulatedHost
from mooring_agent.simulate import Fleet, Simulation
from mooring_agent.tasks.handlers import ResultFields, TaskContext, TaskHandler

CALM: Final = FaultProfile()
START_SECONDS_MAX: Final = 180.0


@dataclass(slots=True)
class Hand:
    """What a scenario wants of its nodes. Both predicates are None while everything is as usual."""

    view: Callable[[str], TaskStatus]  # a task as people see it; asked for in a thread
    is_draining: Callable[[str], bool]  # by member
    part_of: Callable[[str], str | None]  # the member's part of its instance: what is counted together
    holding: Callable[[TaskStatus], bool] | None = None
    failing: Callable[[TaskStatus], bool] | None = None
    failure: tuple[str, str] = ("", "")  # its code, and the last line of the log
    never_quiet: bool = False
    running: dict[str, set[str]] = field(default_factory=dict)  # by member: the names of what runs
    ever: set[str] = field(default_factory=set)  # members of which something ran
    started_twice: list[str] = field(default_factory=list)
    down: dict[str, int] = field(default_factory=dict)  # the most of a part that were down at a time
    done: Callable[[], None] = lambda: None  # somebody wants to hear of every task that is done

    def clear(self) -> None:
        """Everything is as usual again."""
        self.holding = self.failing = None
        self.never_quiet = False
        self.started_twice.clear()
        self.down.clear()

    def start(self, member_id: str, name: str, step: str) -> None:
        """Something is started under a name."""
        running = self.running.setdefault(member_id, set())
        if name in running:
            self.started_twice.append(f"{step}: {name} of {member_id} is already running")
        running.add(name)
        self.ever.add(member_id)

    def stop(self, member_id: str, name: str) -> None:
        """It runs no more; how many of its part are down now?"""
        self.running.setdefault(member_id, set()).discard(name)
        part = self.part_of(member_id)
        if part is not None:
            down = sum(1 for each in self.ever if not self.running.get(each) and self.part_of(each) == part)
            self.down[part] = max(self.down.get(part, 0), down)

    def forget(self, member_id: str) -> None:
        """The member was torn down."""
        self.running.pop(member_id, None)
        self.ever.discard(member_id)


class PlayedHost(SimulatedHost):
    """A simulated machine whose tasks leave the last lines that a scenario wants."""

    def __init__(self) -> None:
        super().__init__(CALM)
        self.lines: dict[str, str] = {}

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        """What it said."""
        text = f"{self.lines.get(key, f'simulated output of {key}')}\n".encode()
        if offset < len(text):
            yield text[offset:]


class PlayedFleet(Simulation):
    """Agents whose tasks go through a scenario's hand."""

    def __init__(self, fleet: Fleet, hand: Hand) -> None:
        super().__init__(fleet)
        self.hand = hand
        self.changed = asyncio.Condition()
        self.up = asyncio.Event()
        self.agents: dict[str, asyncio.Task[None]] = {}

    async def _run_machine(self, number: int) -> None:
        async with self._enrolling:
            parts = await self._enrol_machine(number)
        parts.host = PlayedHost()
        agent = Agent(parts)
        agent.executor.handlers = {
            name: handler if name in PLATFORM_ONLY - {"teardown.verify"} else self._played(name, handler, agent)
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
        """The machine is gone: its agent says nothing more."""
        self.agents[node_id].cancel()

    def _played(self, name: str, handler: TaskHandler, agent: Agent) -> TaskHandler:
        async def perform(host: Host, context: TaskContext, wanted: Any) -> ResultFields:
            if name == "teardown.verify":
                self.hand.forget(context.task.label)
                return dict(await handler.perform(host, context, wanted))
            await self._let(context.task)
            await self._judge(context.task, agent)
            if name.startswith("probe."):
                fields: ResultFields = {"latency_milliseconds": 1, "attempts": 1, "observed": "simulated"}
            else:
                fields = dict(await handler.perform(host, context, wanted))
            self._note(context.task)
            self.hand.done()
            return fields

        return replace(handler, perform=perform)

    async def _let(self, task: Task) -> None:
        """Wait while the scenario holds it back."""
        while (holding := self.hand.holding) is not None:
            view = await asyncio.to_thread(self.hand.view, task.task_id)
            if not holding(view):
                return
            async with self.changed:
                while self.hand.holding is holding:
                    await self.changed.wait()

    async def _judge(self, task: Task, agent: Agent) -> None:
        """Fail where the scenario wants it."""
        hand = self.hand
        if hand.failing is not None and hand.failing(await asyncio.to_thread(hand.view, task.task_id)):
            code, line = hand.failure
            tracked = agent.executor.tracked[task.task_id]
            tracked.handler = replace(tracked.handler, streams_output=True)  # whatever it is, it has last lines
            host = agent.parts.host
            assert isinstance(host, PlayedHost)
            host.lines[task.task_id] = line
            raise HostFailure(code, f"simulated: {line}")
        if hand.never_quiet and task.type in OBSERVING and await asyncio.to_thread(hand.is_draining, task.label):
            raise HostFailure("probe_failed", "simulated: it still has work", 1)

    def _note(self, task: Task) -> None:
        name = str(task.arguments.get("name", ""))
        if task.type in OPENING:
            self.hand.start(task.label, name, task.task_id)
        elif task.type == "service.stop":
            self.hand.stop(task.label, name)


class Nodes:
    """A fleet that runs in its own thread, and how the test controls it."""

    def __init__(self, fleet: Fleet, hand: Hand) -> None:
        self.hand = hand
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"nodes of {fleet.region}", daemon=True)
        self._thread.start()
        self._fleet = self._ran(_made(fleet, hand)).result(START_SECONDS_MAX)
        self._work = self._ran(self._fleet.run())
        self._ran(self._fleet.up.wait()).result(START_SECONDS_MAX)

    def notify(self) -> None:
        """The hand holds something else than before: who waits looks again."""
        self._ran(self._tell()).result(START_SECONDS_MAX)

    def lose(self, node_id: str) -> None:
        """A machine is gone."""
        self._loop.call_soon_threadsafe(self._fleet.lose, node_id)

    def close(self) -> None:
        """All of them end."""
        self._work.cancel()
        self._ran(_settled()).result(START_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS_MAX)
        self._loop.close()

    async def _tell(self) -> None:
        async with self._fleet.changed:
            self._fleet.changed.notify_all()

    def _ran(self, work: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _made(fleet: Fleet, hand: Hand) -> PlayedFleet:
    return PlayedFleet(fleet, hand)


async def _settled() -> None:
    """Everything but this has ended."""
    others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
