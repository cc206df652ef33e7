"""What the platform does with an instance by itself: one pure step at a time, from what is there to what comes next.

`advance` looks at an instance with its members, its operations, its holder, and the nodes and allocations under it, and
returns the next decision, or none when there is nothing to do now. It may be asked any number of times, by any replica:
each decision is guarded by what it saw. The result of a decision is what it is about, under whose correlation it is
written.

Nothing waits without a bound. An operation waits for capacity as long as its allocations look for a place; for an
adapter, a step and its end as long as the limits say; for a teardown as long as it takes, with the name of what is in
the way. How members end is in `core/runtime/instance_teardown.py`, what is done about lost machines and allocations
that are given back in `core/runtime/instance_loss.py`.
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
from mooring.core.runtime.circuit_breaker import why_open
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
from mooring.core.runtime.member import Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import (
    TEARDOWN_KINDS,
    Operation,
    OperationFailure,
    OperationKind,
    OperationState,
    OperationTrigger,
    Phase,
)
from mooring.core.runtime.operation_advice import advice_of

DETAIL_LENGTH: Final = 4000
PATIENCE: Final = timedelta(seconds=10)
"""How long a sandbox may take before the operation says that it waits for it."""
WAITING: Final = "waiting_for_capacity"
NO_CAPACITY: Final = "no_capacity"
_STANDING_KINDS: Final = (OperationKind.DEPLOY, OperationKind.ADD, OperationKind.REPLACE)
"""Operations that wait until the allocations of their new members stand."""
_DEAD: Final = frozenset(
    {AllocationState.FAILED, AllocationState.RELEASING, AllocationState.RELEASE_FAILED, AllocationState.RELEASED}
)
_UNDER_WAY: Final = frozenset({InstanceState.CREATED, InstanceState.STARTING})
_ENDING: Final = frozenset({InstanceState.STOPPING, InstanceState.FAILED})
S, K, F = InstanceState, OperationKind, OperationFailure
_TOO_LATE: Final = {K.DEPLOY: F.BOOTSTRAP_TIMEOUT, K.DRAIN: F.NOT_QUIET, K.DETACH: F.NOT_QUIET}
"""What it means that the time of an operation is over."""

Step = Decision[Instance | Member | Operation | Attachment]
Rule = Callable[[DecisionContext, TimeLimits, InstanceSnapshot], Step | None]


def reconcile(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """The next step of an instance; none where there is nothing to do now."""
    if snapshot.instance.status == S.STOPPED:
        return None
    own = replace(context, correlation_id=snapshot.instance.correlation_id, trace_id=snapshot.instance.trace_id)
    for rule in _RULES:
        step = rule(own, limits, snapshot)
        if step is not None:
            return step
    return None


def under(context: DecisionContext, operation: Operation) -> DecisionContext:
    """What is done for an operation is done under the correlation of whoever asked for it."""
    return replace(context, correlation_id=operation.correlation_id, trace_id=operation.trace_id)


def _without_deploy(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """A launch that is over without success leaves a failed instance, whoever ended it."""
    if snapshot.instance.status not in _UNDER_WAY or snapshot.open_of(K.DEPLOY):
        return None
    ended = snapshot.ended
    code = F.CANCELLED.value if ended is None or ended.failure_code is None else ended.failure_code
    detail = "its deploy was cancelled" if ended is None else ended.failure_detail or "its deploy was cancelled"
    return _failed(context, snapshot.instance, (code, detail), None if ended is None else ended.last_lines)


def _leftovers(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """What is left of a failed instance is torn down; and a stop always has its operation."""
    state = snapshot.instance.status
    owed = state == S.STOPPING or (state == S.FAILED and snapshot.members)
    if not owed or snapshot.open_of(K.DECOMMISSION):
        return None
    reason = "what is left of a failed instance is torn down" if state == S.FAILED else "it is being stopped"
    made = system_operation(context, snapshot, K.DECOMMISSION, (reason, Phase.PLATFORM), limits.operation)
    return new_operation(snapshot.instance, made, ACTION)


def _others_end(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """Whatever else was under way with an instance that ends is asked to end too."""
    if snapshot.instance.status not in _ENDING:
        return None
    for each in snapshot.operations:
        if each.kind != K.DECOMMISSION and each.status != OperationState.CANCELLING:
            told = {"cancel_reason": f"the instance is {snapshot.instance.status}"}
            return move_operation(
                under(context, each), snapshot.instance.app_slug, each, OperationTrigger.CANCEL, (ACTION, told)
            )
    return None


def _attachments(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """What other projects have of it follows its own end, and the end of what attaches and detaches them."""
    return settle(context, snapshot)


def _operations(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """The first operation that has a next step takes it."""
    for each in snapshot.operations:
        step = _operation(under(context, each), limits, snapshot, each)
        if step is not None:
            return step
    return None


def _operation(
    context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot, operation: Operation
) -> Step | None:
    platform = operation.phase == Phase.PLATFORM and operation.kind in TEARDOWN_KINDS
    if operation.status == OperationState.CANCELLING:
        beyond = platform and (operation.kind == K.DECOMMISSION or snapshot.instance.status not in _ENDING)
        return tear_down(context, snapshot, operation) if beyond else _cancelling(context, limits, snapshot, operation)
    if platform:
        if operation.status == OperationState.ACCEPTED:
            return _handed_over(context, snapshot, operation, None)
        return tear_down(context, snapshot, operation)
    if operation.dispatched_at is None:
        return _dispatch(context, snapshot, operation)
    if operation.kind in TEARDOWN_KINDS:
        return _graceful(context, snapshot, operation)
    return _bounded(context, limits, snapshot, operation)


def _dispatch(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> Step | None:
    """Offer it to an adapter when the allocations of its new members stand; until then say what it waits for."""
    coming = [each for each in snapshot.concerned(operation) if each.member.status in COMING]
    waiting = [each for each in coming if each.allocation is not None and each.allocation.status != "active"]
    if operation.kind not in _STANDING_KINDS or not waiting:
        refused = _circuit(context, snapshot, operation)
        if refused is not None:
            return _refused(context, snapshot, operation, refused)
        waited = context.now - operation.created_at  # which is not counted: its time begins now
        now: dict[str, Any] = {"dispatched_at": context.now, "deadline_at": operation.deadline_at + waited}
        if operation.phase_deadline_at is not None:
            now["phase_deadline_at"] = operation.phase_deadline_at + waited
        slug = snapshot.instance.app_slug
        if operation.status == OperationState.BLOCKED:
            return move_operation(context, slug, operation, OperationTrigger.UNBLOCK, (ACTION, now))
        return change_operation(slug, operation, ACTION, **now)
    for each in waiting:
        if each.allocation is not None and each.allocation.status in _DEAD:
            return _fail(context, snapshot, operation, _why_dead(each))
    return _blocked(context, snapshot, operation, waiting)


def _circuit(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> str | None:
    """Why no launch of this version is begun now, also where one was accepted and waited for its capacity."""
    if operation.kind != K.DEPLOY or snapshot.circuit is None:
        return None
    refusal = why_open(snapshot.circuit, context.now)
    return None if refusal is None else refusal.detail[:BLOCKER_LENGTH]


def _refused(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, why: str) -> Step | None:
    """The circuit is open: it waits until that closes, or its time is over."""
    if operation.deadline_at <= context.now:
        return _fail(context, snapshot, operation, (F.CIRCUIT_OPEN, why))
    return _block(context, snapshot, operation, (F.CIRCUIT_OPEN.value, why))


def _why_dead(each: MemberSnapshot) -> tuple[OperationFailure, str]:
    allocation = each.allocation
    if allocation is None:
        raise ValueError("only a member with an allocation is told why it is dead")
    gone = (each.node is not None and each.node.is_gone) or allocation.failure_code == F.NODE_LOST
    detail = allocation.failure_detail or f"it is {allocation.status}"
    return (F.NODE_LOST if gone else F.NO_CAPACITY), f"allocation {allocation.name} of {each.member.name}: {detail}"


def _blocked(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, waiting: list[MemberSnapshot]
) -> Step | None:
    """Name what the allocations wait for: the first that says it speaks for all."""
    allocations = sorted((each.allocation for each in waiting if each.allocation), key=lambda each: each.id)
    said = next((each for each in allocations if each.blocker is not None), None)
    if said is not None:
        code, text = NO_CAPACITY, f"no capacity: {said.blocker}"
    elif operation.created_at + PATIENCE <= context.now:
        code, text = WAITING, f"waits until allocation {allocations[0].name} stands"
    else:
        return None
    return _block(context, snapshot, operation, (code, text[:BLOCKER_LENGTH]))


def _block(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, why: tuple[str, str]
) -> Step | None:
    """Say what it waits for; none where that is said already."""
    told = {"blocker_code": why[0], "blocker": why[1]}
    slug = snapshot.instance.app_slug
    if operation.status != OperationState.BLOCKED:
        return move_operation(context, slug, operation, OperationTrigger.BLOCK, (ACTION, told))
    return None if operation.blocker == told["blocker"] else change_operation(slug, operation, ACTION, **told)


def _bounded(
    context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot, operation: Operation
) -> Step | None:
    """An adapter has its time: to take it, for each step, and for all of it."""
    now, held = context.now, snapshot.watch.is_held(context.now)
    dispatched = operation.dispatched_at or now
    alone = f"no adapter holds the instance; one was last seen: {snapshot.watch.last_seen()}"
    if operation.started_at is None and not held and dispatched + limits.claim <= now:
        within = int(limits.claim.total_seconds())
        return _fail(
            context, snapshot, operation, (F.ADAPTER_UNAVAILABLE, f"nobody took it within {within} s: {alone}")
        )
    late = _late_step(operation, now, limits.step)
    if late is not None and operation.deadline_at > now:
        return _fail(context, snapshot, operation, (F.STEP_TIMEOUT, late))
    if operation.deadline_at > now:
        return None
    if not held:
        return _fail(context, snapshot, operation, (F.ADAPTER_UNAVAILABLE, f"its time is over, and {alone}"))
    code = _TOO_LATE.get(K(operation.kind), F.DEADLINE_EXCEEDED)
    return _fail(context, snapshot, operation, (code, f"its time is over; {_how_far(snapshot, operation)}"))


def _graceful(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> Step | None:
    """The adapter's half of a teardown is bounded; then, or when there is nobody, it is the platform's turn."""
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
            alone = "" if held else f"; no adapter holds the instance, one was last seen: {snapshot.watch.last_seen()}"
            code = F.DEADLINE_EXCEEDED if held else F.ADAPTER_UNAVAILABLE
            return _fail(context, snapshot, operation, (code, f"the new member is not ready in time{alone}"))
        return _handed_over(context, snapshot, operation, "the adapter's time was over")
    begun = [each for each in targets if each.started or (held and each.member.status != MemberState.REQUESTED)]
    if not begun:
        return _handed_over(context, snapshot, operation, "there is nothing that an adapter could let go of")
    if due > now:
        return None
    because = (
        "the adapter's time was over" if held else f"no adapter came; one was last seen: {snapshot.watch.last_seen()}"
    )
    return _handed_over(context, snapshot, operation, because)


def _handed_over(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, because: str | None
) -> Step:
    """From now on it is the platform's turn."""
    columns: dict[str, Any] = {
        "phase": Phase.PLATFORM.value,
        "started_at": operation.started_at or context.now,
    }
    if because is not None:
        columns["evidence"] = (operation.evidence or {}) | {"graceful": False, "handed_over": because}
    slug, status = snapshot.instance.app_slug, OperationState(operation.status)
    if status is OperationState.RUNNING:
        return change_operation(slug, operation, ACTION, **columns)
    trigger = OperationTrigger.START if status is OperationState.ACCEPTED else OperationTrigger.UNBLOCK
    return move_operation(context, slug, operation, trigger, (ACTION, columns))


def _cancelling(
    context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot, operation: Operation
) -> Step | None:
    """Who holds it has a bounded time to end it; where nobody does, it ends at once."""
    slug, latest = snapshot.instance.app_slug, context.now + limits.cancel
    due, held = operation.phase_deadline_at, snapshot.watch.is_held(context.now)
    if held and operation.dispatched_at is not None and operation.phase == Phase.ADAPTER:
        if due is None or due > latest:
            return change_operation(slug, operation, ACTION, phase_deadline_at=latest)
        if due > context.now:
            return None
    ended = move_operation(context, slug, operation, OperationTrigger.FINISH_CANCEL, (ACTION, {}))
    parts: list[Decision[Any]] = [ended, _let_go(context, snapshot, operation), *_resumed(context, snapshot, operation)]
    if operation.kind == K.DEPLOY and snapshot.instance.status in _UNDER_WAY:
        because = (F.CANCELLED.value, operation.cancel_reason or "its deploy was cancelled")
        parts.append(_failed(context, snapshot.instance, because, None))
    return together(ended.result, *parts)


def _resumed(context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation) -> list[Decision[Any]]:
    """Who was asked to finish by what is taken back goes on with his work."""
    if snapshot.instance.status != S.RUNNING or operation.kind not in (K.DRAIN, K.REMOVE, K.REPLACE):
        return []
    slug = snapshot.instance.app_slug
    draining = [each.member for each in snapshot.concerned(operation) if each.member.status == MemberState.DRAINING]
    return [move_member(context, slug, each, MemberTrigger.RESUME, (ACTION, {})) for each in draining]


def _fail(
    context: DecisionContext, snapshot: InstanceSnapshot, operation: Operation, why: tuple[OperationFailure, str]
) -> Step:
    """End it without what was asked for; a launch takes its instance along."""
    code, detail = why[0].value, why[1][:DETAIL_LENGTH]
    lines = list(snapshot.last_lines.get(operation.id, ())) or None
    told = {
        "failure_code": code,
        "failure_detail": detail,
        "last_lines": operation.last_lines or lines,
        "evidence": (operation.evidence or {}) | advice_of(code),
    }
    ended = move_operation(context, snapshot.instance.app_slug, operation, OperationTrigger.FAIL, (ACTION, told))
    parts: list[Decision[Any]] = [ended, _let_go(context, snapshot, operation)]
    if operation.kind == K.DEPLOY and snapshot.instance.status in _UNDER_WAY:
        parts.append(_failed(context, snapshot.instance, (code, detail), lines))
    return together(ended.result, *parts)


def _let_go(context: DecisionContext, snapshot: InstanceSnapshot, ending: Operation) -> Decision[Any]:
    """What a change that did not come to pass held for itself alone is held no longer."""
    if ending.target_pin is None:
        return Decision(None)
    others = [each for each in snapshot.operations if each.id != ending.id]
    members = [each.member for each in snapshot.members]
    return drop_holds(context, idle_holds(snapshot.instance, members, others, snapshot.holds))


def _failed(
    context: DecisionContext, instance: Instance, why: tuple[str, str], lines: list[str] | None
) -> Decision[Instance]:
    code, detail = why
    told = {
        "failed_at": context.now,
        "failure_code": code,
        "failure_detail": detail[:DETAIL_LENGTH],
        "last_lines": lines,
        "health": InstanceHealth.UNKNOWN.value,
        "health_detail": None,
        "health_at": context.now,
    }
    return move_instance(context, instance, InstanceTrigger.FAIL, ACTION, **told)


def _late_step(operation: Operation, now: datetime, limit: timedelta) -> str | None:
    """The step that takes too long, in words."""
    for each in operation.steps:
        begun = _moment(each) if each.get("status") == "running" else None
        if begun is not None and begun + limit <= now:
            return f"step {each.get('name')} runs since {begun.isoformat(timespec='seconds')}"
    return None


def _moment(step: Mapping[str, Any]) -> datetime | None:
    begun = step.get("started_at")
    return datetime.fromisoformat(begun) if isinstance(begun, str) else begun


def _how_far(snapshot: InstanceSnapshot, operation: Operation) -> str:
    """Where it stood when its time was over."""
    done = sum(1 for each in operation.steps if each.get("status") in ("done", "skipped"))
    running = [str(each.get("name")) for each in operation.steps if each.get("status") == "running"]
    far = f"{done} of {len(operation.steps)} steps were done"
    far += f", under way: {', '.join(running[:5])}" if running else ""
    late = [each.member for each in snapshot.concerned(operation) if each.member.status in COMING]
    far += "; not ready: " + ", ".join(f"{each.name} ({each.status})" for each in late[:10]) if late else ""
    return far + (f"; blocked: {operation.blocker}" if operation.blocker else "")


def _health(context: DecisionContext, limits: TimeLimits, snapshot: InstanceSnapshot) -> Step | None:
    """What nobody can see is unknown; whoever sees it again reports it."""
    instance, parts = snapshot.instance, list[Decision[Any]]()
    for each in snapshot.members:
        since = None if each.node is None else each.node.unreachable_since
        if since is not None and each.node is not None and each.member.health != InstanceHealth.UNKNOWN:
            why = f"node {each.node.id} unreachable since {since.isoformat(timespec='seconds')}"
            told = {"health": InstanceHealth.UNKNOWN.value, "health_detail": why, "health_at": context.now}
            parts.append(change_member(instance.app_slug, each.member, ACTION, **told))
    if (
        instance.status == S.RUNNING
        and instance.health != InstanceHealth.UNKNOWN
        and snapshot.watch.is_forsaken(context.now, limits.lease)
    ):
        why = f"no adapter watches it; one was last seen: {snapshot.watch.last_seen()}"
        unseen: dict[str, Any] = {
            "health": InstanceHealth.UNKNOWN.value,
            "health_detail": why,
            "health_at": context.now,
        }
        parts.append(change_instance(instance, ACTION, **unseen))
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
