"""One schedule: a seed chooses who steps next, what goes wrong, the ids and the times.

First things go wrong for a bounded number of steps; then everything heals, and the world must come to its end. A
machine that is lost for ever stays lost: an admin gives it up.
"""

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

from mooring.commands.kernel.work import system_context
from mooring.commands.services import Services
from mooring.core.fleet.node import mark_reachable, mark_unreachable
from mooring.gateways.clock import VirtualClock
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet.capacity_offers import FleetCapacity
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.hub import EventHub
from mooring.storage.kernel.unit_of_work import apply
from server.tests.world.adapter import LEASE, Replica
from server.tests.world.faults import CURRENT, ProcessDied, SimulatedDatabase, WorldProcess
from server.tests.world.memory import shape_of, writes_of
from server.tests.world.node import SimulatedNode, Trouble
from server.tests.world.person import Person, write_off
from server.tests.world.rest import AT_REST, OVER, UNDER_WAY
from server.tests.world.starting_point import StartingPoint
from server.tests.world.trust_fault import TrustFault
from server.tests.world.workers import AllocationWorker, InstanceWorker, TaskWatch, TrustActor

HASTE: Final = 0.3
"""How soon somebody thinks better of it: at each step."""
PATIENCE: Final = 4
"""How often somebody waits for the end of what was asked for, when nothing goes on by itself."""
HEALING_LEAPS_MAX: Final = 120
HEALING_STEPS_MAX: Final = 3_000
LEAPS: Final = (5, 20, 50, 95, 130, 310, 400, 700)
HEALING_LEAPS: Final = (5, 20, 50, 100, 130, 310, 650, 1900, 3700)
NODE_STATE: Final = (
    "things", "closed", "done", "journal", "begun_tasks", "outbox", "held", "sequence", "previous", "receipts",
)  # fmt: skip
NOTHING: Final = pickle.dumps({})


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a schedule, and how often."""

    dies: float = 0.0  # a process at one of its writes
    stalls: float = 0.0  # a process waits before a write while the others go on
    leaps: float = 0.0  # time leaps although something could be done
    hasty: float = 0.0  # the person does not wait for the end of what was asked for
    trouble: Trouble = field(default_factory=Trouble)
    unreachable: float = 0.0  # a machine cannot be reached for a while
    loses: bool = False  # one machine is lost for ever
    scarce: bool = False  # no machine can be reached in the beginning
    distrusts: float = 0.0  # the tenant denies the source of what runs, or allows it again
    stops_late: bool = False  # all comes to rest before the stop is asked for
    steps: int = 60


CALM: Final = Faults(steps=0)


@dataclass
class Saved:
    """A world to begin with: what stands in the database under this name, and the machines beside it."""

    name: str
    now: datetime
    instance_id: str | None
    kept: list[str]
    machines: dict[str, bytes]  # what is on each: pickled, which is the fastest way to copy it many times


class Stuck(AssertionError):
    """The world did not come to its end within its bounds."""


class SimulatedWorld:
    """Everything that acts, and the one that lets them act one after the other."""

    def __init__(
        self, database: SimulatedDatabase, parts: Services, start: StartingPoint, begin: Saved, seed: int
    ) -> None:
        self.seed, self.start, self.begin = seed, start, begin
        self.chance = Random(seed)
        random.seed(seed)  # the kit draws its pauses from the process's own chance
        self.database = database
        self.clock = VirtualClock(begin.now, seed)
        self.hub = EventHub(database)
        self.services = replace(parts, database=database, clock=self.clock, hub=self.hub, fleet=FleetCapacity())
        self.hub.on_commit(self.services.fleet.forget_after)
        self.faults = CALM
        self.nodes = [SimulatedNode(self.services, each.node_id, each.key, self.chance) for each in start.machines]
        for node in self.nodes:
            for name, value in pickle.loads(begin.machines.get(node.node_id, NOTHING)).items():
                setattr(node, name, value)
        self.replicas: list[Replica] = []
        self.person = Person(self.services, start, self.chance, [], begin.instance_id, list(begin.kept))
        self.actors: dict[str, Any] = {
            "instances": InstanceWorker(self.services, self.chance),
            "allocations": AllocationWorker(self.services, self.chance),
            "tasks": TaskWatch(self.services),
            **{f"node-{number}": node for number, node in enumerate(self.nodes)},
        }
        self.awake: dict[str, None] = {}
        self.waiting: dict[str, tuple[asyncio.Task[Any], WorldProcess]] = {}  # processes that stand before a write
        self.trace: list[str] = []
        self.now_stepping = self.last_stepping = ""
        self.listeners: list[Callable[[str], None]] = []
        self.checks: list[Callable[[str, Sequence[object]], Awaitable[None]]] = []
        self.written: list[tuple[str, Sequence[object]]] = []
        self.deaths = 0
        self.patience = PATIENCE
        self.trust = TrustFault(self.services, start, self.chance)
        self.planned: Callable[[WorldProcess], None] | None = None  # a death that was planned instead of drawn
        database.heard = self._heard

    def adapters(self, app: Any) -> None:
        """Two replicas of the adapter."""
        for name in ("a", "b"):
            replica = Replica(self.services, self.start, app, f"{name}{self.seed}")
            self.replicas.append(replica)
            self.actors[f"adapter-{name}"] = replica

    # Who is woken ----------------------------------------------------------------------------------------------------

    def _heard(self, statement: str, arguments: Sequence[object]) -> None:
        """Somebody wrote: those wake whom it concerns."""
        self.written.append((statement, arguments))
        for verb, table in writes_of(statement):
            if table == "task" and verb == "INSERT INTO":
                self._wake_nodes([each for each in self.nodes if each.node_id in arguments])
            elif table == "task" and verb == "UPDATE":
                self._wake_by_task(arguments)
            elif table == "operation" and verb == "INSERT INTO":
                self.wake("instances", *_EVERY_ADAPTER)
                self._offer()
            elif table == "allocation" and verb == "INSERT INTO":
                self.actors["allocations"].asked = True
                self.wake("allocations")
            elif table == "operation" and verb == "UPDATE":
                if '"operation" SET "status"' in statement or '"phase" =' in statement:
                    self.wake("instances")
                if "cancelling" in arguments or '"dispatched_at" =' in statement:
                    self.wake(*_EVERY_ADAPTER)
                    self._offer()
            elif table == "member" and verb == "UPDATE":
                if "removed" in arguments:
                    self.wake("instances", "allocations")
                elif not self.now_stepping.startswith("adapter"):
                    self.wake("instances", *_EVERY_ADAPTER)
            elif table == "allocation" and verb == "UPDATE":
                self.wake("allocations")
                if '"allocation" SET "status"' in statement:
                    self.wake("instances")
            elif verb in ("INSERT INTO", "UPDATE"):
                self.wake(*_WAKES.get((verb, table), ()))

    def _wake_nodes(self, woken: Sequence[SimulatedNode]) -> None:
        self.wake(*(f"node-{number}" for number, node in enumerate(self.nodes) if node in woken))

    def _wake_by_task(self, arguments: Sequence[object]) -> None:
        """A task was offered again, or it is over: of the platform's own ones adapters hear nothing."""
        if "queued" in arguments:
            self._wake_nodes(self.nodes)
        stepping = self.actors.get(self.now_stepping)
        of_platform = isinstance(stepping, SimulatedNode) and stepping.outbox and stepping.outbox[0].maker == "system"
        if of_platform or not isinstance(stepping, SimulatedNode):
            self.wake("instances", "allocations")
        if not of_platform:
            self.wake(*_EVERY_ADAPTER)

    def wake(self, *names: str) -> None:
        """These have something to look at; a replica that holds nothing waits for its next poll."""
        for name in names:
            actor = self.actors.get(name)
            if name == self.now_stepping or actor is None or (isinstance(actor, Replica) and not actor.controllers):
                continue
            self.awake[name] = None
            if isinstance(actor, Replica):
                actor.woken = True
            elif isinstance(actor, SimulatedNode):
                actor.called = True

    def _offer(self) -> None:
        """There may be something to claim: those poll that hold nothing, where nobody holds anything."""
        if not any(each.controllers for each in self.replicas):
            self.awake |= dict.fromkeys(name for name in _EVERY_ADAPTER if name in self.actors)

    def wake_all(self) -> None:
        """Everybody looks, but for agents that wait for something to be queued; idle replicas now and then."""
        for name, actor in self.actors.items():
            if isinstance(actor, SimulatedNode):
                if actor.held or actor.outbox or actor.called:
                    self.awake[name] = None
            elif not isinstance(actor, Replica) or actor.controllers or self.chance.random() < 0.35:
                self.awake[name] = None
        self._offer()

    # Steps -----------------------------------------------------------------------------------------------------------

    def say(self, words: str) -> None:
        """A line of the trace."""
        moment = (self.clock.now() - self.begin.now).total_seconds()
        line = f"{len(self.trace):4d} {moment:10.3f} {words}"
        self.trace.append(line)
        for each in self.listeners:
            each(line)

    async def step(self, name: str) -> None:
        """One step of one actor, as far as its fate lets it come."""
        self.awake.pop(name, None)
        process = WorldProcess(name)
        self._draw(process)
        self.clock.advance(timedelta(milliseconds=self.chance.randrange(1, 900)))
        self.now_stepping = self.last_stepping = name
        actor = self.person if name == "person" else self.actors[name]
        if process.fate == "stall":
            await self._until_stalled(name, actor, process)
        else:
            token = CURRENT.set(process)
            try:
                outcome = await self._ended(name, actor.step(), process)
            finally:
                CURRENT.reset(token)
            self._tell(name, outcome, process)
        self.now_stepping = ""
        await self._check()

    async def _until_stalled(self, name: str, actor: Any, process: WorldProcess) -> None:
        async def run() -> Any:
            CURRENT.set(process)
            return await self._ended(name, actor.step(), process)

        task = asyncio.create_task(run())
        watching = asyncio.create_task(process.stalled.wait())
        await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        if task.done():
            self._tell(name, task.result(), process)
        else:
            self.waiting[name] = (task, process)
            self.say(f"{name} stands before write {process.writes}")

    async def resume(self, name: str) -> None:
        """A process that stood goes on."""
        task, process = self.waiting.pop(name)
        self.now_stepping = self.last_stepping = name
        process.go_on.set()
        self._tell(f"{name} goes on,", await task, process, name)
        self.now_stepping = ""
        await self._check()

    async def _ended(self, name: str, step: Awaitable[Any], process: WorldProcess) -> Any:
        try:
            return await step
        except ProcessDied:
            self.deaths += 1
            self._died(name)
            return f"DIED {process.fate} write {process.writes}"

    def _died(self, name: str) -> None:
        """Another process takes its place, and knows nothing."""
        actor = self.person if name == "person" else self.actors[name]
        if isinstance(actor, Replica):
            actor.die()
        elif isinstance(actor, SimulatedNode):
            actor.crash()
        self.awake[name] = None

    def _tell(self, words: str, outcome: Any, process: WorldProcess, name: str | None = None) -> None:
        if outcome is True:
            self.awake[name or words] = None
        shapes = shape_of(tuple(each for each, _ in self.written)) if self.written else "-"
        self.say(f"{words} {outcome} writes={process.writes} {shapes}")

    def _draw(self, process: WorldProcess) -> None:
        """What happens to a process in this step."""
        if self.planned is not None:
            self.planned(process)
        chance, faults = self.chance.random, self.faults
        if chance() < faults.dies:
            process.last_write = self.chance.choice((1, 1, 1, 2, 3))
            process.fate = self.chance.choice(("before", "after"))
        elif process.name != "person" and chance() < faults.stalls:
            process.last_write, process.fate = 1, "stall"

    async def _check(self) -> None:
        written, self.written = self.written, []
        for statement, arguments in written:
            for check in self.checks:
                await check(statement, arguments)
        self.last_stepping = ""

    # The run ---------------------------------------------------------------------------------------------------------

    async def run(self, faults: Faults) -> None:
        """Let things go wrong, then heal, until everything is over."""
        self.faults = faults
        for node in self.nodes:
            node.trouble = faults.trouble
        if faults.distrusts:
            self.actors["trust"] = TrustActor(self.services)
        self.wake(*(name for name in ("instances", "allocations", "tasks") if self.chance.random() < 0.2))
        self._offer()
        if faults.scarce:
            for node in self.nodes:
                await self.unreachable(node)
        for _ in range(faults.steps):
            if not (self._intents() or self.awake or self.waiting):
                break
            await self._next()
        await self.heal()

    def _intents(self) -> list[Any]:
        """What the person would ask for now."""
        intents = self.person.intents
        return [] if self.faults.stops_late and intents == ["stop"] else intents

    async def _next(self) -> None:
        """One step of the part in which things go wrong."""
        chance, faults = self.chance.random, self.faults
        if faults.unreachable and chance() < faults.unreachable:
            await self._weather()
            return
        if faults.distrusts and self.person.instance_id is not None and chance() < faults.distrusts:
            self.say(await self.trust.turn())
            self.wake("trust")
            await self._check()
            return
        standing = [name for name in _EVERY_ADAPTER if name in self.waiting]
        if len(standing) == 1 and chance() < 0.3:  # its lease runs out, and another takes what it holds
            self.leap(LEASE + 5)
            await self.step(next(name for name in _EVERY_ADAPTER if name not in self.waiting))
            return
        if self.waiting and chance() < 0.25:
            await self.resume(self.chance.choice(sorted(self.waiting)))
            return
        ready = [name for name in self.awake if name not in self.waiting]
        wishing = bool(self._intents()) and "person" not in self.waiting
        hasty = faults.hasty + (HASTE if wishing and self.person.intents[0] == "cancel" else 0.0)
        if wishing and (chance() < hasty or (not (ready or self.waiting) and await self._is_time_to_ask())):
            await self.step("person")
        elif ready and chance() >= faults.leaps:
            await self.step(self.chance.choice(ready))
        else:
            self.leap(self.chance.choice(LEAPS))

    async def _is_time_to_ask(self) -> bool:
        """Whether the person asks for the next thing: when the last one is over, or patience is."""
        self.patience -= 1
        if self.patience > 0 and await self.database.fetchval(PLATFORM, UNDER_WAY):
            return False
        self.patience = PATIENCE
        return True

    def leap(self, seconds: float) -> None:
        """Time passes, and everybody looks."""
        self.clock.advance(timedelta(seconds=seconds))
        self.say(f"{seconds} s pass")
        self.wake_all()

    async def _weather(self) -> None:
        """A machine goes, or comes back."""
        node = self.chance.choice([each for each in self.nodes if not each.gone])
        if not node.reachable:
            await self.reachable(node)
        elif self.faults.loses and not any(each.gone for each in self.nodes) and self.chance.random() < 0.5:
            node.gone = True
            await self.unreachable(node)
        else:
            await self.unreachable(node)

    async def unreachable(self, node: SimulatedNode) -> None:
        """A machine stops sending heartbeats."""
        node.reachable = False
        await self._mark(node, mark_unreachable)
        self.say(f"node {self.nodes.index(node)} is {'LOST' if node.gone else 'unreachable'}")

    async def reachable(self, node: SimulatedNode) -> None:
        """A machine sends heartbeats again."""
        node.reachable = True
        await self._mark(node, mark_reachable)
        self.wake(f"node-{self.nodes.index(node)}")
        self.say(f"node {self.nodes.index(node)} is reachable")

    async def _mark(self, node: SimulatedNode, mark: Any) -> None:
        row = await nodes.find(self.database, node.node_id)
        context = system_context(self.services)
        await apply(self.database, PLATFORM, context, mark(context, [row]))
        self.services.fleet.forget_after("nodes.node.changed")
        await self._check()

    async def give_up(self, node: SimulatedNode) -> None:
        """An admin writes a lost machine off."""
        await write_off(self.services, node.node_id)
        self.say(f"node {self.nodes.index(node)} is written off")
        self.wake_all()
        await self._check()

    async def heal(self) -> None:
        """Nothing goes wrong any more; all comes to rest, and with the stop to its end."""
        stops_late, self.faults = self.faults.stops_late, CALM
        self.say("everything heals")
        for node in self.nodes:
            node.trouble = Trouble()
            if not node.reachable and not node.gone:
                await self.reachable(node)
        for name in sorted(self.waiting):
            await self.resume(name)
        if self.trust.denies:
            self.say(await self.trust.turn())
            self.wake("trust")
        if stops_late and self.person.intents:
            last = self.person.intents.pop()
            await self.settle(self.is_at_rest)
            self.say("all is at rest")
            self.person.intents.append(last)
        await self.settle(self.is_over)

    async def settle(self, is_over: Callable[[], Awaitable[bool]]) -> None:
        """Let everybody act until this is so; a lost machine is given up when nothing else is left to wait for."""
        lost = [node for node in self.nodes if node.gone]
        leaps = 0
        for _ in range(HEALING_STEPS_MAX):
            if self.awake:
                await self.step(self.chance.choice(list(self.awake)))
            elif self.person.intents and await self._is_time_to_ask():
                await self.step("person")
            elif not self.person.intents and await is_over():
                return
            elif lost and leaps >= 3:
                await self.give_up(lost.pop())
            elif leaps >= HEALING_LEAPS_MAX:
                break
            else:
                self.leap(HEALING_LEAPS[leaps % len(HEALING_LEAPS)])
                leaps += 1
        raise Stuck(await self.why_not_over())

    async def is_at_rest(self) -> bool:
        """Whether nothing is left to come while nobody asks for anything."""
        return bool(await self.database.fetchval(PLATFORM, AT_REST))

    async def is_over(self) -> bool:
        """Whether nothing is left to come: the instance stopped, and what it owned given back."""
        return bool(await self.database.fetchval(PLATFORM, OVER, self.person.instance_id, self.person.kept))

    async def why_not_over(self) -> str:
        """What stands in the way of the end, in words."""
        rows = [
            *await self.database.fetch(PLATFORM, "SELECT 'instance', id, status, failure_code FROM instance"),
            *await self.database.fetch(
                PLATFORM, "SELECT kind, id, status, concat_ws(' ', phase, blocker, dispatched_at) FROM operation"
            ),
            *await self.database.fetch(PLATFORM, "SELECT name, id, status, blocker FROM member"),
            *await self.database.fetch(PLATFORM, "SELECT 'allocation', id, status, blocker FROM allocation"),
            *await self.database.fetch(
                PLATFORM, "SELECT type, step, status, failure_code FROM task WHERE finished_at IS NULL"
            ),
        ]
        return "it does not come to its end:\n" + "\n".join(" ".join(map(str, row)) for row in rows)

    @property
    def interrupted(self) -> int:
        """How often an agent died in the middle of a task."""
        return sum(node.interrupted for node in self.nodes)

    def saved(self, name: str) -> Saved:
        """This world as one to begin with."""
        machines = {
            node.node_id: pickle.dumps({each: getattr(node, each) for each in NODE_STATE}) for node in self.nodes
        }
        return Saved(name, self.clock.now(), self.person.instance_id, list(self.person.kept), machines)


_EVERY_ADAPTER: Final = ("adapter-a", "adapter-b")
_WAKES: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("UPDATE", "instance"): ("instances",),
    ("UPDATE", "node"): ("instances", "allocations"),
}
