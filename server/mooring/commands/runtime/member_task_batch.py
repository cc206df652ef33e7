"""Many tasks of an adapter's at once: what they stand on is read together, and what may be made is written together.

Each of them has its own outcome: one that is refused keeps none of the others from being made. What is not a matter of
one task, such as a lost fence or an action that the account does not hold, refuses them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.adapter import ClaimRef, held, under_correlation
from mooring.commands.runtime.member_task import ArtifactEvaluator, filled, require_grants
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import NewTask, TaskRequest, make_task
from mooring.core.kernel.decision import Decision, Insert, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member_task import (
    MemberTaskRequest,
    TaskMaking,
    TaskTarget,
    check_ground,
    guards_of,
    require_distinct,
    require_same,
)
from mooring.core.runtime.operation import Operation
from mooring.storage.fleet import runtime_secret as runtime_secrets
from mooring.storage.fleet import task as tasks
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances

WHOLE: Final = frozenset({Code.PERMISSION_DENIED, Code.TEMPORARILY_UNAVAILABLE})
Judged = Mapping[str, TaskRequest | Refusal]


async def make_many(
    work: Work[list[TaskMaking]], claimed: ClaimRef, operation_id: str | None, wishes: Sequence[MemberTaskRequest]
) -> Answered:
    """Make these tasks; each that was made under its name before is answered as it is."""
    require_distinct(wishes)
    for each in wishes:
        require_grants(work, claimed, each)
    first = [await _grounds(work, claimed, operation_id, wishes)]
    work = under_correlation(work, first[0].operation or first[0].instance)
    judged = await _judged(work, first[0], wishes)

    async def load() -> _BatchContext:
        return first.pop() if first else await _grounds(work, claimed, operation_id, wishes)

    def decide(seen: _BatchContext) -> Decision[list[TaskMaking]]:
        made, outcomes = list[NewTask](), list[TaskMaking]()
        guards: dict[str, Write] = {}
        for wish in wishes:
            try:
                outcome = _decided(work, seen, wish, judged)
            except Refusal as refusal:
                outcomes.append(TaskMaking(wish.step, refusal=_of_one(refusal)))
                continue
            if isinstance(outcome, NewTask):
                made.append(outcome)
                guards |= {str(each.seen["id"]): each for each in guards_of(seen.grounds[wish.member_id])}
            outcomes.append(TaskMaking(wish.step, outcome.task if isinstance(outcome, NewTask) else outcome))
        if not made:
            return Decision(outcomes)
        births = [write for each in made for write in each.writes]
        births.sort(key=lambda write: not isinstance(write, Insert) or not write.born)  # what is granted comes after
        return Decision(
            outcomes,
            (guard_of(seen.claim), *guards.values(), *births),
            tuple(event for each in made for event in each.events),
            tuple(audit for each in made for audit in each.audits),
        )

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _BatchContext:
    """What all of them are decided on: the claim, where each goes, and the tasks that have their names already."""

    claim: InstanceClaim
    instance: Instance
    operation: Operation | None
    grounds: Mapping[str, TaskTarget]  # by member
    earlier: Mapping[str, Task]  # by step


async def _grounds(
    work: Work[Any], claimed: ClaimRef, operation_id: str | None, wishes: Sequence[MemberTaskRequest]
) -> _BatchContext:
    database, acting = work.database, work.acting
    claim, instance = await held(work.database, acting, claimed)
    operation = None
    if operation_id is not None:
        operation = require(await instances.find_operation(database, acting, claimed.place, operation_id), "operation")
    members = await claims.members(database, acting, instance.id, sorted({each.member_id for each in wishes}))
    places = await claims.allocations(database, acting, [each.allocation_id or "" for each in members])
    secrets = any(each.grants for each in wishes)
    kept = await runtime_secrets.of_owner(database, acting, claimed.project_id, instance.id) if secrets else []
    by_name = {each.name: each for each in kept}
    grounds = {
        each.id: TaskTarget(instance, each, places.get(each.allocation_id or ""), operation, by_name)
        for each in members
    }
    names = [
        (grounds[each.member_id].member.allocation_id or "", each.step) for each in wishes if each.member_id in grounds
    ]
    earlier = await tasks.find_all_named(database, acting, operation_id, names)
    return _BatchContext(claim, instance, operation, grounds, {each.step: each for each in earlier})


async def _judged(work: Work[Any], seen: _BatchContext, wishes: Sequence[MemberTaskRequest]) -> Judged:
    """Each that is not there yet with all that an adapter leaves to the platform, or why it may not be made."""
    judging, judged = ArtifactEvaluator(work, seen.instance), dict[str, TaskRequest | Refusal]()
    for wish in wishes:
        ground = seen.grounds.get(wish.member_id)
        if wish.step in seen.earlier or ground is None:
            continue
        try:
            judged[wish.step] = await filled(work, ground, wish, judging)
        except Refusal as refusal:
            judged[wish.step] = _of_one(refusal)
    return judged


def _decided(work: Work[Any], seen: _BatchContext, request: MemberTaskRequest, judged: Judged) -> NewTask | Task:
    """The new task, or the one of this name that is there; a Refusal where there is to be none."""
    ground = require(seen.grounds.get(request.member_id), "member")
    earlier, wanted = seen.earlier.get(request.step), judged.get(request.step)
    if earlier is not None or wanted is None:
        return require_same(require(earlier, "task"), ground)
    if isinstance(wanted, Refusal):
        raise wanted
    check_ground(ground, request)  # reading what it carries takes its time, and the member may be gone since
    return make_task(work.context, wanted)


def _of_one(refusal: Refusal) -> Refusal:
    """A refusal that concerns one task alone; what its caller may not do at all is refused as such, and noted."""
    if refusal.code in WHOLE:
        raise refusal
    return refusal
