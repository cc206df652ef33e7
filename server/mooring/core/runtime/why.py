"""Why something is in its state: the chain of causes, from the subject down to the root cause, and one next step.

Pure: a snapshot in, a chain out. The chain leads from an instance to its operation, from there to a member, its
allocation, its node, the failed or running task, or the missing adapter. It ends at the first link that explains
itself, and the next step of that link is the answer. What continues automatically says so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation, AllocationState
from mooring.core.fleet.task import Task, TaskState
from mooring.core.fleet.task_family import FailureCode
from mooring.core.runtime.instance import InstanceHealth, InstanceState
from mooring.core.runtime.instance_reconcile import NO_CAPACITY, WAITING
from mooring.core.runtime.instance_snapshot import InstanceSnapshot, MemberSnapshot
from mooring.core.runtime.instance_teardown import SOMETHING_LEFT, UNREACHABLE, why_waiting
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.next_steps import (
    ADAPTER_BLOCKED,
    ADAPTER_MISSING,
    BY_ITSELF,
    HELD,
    NEXT_OF_BLOCKER,
    NODE_SILENT,
    NOTHING,
    UNHEALTHY,
    VAGUE,
    NextStep,
    next_of_allocation,
    next_of_failure,
    next_of_task,
    retry_command,
)
from mooring.core.runtime.operation import Operation, OperationFailure, OperationKind, OperationState, Phase

LINES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class WhyCause:
    """One link of the chain: what it is, its status, and the explanation."""

    noun: str
    id: str
    name: str
    status: str
    text: str
    code: str | None = None
    since: datetime | None = None
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Why:
    """The chain of causes, the subject first, and the one next step."""

    chain: tuple[WhyCause, ...]
    next: NextStep


@dataclass(frozen=True, slots=True)
class WhyFacts:
    """The known facts: the instance's snapshot, its ended operations, and the relevant tasks."""

    snapshot: InstanceSnapshot
    now: datetime
    ended: tuple[Operation, ...] = ()  # ended operations, newest first
    failed: tuple[Task, ...] = ()  # tasks that did not succeed, newest first
    open: tuple[Task, ...] = ()  # open tasks, oldest first
    circuit: str | None = None  # why the circuit breaker forbids launches of this version


Link = tuple[tuple[WhyCause, ...], NextStep]


def why_instance(facts: WhyFacts) -> Why:
    instance = facts.snapshot.instance
    state = InstanceState(instance.status)
    detail = instance.failure_detail if state is InstanceState.FAILED else instance.health_detail
    own = WhyCause(
        "instance",
        instance.id,
        instance.name,
        instance.status,
        detail or _state_text(state, instance.health),
        instance.failure_code,
        instance.failed_at or instance.health_at,
        _lines(instance.last_lines),
    )
    chain, following = _below_instance(facts, state)
    return Why((own, *chain), following)


def why_member(facts: WhyFacts, member: Member) -> Why:
    """Why a member is in its state; a removed one has only itself in the chain."""
    member_snapshot = next(
        (each for each in facts.snapshot.members if each.member.id == member.id), MemberSnapshot(member)
    )
    chain, following = _member(facts, member_snapshot, ())
    return Why(chain, following)


def why_operation(facts: WhyFacts, operation: Operation) -> Why:
    chain, following = _operation(facts, operation)
    return Why(chain, following)


# An instance --------------------------------------------------------------------------------------------------------


def _below_instance(facts: WhyFacts, state: InstanceState) -> Link:
    snapshot, instance = facts.snapshot, facts.snapshot.instance
    if state is InstanceState.STOPPED:
        return (), NextStep(NOTHING.who, f"no action is needed: {instance.teardown_proof} prove that nothing is left")
    if state is InstanceState.FAILED:
        return _failed_instance(facts)
    if snapshot.operations:
        return _operation(facts, min(snapshot.operations, key=_weight))
    troubled = [each for each in snapshot.members if _trouble(each)]
    if troubled:
        return _member(facts, min(troubled, key=_severity), ())
    if state is InstanceState.RUNNING and not snapshot.watch.is_held(facts.now):
        return (_adapter(facts),), ADAPTER_MISSING
    if instance.health == InstanceHealth.DEGRADED:
        return (), replace(UNHEALTHY, command=f"mooring instances repair {instance.id}")
    return (), NOTHING if state is InstanceState.RUNNING else BY_ITSELF


def _failed_instance(facts: WhyFacts) -> Link:
    """What made it fail, and the open circuit if there is one."""
    instance = facts.snapshot.instance
    failed = next((each for each in facts.ended if each.failure_code is not None), facts.snapshot.ended)
    links: tuple[WhyCause, ...] = ()
    following = next_of_failure(instance.failure_code or "", f"mooring instances stop {instance.id}")
    if failed is not None and failed.failure_code == instance.failure_code:
        links, following = _operation(facts, failed)
    if facts.circuit is not None:
        circuit = WhyCause("circuit", instance.version_id, instance.version, "open", facts.circuit, "circuit_open")
        links = (*links, circuit)
    return links, following


def _weight(operation: Operation) -> tuple[bool, bool, datetime]:
    """The sort key of open operations: a decommission explains the instance best, then a blocked one."""
    return (
        operation.kind != OperationKind.DECOMMISSION,
        operation.status != OperationState.BLOCKED,
        operation.created_at,
    )


def _trouble(each: MemberSnapshot) -> bool:
    member = each.member
    unreachable = each.node is not None and each.node.unreachable_since is not None
    settled = member.status in (MemberState.READY, MemberState.DRAINED, MemberState.REMOVED)
    return not settled or unreachable or member.health == InstanceHealth.DEGRADED


def _severity(each: MemberSnapshot) -> tuple[bool, bool, str]:
    return each.member.status != MemberState.FAILED, each.member.health != InstanceHealth.DEGRADED, each.member.name


# An operation -------------------------------------------------------------------------------------------------------


def _operation(facts: WhyFacts, operation: Operation) -> Link:
    status = OperationState(operation.status)
    text = operation.failure_detail or operation.blocker or operation.cancel_reason or _how_far(operation)
    code = operation.failure_code or operation.blocker_code
    since = operation.finished_at or operation.started_at or operation.created_at
    own = WhyCause(
        "operation", operation.id, operation.kind, operation.status, text, code, since, _lines(operation.last_lines)
    )
    chain, following = _BELOW.get(status, _open_operation)(facts, operation)
    return (own, *chain), following


def _succeeded(facts: WhyFacts, operation: Operation) -> Link:
    return (), NOTHING


def _cancelled(facts: WhyFacts, operation: Operation) -> Link:
    return (), next_of_failure(OperationFailure.CANCELLED, retry_command(facts.snapshot.instance, operation))


def _failed_operation(facts: WhyFacts, operation: Operation) -> Link:
    code = operation.failure_code or ""
    following = next_of_failure(code, retry_command(facts.snapshot.instance, operation))
    task = _culprit(facts, code, operation.id)
    if task is None:
        dead = [each for each in _concerned(facts, operation) if _is_dead(each.allocation)]
        return ((_allocation(dead[0].allocation),), following) if dead and dead[0].allocation else ((), following)
    better = next_of_task(task.failure_code) if code in VAGUE else None
    chain = (*_member_of(facts, task), _failed_task(task))
    return chain, following if better is None else replace(better, command=following.command)


def _culprit(facts: WhyFacts, code: str, operation_id: str) -> Task | None:
    """The failed task that explains the operation's failure; a failed probe does not explain an exited program."""
    ended = code == OperationFailure.RUNTIME_ERROR
    for each in facts.failed:
        if each.operation_id == operation_id and not (ended and each.failure_code == FailureCode.PROBE_FAILED):
            return each
    return None


def _cancelling(facts: WhyFacts, operation: Operation) -> Link:
    if not facts.snapshot.watch.is_held(facts.now):
        return (_adapter(facts),), BY_ITSELF
    until = operation.phase_deadline_at
    what = "its adapter undoes what it started" + (f", until {_timestamp(until)} at the latest" if until else "")
    return (), NextStep(BY_ITSELF.who, what)


def _open_operation(facts: WhyFacts, operation: Operation) -> Link:
    if operation.phase == Phase.PLATFORM:
        return _teardown(facts, operation)
    waiting = [each for each in _concerned(facts, operation) if _waits_for_capacity(each)]
    if operation.dispatched_at is None and waiting:
        return _capacity(waiting)
    silent = next((each for each in _concerned(facts, operation) if _is_unreachable(each)), None)
    if silent is not None:
        return (*_member_cause(silent), _node(silent)), NODE_SILENT
    if not facts.snapshot.watch.is_held(facts.now):
        return (_adapter(facts),), ADAPTER_MISSING
    if operation.status == OperationState.BLOCKED:
        return (_adapter(facts),), NEXT_OF_BLOCKER.get(operation.blocker_code or "", ADAPTER_BLOCKED)
    task = next((each for each in facts.open if each.operation_id == operation.id), None)
    if task is not None:
        return (*_member_of(facts, task), _open_task(task)), BY_ITSELF
    return (_adapter(facts),), BY_ITSELF


def _teardown(facts: WhyFacts, operation: Operation) -> Link:
    """In the platform's phase: what the end of a member waits for."""
    for each in facts.snapshot.torn_down_by(operation):
        reason = why_waiting(each)
        if reason is None:
            continue
        if _is_unreachable(each):
            node = each.node
            command = None if node is None else f"mooring nodes write-off {node.id}"
            return (*_member_cause(each), _node(each)), replace(NEXT_OF_BLOCKER[UNREACHABLE], command=command)
        receipt = each.receipt_id
        command = None if receipt is None else f"mooring receipts get {receipt}"
        return _member_cause(each), replace(NEXT_OF_BLOCKER[SOMETHING_LEFT], command=command)
    task = next((each for each in facts.open if each.operation_id == operation.id), None)
    if task is not None:
        return (*_member_of(facts, task), _open_task(task)), BY_ITSELF
    return (), BY_ITSELF


def _capacity(waiting: Sequence[MemberSnapshot]) -> Link:
    """The allocation to blame: the first one with a blocker, otherwise the first."""
    first = min(
        waiting, key=lambda each: (each.allocation is None or each.allocation.blocker is None, each.member.name)
    )
    allocation = first.allocation
    if allocation is None:
        return _member_cause(first), BY_ITSELF
    chain = (*_member_cause(first), _allocation(allocation))
    if _is_dead(allocation):
        return chain, next_of_allocation(allocation.failure_code)
    if _is_unreachable(first):
        return (*chain, _node(first)), NODE_SILENT
    if allocation.blocker is None:
        return chain, NEXT_OF_BLOCKER[WAITING]
    arguments = f"--shape {allocation.shape} --sku {allocation.sku_slug} --gpu-count {allocation.gpu_count}"
    command = f"mooring allocations explain {arguments}"
    return chain, replace(NEXT_OF_BLOCKER[NO_CAPACITY], command=command)


def _waits_for_capacity(each: MemberSnapshot) -> bool:
    return each.allocation is not None and each.allocation.status != AllocationState.ACTIVE


def _concerned(facts: WhyFacts, operation: Operation) -> tuple[MemberSnapshot, ...]:
    return facts.snapshot.concerned(operation)


def _how_far(operation: Operation) -> str:
    done = sum(1 for each in operation.steps if each.get("status") in ("done", "skipped"))
    running = [str(each.get("name")) for each in operation.steps if each.get("status") == "running"]
    text = f"{done} of {len(operation.steps)} steps are done" if operation.steps else "no step is reported yet"
    return text + (f", under way: {', '.join(running[:5])}" if running else "")


_BELOW: Final[Mapping[OperationState, Callable[[WhyFacts, Operation], Link]]] = {
    OperationState.SUCCEEDED: _succeeded,
    OperationState.CANCELLED: _cancelled,
    OperationState.FAILED: _failed_operation,
    OperationState.CANCELLING: _cancelling,
}


# A member -----------------------------------------------------------------------------------------------------------


def _member(facts: WhyFacts, each: MemberSnapshot, above: tuple[str, ...]) -> Link:
    member, instance = each.member, facts.snapshot.instance
    own = _member_cause(each)
    if member.status == MemberState.REMOVED:
        return own, NextStep(NOTHING.who, "no action is needed: its closing record shows how it ended")
    if member.status == MemberState.FAILED:
        return _failed_member(facts, each)
    operation = next((one for one in facts.snapshot.operations if _names(one, member) and one.id not in above), None)
    if operation is not None:
        chain, following = _operation(facts, operation)
        return (*own, *chain), following
    if _is_unreachable(each):
        return (*own, _node(each)), NODE_SILENT
    if _is_dead(each.allocation) and each.allocation is not None:
        return (*own, _allocation(each.allocation)), next_of_allocation(each.allocation.failure_code)
    if member.holds:
        return own, HELD
    if member.health == InstanceHealth.DEGRADED or member.status == MemberState.DEGRADED:
        return own, replace(UNHEALTHY, command=f"mooring instances repair {instance.id}")
    return own, NOTHING if member.status in (MemberState.READY, MemberState.DRAINED) else BY_ITSELF


def _failed_member(facts: WhyFacts, each: MemberSnapshot) -> Link:
    member, instance = each.member, facts.snapshot.instance
    command = f"mooring instances members remove {instance.id} {member.id}"
    following = next_of_failure(member.failure_code or "", command)
    chain = _member_cause(each)
    task = next((one for one in facts.failed if one.member_id == member.id), None)
    if task is not None:
        better = next_of_task(task.failure_code) if member.failure_code in VAGUE else None
        return (*chain, _failed_task(task)), following if better is None else replace(better, command=command)
    if _is_unreachable(each) or (each.node is not None and each.node.is_gone):
        return (*chain, _node(each)), following
    return chain, following


def _names(operation: Operation, member: Member) -> bool:
    return member.id in operation.member_ids or operation.kind == OperationKind.DECOMMISSION


# Links --------------------------------------------------------------------------------------------------------------


def _member_cause(each: MemberSnapshot) -> tuple[WhyCause, ...]:
    member = each.member
    held = "; ".join(f"held by {one.get('owner')}: {one.get('reason')}" for one in member.holds[:5])
    text = member.failure_detail or member.blocker or member.health_detail or held
    return (
        WhyCause(
            "member",
            member.id,
            member.name,
            member.status,
            text or f"it is {member.status}",
            member.failure_code,
            member.failed_at or member.health_at or member.created_at,
            _lines(member.last_lines),
        ),
    )


def _member_of(facts: WhyFacts, task: Task) -> tuple[WhyCause, ...]:
    found = next((each for each in facts.snapshot.members if each.member.id == task.member_id), None)
    return () if found is None else _member_cause(found)


def _allocation(allocation: Allocation) -> WhyCause:
    text = allocation.failure_detail or allocation.blocker or f"it is {allocation.status}"
    return WhyCause(
        "allocation",
        allocation.id,
        allocation.name,
        allocation.status,
        text,
        allocation.failure_code,
        allocation.failed_at or allocation.created_at,
    )


def _node(each: MemberSnapshot) -> WhyCause:
    node = each.node
    if node is None:
        raise ValueError("a member without a node cannot be explained by one")
    if node.is_gone:
        return WhyCause("node", node.id, node.id, node.status, "it is gone for good", "node_lost")
    since = node.unreachable_since
    text = "it answers" if since is None else f"its agent has been silent since {_timestamp(since)}"
    return WhyCause("node", node.id, node.id, node.status, text, "node_unreachable" if since else None, since)


def _adapter(facts: WhyFacts) -> WhyCause:
    watch, instance = facts.snapshot.watch, facts.snapshot.instance
    held = watch.is_held(facts.now)
    text = (
        f"{watch.holder} holds the instance"
        if held
        else f"no adapter holds the instance; one was last seen: {watch.last_seen()}"
    )
    return WhyCause(
        "adapter",
        instance.service_account_id,
        instance.app_slug,
        "present" if held else "absent",
        text,
        None if held else "adapter_unavailable",
        watch.adapter_seen_at,
    )


def _failed_task(task: Task) -> WhyCause:
    code = f" (exit code {task.exit_code})" if task.exit_code is not None else ""
    text = (task.failure_detail or f"it {task.status}") + code
    return WhyCause(
        "task", task.id, task.type, task.status, text, task.failure_code, task.finished_at, _lines(task.last_lines)
    )


def _open_task(task: Task) -> WhyCause:
    waits = task.status == TaskState.QUEUED
    text = f"it waits for the agent of node {task.node_id}" if waits else f"node {task.node_id} is running it"
    if task.progress:
        text += f": {_progress(task.progress)}"
    return WhyCause("task", task.id, task.type, task.status, text, None, task.first_claimed_at or task.created_at)


def _progress(progress: Mapping[str, Any]) -> str:
    whole = f" of {progress['total']}" if progress.get("total") else ""
    return f"{progress.get('stage') or 'at'} {progress.get('done', 0)}{whole} {progress.get('unit') or ''}".strip()


def _is_unreachable(each: MemberSnapshot) -> bool:
    return each.node is not None and each.node.unreachable_since is not None and not each.node.is_gone


def _is_dead(allocation: Allocation | None) -> bool:
    dead = (AllocationState.FAILED, AllocationState.RELEASED, AllocationState.RELEASE_FAILED)
    return allocation is not None and allocation.status in dead


def _lines(lines: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(lines or ())[-LINES_MAX:]


def _state_text(state: InstanceState, health: str) -> str:
    return f"it is {state.value}" + (f" and {health}" if state is InstanceState.RUNNING else "")


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
