"""Executes tasks: those of one owner in order, owners concurrently, each task at most once.

A task is verified, decoded, recorded in the journal as an intent, performed, and its result recorded; only then is it
reported. A task that closes its owner goes first: as soon as it is accepted, every other task of that owner is refused
or cancelled, and when the last of them is gone it tears down and inspects. After a restart, `resume` handles the
intents without a result.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mooring_agent import log_context
from mooring_agent.control_plane.keys import NodeKeys, SecretUnreadable
from mooring_agent.control_plane.messages import SignedReceipt, Task, TaskFailure, TaskLease, TaskResult, encode
from mooring_agent.hosts.contract import Host, HostFailure, Owner
from mooring_agent.tasks.arguments import StrictArguments, read_arguments
from mooring_agent.tasks.handlers import HANDLERS, ResultFields, TaskContext, TaskHandler
from mooring_agent.tasks.journal import Journal, JournalFull
from mooring_agent.tasks.receipts import RECEIPT_CONTEXT, ChainedReceipt, receipt_body
from mooring_agent.tasks.room import HELD_MAX, WORKERS, Room, RoomKey, RoomKind, make_rooms
from mooring_agent.tasks.secret_masks import SecretMask, SecretMasks
from mooring_agent.tasks.verifier import TaskRefused

LAST_LINES_MAX: Final = 50
LAST_BYTES_MAX: Final = 65_536
LINE_MAX: Final = 2_000

log = logging.getLogger("mooring.agent")


@dataclass(slots=True)
class TaskProgress:
    """The progress that a task last reported."""

    stage: str
    done: int
    total: int | None
    unit: str


@dataclass(slots=True)
class TrackedTask:
    """A task that this agent has accepted and not finished."""

    task: Task
    handler: TaskHandler
    arguments: StrictArguments
    fence: int
    work: asyncio.Task[None] | None = None
    cancelled: bool = False
    has_entered: bool = False  # its coroutine is running: cancelled earlier, it would never record a result
    has_intent: bool = False
    progress: TaskProgress | None = None

    def cancel(self) -> None:
        """Cancel the work, unless it is about to notice by itself."""
        self.cancelled = True
        if self.work is not None and self.has_entered:
            self.work.cancel()


@dataclass(slots=True)
class Executor:
    """The tasks of one agent."""

    host: Host
    journal: Journal
    keys: NodeKeys
    now: Callable[[], float]
    notify: Callable[[], None]  # called when there is something to report: a result, progress
    concurrency: int = WORKERS  # of brief work; what may last long holds no worker, see tasks/room.py
    handlers: Mapping[str, TaskHandler] = field(default_factory=lambda: HANDLERS)
    tracked: dict[str, TrackedTask] = field(default_factory=dict)
    outputs: dict[str, TrackedTask] = field(default_factory=dict)  # tasks whose output the reporter should stream
    in_order: set[str] = field(default_factory=set)  # tasks that ended in their owner's order and are not reported yet
    touched: set[str] = field(default_factory=set)  # allocations of tasks accepted since the sweep last cleared this
    masks: SecretMasks = field(init=False)
    _owner_locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    _rooms: dict[RoomKind, Room] = field(init=False)
    _receipt_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._rooms = make_rooms(self.concurrency)
        self.masks = SecretMasks(self.journal, self.keys)

    @property
    def free(self) -> int:
        """How many more tasks to claim now. The platform also bounds what one allocation and one tenant have here."""
        held = sum(1 for tracked_task in self.tracked.values() if not tracked_task.handler.closes_owner)
        return max(0, HELD_MAX - held)

    def is_busy(self, owner: str) -> bool:
        """Whether a task of this owner is running or waiting for its turn."""
        return any(
            tracked_task.task.owner == owner and not tracked_task.handler.unordered
            for tracked_task in self.tracked.values()
        )

    def running(self) -> list[TaskLease]:
        """The leases to renew: running tasks, and results that are not delivered yet."""
        owed = [TaskLease(entry.task_id, entry.fence) for entry in self.journal.undelivered()]
        return [*(TaskLease(task_id, tracked_task.fence) for task_id, tracked_task in self.tracked.items()), *owed]

    def accept(self, task: Task) -> None:
        """Accept a verified task, or raise `TaskRefused`; a task that was accepted before is not done again."""
        handler = self.handlers.get(task.type)
        arguments = read_arguments(task)
        if handler is None:
            raise TaskRefused("unknown_type", f"this agent does not support {task.type}", task.task_id)
        held = self.tracked.get(task.task_id)
        if held is not None:
            if task.fence <= held.fence:
                raise TaskRefused("replayed", f"fence {task.fence} is not above {held.fence}", task.task_id)
            held.fence = task.fence
            if held.has_intent:
                self.journal.update_fence(task.task_id, task.fence, self.now())
            return
        known = self.journal.find(task.task_id)
        if known is not None:
            if task.fence <= known.fence:
                raise TaskRefused("replayed", f"fence {task.fence} is not above {known.fence}", task.task_id)
            self.journal.update_fence(task.task_id, task.fence, self.now())
            if known.state == "intended":  # its result could not be recorded, so it is resumed
                self._start(TrackedTask(task, handler, arguments, task.fence, has_intent=True))
            self.notify()
            return
        if self.journal.is_closed(task.owner) and not handler.closes_owner:
            raise TaskRefused("owner_closed", f"{task.owner} was torn down", task.task_id)
        self.touched.add(task.allocation_id)
        if handler.closes_owner:
            self._close_owner(task)
        self._start(TrackedTask(task, handler, arguments, task.fence))

    def cancel(self, task_id: str) -> None:
        """Cancel a task that is still running; a teardown is never cancelled."""
        tracked_task = self.tracked.get(task_id)
        if tracked_task is None or tracked_task.handler.closes_owner or tracked_task.work is None:
            return
        tracked_task.cancel()

    async def resume(self) -> None:
        """After a start: resume, find again, or give up the tasks that a crash interrupted."""
        for entry in self.journal.unfinished():
            if entry.task is None:
                raise ValueError(f"the journal has an intent without a task: {entry.task_id}")
            handler = self.handlers.get(entry.task.type)
            if handler is None:
                self.journal.record_result(
                    entry.task_id, _failed_result("interrupted", "this agent no longer supports this task"), self.now()
                )
                continue
            tracked_task = TrackedTask(entry.task, handler, read_arguments(entry.task), entry.fence, has_intent=True)
            self._start(tracked_task)

    async def wait_until_idle(self) -> None:
        while self.tracked:
            await asyncio.wait(
                [tracked_task.work for tracked_task in self.tracked.values() if tracked_task.work is not None]
            )

    async def stop(self) -> None:
        """Stop the agent: what it started keeps running, and the next agent finds the intents."""
        works = [tracked_task.work for tracked_task in self.tracked.values() if tracked_task.work is not None]
        for work in works:
            work.cancel("agent stops")
        await asyncio.gather(*works, return_exceptions=True)

    def _close_owner(self, task: Task) -> None:
        self.journal.close_owner(task.owner, self.now())
        for other in self._tasks_of(task.owner):
            if not other.handler.closes_owner:
                other.cancel()

    def _tasks_of(self, owner: str) -> Iterable[TrackedTask]:
        """The tasks of this owner; for an allocation, those of all its owners."""
        whole = "/" not in owner
        return [
            tracked_task
            for tracked_task in self.tracked.values()
            if tracked_task.task.owner == owner or (whole and tracked_task.task.allocation_id == owner)
        ]

    def _start(self, tracked_task: TrackedTask) -> None:
        self.tracked[tracked_task.task.task_id] = tracked_task
        tracked_task.work = asyncio.create_task(self._run(tracked_task), name=tracked_task.task.task_id)

    async def _run(self, tracked_task: TrackedTask) -> None:
        tracked_task.has_entered = True
        with log_context.bind(tracked_task.task):
            await self._run_in_turn(tracked_task)

    async def _run_in_turn(self, tracked_task: TrackedTask) -> None:
        task = tracked_task.task
        try:
            if tracked_task.cancelled:
                await self._end_cancelled(tracked_task)
                return
            if tracked_task.handler.closes_owner:
                others = [
                    other.work
                    for other in self._tasks_of(task.owner)
                    if other is not tracked_task and other.work is not None
                ]
                if others:
                    await asyncio.wait(others)
                await self._perform(tracked_task)
                return
            if tracked_task.handler.unordered:
                await self._perform(tracked_task)
                return
            room = self._rooms[tracked_task.handler.room]
            async with self._owner_locks.setdefault(task.owner, asyncio.Lock()), room.entered(_room_key(task)):
                await self._perform(tracked_task)
                self.in_order.add(task.task_id)
        except JournalFull as full:
            log.error(
                "cannot persist the state of task %s: %s; will retry when it is offered again", task.task_id, full
            )
        except asyncio.CancelledError:
            if not tracked_task.cancelled:
                raise
            await self._end_cancelled(tracked_task)
        finally:
            self.tracked.pop(task.task_id, None)
            if not any(other.task.owner == task.owner for other in self.tracked.values()):
                self._owner_locks.pop(task.owner, None)
            self.notify()

    async def _end_cancelled(self, tracked_task: TrackedTask) -> None:
        task = tracked_task.task
        if not tracked_task.has_intent:
            self.journal.record_intent(_with_fence(task, tracked_task.fence), self.now())
        elif task.type == "process.run":
            try:
                await self.host.cancel_run(Owner(task.allocation_id, task.label), task.task_id)
            except HostFailure as failure:
                self.journal.record_result(task.task_id, _failed_result(failure.code, failure.detail), self.now())
                return
        lines = await self._last_lines(task) if tracked_task.handler.streams_output and tracked_task.has_intent else ()
        ended = TaskResult("cancelled", failure=TaskFailure("cancelled", "the task was cancelled"), last_lines=lines)
        self.journal.record_result(task.task_id, ended, self.now())

    async def _perform(self, tracked_task: TrackedTask) -> None:
        task = tracked_task.task
        is_resumed = tracked_task.has_intent
        if not tracked_task.has_intent:
            self.journal.record_intent(_with_fence(task, tracked_task.fence), self.now())
            tracked_task.has_intent = True
        log.info("task %s (%s) of %s starts", task.task_id, task.type, task.owner)
        if tracked_task.handler.streams_output:
            self.outputs[task.task_id] = tracked_task
            self.notify()  # so that its output is streamed even if nothing else is reported
        context = TaskContext(
            task,
            {},
            self._progress_callback(tracked_task),
            is_resumed=is_resumed and not tracked_task.handler.is_repeatable,
        )
        try:
            context.secrets = {s.name: self.keys.open(s, task.node_id, task.task_id) for s in task.secrets}
            self.masks.remember(task, context.secrets, self.now())
            context.mask = self.masks.of(task.allocation_id)
            fields = await self._perform_in_time(tracked_task, context)
            result = TaskResult("succeeded", fields)
        except SecretUnreadable as error:
            result = _failed_result("refused", str(error))
        except HostFailure as failure:
            fields = failure.result | ({} if failure.exit_code is None else {"exit_code": failure.exit_code})
            result = _failed_result(failure.code, failure.detail, failure.exit_code, fields)
        except TimeoutError:
            result = _failed_result("timed_out", "the task expired before it was done")
        except Exception as error:  # the task fails with this cause; the agent continues
            log.exception("task %s (%s) failed unexpectedly; reporting host_error", task.task_id, task.type)
            result = _failed_result("host_error", f"{type(error).__name__}: {error}"[:500])
        await self._finish(tracked_task, context, result)

    async def _perform_in_time(self, tracked_task: TrackedTask, context: TaskContext) -> ResultFields:
        handler, task = tracked_task.handler, tracked_task.task
        if handler.closes_owner:
            return dict(await handler.perform(self.host, context, tracked_task.arguments))
        async with AsyncExitStack() as stack:
            if handler.unordered:
                room = self._rooms[handler.room]
                if room.is_full(_room_key(task)):
                    limits = room.limits
                    raise HostFailure(
                        "capacity",
                        f"a node serves at most {limits.allocation} of {task.type} for one allocation and "
                        f"{limits.tenant} for one tenant at once",
                    )
                await stack.enter_async_context(room.entered(_room_key(task)))
            await stack.enter_async_context(asyncio.timeout(max(1.0, task.expires_at - self.now())))
            return dict(await handler.perform(self.host, context, tracked_task.arguments))

    async def _finish(self, tracked_task: TrackedTask, context: TaskContext, result: TaskResult) -> None:
        task = tracked_task.task
        result = self._without_secrets(task, context, result)
        code = "" if result.failure is None else f": {result.failure.code}"
        log.info("task %s (%s) of %s %s%s", task.task_id, task.type, task.owner, result.outcome, code)
        if tracked_task.handler.streams_output:
            result = msgspec.structs.replace(result, last_lines=await self._last_lines(task))
        if context.teardown is None:
            self.journal.record_result(task.task_id, result, self.now())
            return
        if task.owner == task.allocation_id:
            self.masks.forget(task.allocation_id)
        async with self._receipt_lock:
            link = self.journal.link()
            body = receipt_body(task, context.teardown, link, self.host.kind, int(self.now()))
            signature = self.keys.sign(RECEIPT_CONTEXT, body)
            result = msgspec.structs.replace(result, receipt=SignedReceipt(encode(body), encode(signature)))
            self.journal.record_result(task.task_id, result, self.now(), ChainedReceipt(link, body, signature))

    def _without_secrets(self, task: Task, context: TaskContext, result: TaskResult) -> TaskResult:
        """The result with a failure that names no secret, neither of the allocation nor of the task alone."""
        if result.failure is None:
            return result
        mask = SecretMask.of((*context.secrets.values(), *self.masks.of(task.allocation_id).patterns))
        failure = msgspec.structs.replace(result.failure, detail=mask.hide_text(result.failure.detail))
        return msgspec.structs.replace(result, failure=failure)

    async def _last_lines(self, task: Task) -> tuple[str, ...]:
        mask = self.masks.of(task.allocation_id)
        tail = b""
        try:
            async for part in self.host.read_log(Owner(task.allocation_id, task.label), task.task_id, 0):
                tail = (tail + part)[-LAST_BYTES_MAX - mask.margin :]
        except HostFailure as failure:
            log.warning("cannot read the output of %s: %s; reporting the result without it", task.task_id, failure)
        lines = mask.hide(tail)[-LAST_BYTES_MAX:].decode(errors="replace").splitlines()[-LAST_LINES_MAX:]
        return tuple(line[:LINE_MAX] for line in lines)

    def _progress_callback(self, tracked_task: TrackedTask) -> Callable[[str, int, int | None, str], None]:
        def report_progress(stage: str, done: int, total: int | None, unit: str) -> None:
            tracked_task.progress = TaskProgress(stage, done, total, unit)
            self.notify()

        return report_progress


def _room_key(task: Task) -> RoomKey:
    return RoomKey(task.tenant_id, task.allocation_id)


def _with_fence(task: Task, fence: int) -> Task:
    return task if task.fence == fence else msgspec.structs.replace(task, fence=fence)


def _failed_result(
    code: str, detail: str, exit_code: int | None = None, fields: ResultFields | None = None
) -> TaskResult:
    return TaskResult("failed", fields or {}, TaskFailure(code, detail, exit_code))
