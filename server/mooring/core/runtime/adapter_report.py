"""What an adapter reports about an instance: the progress of an operation, the state of members, the health of the
whole.

A report is all or nothing: one decision, under the fence of the claim. It states what was observed, so repeating it
changes nothing and writes nothing; only differences from the stored state become rows. The lifecycle tables say which
steps a member or an operation may take, and a report that asks for any other step is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.form_schema import plain_findings
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance, InstanceHealth, InstanceState, InstanceTrigger
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
from mooring.core.runtime.visit import check_endpoint

ACTION: Final = "runtime.report"
STEPS_MAX: Final = 200
DETAIL_BYTES_MAX: Final = 16_384
FIGURES: Final = frozenset({"adapter_detail", "health_detail"})
"""What an adapter observes that is not worth an audit row when nothing else changed."""

Subject = TypeVar("Subject", Member, Instance)


class ReportableState(StrEnum):
    """The states that an adapter may report for a member; the others are set by the platform."""

    JOINING = "joining"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FailureReport:
    code: OperationFailure
    detail: str = ""
    last_lines: tuple[str, ...] = ()

    def columns(self, context: DecisionContext) -> dict[str, Any]:
        """The columns that store this failure on an instance, a member or an operation."""
        return {
            "failed_at": context.now,
            "failure_code": self.code.value,
            "failure_detail": self.detail or None,
            "last_lines": list(self.last_lines) or None,
        }


@dataclass(frozen=True, slots=True)
class BlockerReport:
    """What blocks an operation; without a code, nothing blocks it any more."""

    code: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    name: str
    status: StepState
    detail: str | None = None
    progress: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HoldReport:
    """A reason why the adapter wants no new work on a member."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """What was observed of a member; None means "not reported".

    `health_detail` is a one-tuple because its text can be cleared: None leaves it unchanged, `(None,)` clears it.
    """

    id: str
    status: ReportableState | None = None
    health: InstanceHealth | None = None
    health_detail: tuple[str | None] | None = None
    detail: Mapping[str, Any] | None = None
    version: str | None = None
    holds: tuple[HoldReport, ...] | None = None
    failure: FailureReport | None = None


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """Where the app can be reached, in the form in which it is stored."""

    plain: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceReport:
    """What was observed of the instance as a whole; None means "not reported"."""

    health: InstanceHealth | None = None
    health_detail: tuple[str | None] | None = None
    endpoints: tuple[EndpointReport, ...] | None = None
    detail: Mapping[str, Any] | None = None
    topology_mode: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterReport:
    """Everything that one report states."""

    begin: bool = False
    blocked: BlockerReport | None = None
    steps: tuple[StepReport, ...] = ()
    members: tuple[MemberReport, ...] = ()
    instance: InstanceReport | None = None


@dataclass(frozen=True, slots=True)
class ReportContext:
    """What a report is checked against: the instance and its claim, the operation that it names, the members."""

    claim: InstanceClaim
    instance: Instance
    members: Mapping[str, Member]
    operation: Operation | None = None
    unreachable: frozenset[str] = field(default=frozenset())  # members whose node does not answer


def with_correlation(context: DecisionContext, current: ReportContext) -> DecisionContext:
    """The context with the correlation of the reported operation, if there is one, instead of the request's own."""
    operation = current.operation
    if operation is None:
        return context
    return replace(context, correlation_id=operation.correlation_id, trace_id=operation.trace_id)


def take_report(context: DecisionContext, current: ReportContext, report: AdapterReport) -> Decision[Instance]:
    """The writes that this report leads to, and the instance after them."""
    parts: list[Decision[Any]] = []
    if report.begin or report.blocked is not None or report.steps:
        parts += _operation(context, current, report)
    unique = {each.id for each in report.members}
    if len(unique) != len(report.members):
        raise invalid("members", "must name each member only once")
    for each in report.members:
        parts += _member(context, current, each)
    instance, written = _instance(context, current, report)
    parts += written
    return _with_cause(current, together(instance, *parts, *_guard(current, parts)))


def _with_cause(current: ReportContext, decision: Decision[Instance]) -> Decision[Instance]:
    """What a report outside of operations leaves names the launch: the report has a correlation id of its own."""
    if current.operation is not None:
        return decision
    cause = {"cause_id": current.instance.correlation_id}
    return replace(
        decision,
        events=tuple(replace(each, data={**each.data, **cause}) for each in decision.events),
        audits=tuple(replace(each, after={**(each.after or {}), **cause}) for each in decision.audits),
    )


def _guard(current: ReportContext, parts: list[Decision[Any]]) -> list[Decision[None]]:
    return [Decision(None, (guard_of(current.claim),), traceless=True)] if parts else []


# The operation --------------------------------------------------------------------------------------------------------


def require_turn(operation: Operation) -> None:
    """Refuse unless the operation is open, was handed to adapters, and is still in the adapter's phase."""
    if operation.is_over or operation.phase != Phase.ADAPTER or operation.dispatched_at is None:
        how = (
            operation.status if operation.phase == Phase.ADAPTER else f"{operation.status} and in the platform's phase"
        )
        raise Refusal(
            Code.CONFLICT,
            f"operation {operation.id} is {how}: it takes no more reports",
            {"operation_id": operation.id, "status": operation.status, "phase": operation.phase},
        )


def _operation(context: DecisionContext, current: ReportContext, report: AdapterReport) -> list[Decision[Any]]:
    operation = current.operation
    if operation is None:
        raise invalid("operation_id", "required: name the operation that begins, is blocked, or has these steps")
    columns = _progress(context, operation, report.steps)
    if report.begin and operation.attempt_fence != current.claim.fence:
        columns |= {"attempts": operation.attempts + 1, "attempt_fence": current.claim.fence}
    trigger = _trigger(operation, report)
    blocked = report.blocked
    if blocked is not None and blocked.code is not None and operation.status != OperationState.CANCELLING:
        code, detail = blocked.code, blocked.detail
        if (operation.blocker_code, operation.blocker) != (code, detail):
            columns |= {"blocker_code": code, "blocker": detail}
    if trigger is None and not columns:
        return []
    require_turn(operation)
    if operation.started_at is None and (report.begin or trigger is OperationTrigger.BLOCK):
        columns |= {"started_at": context.now}
    if trigger is not None:
        return [move_operation(context, current.instance.app_slug, operation, trigger, ACTION, **columns)]
    if operation.status == OperationState.ACCEPTED:
        raise Refusal(
            Code.ILLEGAL_TRANSITION,
            "the operation has not begun: report `begin` with it",
            {
                "operation_id": operation.id,
                "status": operation.status,
            },
        )
    return [change_operation(current.instance.app_slug, operation, ACTION, **columns)]


def _trigger(operation: Operation, report: AdapterReport) -> OperationTrigger | None:
    status, blocked = operation.status, report.blocked
    if blocked is not None and blocked.code is not None:
        return OperationTrigger.BLOCK if status in (OperationState.ACCEPTED, OperationState.RUNNING) else None
    if status == OperationState.BLOCKED and (blocked is not None or report.begin):
        return OperationTrigger.UNBLOCK
    return OperationTrigger.START if report.begin and status == OperationState.ACCEPTED else None


def _progress(context: DecisionContext, operation: Operation, reports: tuple[StepReport, ...]) -> dict[str, Any]:
    """The changed columns of the operation after these step reports; empty if they report nothing new."""
    steps = {each["name"]: each for each in operation.steps}
    progress = operation.progress
    for each in reports:
        steps[each.name] = _step(context, steps.get(each.name), each)
        if each.status is StepState.RUNNING and each.progress is not None:
            progress = {"step": each.name, **each.progress}
    if len(steps) > STEPS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"an operation has at most {STEPS_MAX} steps", {"limit": STEPS_MAX})
    after = list(steps.values())
    changed: dict[str, Any] = {} if after == operation.steps else {"steps": after}
    return changed if progress == operation.progress else {**changed, "progress": progress}


def _step(context: DecisionContext, before: dict[str, Any] | None, report: StepReport) -> dict[str, Any]:
    now = context.now.isoformat()
    step = dict(before or {"name": report.name, "status": StepState.PENDING.value, "attempts": 0})
    if before is None or before["status"] != report.status:
        if report.status is StepState.RUNNING:
            step |= {"attempts": step["attempts"] + 1, "started_at": now, "ended_at": None}
        elif report.status in (StepState.DONE, StepState.FAILED, StepState.SKIPPED):
            step |= {"ended_at": now}
        step |= {"status": report.status.value}
    if report.detail is not None:
        step["detail"] = report.detail
    if report.progress is not None:
        step["progress"] = report.progress
    return step


# Members --------------------------------------------------------------------------------------------------------------


def _member(context: DecisionContext, current: ReportContext, report: MemberReport) -> list[Decision[Any]]:
    member = current.members.get(report.id)
    if member is None:
        raise Refusal(Code.NOT_FOUND, f"the instance has no member {report.id}")
    columns = _observed(context, member, report)
    columns |= _version(current, member, report.version)
    columns |= _holds(context, current, member, report.holds)
    slug = current.instance.app_slug
    if report.status is None or report.status.value == member.status:
        if report.failure is not None and member.status != MemberState.FAILED:
            raise invalid("members/failure", "only a member with the status `failed` has a failure")
        if not columns:
            return []
        if member.status in (MemberState.REMOVING, MemberState.REMOVED):
            MEMBER.step(
                MemberState(member.status), MemberTrigger.RECOVER
            )  # refuses: a member that is torn down takes no observations
        return [_unaudited_if_figures(change_member(slug, member, ACTION, **columns), columns)]
    trigger = _member_trigger(current, member, report.status)
    if trigger is MemberTrigger.FAIL:
        if report.failure is None:
            raise invalid("members/failure", "required with the status `failed`")
        columns |= report.failure.columns(context)
    if trigger is MemberTrigger.FINISH_DRAIN and member.id in current.unreachable:
        raise Refusal(
            Code.CONFLICT,
            f"the node of member {member.id} does not answer, so nobody can have observed that it is drained",
            {"member_id": member.id},
        )
    if current.operation is not None and member.id in current.operation.member_ids:
        columns |= {"last_operation_id": current.operation.id}
    return [move_member(context, slug, member, trigger, ACTION, **columns)]


def _member_trigger(current: ReportContext, member: Member, wanted: ReportableState) -> MemberTrigger:
    status = MemberState(member.status)
    if wanted is ReportableState.JOINING:
        return (
            MemberTrigger.REPAIR
            if status is MemberState.FAILED and _may_rebuild(current, member)
            else MemberTrigger.JOIN
        )
    if wanted is ReportableState.READY:
        if status in (MemberState.DRAINING, MemberState.DRAINED) and _may_resume(current, member):
            return MemberTrigger.RESUME
        return MemberTrigger.RECOVER if status is MemberState.DEGRADED else MemberTrigger.REPORT_READY
    return {
        ReportableState.DEGRADED: MemberTrigger.DEGRADE,
        ReportableState.DRAINED: MemberTrigger.FINISH_DRAIN,
        ReportableState.FAILED: MemberTrigger.FAIL,
    }[wanted]


def _may_rebuild(current: ReportContext, member: Member) -> bool:
    """Whether an open operation, of the whole instance or of this member, asks to rebuild the member."""
    operation = current.operation
    if operation is None or operation.is_over or operation.phase != Phase.ADAPTER:
        return False
    return operation.kind in WHOLE_KINDS or member.id in operation.member_ids


def _may_resume(current: ReportContext, member: Member) -> bool:
    """Whether the drain was undone: operations of the whole instance put members back to work after draining them."""
    operation = current.operation
    if operation is None or operation.is_over:
        return False
    whole = operation.kind in WHOLE_KINDS
    return whole or (operation.kind == OperationKind.DRAIN and operation.status == OperationState.CANCELLING)


def _observed(
    context: DecisionContext, subject: Member | Instance, report: MemberReport | InstanceReport
) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if report.health is not None and report.health.value != subject.health:
        columns |= {"health": report.health.value, "health_at": context.now}
    if report.health_detail is not None and report.health_detail[0] != subject.health_detail:
        columns["health_detail"] = report.health_detail[0]
    if report.detail is not None and dict(report.detail) != subject.adapter_detail:
        columns["adapter_detail"] = bounded_detail(report.detail, "detail")
    return columns


def _unaudited_if_figures(decision: Decision[Subject], columns: Mapping[str, Any]) -> Decision[Subject]:
    """The change; without audit rows if only figures and texts changed, as at most looks of a busy app."""
    return replace(decision, audits=(), traceless=True) if columns.keys() <= FIGURES else decision


def _version(current: ReportContext, member: Member, version: str | None) -> dict[str, Any]:
    """A member runs the instance's version, its previous one, or the target of the operation; others are refused."""
    if version is None or version == member.version:
        return {}
    pins = [current.instance.pin, current.instance.previous_pin]
    if current.operation is not None:
        pins.insert(0, current.operation.target_pin)
    for pin in pins:
        if pin is not None and pin["version"] == version:
            return {"version": version, "version_id": pin["version_id"]}
    raise invalid("members/version", "must be the instance's version or the target version of the operation")


def _holds(
    context: DecisionContext, current: ReportContext, member: Member, reports: tuple[HoldReport, ...] | None
) -> dict[str, list[dict[str, Any]]]:
    """Replace the adapter's own holds; the holds of other owners stay."""
    if reports is None:
        return {}
    owner = current.claim.service_account_id
    own = {each["reason"]: each for each in member.holds if each["owner"] == owner}
    if set(own) == {each.reason for each in reports}:
        return {}
    since = context.now.isoformat()
    own_holds = [own.get(each.reason, {"owner": owner, "reason": each.reason, "since": since}) for each in reports]
    return {"holds": [*(each for each in member.holds if each["owner"] != owner), *own_holds]}


# The instance ---------------------------------------------------------------------------------------------------------


def _instance(
    context: DecisionContext, current: ReportContext, report: AdapterReport
) -> tuple[Instance, list[Decision[Any]]]:
    instance, operation = current.instance, current.operation
    columns = {} if report.instance is None else _instance_columns(context, current, report.instance)
    begins = (
        report.begin
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
        raise Refusal(Code.CONFLICT, "the instance is stopped: it takes no more reports")
    healthy = columns.get("health") == InstanceHealth.HEALTHY
    event = EventType.INSTANCE_HEALTHY if healthy else EventType.INSTANCE_CHANGED
    changed = change_instance(instance, ACTION, event, **columns)
    return changed.result, [_unaudited_if_figures(changed, columns)]


def _instance_columns(context: DecisionContext, current: ReportContext, report: InstanceReport) -> dict[str, Any]:
    columns = _observed(context, current.instance, report)
    if report.endpoints is not None:
        endpoints = [_endpoint(current, each.plain) for each in report.endpoints]
        if len({each["name"] for each in endpoints}) != len(endpoints):
            raise invalid("instance/endpoints", "must have unique names")
        if endpoints != current.instance.endpoints:
            columns["endpoints"] = endpoints
    if report.topology_mode is not None and report.topology_mode != current.instance.topology_mode:
        columns["topology_mode"] = report.topology_mode
    return columns


def _endpoint(current: ReportContext, plain: Mapping[str, Any]) -> dict[str, Any]:
    member = current.members.get(plain["member_id"])
    if member is None or member.status == MemberState.REMOVED:
        raise Refusal(Code.NOT_FOUND, f"the instance has no member {plain['member_id']}")
    check_endpoint(plain, "instance/endpoints")
    return {name: value for name, value in plain.items() if value is not None}


def bounded_detail(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The adapter's own JSON, refused if it is malformed or too large."""
    for refusal in refusals_of(plain_findings(value, DETAIL_BYTES_MAX), path):
        raise refusal
    if len(json.dumps(value, ensure_ascii=False).encode()) > DETAIL_BYTES_MAX:
        raise invalid(path, f"at most {DETAIL_BYTES_MAX} bytes of JSON")
    return dict(value)
