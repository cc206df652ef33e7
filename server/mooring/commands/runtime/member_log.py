"""Reading a member's log for a person: create the task that reads on the node, and wait for its end."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mooring.commands.fleet import task as task_commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Work
from mooring.commands.live.log_watch import LogWatch
from mooring.core.fleet.task import Task, owner_name
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_log import (
    ANSWER_SECONDS,
    KnownPrograms,
    LogPart,
    LogReadContext,
    LogReadRequest,
    MemberProgram,
    build_read_task,
    choose_program,
    known_programs,
    last_known,
    outcome,
)
from mooring.storage.fleet import task as tasks
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime import member_log as logs


@dataclass(frozen=True, slots=True)
class LogTarget:
    """The program whose log is read, with its member and the other known programs."""

    member: Member
    known: KnownPrograms
    program: MemberProgram

    @property
    def refusal_details(self) -> dict[str, Any]:
        return {"member_id": self.member.id, **last_known(self.known, self.member, self.program)}


async def choose(work: Work[Any], ref: InstanceRef, member_id: str, service: str | None) -> LogTarget:
    """The member and the named program, or its only one."""
    member = require(await instances.find_member(work.database, work.acting, ref, member_id), "member")
    known = known_programs(await logs.concerning(work.database, work.acting, member.id))
    return LogTarget(member, known, choose_program(known, member, service))


async def read(
    work: Work[Any],
    target: LogTarget,
    request: LogReadRequest,
    watch: LogWatch,
    still_allowed: Callable[[], Awaitable[object]],
) -> LogPart:
    """Ask the node and wait for its answer; cancel the task if none comes in time."""
    task = await _start_read(work, target, request)
    deadline = time.monotonic() + request.wait_seconds + ANSWER_SECONDS
    while not task.is_over and not work.services.hub.closed:
        left = deadline - time.monotonic()
        if left <= 0:
            await _give_up(work, task)
            break
        await watch.wait(task.id, left)
        await still_allowed()
        task = require(await tasks.find(work.database, work.acting, task.project_id, task.id), "task")
    return outcome(task, target.refusal_details)


async def _start_read(work: Work[Any], target: LogTarget, request: LogReadRequest) -> Task:
    member = target.member
    new_task: list[Task] = []

    async def load() -> LogReadContext:
        ref = InstanceRef(member.project_id, member.instance_id)
        now = require(await instances.find_member(work.database, work.acting, ref, member.id), "member")
        if now.allocation_id is None:
            return LogReadContext(now, None, reachable=False)
        allocation = (await claims.allocations(work.database, work.acting, [now.allocation_id])).get(now.allocation_id)
        binding = (await instances.bindings(work.database, [now.allocation_id])).get(now.allocation_id)
        if allocation is None or binding is None or binding.node_id is None:
            return LogReadContext(now, allocation, reachable=False)
        owner = owner_name(allocation.id, now.id)
        open_reads = await logs.open_reads(work.database, binding.node_id, owner, now.project_id)
        return LogReadContext(now, allocation, bool(binding.reachable), *open_reads)

    def decide(context: LogReadContext) -> Any:
        decision = build_read_task(work.context, context, target.program, target.known, request)
        new_task[:] = [decision.result]
        return decision

    try:
        await work.execute(load, decide)
    except Refusal as refusal:
        if refusal.code is not Code.ILLEGAL_TRANSITION:
            raise
        detail = f"member {member.name} is being torn down, and its logs are removed with it"
        raise Refusal(Code.CONFLICT, detail, target.refusal_details) from refusal
    work.services.hub.notify((EventType.TASK_QUEUED.value,))  # a log read has no event, so wake the dispatcher here
    return new_task[0]


async def _give_up(work: Work[Any], task: Task) -> None:
    """Cancel the task, so that a node that comes late need not start it."""
    try:
        await task_commands.cancel(work, task.project_id, task.id)
    except Refusal as refusal:
        if refusal.code is not Code.ILLEGAL_TRANSITION:  # it has just ended
            raise
