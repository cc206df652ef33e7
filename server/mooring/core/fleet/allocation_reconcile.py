"""Decides the next step of an allocation: a snapshot goes in, at most one decision comes out.

`reconcile` reads an allocation together with its node, the task that it waits for, and its receipts, and returns the
next decision, or None when there is nothing to do now. Any replica may call it any number of times: each decision is
guarded by the snapshot, and a task is named by its step, so that nothing starts twice. Only placement needs more than
the allocation itself (`place_allocations`).

An end is never assumed. `released` needs a clean receipt, or the proof that no node ever started anything, or a node
that was written off. The slots become free in the same statement, and the database refuses any other way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.allocation import (
    Allocation,
    AllocationState,
    AllocationTrigger,
    FailureReason,
    LostBy,
    TeardownProof,
    allocation_event,
    moved,
    releasing_columns,
)
from mooring.core.fleet.node import NodeState
from mooring.core.fleet.placement import PlacementPick
from mooring.core.fleet.project_network import NetworkPlan, NodeNeighbour
from mooring.core.fleet.slot import Slot, SlotStatus, block_slots, claim_slots, free_slots
from mooring.core.fleet.task import TASK, Task, TaskState
from mooring.core.fleet.task_creation import NewTask, TaskRequest, make_task
from mooring.core.fleet.task_family import FailureCode
from mooring.core.fleet.task_transitions import cancel_all
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, StateChange, Update, Write
from mooring.core.kernel.event_types import EventType

CREATE_LIFETIME: Final = timedelta(minutes=15)
DESTROY_LIFETIME: Final = timedelta(hours=1)
CREATE_ATTEMPTS_MAX: Final = 3
DESTROY_ATTEMPTS_AT_ONCE: Final = 3
RETRY_FIRST: Final = timedelta(seconds=30)
RETRY_MAX: Final = timedelta(hours=1)
PIDS_PER_GPU: Final = 16_384
PIDS_MAX: Final = 131_072
MEMORY_LEAST: Final = 1 << 28
BLOCKER_LENGTH: Final = 500
NAMED_MAX: Final = 5
ACTOR_ACTION: Final = "allocation.run"
KEPT_FACTS: Final = frozenset({"isolation", "address", "limits", "host"})
S, T = AllocationState, AllocationTrigger


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The part of a node that decides about its allocations."""

    id: str
    status: str
    region: str
    host: str
    unreachable_since: datetime | None = None
    written_off_at: datetime | None = None
    cpus: float = 1.0
    memory_bytes: int = MEMORY_LEAST
    slots: int = 0
    network_pool: str | None = None


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The task that an allocation waits for, and how it ended."""

    id: str
    type: str
    status: str
    claimed: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    failure_code: str | None = None
    failure_detail: str | None = None


@dataclass(frozen=True, slots=True)
class AllocationSnapshot:
    """An allocation and everything that decides its next step."""

    allocation: Allocation
    node: NodeFacts | None = None
    task: TaskFacts | None = None
    receipt_id: str | None = None  # the receipt of the task
    clean_receipt_id: str | None = None  # a clean receipt of the whole allocation, of any task
    slots: tuple[Slot, ...] = ()
    started: bool = False  # an agent claimed at least one of its tasks
    queued: tuple[Task, ...] = ()  # tasks that no agent has claimed
    tasks_made: int = 0  # how many tasks of this kind there are, for the name of the next
    members: tuple[str, ...] = ()  # names of members that must be closed first, on a lost machine: failed


@dataclass(frozen=True, slots=True)
class AllocationPlacement:
    """An allocation, and the slots that were picked for it."""

    allocation: Allocation
    pick: PlacementPick


def place_allocations(
    context: DecisionContext, placed: Sequence[AllocationPlacement], node: NodeFacts, network: NetworkPlan
) -> Decision[tuple[Allocation, ...]]:
    """Give allocations their slots on one node, and create the tasks that make their sandboxes."""
    writes: list[Write] = [network.write]
    parts: list[Decision[Allocation]] = []
    added = [
        NodeNeighbour(each.allocation.id, each.allocation.project_id, each.allocation.name, address)
        for each, address in zip(placed, network.addresses, strict=True)
    ]
    for placement, own in zip(placed, added, strict=True):
        allocation, pick = placement.allocation, placement.pick
        peers = [each for each in (*network.peers, *added) if each.allocation_id != allocation.id]
        arguments = _sandbox_arguments(allocation, pick, node, subnet=network.subnet, address=own.address, peers=peers)
        request = _task_request(allocation, node.id, arguments, type_="sandbox.create", number=1)
        task = make_task(_under(context, allocation), request)
        slots = [_slot(pick, each, context.now) for each in pick.slots]
        columns = {
            "node_id": node.id,
            "region": node.region,
            "host": node.host,
            "slots": _public_slots(slots),
            "subnet": network.subnet,
            "address": own.address,
            "task_id": task.task.id,
            "attempts": 1,
            "placed_at": context.now,
            "blocker": None,
        }
        step = _moved(context, allocation, T.PROVISION, columns, EventType.ALLOCATION_PLACED)
        writes += claim_slots(slots, allocation.id)
        parts.append(_with_task(step, task))
    return Decision(
        result=tuple(part.result for part in parts),
        writes=(*writes, *(write for part in parts for write in part.writes)),
        events=tuple(event for part in parts for event in part.events),
        audits=tuple(audit for part in parts for audit in part.audits),
    )


def give_up_placing(context: DecisionContext, allocation: Allocation, because: str) -> Decision[Allocation]:
    """Fail an allocation for which no place was found in time."""
    return _failed(context, allocation, FailureReason.NO_CAPACITY.value, because)


def wait_for(context: DecisionContext, allocation: Allocation, blocker: str | None) -> Decision[Allocation] | None:
    """Record what it waits for; None when that is recorded already."""
    text = None if blocker is None else blocker[:BLOCKER_LENGTH]
    if text == allocation.blocker:
        return None
    change = Update(
        "allocation", allocation.id, allocation.revision, {"blocker": text}, generation_expected=allocation.generation
    )
    after = replace(allocation, blocker=text, revision=allocation.revision + 1)
    return Decision(
        result=after,
        writes=(change,),
        events=(allocation_event(EventType.ALLOCATION_WAITING, after, {"blocker": text, "status": after.status}),),
        audits=(AuditRecord(ACTOR_ACTION, "allocation", after.id, *after.place, after={"blocker": text}),),
    )


def reconcile(context: DecisionContext, snapshot: AllocationSnapshot) -> Decision[Allocation] | None:
    """The next step of an allocation that is placed or failed; None when there is nothing to do now."""
    state = AllocationState(snapshot.allocation.status)
    if state in (S.REQUESTED, S.RELEASED):
        return None
    if state is S.FAILED:
        return _release(context, snapshot.allocation)
    if snapshot.node is not None and snapshot.node.status == NodeState.RETIRED:
        return _without_node(context, snapshot, state)
    if state is S.PROVISIONING:
        return _provisioning(context, snapshot)
    if state is S.RELEASING:
        return _releasing(context, snapshot)
    if state is S.RELEASE_FAILED:
        return _release_failed(context, snapshot)
    return wait_for(context, snapshot.allocation, unreachable(snapshot.node))


def due_seconds(allocation: Allocation, now: datetime) -> float | None:
    """Seconds until its deadline or retry; None where only an event can move it."""
    moment = {S.REQUESTED.value: allocation.deadline_at, S.RELEASE_FAILED.value: allocation.retry_at}
    due = moment.get(allocation.status)
    return None if due is None else max(0.0, (due - now).total_seconds())


def unreachable(node: NodeFacts | None) -> str | None:
    """The blocker while a node is unreachable, or None."""
    if node is None or node.unreachable_since is None:
        return None
    return f"node {node.id} unreachable since {node.unreachable_since.isoformat(timespec='seconds')}"


def _members_first(names: Sequence[str]) -> str:
    """The blocker while members are not closed yet."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"members {', '.join(names[:NAMED_MAX])}{more} are removed first"


def _provisioning(context: DecisionContext, snapshot: AllocationSnapshot) -> Decision[Allocation] | None:
    allocation, task = snapshot.allocation, snapshot.task
    if task is None or task.status not in TASK.final:
        return wait_for(context, allocation, unreachable(snapshot.node))
    if task.status == TaskState.SUCCEEDED:
        facts = {key: value for key, value in (task.result or {}).items() if key in KEPT_FACTS}
        columns = {"activated_at": context.now, "facts": facts, "task_id": None, "attempts": 0, "blocker": None}
        return _moved(context, allocation, T.ACTIVATE, columns, EventType.ALLOCATION_ACTIVE)
    if task.failure_code == FailureCode.INTERRUPTED and allocation.attempts < CREATE_ATTEMPTS_MAX:
        return _next_task(context, snapshot, "sandbox.create", task.arguments)
    code = task.failure_code or ("timed_out" if task.status == TaskState.EXPIRED else task.status)
    detail = task.failure_detail or f"the task that creates its sandbox is {task.status}"
    return _failed(context, allocation, code, detail)


def _releasing(context: DecisionContext, snapshot: AllocationSnapshot) -> Decision[Allocation] | None:
    allocation, task = snapshot.allocation, snapshot.task
    if snapshot.clean_receipt_id is not None:
        return _finished(context, snapshot, TeardownProof.RECEIPTS, snapshot.clean_receipt_id)
    if snapshot.members:
        return wait_for(context, allocation, _members_first(snapshot.members))
    if not snapshot.started:
        return _never_started(context, snapshot)
    if task is None or task.type != "sandbox.destroy":
        return _next_task(context, snapshot, "sandbox.destroy", {})
    if task.status not in TASK.final:
        return wait_for(context, allocation, unreachable(snapshot.node))
    lapsed = task.status == TaskState.EXPIRED and not task.claimed  # no agent claimed it, so nothing was checked
    interrupted = task.failure_code == FailureCode.INTERRUPTED
    if lapsed or (interrupted and allocation.attempts < DESTROY_ATTEMPTS_AT_ONCE):
        return _next_task(context, snapshot, "sandbox.destroy", {})
    return _teardown_failed(context, snapshot)


def _release_failed(context: DecisionContext, snapshot: AllocationSnapshot) -> Decision[Allocation] | None:
    allocation = snapshot.allocation
    due = allocation.retry_at is None or allocation.retry_at <= context.now
    if due or snapshot.clean_receipt_id is not None:
        return _release(context, allocation)
    return None


def _without_node(
    context: DecisionContext, snapshot: AllocationSnapshot, state: AllocationState
) -> Decision[Allocation] | None:
    """Its node is retired: an allocation that had a sandbox is lost, and ends by the write-off."""
    allocation = snapshot.allocation
    cause = {"cause": LostBy.NODE_GONE.value, "node_id": allocation.node_id}
    if state in (S.PROVISIONING, S.ACTIVE):
        if state is S.ACTIVE:
            step = _release(context, allocation)
        else:
            step = _failed(context, allocation, FailureReason.NODE_LOST.value, "its node is lost for good")
        lost = allocation_event(EventType.ALLOCATION_LOST, step.result, cause)
        return _setting(replace(step, events=(*step.events, lost)), {"lost_at": context.now})
    if snapshot.members:
        return wait_for(context, allocation, _members_first(snapshot.members))
    if state is S.RELEASE_FAILED or snapshot.clean_receipt_id is None:
        columns = _released_columns(context, TeardownProof.WRITTEN_OFF, None)
        return _moved(context, allocation, T.WRITE_OFF, columns, EventType.ALLOCATION_RELEASED)
    return _finished(context, snapshot, TeardownProof.RECEIPTS, snapshot.clean_receipt_id)


def _never_started(context: DecisionContext, snapshot: AllocationSnapshot) -> Decision[Allocation]:
    """No agent ever claimed a task of it: cancel the queued ones in the same statement, and nothing is left."""
    writes, events = cancel_all(context, snapshot.queued)
    decision = _finished(context, snapshot, TeardownProof.NOTHING_STARTED, None)
    return replace(decision, writes=(*writes, *decision.writes), events=(*decision.events, *events))


def _finished(
    context: DecisionContext, snapshot: AllocationSnapshot, proof: TeardownProof, receipt_id: str | None
) -> Decision[Allocation]:
    columns = _released_columns(context, proof, receipt_id)
    decision = _moved(context, snapshot.allocation, T.FINISH_TEARDOWN, columns, EventType.ALLOCATION_RELEASED)
    held = [slot for slot in snapshot.slots if slot.is_held]
    return replace(decision, writes=(*decision.writes, *free_slots(held)))


def _teardown_failed(context: DecisionContext, snapshot: AllocationSnapshot) -> Decision[Allocation]:
    task, allocation = snapshot.task, snapshot.allocation
    because = "the node checked after the teardown, and something is left"
    if snapshot.receipt_id is not None:
        because += f": receipt {snapshot.receipt_id} names it"
    elif task is not None and task.status != TaskState.SUCCEEDED:
        because = f"the teardown did not finish: {task.failure_code or task.status}"
        because += f", {task.failure_detail}" if task.failure_detail else ""
    pause = min(RETRY_FIRST * (1 << min(allocation.attempts, 10)), RETRY_MAX)
    columns = {"retry_at": context.now + pause, "blocker": because[:BLOCKER_LENGTH]}
    decision = _moved(context, allocation, T.FAIL_TEARDOWN, columns, EventType.ALLOCATION_RELEASE_FAILED)
    return replace(decision, writes=(*decision.writes, *block_slots(slot for slot in snapshot.slots if slot.is_held)))


def _release(context: DecisionContext, allocation: Allocation) -> Decision[Allocation]:
    columns = releasing_columns(context, allocation)
    return _moved(context, allocation, T.RELEASE, columns, EventType.ALLOCATION_RELEASING)


def _failed(context: DecisionContext, allocation: Allocation, code: str, detail: str) -> Decision[Allocation]:
    columns = {
        "failed_at": context.now,
        "failure_code": code,
        "failure_detail": detail[:BLOCKER_LENGTH],
        "blocker": None,
    }
    return _moved(context, allocation, T.FAIL, columns, EventType.ALLOCATION_FAILED)


def _moved(
    context: DecisionContext,
    allocation: Allocation,
    trigger: AllocationTrigger,
    columns: Mapping[str, Any],
    event: EventType,
) -> Decision[Allocation]:
    return moved(context, allocation, trigger, columns, action=ACTOR_ACTION, event=event)


def _released_columns(context: DecisionContext, proof: TeardownProof, receipt_id: str | None) -> dict[str, object]:
    return {
        "released_at": context.now,
        "teardown_proof": proof.value,
        "receipt_id": receipt_id,
        "blocker": None,
        "retry_at": None,
    }


def _setting(decision: Decision[Allocation], columns: Mapping[str, object]) -> Decision[Allocation]:
    """The decision with more columns in its transition."""
    writes = tuple(
        replace(write, set={**write.set, **columns}) if isinstance(write, StateChange) else write
        for write in decision.writes
    )
    return replace(decision, result=replace(decision.result, **columns), writes=writes)  # type: ignore[arg-type]


def _next_task(
    context: DecisionContext, snapshot: AllocationSnapshot, type_: str, arguments: Mapping[str, Any]
) -> Decision[Allocation]:
    """Create one more task of this type, and let the allocation wait for it."""
    allocation = snapshot.allocation
    number = snapshot.tasks_made + 1
    request = _task_request(allocation, str(allocation.node_id), arguments, type_=type_, number=number)
    task = make_task(_under(context, allocation), request)
    columns = {"task_id": task.task.id, "attempts": allocation.attempts + 1}
    change = Update(
        "allocation", allocation.id, allocation.revision, columns, generation_expected=allocation.generation
    )
    after = replace(
        allocation, revision=allocation.revision + 1, task_id=task.task.id, attempts=allocation.attempts + 1
    )
    return _with_task(Decision(result=after, writes=(change,)), task)


def _with_task(decision: Decision[Allocation], task: NewTask) -> Decision[Allocation]:
    return replace(
        decision,
        writes=(*decision.writes, *task.writes),
        events=(*decision.events, *task.events),
        audits=(*decision.audits, *task.audits),
    )


def _under(context: DecisionContext, allocation: Allocation) -> DecisionContext:
    """The context under the correlation id of the request that made the allocation."""
    return replace(context, correlation_id=allocation.correlation_id, trace_id=allocation.trace_id)


def _task_request(
    allocation: Allocation, node_id: str, arguments: Mapping[str, Any], *, type_: str, number: int
) -> TaskRequest:
    return TaskRequest(
        tenant_id=allocation.tenant_id,
        project_id=allocation.project_id,
        allocation_id=allocation.id,
        node_id=node_id,
        type=type_,
        step=f"{type_}/{number}",
        arguments=arguments,
        lifetime=CREATE_LIFETIME if type_ == "sandbox.create" else DESTROY_LIFETIME,
    )


def _sandbox_arguments(
    allocation: Allocation,
    pick: PlacementPick,
    node: NodeFacts,
    *,
    subnet: str,
    address: str | None,
    peers: Sequence[NodeNeighbour],
) -> dict[str, Any]:
    """The sandbox to create: CPUs and memory in proportion to its slots, and its address in the project's network."""
    whole = allocation.shape == CapacityShape.BAREMETAL
    share = 1.0 if whole or not node.slots else allocation.gpu_count / node.slots
    pids = PIDS_MAX if whole else min(PIDS_MAX, PIDS_PER_GPU * max(1, allocation.gpu_count))
    return {
        "hostname": allocation.name,
        "cpus": round(max(0.01, node.cpus * share), 2),
        "memory_bytes": max(MEMORY_LEAST, int(node.memory_bytes * share)),
        "pids": pids,
        "devices": [{"index": slot.index, "simulated": slot.simulated} for slot in pick.slots],
        "network": {
            "name": allocation.project_id,
            "address": address,
            "subnet": subnet,
            "machine": whole,
        },
        "peers": [{"name": each.name, "address": each.address} for each in peers],
        "isolation": "user_namespace",
    }


def _slot(pick: PlacementPick, slot: Any, now: datetime) -> Slot:
    return Slot(
        slot.id,
        pick.node_id,
        slot.index,
        slot.numa,
        slot.gpu_model,
        slot.memory_bytes,
        slot.simulated,
        SlotStatus.FREE.value,
        None,
        slot.revision,
        now,
    )


def _public_slots(slots: Sequence[Slot]) -> list[dict[str, Any]]:
    """What a tenant may see of the slots of its allocation."""
    return [
        {
            "index": slot.index,
            "numa": slot.numa,
            "gpu_model": slot.gpu_model,
            "memory_bytes": slot.memory_bytes,
            "simulated": slot.simulated,
        }
        for slot in slots
    ]
