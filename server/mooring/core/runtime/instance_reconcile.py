"""What the platform does with an instance on its own: one pure step at a time towards the desired state.

`reconcile` reads a snapshot of an instance with its members, operations, holder, nodes and allocations, and returns the
next decision, or None if there is nothing to do now. Any replica may call it any number of times: each decision is
guarded by what its snapshot saw. The result of a decision is the row that it concerns, whose correlation it is written
under.

No wait is unbounded. An operation waits for capacity as long as its allocations search for a node; for an adapter, a
step and its end as long as the limits say; for a teardown as long as it takes, but it names the blocker.
`core/runtime/instance_teardown.py` says how members end, `core/runtime/instance_loss.py` what follows from lost
machines and released allocations.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.core.catalog.artifact_hold import drop_holds
from mooring.core.fleet.allocation import AllocationState
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.attachment_reconcile import settle
from mooring.core.runtime.instance import Instance, InstanceHealth, InstanceState, InstanceTrigger
from mooring.core.runtime.instance_loss import given_back, lost, orphans, system_operation
from mooring.core.runtime.instance_snapshot import COMING, InstanceSnapshot, MemberSnapshot, TimeLimits, idle_holds
from mooring.core.runtime.instance_teardown import ACTION, AT_ONCE, BLOCKER_LENGTH, tear_down
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_member,
    change_operation,
    move_instance,
    move_member,
    move_operation,
    new_operation,
    together,
)
from mooring.core.runtime.launch_history import why_open
from mooring.core.runtime.member import Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import (
    TEARDOWN_KINDS,
    Operation,
    OperationFailure,
    OperationKind,
    OperationState,
    OperationTrigger,
    Phase,
    advice_of,
)

DETAIL_LENGTH: Final = 4000
PATIENCE: Final = timedelta(seconds=10)
"""How long an allocation may take before the operation reports that it waits for it."""
WAITING: Final = "waiting_for_capacity"
NO_CAPACITY: Final = "no_capacity"
_STANDING_KINDS: Final = (OperationKind.DEPLOY, OperationKind.ADD, OperationKind.REPLACE)
"""Operations that wait until the allocations of their new members are active."""
_DEAD: Final = frozenset(
    {AllocationState.FAILED, AllocationState.RELEASING, AllocationState.RELEASE_FAILED, AllocationState.RELEASED}
)
_UNDER_WAY: Final = frozenset({InstanceState.CREATED, InstanceState.STARTING})
_ENDING: Final = frozenset({InstanceState.STOPPING, InstanceState.FAILED})
S, K, F = InstanceState, OperationKind, OperationFailure
_TOO_LATE: Final = {K.DEPLOY: F.BOOTSTRAP_TIMEOUT, K.DRAIN: F.NOT_QUIET, K.DETACH: F.NOT_QUIET}
"""The failure code of an operation whose deadline passed, where it is not `deadline_exceeded`."""

Step = Decision[Instance | Member | Operation | Attachment]
Rule = Callable[[DecisionContext, TimeLimits, InstanceSnapshot], Step | None]


def reconcile(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """The next step of an instance; None if there is nothing to do now."""
    if snapshot.instance.status == S.STOPPED:
        return None
    context = replace(context, correlation_id=snapshot.instance.correlation_id, trace_id=snapshot.instance.trace_id)
    for rule in _RULES:
        step = rule(context, limits, snapshot)
        if step is not None:
            return step
    return None


def with_correlation(context: DecisionContext, operation: Operation) -> DecisionContext:
    """The context with the correlation of the request that started the operation."""
    return replace(context, correlation_id=operation.correlation_id, trace_id=operation.trace_id)


def _without_deploy(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Fail the instance if its launch ended without success, no matter who ended it."""
    if snapshot.instance.status not in _UNDER_WAY or snapshot.open_of(K.DEPLOY):
        return None
    ended = snapshot.ended
    code = F.CANCELLED.value if ended is None or ended.failure_code is None else ended.failure_code
    detail = "its deploy was cancelled" if ended is None else ended.failure_detail or "its deploy was cancelled"
    return _fail_instance(
        context, snapshot.instance, code=code, detail=detail, lines=None if ended is None else ended.last_lines
    )


def _leftovers(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Tear down what is left of a failed instance, and make sure that a stopping one has an operation."""
    state = snapshot.instance.status
    needed = state == S.STOPPING or (state == S.FAILED and snapshot.members)
    if not needed or snapshot.open_of(K.DECOMMISSION):
        return None
    reason = "tear down what is left of a failed instance" if state == S.FAILED else "the instance is being stopped"
    operation = system_operation(
        context, snapshot, K.DECOMMISSION, reason=reason, phase=Phase.PLATFORM, duration=limits.operation
    )
    return new_operation(snapshot.instance, operation, ACTION)


def _others_end(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Cancel all other operations of an instance that ends."""
    if snapshot.instance.status not in _ENDING:
        return None
    for each in snapshot.operations:
        if each.kind != K.DECOMMISSION and each.status != OperationState.CANCELLING:
            reason = f"the instance is {snapshot.instance.status}"
            return move_operation(
                with_correlation(context, each),
                snapshot.instance.app_slug,
                each,
                OperationTrigger.CANCEL,
                ACTION,
                cancel_reason=reason,
            )
    return None


def _attachments(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Attachments follow the end of the instance and of their own operations."""
    return settle(context, snapshot)


def _operations(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """The next step of the first operation that has one."""
    for each in snapshot.operations:
        step = _operation(with_correlation(context, each), limits, snapshot, each)
        if step is not None:
            return step
    return None


def _operation(
    context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot, operation: Operation
) -> Step | None:
    in_teardown = operation.phase == Phase.PLATFORM and operation.kind in TEARDOWN_KINDS
    if operation.status == OperationState.CANCELLING:
        irrevocable = in_teardown and (operation.kind == K.DECOMMISSION or snapshot.instance.status not in _ENDING)
        return (
            tear_down(context, snapshot, operation)
            if irrevocable
            else _cancelling(context, limits, snapshot, operation)
        )
    if in_teardown:
        if operation.status == OperationState.ACCEPTED:
            return _hand_over(context, snapshot, operation, None)
        return tear_down(context, snapshot, operation)
    if operation.dispatched_at is None:
        return _dispatch(context, snapshot, operation)
    if operation.kind in TEARDOWN_KINDS:
        return _graceful(context, snapshot, operation)
    return _bounded(context, limits, snapshot, operation)


def _dispatch(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> Step | None:
    """Offer it to adapters once the allocations of its new members are active; until then record what it waits for."""
    coming = [each for each in snapshot.concerned(operation) if each.member.status in COMING]
    waiting = [each for each in coming if each.allocation is not None and each.allocation.status != "active"]
    if operation.kind not in _STANDING_KINDS or not waiting:
        circuit = _circuit(context, snapshot, operation)
        if circuit is not None:
            return _wait_for_circuit(context, snapshot, operation, circuit)
        waited = context.now - operation.created_at  # does not count against its deadline
        columns: dict[str, Any] = {"dispatched_at": context.now, "deadline_at": operation.deadline_at + waited}
        if operation.phase_deadline_at is not None:
            columns["phase_deadline_at"] = operation.phase_deadline_at + waited
        slug = snapshot.instance.app_slug
        if operation.status == OperationState.BLOCKED:
            return move_operation(context, slug, operation, OperationTrigger.UNBLOCK, ACTION, **columns)
        return change_operation(slug, operation, ACTION, **columns)
    for each in waiting:
        if each.allocation is not None and each.allocation.status in _DEAD:
            code, detail = _why_dead(each)
            return _fail(context, snapshot, operation, code, detail)
    return _blocked(context, snapshot, operation, waiting)


def _circuit(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> str | None:
    """Why the circuit breaker forbids this launch now; a launch may wait for capacity long after it was accepted."""
    if operation.kind != K.DEPLOY or snapshot.circuit is None:
        return None
    refusal = why_open(snapshot.circuit, context.now)
    return None if refusal is None else refusal.detail[:BLOCKER_LENGTH]


def _wait_for_circuit(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, why: str
) -> Step | None:
    """Wait until the circuit closes or the deadline passes."""
    if operation.deadline_at <= context.now:
        return _fail(context, snapshot, operation, F.CIRCUIT_OPEN, why)
    return _block(context, snapshot, operation, F.CIRCUIT_OPEN.value, why)


def _why_dead(each: MemberSnapshot) -> tuple[OperationFailure, str]:
    allocation = each.allocation
    if allocation is None:
        raise ValueError("a member without an allocation cannot have a dead one")
    gone = (each.node is not None and each.node.is_gone) or allocation.failure_code == F.NODE_LOST
    detail = allocation.failure_detail or f"it is {allocation.status}"
    return (F.NODE_LOST if gone else F.NO_CAPACITY), f"allocation {allocation.name} of {each.member.name}: {detail}"


def _blocked(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, waiting: list[MemberSnapshot]
) -> Step | None:
    """Record what the allocations wait for; if several have a blocker, record that of the first by id."""
    allocations = sorted((each.allocation for each in waiting if each.allocation), key=lambda each: each.id)
    first = next((each for each in allocations if each.blocker is not None), None)
    if first is not None:
        code, text = NO_CAPACITY, f"no capacity: {first.blocker}"
    elif operation.created_at + PATIENCE <= context.now:
        code, text = WAITING, f"waits until allocation {allocations[0].name} is active"
    else:
        return None
    return _block(context, snapshot, operation, code, text[:BLOCKER_LENGTH])


def _block(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, code: str, detail: str
) -> Step | None:
    """Record what it waits for; None if that is already recorded."""
    columns = {"blocker_code": code, "blocker": detail}
    slug = snapshot.instance.app_slug
    if operation.status != OperationState.BLOCKED:
        return move_operation(context, slug, operation, OperationTrigger.BLOCK, ACTION, **columns)
    return None if operation.blocker == detail else change_operation(slug, operation, ACTION, **columns)


def _bounded(
    context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot, operation: Operation
) -> Step | None:
    """Enforce the adapter's time limits: to claim it, for each step, and for the whole operation."""
    now, held = context.now, snapshot.watch.is_held(context.now)
    dispatched = operation.dispatched_at or now
    absent = f"no adapter holds the instance; one was last seen: {snapshot.watch.last_seen()}"
    if operation.started_at is None and not held and dispatched + limits.claim <= now:
        within = int(limits.claim.total_seconds())
        detail = f"no adapter started it within {within} s: {absent}"
        return _fail(context, snapshot, operation, F.ADAPTER_UNAVAILABLE, detail)
    late = _late_step(operation, now, limits.step)
    if late is not None and operation.deadline_at > now:
        return _fail(context, snapshot, operation, F.STEP_TIMEOUT, late)
    if operation.deadline_at > now:
        return None
    if not held:
        return _fail(context, snapshot, operation, F.ADAPTER_UNAVAILABLE, f"its deadline passed, and {absent}")
    code = _TOO_LATE.get(K(operation.kind), F.DEADLINE_EXCEEDED)
    return _fail(context, snapshot, operation, code, f"its deadline passed; {_how_far(snapshot, operation)}")


def _graceful(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> Step | None:
    """Bound the adapter's half of a teardown; then, or if there is no adapter, the platform takes over."""
    now, held = context.now, snapshot.watch.is_held(context.now)
    due = min(operation.phase_deadline_at or operation.deadline_at, operation.deadline_at)
    targets = snapshot.torn_down_by(operation)
    if operation.kind == K.REPLACE:
        if due > now:
            return None
        ready = all(
            each.member.status in (MemberState.READY, MemberState.DEGRADED)
            for each in snapshot.concerned(operation)
            if each.member.replaces_id in operation.member_ids
        )
        if not ready or not targets:
            absent = "" if held else f"; no adapter holds the instance, one was last seen: {snapshot.watch.last_seen()}"
            code = F.DEADLINE_EXCEEDED if held else F.ADAPTER_UNAVAILABLE
            return _fail(context, snapshot, operation, code, f"the new member was not ready in time{absent}")
        return _hand_over(context, snapshot, operation, "the adapter's time limit passed")
    started = [each for each in targets if each.started or (held and each.member.status != MemberState.REQUESTED)]
    if not started:
        return _hand_over(context, snapshot, operation, "the adapter has nothing to shut down")
    if due > now:
        return None
    reason = (
        "the adapter's time limit passed"
        if held
        else f"no adapter claimed it; one was last seen: {snapshot.watch.last_seen()}"
    )
    return _hand_over(context, snapshot, operation, reason)


def _hand_over(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, reason: str | None) -> Step:
    """Start the platform's phase of a teardown."""
    columns: dict[str, Any] = {
        "phase": Phase.PLATFORM.value,
        "started_at": operation.started_at or context.now,
    }
    if reason is not None:
        columns["evidence"] = (operation.evidence or {}) | {"graceful": False, "handed_over": reason}
    slug, status = snapshot.instance.app_slug, OperationState(operation.status)
    if status is OperationState.RUNNING:
        return change_operation(slug, operation, ACTION, **columns)
    trigger = OperationTrigger.START if status is OperationState.ACCEPTED else OperationTrigger.UNBLOCK
    return move_operation(context, slug, operation, trigger, ACTION, **columns)


def _cancelling(
    context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot, operation: Operation
) -> Step | None:
    """Give the holder a bounded time to end it; end it at once if nobody holds it."""
    slug, latest = snapshot.instance.app_slug, context.now + limits.cancel
    due, held = operation.phase_deadline_at, snapshot.watch.is_held(context.now)
    if held and operation.dispatched_at is not None and operation.phase == Phase.ADAPTER:
        if due is None or due > latest:
            return change_operation(slug, operation, ACTION, phase_deadline_at=latest)
        if due > context.now:
            return None
    ended = move_operation(context, slug, operation, OperationTrigger.FINISH_CANCEL, ACTION)
    parts: list[Decision[Any]] = [
        ended,
        _drop_idle_holds(context, snapshot, operation),
        *_resumed(context, snapshot, operation),
    ]
    if operation.kind == K.DEPLOY and snapshot.instance.status in _UNDER_WAY:
        reason = operation.cancel_reason or "its deploy was cancelled"
        parts.append(_fail_instance(context, snapshot.instance, code=F.CANCELLED.value, detail=reason, lines=None))
    return together(ended.result, *parts)


def _resumed(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> list[Decision[Any]]:
    """Put the members back to work that the cancelled operation had drained."""
    if snapshot.instance.status != S.RUNNING or operation.kind not in (K.DRAIN, K.REMOVE, K.REPLACE):
        return []
    slug = snapshot.instance.app_slug
    draining = [each.member for each in snapshot.concerned(operation) if each.member.status == MemberState.DRAINING]
    return [move_member(context, slug, each, MemberTrigger.RESUME, ACTION) for each in draining]


def _fail(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, code: OperationFailure, detail: str
) -> Step:
    """Fail the operation; a launch fails its instance too."""
    detail = detail[:DETAIL_LENGTH]
    lines = list(snapshot.last_lines.get(operation.id, ())) or None
    failure = {
        "failure_code": code.value,
        "failure_detail": detail,
        "last_lines": operation.last_lines or lines,
        "evidence": (operation.evidence or {}) | advice_of(code.value),
    }
    ended = move_operation(context, snapshot.instance.app_slug, operation, OperationTrigger.FAIL, ACTION, **failure)
    parts: list[Decision[Any]] = [ended, _drop_idle_holds(context, snapshot, operation)]
    if operation.kind == K.DEPLOY and snapshot.instance.status in _UNDER_WAY:
        parts.append(_fail_instance(context, snapshot.instance, code=code.value, detail=detail, lines=lines))
    return together(ended.result, *parts)


def _drop_idle_holds(context: DecisionContext, snapshot: InstanceSnapshot, ending: Operation) -> Decision[Any]:
    """Drop the holds that only the ended change needed."""
    if ending.target_pin is None:
        return Decision(None)
    others = [each for each in snapshot.operations if each.id != ending.id]
    members = [each.member for each in snapshot.members]
    return drop_holds(context, idle_holds(snapshot.instance, members, others, snapshot.holds))


def _fail_instance(
    context: DecisionContext, instance: Instance, *, code: str, detail: str, lines: list[str] | None
) -> Decision[Instance]:
    failure = {
        "failed_at": context.now,
        "failure_code": code,
        "failure_detail": detail[:DETAIL_LENGTH],
        "last_lines": lines,
        "health": InstanceHealth.UNKNOWN.value,
        "health_detail": None,
        "health_at": context.now,
    }
    return move_instance(context, instance, InstanceTrigger.FAIL, ACTION, **failure)


def _late_step(operation: Operation, now: datetime, limit: timedelta) -> str | None:
    """A sentence about the step that exceeds the limit; None if there is none."""
    for each in operation.steps:
        started = _moment(each) if each.get("status") == "running" else None
        if started is not None and started + limit <= now:
            return f"step {each.get('name')} has been running since {started.isoformat(timespec='seconds')}"
    return None


def _moment(step: Mapping[str, Any]) -> datetime | None:
    started = step.get("started_at")
    return datetime.fromisoformat(started) if isinstance(started, str) else started


def _how_far(snapshot: InstanceSnapshot, operation: Operation) -> str:
    """How far it was when its deadline passed."""
    done = sum(1 for each in operation.steps if each.get("status") in ("done", "skipped"))
    running = [str(each.get("name")) for each in operation.steps if each.get("status") == "running"]
    text = f"{done} of {len(operation.steps)} steps were done"
    text += f", under way: {', '.join(running[:5])}" if running else ""
    late = [each.member for each in snapshot.concerned(operation) if each.member.status in COMING]
    text += "; not ready: " + ", ".join(f"{each.name} ({each.status})" for each in late[:10]) if late else ""
    return text + (f"; blocked: {operation.blocker}" if operation.blocker else "")


def _health(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Set the health to unknown where nobody can observe it; an adapter that can reports it again."""
    instance, parts = snapshot.instance, list[Decision[Any]]()
    for each in snapshot.members:
        since = None if each.node is None else each.node.unreachable_since
        if since is not None and each.node is not None and each.member.health != InstanceHealth.UNKNOWN:
            reason = f"node {each.node.id} unreachable since {since.isoformat(timespec='seconds')}"
            columns = {"health": InstanceHealth.UNKNOWN.value, "health_detail": reason, "health_at": context.now}
            parts.append(change_member(instance.app_slug, each.member, ACTION, **columns))
    if (
        instance.status == S.RUNNING
        and instance.health != InstanceHealth.UNKNOWN
        and snapshot.watch.is_forsaken(context.now, limits.lease)
    ):
        reason = f"no adapter watches it; one was last seen: {snapshot.watch.last_seen()}"
        unknown: dict[str, Any] = {
            "health": InstanceHealth.UNKNOWN.value,
            "health_detail": reason,
            "health_at": context.now,
        }
        parts.append(change_instance(instance, ACTION, **unknown))
    return together(instance, *parts[-AT_ONCE:]) if parts else None


_RULES: Final[tuple[Rule, ...]] = (
    lost,
    _without_deploy,
    _leftovers,
    _others_end,
    _attachments,
    _operations,
    given_back,
    orphans,
    _health,
)
