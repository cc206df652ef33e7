"""What an adapter tells of an instance: how far an operation is, how members stand, how the whole is.

A report is all or nothing: one decision, under the fence of the claim. It says what was observed, so that saying it
again changes nothing and writes nothing; only what differs from what is stored becomes a row. Which steps a member or
an operation may take is the lifecycle's word, and an adapter's report is refused where it has none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from mooring.core.kernel.decision import Context, Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.form_schema import plain_findings
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.claim import Claim, guard_of
from mooring.core.runtime.instance import Health, Instance, InstanceState, InstanceTrigger
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_member,
    change_operation,
    move_instance,
    move_member,
    move_operation,
    together,
)
from mooring.core.runtime.launch import refusals_of
from mooring.core.runtime.member import MEMBER, Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import (
    WHOLE_KINDS,
    Operation,
    OperationFailure,
    OperationKind,
    OperationState,
    OperationTrigger,
    Phase,
    StepState,
)
from mooring.core.runtime.terminal import check_endpoint

ACTION: Final = "runtime.report"
STEPS_MAX: Final = 200
DETAIL_BYTES_MAX: Final = 16_384


class ReportableState(StrEnum):
    """How a member may be reported; the other states are not an adapter's to say."""

    JOINING = "joining"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FailureTold:
    """Why something failed."""

    code: OperationFailure
    detail: str = ""
    last_lines: tuple[str, ...] = ()

    def columns(self, context: Context) -> dict[str, Any]:
        """As it is stored with what failed."""
        return {
            "failed_at": context.now, "failure_code": self.code.value, "failure_detail": self.detail or None,
            "last_lines": list(self.last_lines) or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Blocking:
    """What stands in an operation's way, by code and words; none: nothing does any more."""

    by: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class StepTold:
    """One step of an operation."""

    name: str
    status: StepState
    detail: str | None = None
    progress: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HoldTold:
    """Why the adapter wants no new work on a member."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTold:
    """What was observed of a member; what is none is not told. A text that may be cleared is told as a tuple."""

    id: str
    status: ReportableState | None = None
    health: Health | None = None
    health_detail: tuple[str | None] | None = None
    detail: Mapping[str, Any] | None = None
    version: str | None = None
    holds: tuple[HoldTold, ...] | None = None
    failure: FailureTold | None = None


@dataclass(frozen=True, slots=True)
class EndpointTold:
    """Where the app can be reached, in the form that is stored."""

    plain: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTold:
    """What was observed of the whole."""

    health: Health | None = None
    health_detail: tuple[str | None] | None = None
    endpoints: tuple[EndpointTold, ...] | None = None
    detail: Mapping[str, Any] | None = None
    topology_mode: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A report."""

    begin: bool = False
    blocked: Blocking | None = None
    steps: tuple[StepTold, ...] = ()
    members: tuple[MemberTold, ...] = ()
    instance: InstanceTold | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a report is held against: the instance and its claim, the operation that it names, the members."""

    claim: Claim
    instance: Instance
    members: Mapping[str, Member]
    operation: Operation | None = None
    unreachable: frozenset[str] = field(default=frozenset())  # members whose node does not answer


def under(context: Context, seen: Seen) -> Context:
    """The context with the correlation of what is reported on: an adapter's request has one of its own."""
    subject = seen.operation or seen.instance
    return replace(context, correlation_id=subject.correlation_id, trace_id=subject.trace_id)


def take_report(context: Context, seen: Seen, told: Told) -> Decision[Instance]:
    """What becomes true by this report; the instance as it then is."""
    parts: list[Decision[Any]] = []
    if told.begin or told.blocked is not None or told.steps:
        parts += _operation(context, seen, told)
    twice = {each.id for each in told.members}
    if len(twice) != len(told.members):
        raise invalid("members", "each member once")
    for each in told.members:
        parts += _member(context, seen, each)
    instance, written = _instance(context, seen, told)
    parts += written
    return together(instance, *parts, *_guard(seen, parts))


def _guard(seen: Seen, parts: list[Decision[Any]]) -> list[Decision[None]]:
    return [Decision(None, (guard_of(seen.claim),), traceless=True)] if parts else []


# The operation --------------------------------------------------------------------------------------------------------


def require_turn(operation: Operation) -> None:
    """The operation is open, was handed to adapters, and the adapter's part of it is not over."""
    if operation.is_over or operation.phase != Phase.ADAPTER or operation.dispatched_at is None:
        how = operation.status if operation.phase == Phase.ADAPTER else f"{operation.status}, and the platform's turn"
        raise Refusal(
            Code.CONFLICT,
            f"operation {operation.id} is {how}: nothing more is reported on it",
            {"operation_id": operation.id, "status": operation.status, "phase": operation.phase},
        )


def _operation(context: Context, seen: Seen, told: Told) -> list[Decision[Any]]:
    operation = seen.operation
    if operation is None:
        raise invalid("operation_id", "the operation that begins, is blocked, or has these steps")
    columns = _progress(context, operation, told.steps)
    if told.begin and operation.attempt_fence != seen.claim.fence:
        columns |= {"attempts": operation.attempts + 1, "attempt_fence": seen.claim.fence}
    trigger = _trigger(operation, told)
    if told.blocked is not None and told.blocked.by is not None and operation.status != OperationState.CANCELLING:
        code, detail = told.blocked.by
        if (operation.blocker_code, operation.blocker) != (code, detail):
            columns |= {"blocker_code": code, "blocker": detail}
    if trigger is None and not columns:
        return []
    require_turn(operation)
    if operation.started_at is None and (told.begin or trigger is OperationTrigger.BLOCK):
        columns |= {"started_at": context.now}
    if trigger is not None:
        return [move_operation(context, seen.instance.app_slug, operation, trigger, (ACTION, columns))]
    if operation.status == OperationState.ACCEPTED:
        raise Refusal(Code.ILLEGAL_TRANSITION, "the operation has not begun: report `begin` with it", {
            "operation_id": operation.id, "status": operation.status,
        })  # fmt: skip
    return [change_operation(seen.instance.app_slug, operation, ACTION, **columns)]


def _trigger(operation: Operation, told: Told) -> OperationTrigger | None:
    status, blocked = operation.status, told.blocked
    if blocked is not None and blocked.by is not None:
        return OperationTrigger.BLOCK if status in (OperationState.ACCEPTED, OperationState.RUNNING) else None
    if status == OperationState.BLOCKED and (blocked is not None or told.begin):
        return OperationTrigger.UNBLOCK
    return OperationTrigger.START if told.begin and status == OperationState.ACCEPTED else None


def _progress(context: Context, operation: Operation, told: tuple[StepTold, ...]) -> dict[str, Any]:
    """The steps with what was told of them, where that is anything new."""
    steps = {each["name"]: each for each in operation.steps}
    progress = operation.progress
    for each in told:
        steps[each.name] = _step(context, steps.get(each.name), each)
        if each.status is StepState.RUNNING and each.progress is not None:
            progress = {"step": each.name, **each.progress}
    if len(steps) > STEPS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"an operation has at most {STEPS_MAX} steps", {"limit": STEPS_MAX})
    after = list(steps.values())
    changed: dict[str, Any] = {} if after == operation.steps else {"steps": after}
    return changed if progress == operation.progress else {**changed, "progress": progress}


def _step(context: Context, before: dict[str, Any] | None, told: StepTold) -> dict[str, Any]:
    now = context.now.isoformat()
    step = dict(before or {"name": told.name, "status": StepState.PENDING.value, "attempts": 0})
    if before is None or before["status"] != told.status:
        if told.status is StepState.RUNNING:
            step |= {"attempts": step["attempts"] + 1, "started_at": now, "ended_at": None}
        elif told.status in (StepState.DONE, StepState.FAILED, StepState.SKIPPED):
            step |= {"ended_at": now}
        step |= {"status": told.status.value}
    if told.detail is not None:
        step["detail"] = told.detail
    if told.progress is not None:
        step["progress"] = told.progress
    return step


# Members --------------------------------------------------------------------------------------------------------------


def _member(context: Context, seen: Seen, told: MemberTold) -> list[Decision[Any]]:
    member = seen.members.get(told.id)
    if member is None:
        raise Refusal(Code.NOT_FOUND, f"the instance has no member {told.id}")
    columns = _observed(context, member, told)
    columns |= _version(seen, member, told.version)
    columns |= _holds(context, seen, member, told.holds)
    slug = seen.instance.app_slug
    if told.status is None or told.status.value == member.status:
        if told.failure is not None and member.status != MemberState.FAILED:
            raise invalid("members/failure", "a failure comes with the status `failed`")
        if not columns:
            return []
        if member.status in (MemberState.REMOVING, MemberState.REMOVED):
            MEMBER.step(MemberState(member.status), MemberTrigger.RECOVER)  # refuses: what is torn down is not observed
        return [change_member(slug, member, ACTION, **columns)]
    trigger = _member_trigger(seen, member, told.status)
    if trigger is MemberTrigger.FAIL:
        if told.failure is None:
            raise invalid("members/failure", "what fails says why")
        columns |= told.failure.columns(context)
    if trigger is MemberTrigger.FINISH_DRAIN and member.id in seen.unreachable:
        raise Refusal(
            Code.CONFLICT,
            f"the node of member {member.id} does not answer: what cannot be observed is not drained",
            {"member_id": member.id},
        )
    if seen.operation is not None and member.id in seen.operation.member_ids:
        columns |= {"last_operation_id": seen.operation.id}
    return [move_member(context, slug, member, trigger, (ACTION, columns))]


def _member_trigger(seen: Seen, member: Member, wanted: ReportableState) -> MemberTrigger:
    status = MemberState(member.status)
    if wanted is ReportableState.JOINING:
        return MemberTrigger.REPAIR if status is MemberState.FAILED and _mends(seen, member) else MemberTrigger.JOIN
    if wanted is ReportableState.READY:
        if status in (MemberState.DRAINING, MemberState.DRAINED) and _resumes(seen, member):
            return MemberTrigger.RESUME
        return MemberTrigger.RECOVER if status is MemberState.DEGRADED else MemberTrigger.REPORT_READY
    return {
        ReportableState.DEGRADED: MemberTrigger.DEGRADE,
        ReportableState.DRAINED: MemberTrigger.FINISH_DRAIN,
        ReportableState.FAILED: MemberTrigger.FAIL,
    }[wanted]


def _mends(seen: Seen, member: Member) -> bool:
    """Whether somebody asked for this member to be built once more: an open operation of the whole, or of it."""
    operation = seen.operation
    if operation is None or operation.is_over or operation.phase != Phase.ADAPTER:
        return False
    return operation.kind in WHOLE_KINDS or member.id in operation.member_ids


def _resumes(seen: Seen, member: Member) -> bool:
    """Whether the drain was taken back: an operation of the whole puts members back to work after it drained them."""
    operation = seen.operation
    if operation is None or operation.is_over:
        return False
    whole = operation.kind in WHOLE_KINDS
    return whole or (operation.kind == OperationKind.DRAIN and operation.status == OperationState.CANCELLING)


def _observed(context: Context, subject: Member | Instance, told: MemberTold | InstanceTold) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if told.health is not None and told.health.value != subject.health:
        columns |= {"health": told.health.value, "health_at": context.now}
    if told.health_detail is not None and told.health_detail[0] != subject.health_detail:
        columns["health_detail"] = told.health_detail[0]
    if told.detail is not None and dict(told.detail) != subject.adapter_detail:
        columns["adapter_detail"] = bounded_detail(told.detail, "detail")
    return columns


def _version(seen: Seen, member: Member, version: str | None) -> dict[str, Any]:
    """The version that a member runs is the instance's, or the one that an operation leads to."""
    if version is None or version == member.version:
        return {}
    pins = [seen.instance.pin, seen.instance.previous_pin]
    if seen.operation is not None:
        pins.insert(0, seen.operation.target_pin)
    for pin in pins:
        if pin is not None and pin["version"] == version:
            return {"version": version, "version_id": pin["version_id"]}
    raise invalid("members/version", "the instance's version, or the one that the operation leads to")


def _holds(
    context: Context, seen: Seen, member: Member, told: tuple[HoldTold, ...] | None
) -> dict[str, list[dict[str, Any]]]:
    """The adapter's own holds anew; whatever others want with the member stays."""
    if told is None:
        return {}
    owner = seen.claim.service_account_id
    own = {each["reason"]: each for each in member.holds if each["owner"] == owner}
    if set(own) == {each.reason for each in told}:
        return {}
    since = context.now.isoformat()
    kept = [own.get(each.reason, {"owner": owner, "reason": each.reason, "since": since}) for each in told]
    return {"holds": [*(each for each in member.holds if each["owner"] != owner), *kept]}


# The instance ---------------------------------------------------------------------------------------------------------


def _instance(context: Context, seen: Seen, told: Told) -> tuple[Instance, list[Decision[Any]]]:
    instance, operation = seen.instance, seen.operation
    columns = {} if told.instance is None else _of_whole(context, seen, told.instance)
    begins = (
        told.begin
        and operation is not None
        and operation.kind == OperationKind.DEPLOY
        and instance.status == InstanceState.CREATED
    )
    if begins:
        moved = move_instance(context, instance, InstanceTrigger.START, ACTION, **columns)
        return moved.result, [moved]
    if not columns:
        return instance, []
    if instance.status == InstanceState.STOPPED:
        raise Refusal(Code.CONFLICT, "the instance is stopped: nothing more is observed of it")
    healthy = columns.get("health") == Health.HEALTHY
    event = EventType.INSTANCE_HEALTHY if healthy else EventType.INSTANCE_CHANGED
    changed = change_instance(instance, ACTION, event, **columns)
    return changed.result, [changed]


def _of_whole(context: Context, seen: Seen, told: InstanceTold) -> dict[str, Any]:
    columns = _observed(context, seen.instance, told)
    if told.endpoints is not None:
        endpoints = [_endpoint(seen, each.plain) for each in told.endpoints]
        if len({each["name"] for each in endpoints}) != len(endpoints):
            raise invalid("instance/endpoints", "each name once")
        if endpoints != seen.instance.endpoints:
            columns["endpoints"] = endpoints
    if told.topology_mode is not None and told.topology_mode != seen.instance.topology_mode:
        columns["topology_mode"] = told.topology_mode
    return columns


def _endpoint(seen: Seen, plain: Mapping[str, Any]) -> dict[str, Any]:
    member = seen.members.get(plain["member_id"])
    if member is None or member.status == MemberState.REMOVED:
        raise Refusal(Code.NOT_FOUND, f"the instance has no member {plain['member_id']}")
    check_endpoint(plain, "instance/endpoints")
    return {name: value for name, value in plain.items() if value is not None}


def bounded_detail(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """An adapter's own words, within their bounds."""
    for refusal in refusals_of(plain_findings(value), path):
        raise refusal
    if len(json.dumps(value, ensure_ascii=False).encode()) > DETAIL_BYTES_MAX:
        raise invalid(path, f"at most {DETAIL_BYTES_MAX} bytes of JSON")
    return dict(value)
