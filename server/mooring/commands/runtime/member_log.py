"""Reading a member's log for a person: the task that goes to the node, and the wait for its end."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from mooring.commands.fleet import task as tasks_of
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Work
from mooring.commands.live.log_watch import LogWatch
from mooring.core.fleet.task import Task, owner_name
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_log import (
    ANSWER_SECONDS,
    KnownPrograms,
    LogPart,
    LogReadContext,
    LogReadRequest,
    MemberProgram,
    ask,
    chosen,
    known_of,
    last_known,
    outcome,
)
from mooring.storage.fleet import task as tasks
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime import member_log as logs


async def choose(
    work: Work[Any], place: tuple[str, str], member_id: str, service: str | None
) -> tuple[Member, KnownPrograms, MemberProgram]:
    """The member, and which of its programs is meant."""
    member = require(await instances.find_member(work.database, work.acting, place, member_id), "member")
    known = known_of(await logs.concerning(work.database, work.acting, member.id))
    return member, known, chosen(known, member, service)


async def read(
    work: Work[Any],
    about: tuple[Member, KnownPrograms, MemberProgram],
    wanted: LogReadRequest,
    watch: LogWatch,
    still_allowed: Callable[[], Awaitable[object]],
) -> LogPart:
    """Ask the node, and wait until it has answered or its time is over; then nobody waits for the task any more."""
    member, known, program = about
    task = await _asked(work, about, wanted)
    deadline = time.monotonic() + wanted.wait_seconds + ANSWER_SECONDS
    while not task.is_over and not work.services.hub.closed:
        left = deadline - time.monotonic()
        if left <= 0:
            await _give_up(work, task)
            break
        await watch.wait(task.id, left)
        await still_allowed()
        task = require(await tasks.find(work.database, work.acting, task.project_id, task.id), "task")
    return outcome(task, {"member_id": member.id, **last_known(known, member, program)})


async def _asked(work: Work[Any], about: tuple[Member, KnownPrograms, MemberProgram], wanted: LogReadRequest) -> Task:
    member, known, program = about
    made: list[Task] = []

    async def load() -> LogReadContext:
        place = (member.project_id, member.instance_id)
        now = require(await instances.find_member(work.database, work.acting, place, member.id), "member")
        if now.allocation_id is None:
            return LogReadContext(now, None, reachable=False)
        allocation = (await claims.allocations(work.database, work.acting, [now.allocation_id])).get(now.allocation_id)
        bound = (await instances.bindings(work.database, [now.allocation_id])).get(now.allocation_id)
        if allocation is None or bound is None or bound.node_id is None:
            return LogReadContext(now, allocation, reachable=False)
        owner = owner_name(allocation.id, now.id)
        open_ = await logs.open_reads(work.database, bound.node_id, owner, now.project_id)
        return LogReadContext(now, allocation, bool(bound.reachable), *open_)

    def decide(ground: LogReadContext) -> Any:
        decision = ask(work.context, ground, program, known, wanted)
        made[:] = [decision.result]
        return decision

    try:
        await work.execute(load, decide)
    except Refusal as refusal:
        if refusal.code is not Code.ILLEGAL_TRANSITION:
            raise
        told = {"member_id": member.id, **last_known(known, member, program)}
        raise Refusal(Code.CONFLICT, f"member {member.name} is torn down, and its logs go with it", told) from refusal
    work.services.hub.notify((EventType.TASK_QUEUED.value,))  # no event: whoever hands tasks out here is woken at once
    return made[0]


async def _give_up(work: Work[Any], task: Task) -> None:
    """Nobody waits for it any more: a node that comes later need not begin."""
    try:
        await tasks_of.cancel(work, task.project_id, task.id)
    except Refusal as refusal:
        if refusal.code is not Code.ILLEGAL_TRANSITION:  # it ended a moment ago
            raise
