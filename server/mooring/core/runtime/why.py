"""Why something is in its state: the chain of causes, from the subject down to the root cause, and one next step.

Pure: a snapshot in, a chain out. The chain leads from an instance to its operation, from there to a member, its
allocation, its node, the failed or running task, or the missing adapter. It ends at the first link that explains
itself, and the next step of that link is the answer. What continues automatically says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation, AllocationState
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_family import FailureCode
from mooring.core.runtime.instance import InstanceHealth, InstanceState
from mooring.core.runtime.instance_loss import ALLOCATION_ID, SYSTEM
from mooring.core.runtime.instance_reconcile import NO_CAPACITY, WAITING
from mooring.core.runtime.instance_snapshot import InstanceSnapshot, MemberSnapshot
from mooring.core.runtime.instance_teardown import SOMETHING_LEFT, UNREACHABLE, why_waiting
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.next_steps import (
    ACCOUNT_DISABLED,
    ACCOUNT_REFUSED,
    ADAPTER_BLOCKED,
    ADAPTER_MISSING,
    BY_ITSELF,
    HELD,
    NEXT_OF_BLOCKER,
    NODE_SILENT,
    NOT_QUIET,
    NOTHING,
    UNHEALTHY,
    UNTRUSTED,
    VAGUE,
    NextStep,
    next_of_allocation,
    next_of_failure,
    next_of_task,
    retry_command,
)
from mooring.core.runtime.operation import Operation, OperationFailure, OperationKind, OperationState, Phase
from mooring.core.runtime.why_cause import (
    WhyCause,
    allocation_cause,
    failed_task_cause,
    lines_of,
    member_cause,
    node_cause,
    open_task_cause,
    operation_cause,
    timestamp,
)


@dataclass(frozen=True, slots=True)
class Why:
    """The chain of causes, the subject first, and the one next step."""

    chain: tuple[WhyCause, ...]
    next: NextStep


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """The operator account of an instance, and the newest request that was refused to it lately."""

    id: str
    name: str
    status: str
    disabled_at: datetime | None = None
    refused_action: str | None = None
    refused_reason: str | None = None
    refused_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WhyFacts:
    """The known facts: the instance's snapshot, its ended operations, and the relevant tasks."""

    snapshot: InstanceSnapshot
    now: datetime
    ended: tuple[Operation, ...] = ()  # ended operations, newest first
    failed: tuple[Task, ...] = ()  # tasks that did not succeed, newest first
    open: tuple[Task, ...] = ()  # open tasks, oldest first
    circuit: str | None = None  # why the circuit breaker forbids launches of this version
    account: OperatorFacts | None = None  # the account of the instance's adapter
    released: tuple[Allocation, ...] = ()  # released allocations that caused operations
    distrusted_by: str | None = None  # who withdrew the trust in its first untrusted artifact, if readers may know


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
        lines_of(instance.last_lines),
    )
    chain, following = _below_instance(facts, state)
    if instance.distrust is not None and state in (InstanceState.RUNNING, InstanceState.STOPPING):
        chain = (*chain, _untrusted(facts, instance.distrust))
        if not facts.snapshot.operations:
            following = replace(UNTRUSTED, command=f"mooring instances upgrade {instance.id}")
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
        proof = NextStep(NOTHING.who, f"no action is needed: {instance.teardown_proof} prove that nothing is left")
        return _stopped_by(facts), proof
    if state is InstanceState.FAILED:
        return _failed_instance(facts)
    if snapshot.operations:
        return _operation(facts, min(snapshot.operations, key=_weight))
    troubled = [each for each in snapshot.members if _trouble(each)]
    if troubled:
        return _member(facts, min(troubled, key=_severity), ())
    if state is InstanceState.RUNNING and not snapshot.watch.is_held(facts.now):
        return _without_adapter(facts)
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


def _stopped_by(facts: WhyFacts) -> tuple[WhyCause, ...]:
    """The operation that stopped it, if the platform did so by itself, and the released allocation that caused it."""
    stop = next((each for each in facts.ended if each.kind == OperationKind.DECOMMISSION), None)
    if stop is None or stop.requested_by != SYSTEM:
        return ()
    return (operation_cause(stop), *_released(facts, stop))


def _released(facts: WhyFacts, operation: Operation) -> tuple[WhyCause, ...]:
    wanted = operation.request.get(ALLOCATION_ID)
    return tuple(allocation_cause(each) for each in facts.released if each.id == wanted)


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
    chain, following = _BELOW.get(OperationState(operation.status), _open_operation)(facts, operation)
    return (operation_cause(operation), *(chain or _released(facts, operation))), following


def _succeeded(facts: WhyFacts, operation: Operation) -> Link:
    return (), NOTHING


def _cancelled(facts: WhyFacts, operation: Operation) -> Link:
    return (), next_of_failure(OperationFailure.CANCELLED, retry_command(facts.snapshot.instance, operation))


def _failed_operation(facts: WhyFacts, operation: Operation) -> Link:
    code = operation.failure_code or ""
    following = next_of_failure(code, retry_command(facts.snapshot.instance, operation))
    if code in (OperationFailure.PERMISSION_DENIED, OperationFailure.ADAPTER_UNAVAILABLE) and _has_trouble(facts):
        return _without_adapter(facts)
    task = _culprit(facts, code, operation.id)
    if task is None:
        dead = [each for each in _concerned(facts, operation) if _is_dead(each.allocation)]
        return ((allocation_cause(dead[0].allocation),), following) if dead and dead[0].allocation else ((), following)
    better = next_of_task(task.failure_code) if code in VAGUE else None
    chain = (*_member_of(facts, task), failed_task_cause(task))
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
    what = "its adapter undoes what it started" + (f", until {timestamp(until)} at the latest" if until else "")
    return (), NextStep(BY_ITSELF.who, what)


def _open_operation(facts: WhyFacts, operation: Operation) -> Link:
    if operation.phase == Phase.PLATFORM:
        return _teardown(facts, operation)
    waiting = [each for each in _concerned(facts, operation) if _waits_for_capacity(each)]
    if operation.dispatched_at is None and waiting:
        return _capacity(waiting)
    silent = next((each for each in _concerned(facts, operation) if _is_unreachable(each)), None)
    if silent is not None:
        return (*member_cause(silent), node_cause(silent)), NODE_SILENT
    if not facts.snapshot.watch.is_held(facts.now):
        return _without_adapter(facts)
    if operation.status == OperationState.BLOCKED and operation.blocker_code == NOT_QUIET:
        return _busy(facts, operation)
    if operation.status == OperationState.BLOCKED:
        return (_adapter(facts),), NEXT_OF_BLOCKER.get(operation.blocker_code or "", ADAPTER_BLOCKED)
    task = next((each for each in facts.open if each.operation_id == operation.id), None)
    if task is not None:
        return (*_member_of(facts, task), open_task_cause(task)), BY_ITSELF
    return (_adapter(facts),), BY_ITSELF


def _busy(facts: WhyFacts, operation: Operation) -> Link:
    """What still runs on the members that an operation waits for."""
    busy = [each for each in _concerned(facts, operation) if each.member.name in (operation.blocker or "")]
    return tuple(cause for each in busy[:1] for cause in member_cause(each)), NEXT_OF_BLOCKER[NOT_QUIET]


def _teardown(facts: WhyFacts, operation: Operation) -> Link:
    """In the platform's phase: what the end of a member waits for."""
    for each in facts.snapshot.torn_down_by(operation):
        reason = why_waiting(each)
        if reason is None:
            continue
        if _is_unreachable(each):
            node = each.node
            command = None if node is None else f"mooring nodes write-off {node.id}"
            return (*member_cause(each), node_cause(each)), replace(NEXT_OF_BLOCKER[UNREACHABLE], command=command)
        receipt = each.receipt_id
        command = None if receipt is None else f"mooring receipts get {receipt}"
        return member_cause(each), replace(NEXT_OF_BLOCKER[SOMETHING_LEFT], command=command)
    task = next((each for each in facts.open if each.operation_id == operation.id), None)
    if task is not None:
        return (*_member_of(facts, task), open_task_cause(task)), BY_ITSELF
    return (), BY_ITSELF


def _capacity(waiting: Sequence[MemberSnapshot]) -> Link:
    """The allocation to blame: the first one with a blocker, otherwise the first."""
    first = min(
        waiting, key=lambda each: (each.allocation is None or each.allocation.blocker is None, each.member.name)
    )
    allocation = first.allocation
    if allocation is None:
        return member_cause(first), BY_ITSELF
    chain = (*member_cause(first), allocation_cause(allocation))
    if _is_dead(allocation):
        return chain, next_of_allocation(allocation.failure_code)
    if _is_unreachable(first):
        return (*chain, node_cause(first)), NODE_SILENT
    if allocation.blocker is None:
        return chain, NEXT_OF_BLOCKER[WAITING]
    arguments = f"--shape {allocation.shape} --sku {allocation.sku_slug} --gpu-count {allocation.gpu_count}"
    command = f"mooring allocations explain {arguments}"
    return chain, replace(NEXT_OF_BLOCKER[NO_CAPACITY], command=command)


def _waits_for_capacity(each: MemberSnapshot) -> bool:
    return each.allocation is not None and each.allocation.status != AllocationState.ACTIVE


def _concerned(facts: WhyFacts, operation: Operation) -> tuple[MemberSnapshot, ...]:
    return facts.snapshot.concerned(operation)


_BELOW: Final[Mapping[OperationState, Callable[[WhyFacts, Operation], Link]]] = {
    OperationState.SUCCEEDED: _succeeded,
    OperationState.CANCELLED: _cancelled,
    OperationState.FAILED: _failed_operation,
    OperationState.CANCELLING: _cancelling,
}


# A member -----------------------------------------------------------------------------------------------------------


def _member(facts: WhyFacts, each: MemberSnapshot, above: tuple[str, ...]) -> Link:
    member, instance = each.member, facts.snapshot.instance
    own = member_cause(each)
    if member.status == MemberState.REMOVED:
        return own, NextStep(NOTHING.who, "no action is needed: its closing record shows how it ended")
    if member.status == MemberState.FAILED:
        return _failed_member(facts, each)
    operation = next((one for one in facts.snapshot.operations if _names(one, member) and one.id not in above), None)
    if operation is not None:
        chain, following = _operation(facts, operation)
        return (*own, *chain), following
    if _is_unreachable(each):
        return (*own, node_cause(each)), NODE_SILENT
    if _is_dead(each.allocation) and each.allocation is not None:
        return (*own, allocation_cause(each.allocation)), next_of_allocation(each.allocation.failure_code)
    if member.holds:
        return own, HELD
    if member.health == InstanceHealth.DEGRADED or member.status == MemberState.DEGRADED:
        return own, replace(UNHEALTHY, command=f"mooring instances repair {instance.id}")
    return own, NOTHING if member.status in (MemberState.READY, MemberState.DRAINED) else BY_ITSELF


def _failed_member(facts: WhyFacts, each: MemberSnapshot) -> Link:
    member, instance = each.member, facts.snapshot.instance
    command = f"mooring instances members remove {instance.id} {member.id}"
    following = next_of_failure(member.failure_code or "", command)
    chain = member_cause(each)
    task = next((one for one in facts.failed if one.member_id == member.id), None)
    if task is not None:
        better = next_of_task(task.failure_code) if member.failure_code in VAGUE else None
        return (*chain, failed_task_cause(task)), following if better is None else replace(better, command=command)
    if _is_unreachable(each) or (each.node is not None and each.node.is_gone):
        return (*chain, node_cause(each)), following
    return chain, following


def _names(operation: Operation, member: Member) -> bool:
    return member.id in operation.member_ids or operation.kind == OperationKind.DECOMMISSION


# Links --------------------------------------------------------------------------------------------------------------


def _member_of(facts: WhyFacts, task: Task) -> tuple[WhyCause, ...]:
    found = next((each for each in facts.snapshot.members if each.member.id == task.member_id), None)
    return () if found is None else member_cause(found)


def _untrusted(facts: WhyFacts, distrust: Mapping[str, Any]) -> WhyCause:
    """The first untrusted artifact: the digest, why, by whom, and what the policy does about it."""
    first = distrust["artifacts"][0]
    by = f", by {facts.distrusted_by}" if facts.distrusted_by else ""
    more = f"; {len(distrust['artifacts']) - 1} more are not trusted" if len(distrust["artifacts"]) > 1 else ""
    text = f"it is {first['trust']}{by}: {first['reason']}; the policy says {distrust['reaction']}{more}"
    id_, since = first["artifact_id"] or first["digest"], datetime.fromisoformat(distrust["since"])
    return WhyCause("artifact", id_, first["digest"], first["trust"], text, first["code"], since)


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


def _has_trouble(facts: WhyFacts) -> bool:
    account = facts.account
    return account is not None and (account.status != "active" or account.refused_at is not None)


def _without_adapter(facts: WhyFacts) -> Link:
    """Why no adapter does the work: its account is disabled, or is refused what it needs, or there is none."""
    account, own = facts.account, _adapter(facts)
    if account is None or not _has_trouble(facts):
        return (own,), ADAPTER_MISSING
    if account.status != "active":
        since = "" if account.disabled_at is None else f" since {timestamp(account.disabled_at)}"
        text = f"the operator account is {account.status}{since}, so no adapter can sign in with it"
        cause = WhyCause("service_account", account.id, account.name, account.status, text, "account_disabled")
        command = f"mooring service-accounts enable {account.id}" if account.status == "disabled" else None
        return (own, replace(cause, since=account.disabled_at)), replace(ACCOUNT_DISABLED, command=command)
    text = f"the operator account was refused {account.refused_action}: {account.refused_reason or 'no permission'}"
    cause = WhyCause("service_account", account.id, account.name, account.status, text, "permission_denied")
    return (own, replace(cause, since=account.refused_at)), ACCOUNT_REFUSED


def _is_unreachable(each: MemberSnapshot) -> bool:
    return each.node is not None and each.node.unreachable_since is not None and not each.node.is_gone


def _is_dead(allocation: Allocation | None) -> bool:
    dead = (AllocationState.FAILED, AllocationState.RELEASED, AllocationState.RELEASE_FAILED)
    return allocation is not None and allocation.status in dead


def _state_text(state: InstanceState, health: str) -> str:
    return f"it is {state.value}" + (f" and {health}" if state is InstanceState.RUNNING else "")
