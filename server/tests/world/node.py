"""A simulated node of the simulated world: its effects are counted, its faults come from the seed.

It claims tasks through the statement that the dispatcher uses and reports through the handler that the agents' route
uses; between the two stands a model of what would be on the machine: for each owner what was started and not taken
away. The journal survives a crash of the agent, as the real one's does; the machine's things survive too.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mooring.commands.fleet.task import offer_again
from mooring.commands.fleet.task_report import TaskReportHandler
from mooring.commands.live.log_watch import LogWatch
from mooring.commands.services import Services
from mooring.core.fleet.receipt import FIRST_PREVIOUS, KINDS, RECEIPT_CONTEXT, SignedReceipt
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_family import FailureCode
from mooring.core.fleet.task_report import ReportCode, TaskResultReport
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome
from mooring.core.kernel.decision import Actor, DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Prefix
from mooring.storage.fleet import task_claim
from mooring.storage.fleet import task_report as reports
from mooring.storage.kernel.unit_of_work import Origin

LEASE: Final = timedelta(seconds=90)
TEARDOWN: Final = frozenset({"teardown.verify", "sandbox.destroy"})
STARTING: Final = frozenset({"service.start", "container.launch", "files.write", "artifact.fetch"})
RESULTS: Final[dict[str, dict[str, Any]]] = {
    "sandbox.create": {"isolation": "simulated", "host": "simulated", "address": "10.0.0.2", "limits": {}},
    "files.write": {"written": 1},
    "service.start": {"state": "running"},
    "process.run": {"exit_code": 0},
    "service.stop": {"stopped": True},
    "service.inspect": {"state": "running"},
    "log.read": {"content_base64": "", "offset": 0, "next_offset": 0, "size": 0, "truncated_before": False},
    "container.launch": {"container_id": "simulated"},
    "container.control": {"state": "running"},
    "container.remove": {"removed": True},
    "artifact.fetch": {"bytes": 0, "from_cache": True},
    "probe.tcp": {"latency_milliseconds": 1},
    "probe.http": {"latency_milliseconds": 1},
    "probe.exec": {"latency_milliseconds": 1},
}


def thing_of(task: Task) -> str:
    """What a task leaves on the machine: the same for a second attempt."""
    return f"{task.type} {json.dumps(task.arguments, sort_keys=True)}"[:150]


@dataclass(frozen=True)
class Trouble:
    """How often what goes wrong on a machine, and in its agent."""

    fails: float = 0.0  # a task fails
    interrupts: float = 0.0  # the agent dies in the middle of a task
    forgets: float = 0.0  # the agent dies between the effect and the report
    repeats: float = 0.0  # a report is sent twice
    leaves: float = 0.0  # a teardown leaves something behind


@dataclass
class SimulatedNode:
    """One machine and its agent."""

    services: Services
    node_id: str
    key: Ed25519PrivateKey
    chance: Random = field(default_factory=Random)
    trouble: Trouble = field(default_factory=Trouble)
    dies_in: Callable[[Task], bool] = lambda task: False  # whether a planned death comes in the middle of it
    called: bool = False  # something may be queued for it
    restarted: bool = False
    interrupted: int = 0  # how often the agent died in the middle of a task
    things: dict[str, set[str]] = field(default_factory=dict)  # owner → what stands there
    closed: set[str] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)  # effects by task id: never more than one
    journal: dict[str, TaskEnd] = field(default_factory=dict)  # what was done, for a task that comes again
    begun_tasks: dict[str, Task] = field(default_factory=dict)  # intents: done or interrupted
    outbox: list[Task] = field(default_factory=list)  # results that are not taken yet, in the order of the receipts
    held: list[Task] = field(default_factory=list)
    sequence: int = 0
    previous: str = FIRST_PREVIOUS
    receipts: dict[str, SignedReceipt] = field(default_factory=dict)
    gone: bool = False  # for ever
    reachable: bool = True

    async def step(self) -> bool:
        """One thing that an agent does; whether there may be more."""
        if self.gone or not self.reachable:
            return False
        if self.restarted:
            self.restarted = False
            if self.chance.random() < 0.5:
                await offer_again(self.services, self.node_id, [each.id for each in self.outbox])
                return True
        if self.outbox:
            return await self._tell()
        if not self.held:
            return await self.claim()
        task = self.held.pop(self.chance.randrange(len(self.held)))
        trouble, chance = self.trouble, self.chance.random
        new = task.id not in self.journal and task.id not in self.begun_tasks
        if new and (chance() < trouble.interrupts or self.dies_in(task)):
            self.interrupted += 1
            self.begin(task)
            self.crash()
            return True
        self.perform(task, fail=chance() < trouble.fails, unclean=chance() < trouble.leaves)
        self.outbox.append(task)
        if chance() < trouble.forgets:
            self.crash()
        return True

    async def _tell(self) -> bool:
        """Tell the next result, until it is taken or no longer wanted."""
        task = self.outbox[0]
        code = await self.report(task)
        if code == ReportCode.RECEIPT_GAP:
            self.outbox.append(self.outbox.pop(0))  # one that is not reported yet comes before it
            return len(self.outbox) > 1 or bool(self.held) or self.called
        if code is None and self.chance.random() < self.trouble.repeats:
            await self.report(task)
        self.outbox.remove(task)
        self.called |= code is not None  # what was lost is offered again
        return self.called or bool(self.outbox or self.held)

    async def claim(self) -> bool:
        """One poll: what is queued comes under a lease."""
        self.called = False
        now = self.services.clock.now()
        claimed = await task_claim.claim(
            self.services.database, [task_claim.NodeRoom(self.node_id, 4)], now, now + LEASE
        )
        self.held += [each.task for each in claimed]
        return bool(claimed)

    def begin(self, task: Task) -> None:
        """The agent notes what it is about to do, and dies on the way: the effect is there, or half of it."""
        self.begun_tasks[task.id] = task
        if self._is_closed(task) or task.type in TEARDOWN:
            return
        self.done[task.id] += 1
        if task.type in STARTING or task.type == "sandbox.create":
            self.things.setdefault(task.owner, set()).add(thing_of(task))

    def perform(self, task: Task, *, fail: bool = False, unclean: bool = False) -> None:
        """The effect on the machine, once, whatever comes again."""
        if task.id in self.journal:
            return
        if task.id in self.begun_tasks:  # the agent died in the middle: it looks, and says so
            self.journal[task.id] = self._failed(FailureCode.INTERRUPTED, "the agent died")
            return
        self.begun_tasks[task.id] = task
        if self._is_closed(task) and task.type not in TEARDOWN:
            self.journal[task.id] = self._failed(FailureCode.REFUSED, "the owner is closed")
            return
        self.done[task.id] += 1
        if task.type in TEARDOWN:
            self._tear_down(task, unclean=unclean)
        elif fail:
            self.journal[task.id] = self._failed(FailureCode.HOST_ERROR, "the seed says so")
        else:
            if task.type in STARTING or task.type == "sandbox.create":
                self.things.setdefault(task.owner, set()).add(thing_of(task))
            self.journal[task.id] = TaskEnd(TaskOutcome.SUCCEEDED, result=RESULTS.get(task.type, {}))

    async def report(self, task: Task) -> ReportCode | None:
        """Tell how a held task ended; why it was not taken, if it was not."""
        handler = await self._handler(task.id)
        verdict = await handler.take(
            TaskResultReport(task.id, task.fence, self.journal[task.id], self.receipts.get(task.id))
        )
        if verdict.code is not None and verdict.code not in (ReportCode.LEASE_LOST, ReportCode.RECEIPT_GAP):
            raise AssertionError(f"the report of {task.type} {task.id} was refused: {verdict.code}: {verdict.detail}")
        return verdict.code

    def crash(self) -> None:
        """The agent dies: what it held in memory is forgotten, journal and machine stay.

        When it is back it looks what became of the tasks that it had begun, and says that they were interrupted.
        """
        self.held = []
        self.restarted = self.called = True
        for task in self.begun_tasks.values():
            if task.id not in self.journal:
                self.journal[task.id] = self._failed(FailureCode.INTERRUPTED, "the agent died")
                self.outbox.append(task)

    def _is_closed(self, task: Task) -> bool:
        return task.owner in self.closed or task.allocation_id in self.closed

    def left(self, allocation_id: str) -> list[str]:
        """What still stands in an allocation."""
        return [
            f"{owner}: {thing}"
            for owner, things in self.things.items()
            if owner == allocation_id or owner.startswith(f"{allocation_id}/")
            for thing in sorted(things)
        ]

    def _tear_down(self, task: Task, *, unclean: bool) -> None:
        whole = task.type == "sandbox.destroy"
        self.closed.add(task.owner)
        owners = [o for o in self.things if o == task.owner or (whole and o.startswith(f"{task.owner}/"))]
        found = [{"kind": "processes", "name": f"{o}: {t}"[:200]} for o in owners for t in sorted(self.things[o])]
        left = found[-1:] if unclean else []
        for owner in owners:
            self.things[owner] = {
                t for t in self.things[owner] if any(f"{owner}: {t}"[:200] == x["name"] for x in left)
            }
            if not self.things[owner]:
                del self.things[owner]
        self.journal[task.id] = TaskEnd(TaskOutcome.SUCCEEDED, result={"clean": not left})
        self.receipts[task.id] = self._receipt(task, found, left)

    def _receipt(self, task: Task, found: list[dict[str, str]], left: list[dict[str, str]]) -> SignedReceipt:
        body = {
            "v": 1,
            "node_id": self.node_id,
            "sequence": self.sequence + 1,
            "previous": self.previous,
            "task_id": task.id,
            "task_type": task.type,
            "tenant_id": task.tenant_id,
            "project_id": task.project_id,
            "allocation_id": task.allocation_id,
            "owner": task.owner,
            "host": "simulated",
            "looked_at": int(self.services.clock.now().timestamp()),
            "looked": dict.fromkeys(KINDS, 0),
            "not_looked": [],
            "found": found[:100],
            "removed": [each for each in found if each not in left][:100],
            "remaining": left,
            "truncated": False,
            "clean": not left,
        }
        signed = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
        self.sequence, self.previous = self.sequence + 1, hashlib.sha256(signed).hexdigest()
        return SignedReceipt(signed, self.key.sign(RECEIPT_CONTEXT + signed))

    async def _handler(self, task_id: str) -> TaskReportHandler:
        clock = self.services.clock
        actor = Actor(PrincipalKind.NODE, self.node_id)
        context = DecisionContext(actor, clock.now(), clock.mint(Prefix.CORRELATION), "a" * 32, clock.mint)
        known = await reports.of_node(self.services.database, self.node_id, [task_id])
        return TaskReportHandler(self.services, LogWatch(), context, Origin(), dict(known))

    @staticmethod
    def _failed(code: FailureCode, detail: str) -> TaskEnd:
        return TaskEnd(TaskOutcome.FAILED, failure_code=code.value, failure_detail=detail)
