"""Does tasks: one owner's in order, owners side by side, each at most once.

A task is believed, read, written into the journal as an intent, done, and its result written down; only then does
anybody hear of it. A task that closes its owner goes first: from the moment it is accepted every other task of that
owner is refused or ended, and when the last of them is gone it tears down and looks. After a restart `resume` goes
through the intents that have no result.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooring_agent import log_context
from mooring_agent.control_plane.keys import NodeKeys, SecretUnreadable
from mooring_agent.control_plane.messages import Failure, Held, Result, SignedReceipt, Task, encode
from mooring_agent.hosts.contract import Host, HostFailure, Owner
from mooring_agent.tasks.arguments import Strict, read_arguments
from mooring_agent.tasks.handlers import FAMILIES, Doing, Family, Fields
from mooring_agent.tasks.journal import Journal, JournalFull
from mooring_agent.tasks.receipts import RECEIPT_CONTEXT, body_of
from mooring_agent.tasks.verifier import Refused

BESIDE_MAX: Final = 256
"""How many tunnels stand, and logs are read, at once."""
LAST_LINES_MAX: Final = 50
LAST_BYTES_MAX: Final = 65_536
LINE_MAX: Final = 2_000

log = logging.getLogger("mooring.agent")


@dataclass(slots=True)
class Progress:
    """How far a task is, as it was last told."""

    stage: str
    done: int
    total: int | None
    unit: str


@dataclass(slots=True)
class Tracked:
    """A task that this agent has taken and not finished."""

    task: Task
    family: Family
    wanted: Strict
    fence: int
    work: asyncio.Task[None] | None = None
    cancelled: bool = False
    entered: bool = False  # its work has begun to run: before that, cancelling it would leave it without an end
    begun: bool = False
    progress: Progress | None = None

    def cut_short(self) -> None:
        """End it early."""
        self.cancelled = True
        if self.work is not None and self.entered:
            self.work.cancel()


@dataclass(slots=True)
class Executor:
    """The tasks of one agent."""

    host: Host
    journal: Journal
    keys: NodeKeys
    now: Callable[[], float]
    changed: Callable[[], None]  # somebody should hear of something: a result, progress
    concurrency: int = 16
    families: Mapping[str, Family] = field(default_factory=lambda: FAMILIES)
    tracked: dict[str, Tracked] = field(default_factory=dict)
    outputs: dict[str, Tracked] = field(default_factory=dict)  # tasks whose output somebody should read; see Reporter
    in_order: set[str] = field(default_factory=set)  # tasks that ended in their owner's order and are not told yet
    touched: set[str] = field(default_factory=set)  # allocations of tasks that came since somebody cleared this
    _order: dict[str, asyncio.Lock] = field(default_factory=dict)
    _room: asyncio.Semaphore = field(init=False)
    _chain: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.concurrency)

    @property
    def free(self) -> int:
        """How many more tasks this agent takes now; a few wait here, so that an owner's next one is at hand."""
        ordered = sum(1 for each in self.tracked.values() if not each.family.beside)
        beside = len(self.tracked) - ordered
        return max(0, min(4 * self.concurrency - ordered, BESIDE_MAX - beside))

    def is_busy(self, owner: str) -> bool:
        """Whether a task of this owner is under way or waits for its turn."""
        return any(each.task.owner == owner and not each.family.beside for each in self.tracked.values())

    def running(self) -> list[Held]:
        """What it holds, for the renewal of leases: what is under way, and results that nobody has heard yet."""
        owed = [Held(entry.task_id, entry.fence) for entry in self.journal.owed()]
        return [*(Held(task_id, each.fence) for task_id, each in self.tracked.items()), *owed]

    def accept(self, task: Task) -> None:
        """Take a task that is believed, or raise `Refused`; one that came before is not done again."""
        family = self.families.get(task.type)
        wanted = read_arguments(task)
        if family is None:
            raise Refused("unknown_type", f"this agent does no {task.type}", task.task_id)
        held = self.tracked.get(task.task_id)
        if held is not None:
            if task.fence <= held.fence:
                raise Refused("replayed", f"fence {task.fence} is not above {held.fence}", task.task_id)
            held.fence = task.fence
            if held.begun:
                self.journal.take_fence(task.task_id, task.fence, self.now())
            return
        known = self.journal.find(task.task_id)
        if known is not None:
            if task.fence <= known.fence:
                raise Refused("replayed", f"fence {task.fence} is not above {known.fence}", task.task_id)
            self.journal.take_fence(task.task_id, task.fence, self.now())
            if known.state == "intended":  # its end could not be written down, so that it is looked at again
                self._begin(Tracked(task, family, wanted, task.fence, begun=True))
            self.changed()
            return
        if self.journal.is_closed(task.owner) and not family.closes:
            raise Refused("owner_closed", f"{task.owner} was torn down", task.task_id)
        self.touched.add(task.allocation_id)
        if family.closes:
            self._close(task)
        self._begin(Tracked(task, family, wanted, task.fence))

    def cancel(self, task_id: str) -> None:
        """End a task early, if it is still under way; a teardown is never cut short."""
        each = self.tracked.get(task_id)
        if each is None or each.family.closes or each.work is None:
            return
        each.cut_short()

    async def resume(self) -> None:
        """After a start: go on with, find again, or give up what a crash cut off."""
        for entry in self.journal.begun():
            if entry.task is None:
                raise ValueError(f"the journal has an intent without its task: {entry.task_id}")
            family = self.families.get(entry.task.type)
            if family is None:
                self.journal.end(
                    entry.task_id, _failed("interrupted", "this agent no longer does such tasks"), self.now()
                )
                continue
            each = Tracked(entry.task, family, read_arguments(entry.task), entry.fence, begun=True)
            self._begin(each)

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while self.tracked:
            await asyncio.wait([each.work for each in self.tracked.values() if each.work is not None])

    async def stop(self) -> None:
        """The agent ends: what it started goes on without it, and the next one finds the intents."""
        works = [each.work for each in self.tracked.values() if each.work is not None]
        for work in works:
            work.cancel("agent stops")
        await asyncio.gather(*works, return_exceptions=True)

    def _close(self, task: Task) -> None:
        self.journal.close_owner(task.owner, self.now())
        for other in self._of(task.owner):
            if not other.family.closes:
                other.cut_short()

    def _of(self, owner: str) -> Iterable[Tracked]:
        """Tasks of this owner; an allocation's are those of all within it."""
        whole = "/" not in owner
        return [
            each
            for each in self.tracked.values()
            if each.task.owner == owner or (whole and each.task.allocation_id == owner)
        ]

    def _begin(self, each: Tracked) -> None:
        self.tracked[each.task.task_id] = each
        each.work = asyncio.create_task(self._do(each), name=each.task.task_id)

    async def _do(self, each: Tracked) -> None:
        each.entered = True
        with log_context.about(each.task):
            await self._done(each)

    async def _done(self, each: Tracked) -> None:
        task = each.task
        try:
            if each.cancelled:
                await self._end_cancelled(each)
                return
            if each.family.closes:
                others = [e.work for e in self._of(task.owner) if e is not each and e.work is not None]
                if others:
                    await asyncio.wait(others)
                await self._perform(each)
                return
            if each.family.beside:
                await self._perform(each)
                return
            async with self._order.setdefault(task.owner, asyncio.Lock()), self._room:
                await self._perform(each)
                self.in_order.add(task.task_id)
        except JournalFull as full:
            log.error("how task %s stands cannot be written down; it is looked at again: %s", task.task_id, full)
        except asyncio.CancelledError:
            if not each.cancelled:
                raise
            await self._end_cancelled(each)
        finally:
            self.tracked.pop(task.task_id, None)
            if not any(e.task.owner == task.owner for e in self.tracked.values()):
                self._order.pop(task.owner, None)
            self.changed()

    async def _end_cancelled(self, each: Tracked) -> None:
        task = each.task
        if not each.begun:
            self.journal.intend(_under(task, each.fence), self.now())
        elif task.type == "process.run":
            try:
                await self.host.cancel_run(Owner(task.allocation_id, task.label), task.task_id)
            except HostFailure as failure:
                self.journal.end(task.task_id, _failed(failure.code, failure.detail), self.now())
                return
        lines = await self._last_lines(task) if each.family.logs and each.begun else ()
        ended = Result("cancelled", failure=Failure("cancelled", "it was asked to end early"), last_lines=lines)
        self.journal.end(task.task_id, ended, self.now())

    async def _perform(self, each: Tracked) -> None:
        task = each.task
        found_again = each.begun
        if not each.begun:
            self.journal.intend(_under(task, each.fence), self.now())
            each.begun = True
        log.info("task %s (%s) of %s begins", task.task_id, task.type, task.owner)
        if each.family.logs:
            self.outputs[task.task_id] = each
            self.changed()  # from now on its output is looked at, also where nothing else is to be told
        doing = Doing(task, {}, self._teller(each), found_again=found_again and not each.family.repeats)
        try:
            doing.secrets = {s.name: self.keys.open(s, task.node_id, task.task_id) for s in task.secrets}
            fields = await self._bounded(each, doing)
            result = Result("succeeded", fields)
        except SecretUnreadable as error:
            result = _failed("refused", str(error))
        except HostFailure as failure:
            fields = failure.result | ({} if failure.exit_code is None else {"exit_code": failure.exit_code})
            result = _failed(failure.code, failure.detail, failure.exit_code, fields)
        except TimeoutError:
            result = _failed("timed_out", "the task's time was over before it was done")
        except Exception as error:  # the task fails with its cause; the agent lives
            log.exception("task %s (%s) failed on this host", task.task_id, task.type)
            result = _failed("host_error", f"{type(error).__name__}: {error}"[:500])
        await self._end(each, doing, result)

    async def _bounded(self, each: Tracked, doing: Doing) -> Fields:
        work: Any = each.family.perform(self.host, doing, each.wanted)
        if each.family.closes:
            return dict(await work)
        async with asyncio.timeout(max(1.0, each.task.expires_at - self.now())):
            return dict(await work)

    async def _end(self, each: Tracked, doing: Doing, result: Result) -> None:
        task = each.task
        code = "" if result.failure is None else f": {result.failure.code}"
        log.info("task %s (%s) of %s %s%s", task.task_id, task.type, task.owner, result.outcome, code)
        if each.family.logs:
            result = msgspec.structs.replace(result, last_lines=await self._last_lines(task))
        if doing.look is None:
            self.journal.end(task.task_id, result, self.now())
            return
        async with self._chain:
            link = self.journal.link()
            body = body_of(task, doing.look, link, self.host.kind, int(self.now()))
            signature = self.keys.sign(RECEIPT_CONTEXT, body)
            result = msgspec.structs.replace(result, receipt=SignedReceipt(encode(body), encode(signature)))
            self.journal.end(task.task_id, result, self.now(), (link, body, signature))

    async def _last_lines(self, task: Task) -> tuple[str, ...]:
        tail = b""
        try:
            async for part in self.host.read_log(Owner(task.allocation_id, task.label), task.task_id, 0):
                tail = (tail + part)[-LAST_BYTES_MAX:]
        except HostFailure as failure:
            log.warning("the output of %s cannot be read: %s", task.task_id, failure)
        lines = tail.decode(errors="replace").splitlines()[-LAST_LINES_MAX:]
        return tuple(line[:LINE_MAX] for line in lines)

    def _teller(self, each: Tracked) -> Callable[[str, int, int | None, str], None]:
        def tell(stage: str, done: int, total: int | None, unit: str) -> None:
            each.progress = Progress(stage, done, total, unit)
            self.changed()

        return tell


def _under(task: Task, fence: int) -> Task:
    return task if task.fence == fence else msgspec.structs.replace(task, fence=fence)


def _failed(code: str, detail: str, exit_code: int | None = None, fields: Fields | None = None) -> Result:
    return Result("failed", fields or {}, Failure(code, detail, exit_code))
