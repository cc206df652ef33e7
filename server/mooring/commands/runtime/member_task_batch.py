"""Creating many tasks of an adapter at once: their facts are read together, and the allowed ones written together.

Each task has its own outcome: a refused one does not keep the others from being created. Refusals that concern the
whole request, such as a stale fence or a missing action, refuse all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.adapter import ClaimRef, require_claim, under_correlation
from mooring.commands.runtime.member_task import (
    ArtifactEvaluator,
    complete_request,
    count_open,
    launch_secrets,
    require_grants,
)
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import NewTask, TaskRequest, check_room, make_task
from mooring.core.kernel.decision import Decision, Insert, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member_task import (
    MemberTaskRequest,
    TaskCreationResult,
    TaskTarget,
    check_target,
    guards_of,
    require_distinct,
    require_same,
)
from mooring.core.runtime.operation import Operation
from mooring.storage.fleet import runtime_secret as runtime_secrets
from mooring.storage.fleet import task as tasks
from mooring.storage.runtime import claim as claims
from mooring.storage.runtime import instance as instances

WHOLE_REQUEST: Final = frozenset({Code.PERMISSION_DENIED, Code.TEMPORARILY_UNAVAILABLE})
EvaluatedRequests = Mapping[str, TaskRequest | Refusal]


async def make_many(
    work: Work[list[TaskCreationResult]], ref: ClaimRef, operation_id: str | None, requests: Sequence[MemberTaskRequest]
) -> Answered:
    """Create these tasks; one that was created under its name before is returned as it is."""
    require_distinct(requests)
    for each in requests:
        require_grants(work, ref, each)
    with work.services.open_tasks.reserve(ref.project_id, len(requests)) as reserved:
        return await _make_many(work, ref, operation_id, requests, reserved=reserved)


async def _make_many(
    work: Work[list[TaskCreationResult]],
    ref: ClaimRef,
    operation_id: str | None,
    requests: Sequence[MemberTaskRequest],
    *,
    reserved: int,
) -> Answered:
    first = [await _load(work, ref, operation_id, requests)]
    work = work if first[0].operation is None else under_correlation(work, first[0].operation)
    evaluated = await _evaluate(work, first[0], requests)

    async def load() -> _BatchContext:
        return first.pop() if first else await _load(work, ref, operation_id, requests)

    def decide(current: _BatchContext) -> Decision[list[TaskCreationResult]]:
        new_tasks, outcomes = list[NewTask](), list[TaskCreationResult]()
        guards: dict[str, Write] = {}
        for request in requests:
            try:
                outcome = _decided(work, current, request, evaluated, reserved + len(new_tasks))
            except Refusal as refusal:
                outcomes.append(TaskCreationResult(request.step, refusal=_single_refusal(refusal)))
                continue
            if isinstance(outcome, NewTask):
                new_tasks.append(outcome)
                guards |= {str(each.seen["id"]): each for each in guards_of(current.targets[request.member_id])}
            outcomes.append(TaskCreationResult(request.step, outcome.task if isinstance(outcome, NewTask) else outcome))
        if not new_tasks:
            return Decision(outcomes)
        writes = [write for each in new_tasks for write in each.writes]
        writes.sort(
            key=lambda write: not isinstance(write, Insert) or not write.born
        )  # grants come after the tasks they belong to
        return Decision(
            outcomes,
            (guard_of(current.claim), *guards.values(), *writes),
            tuple(event for each in new_tasks for event in each.events),
            tuple(audit for each in new_tasks for audit in each.audits),
            traceless=all(each.task.is_quiet for each in new_tasks),
        )

    return await work.execute(load, decide)


@dataclass(frozen=True, slots=True)
class _BatchContext:
    """The facts on which all tasks are decided: the claim, the targets, and earlier tasks of the same names."""

    claim: InstanceClaim
    instance: Instance
    operation: Operation | None
    targets: Mapping[str, TaskTarget]  # by member
    earlier: Mapping[str, Task]  # by step
    open_count: int


async def _load(
    work: Work[Any], ref: ClaimRef, operation_id: str | None, requests: Sequence[MemberTaskRequest]
) -> _BatchContext:
    database, acting = work.database, work.acting
    claim, instance = await require_claim(work.database, acting, ref)
    operation = None
    if operation_id is not None:
        operation = require(await instances.find_operation(database, acting, ref.instance, operation_id), "operation")
    members = await claims.members(database, acting, instance.id, sorted({each.member_id for each in requests}))
    allocations = await claims.allocations(database, acting, [each.allocation_id or "" for each in members])
    needs_secrets = any(each.grants for each in requests)
    secrets = await runtime_secrets.of_owner(database, acting, ref.project_id, instance.id) if needs_secrets else []
    by_name = {each.name: each for each in secrets}
    launched_with = await launch_secrets(work, instance, requests)
    targets = {
        each.id: TaskTarget(
            instance, each, allocations.get(each.allocation_id or ""), operation, by_name, launched_with
        )
        for each in members
    }
    names = [
        (targets[each.member_id].member.allocation_id or "", each.step)
        for each in requests
        if each.member_id in targets
    ]
    earlier = await tasks.find_all_named(database, acting, operation_id, names)
    by_step = {each.step: each for each in earlier}
    return _BatchContext(claim, instance, operation, targets, by_step, await count_open(work, ref))


async def _evaluate(
    work: Work[Any], current: _BatchContext, requests: Sequence[MemberTaskRequest]
) -> EvaluatedRequests:
    """Each new request with everything that the platform fills in, or the refusal."""
    evaluator, evaluated = ArtifactEvaluator(work, current.instance), dict[str, TaskRequest | Refusal]()
    for request in requests:
        target = current.targets.get(request.member_id)
        if request.step in current.earlier or target is None:
            continue
        try:
            evaluated[request.step] = await complete_request(work, target, request, evaluator)
        except Refusal as refusal:
            evaluated[request.step] = _single_refusal(refusal)
    return evaluated


def _decided(
    work: Work[Any],
    current: _BatchContext,
    request: MemberTaskRequest,
    evaluated: EvaluatedRequests,
    new_count: int,
) -> NewTask | Task:
    """The new task, or the existing one of this name; raises the Refusal if there is one."""
    target = require(current.targets.get(request.member_id), "member")
    earlier, evaluated_request = current.earlier.get(request.step), evaluated.get(request.step)
    if earlier is not None or evaluated_request is None:
        return require_same(require(earlier, "task"), target)
    if isinstance(evaluated_request, Refusal):
        raise evaluated_request
    check_target(target, request)  # evaluating artifacts takes a while, and the member may be gone by now
    check_room(current.open_count + new_count, work.services.settings.open_tasks_per_project_max)
    return make_task(work.context, evaluated_request)


def _single_refusal(refusal: Refusal) -> Refusal:
    """A refusal that concerns one task only; raises those that refuse the whole request."""
    if refusal.code in WHOLE_REQUEST:
        raise refusal
    return refusal
