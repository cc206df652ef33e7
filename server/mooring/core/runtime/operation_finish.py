"""The end of an operation as its adapter reports it, and everything that follows from it.

Each kind has its own rule for success. A launch has succeeded when every component has its minimum of members, an add
when its members are ready, a drain when they were observed idle; an upgrade moves the pin. A teardown is not over when
its adapter says so: it then passes to the platform, which tears down, verifies and stores the proof. Repeating the same
end is accepted and writes nothing; a different end is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from mooring.core.catalog.artifact_hold import ArtifactHold, drop_holds
from mooring.core.catalog.manifest import Manifest
from mooring.core.fleet.task import SYSTEM_MAKER
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.adapter_report import FailureReport, ReportContext, bounded_detail
from mooring.core.runtime.app_action import check_output
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.attachment_reconcile import outcome_of
from mooring.core.runtime.claim import guard_of
from mooring.core.runtime.instance import Instance, InstanceState, InstanceTrigger
from mooring.core.runtime.instance_change import configured
from mooring.core.runtime.instance_snapshot import idle_holds
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_operation,
    instance_event,
    move_instance,
    move_member,
    move_operation,
    together,
)
from mooring.core.runtime.member import Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import (
    OPERATION,
    Operation,
    OperationFailure,
    OperationKind,
    OperationState,
    OperationTrigger,
    Phase,
)
from mooring.core.runtime.topology import components_of

ACTION: Final = "runtime.report"
UP: Final = frozenset({MemberState.READY.value, MemberState.DEGRADED.value})
COMING: Final = frozenset({MemberState.REQUESTED.value, MemberState.JOINING.value})
GONE: Final = frozenset({MemberState.REMOVING.value, MemberState.REMOVED.value})


class FinishOutcome(StrEnum):
    """How an adapter ends an operation."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class OperationEnd:
    """What an adapter reports at the end of an operation."""

    outcome: FinishOutcome
    evidence: Mapping[str, Any] | None = None
    output: dict[str, Any] | None = None
    failure: FailureReport | None = None


@dataclass(frozen=True, slots=True)
class FinishContext:
    """The facts on which the end of an operation is decided."""

    report_context: ReportContext
    operation: Operation
    manifest: Manifest  # of the instance's pin
    holds: Sequence[ArtifactHold] = field(default=())
    attachment: Attachment | None = None  # the attachment that the operation creates or ends

    @property
    def instance(self) -> Instance:
        return self.report_context.instance

    @property
    def members(self) -> list[Member]:
        """The members that the operation names, in its order."""
        found = (self.report_context.members.get(each) for each in self.operation.member_ids)
        return [each for each in found if each is not None]


TRIGGER: Final = {
    FinishOutcome.SUCCEEDED: OperationTrigger.SUCCEED,
    FinishOutcome.FAILED: OperationTrigger.FAIL,
    FinishOutcome.CANCELLED: OperationTrigger.FINISH_CANCEL,
}


def finish_operation(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> Decision[Operation]:
    """Everything that changes when the operation ends."""
    operation = finishing.operation
    if _is_repeated(operation, ending):
        return Decision(operation)
    if operation.phase != Phase.ADAPTER or operation.dispatched_at is None:
        raise _not_now(operation, "the adapter's phase is over, or has not started")
    if ending.outcome is FinishOutcome.FAILED and ending.failure is None:
        raise invalid("failure", "required with the outcome `failed`")
    OPERATION.step(
        OperationState(operation.status), TRIGGER[ending.outcome]
    )  # refuses outcomes that this state does not allow
    evidence = None if ending.evidence is None else bounded_detail(ending.evidence, "evidence")
    if _passes_to_platform(operation, ending):
        adapter_end: dict[str, Any] = {
            "outcome": ending.outcome.value,
            **({} if evidence is None else {"evidence": evidence}),
        }
        if ending.failure is not None:
            adapter_end |= {"failure_code": ending.failure.code.value, "failure_detail": ending.failure.detail}
        handover: dict[str, Any] = {"phase": Phase.PLATFORM.value, "evidence": {"adapter": adapter_end}}
        changed = change_operation(finishing.instance.app_slug, operation, ACTION, **handover)
        return together(changed.result, changed, _guard(finishing))
    columns: dict[str, Any] = {} if evidence is None else {"evidence": evidence}
    if ending.failure is not None:
        failure_columns = ending.failure.columns(context)
        columns |= {name: failure_columns[name] for name in ("failure_code", "failure_detail", "last_lines")}
    if ending.outcome is FinishOutcome.SUCCEEDED:
        check_output(finishing.manifest, operation, ending.output)
    elif ending.output is not None:
        raise invalid("output", "only a succeeded action has an output")
    if ending.output is not None:
        columns["output"] = ending.output
    rest = _EFFECTS[ending.outcome].get(OperationKind(operation.kind), _nothing)(context, finishing, ending)
    moved = move_operation(context, finishing.instance.app_slug, operation, TRIGGER[ending.outcome], ACTION, **columns)
    return together(moved.result, moved, *rest, _guard(finishing))


def _guard(finishing: FinishContext) -> Decision[None]:
    return Decision(None, (guard_of(finishing.report_context.claim),), traceless=True)


def _is_repeated(operation: Operation, ending: OperationEnd) -> bool:
    """Whether the adapter reported this same end before."""
    if operation.is_over:
        if operation.status == ending.outcome.value:
            return True
        raise _not_now(operation, f"it cannot also end as {ending.outcome}")
    reported = (operation.evidence or {}).get("adapter", {})
    return operation.phase == Phase.PLATFORM and reported.get("outcome") == ending.outcome.value


def _passes_to_platform(operation: Operation, ending: OperationEnd) -> bool:
    """Whether the platform continues: it tears down what the adapter has shut down.

    A decommission passes to the platform whatever its adapter reports, and so does a removal that the platform itself
    started: teardown never depends on an adapter. If a removal or replacement that a caller requested fails, nothing is
    torn down.
    """
    if operation.kind == OperationKind.DECOMMISSION:
        return True
    if operation.kind not in (OperationKind.REMOVE, OperationKind.REPLACE):
        return False
    if operation.kind == OperationKind.REMOVE and operation.requested_by == SYSTEM_MAKER:
        return True
    return ending.outcome is FinishOutcome.SUCCEEDED


def _not_now(operation: Operation, why: str) -> Refusal:
    return Refusal(
        Code.ILLEGAL_TRANSITION,
        f"operation {operation.id} is {operation.status}: {why}",
        {"operation_id": operation.id, "status": operation.status, "phase": operation.phase},
    )


def _not_done(operation: Operation, why: str, **details: object) -> Refusal:
    return Refusal(
        Code.CONFLICT, f"{operation.kind} has not succeeded: {why}", {"operation_id": operation.id, **details}
    )


Effect = Callable[[DecisionContext, FinishContext, OperationEnd], list[Decision[Any]]]


def _nothing(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    return []


# Succeeded ------------------------------------------------------------------------------------------------------------


def _deployed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    require_minimum(finishing)
    if finishing.instance.status != InstanceState.STARTING:
        return []  # a stop has started meanwhile; only the operation ends here
    running = move_instance(context, finishing.instance, InstanceTrigger.REPORT_READY, ACTION)
    completed = Decision(None, (), (instance_event(EventType.INSTANCE_START_COMPLETED, running.result),))
    return [running, completed]


def require_minimum(finishing: FinishContext) -> None:
    """Refuse unless every component has its minimum of ready members."""
    members = finishing.report_context.members.values()
    for component in components_of(finishing.manifest):
        ready = sum(1 for each in members if each.component_key == component.key and each.status in UP)
        if ready < component.min_count:
            raise _not_done(
                finishing.operation,
                f"component {component.key} has {ready} ready members and needs {component.min_count}",
                component_key=component.key,
                ready=ready,
                needed=component.min_count,
            )


def _added(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    lacking = [each.id for each in finishing.members if each.status in COMING or each.status == MemberState.FAILED]
    if lacking:
        raise _not_done(finishing.operation, f"{lacking[0]} is not ready", member_ids=lacking)
    return []


def _drained(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    busy = [each.id for each in finishing.members if each.status not in (MemberState.DRAINED, *GONE)]
    if busy:
        raise _not_done(finishing.operation, f"{busy[0]} was not observed idle", member_ids=busy)
    return []


def _upgraded(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    instance = finishing.instance
    return _moved_pin(context, finishing, previous=instance.pin)


def _rolled_back(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    # After a half-finished upgrade a rollback leads to the pin itself, so the previous pin stays.
    same = finishing.operation.target_pin == finishing.instance.pin
    return _moved_pin(context, finishing, previous=finishing.instance.previous_pin if same else None)


def _moved_pin(
    context: DecisionContext, finishing: FinishContext, previous: dict[str, Any] | None
) -> list[Decision[Any]]:
    """Move the pin to the target, once each member reports that it runs it."""
    target = finishing.operation.target_pin
    if target is None:
        raise ValueError(f"operation {finishing.operation.id} has no target version")
    behind = [
        each.id
        for each in finishing.report_context.members.values()
        if each.status not in (MemberState.FAILED, *GONE) and each.version != target["version"]
    ]
    if behind:
        raise _not_done(
            finishing.operation, f"{behind[0]} does not run {target['version']} yet", member_ids=behind[:100]
        )
    columns = {
        "pin": target,
        "previous_pin": previous,
        "version": target["version"],
        "version_id": target["version_id"],
    }
    moved = change_instance(finishing.instance, ACTION, EventType.INSTANCE_START_COMPLETED, **columns)
    return [moved, *_drop_idle_holds(context, finishing, moved.result)]


def _drop_idle_holds(context: DecisionContext, finishing: FinishContext, after: Instance) -> list[Decision[Any]]:
    """Drop the holds that neither a pin nor a member needs."""
    idle = idle_holds(after, finishing.report_context.members.values(), (), finishing.holds)
    return [drop_holds(context, idle)] if idle else []


def _restarted(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    return [Decision(None, (), (instance_event(EventType.INSTANCE_START_COMPLETED, finishing.instance),))]


# Failed and cancelled -------------------------------------------------------------------------------------------------


def _launch_failed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    failure = _failure_of(ending)
    rest = _members_fail(context, finishing, list(finishing.report_context.members.values()), failure)
    instance = finishing.instance
    if instance.status not in (InstanceState.CREATED, InstanceState.STARTING):
        return rest
    columns = failure.columns(context)
    return [move_instance(context, instance, InstanceTrigger.FAIL, ACTION, **columns), *rest]


def _members_failed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    return _members_fail(context, finishing, finishing.members, _failure_of(ending))


def _failure_of(ending: OperationEnd) -> FailureReport:
    return ending.failure or FailureReport(OperationFailure.CANCELLED, "the operation was cancelled")


def _members_fail(
    context: DecisionContext, finishing: FinishContext, members: Sequence[Member], failure: FailureReport
) -> list[Decision[Any]]:
    """Fail the members that have not joined yet; ready and failed ones stay as they are."""
    slug = finishing.instance.app_slug
    columns = {**failure.columns(context), "last_operation_id": finishing.operation.id}
    coming = [each for each in members if each.status in COMING]
    return [move_member(context, slug, each, MemberTrigger.FAIL, ACTION, **columns) for each in coming]


def _version_failed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    """The pin stays; drop the holds that only the target needs, unless a member already runs it."""
    return _drop_idle_holds(context, finishing, finishing.instance)


def _resumed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    """After a cancelled drain the members go back to work, unless the instance is being stopped."""
    if finishing.instance.status != InstanceState.RUNNING:
        return []
    slug = finishing.instance.app_slug
    draining = [each for each in finishing.members if each.status == MemberState.DRAINING]
    return [move_member(context, slug, each, MemberTrigger.RESUME, ACTION) for each in draining]


# Attachments ----------------------------------------------------------------------------------------------------------


def _attachment_ends(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    """The attachment follows the operation that creates or ends it."""
    attachment, outcome = finishing.attachment, OperationState(ending.outcome.value)
    if attachment is None or attachment.operation_id != finishing.operation.id:
        return []  # it has ended, or another operation works on it
    failure = None if ending.failure is None else ending.failure.detail
    reason = failure or finishing.operation.cancel_reason or "it was cancelled"
    kind = OperationKind(finishing.operation.kind)
    step = outcome_of(context, attachment, ACTION, kind=kind, outcome=outcome, reason=reason)
    return [] if step is None else [step]


def _configured(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    return [configured(finishing.instance, finishing.manifest, finishing.operation, ACTION)]


_EFFECTS: Final[Mapping[FinishOutcome, Mapping[OperationKind, Effect]]] = {
    FinishOutcome.SUCCEEDED: {
        OperationKind.DEPLOY: _deployed,
        OperationKind.ADD: _added,
        OperationKind.DRAIN: _drained,
        OperationKind.UPGRADE: _upgraded,
        OperationKind.ROLLBACK: _rolled_back,
        OperationKind.RESTART: _restarted,
        OperationKind.CONFIGURE: _configured,
        OperationKind.ATTACH: _attachment_ends,
        OperationKind.DETACH: _attachment_ends,
    },
    FinishOutcome.FAILED: {
        OperationKind.DEPLOY: _launch_failed,
        OperationKind.ADD: _members_failed,
        OperationKind.REPLACE: _members_failed,
        OperationKind.UPGRADE: _version_failed,
        OperationKind.ROLLBACK: _version_failed,
        OperationKind.ATTACH: _attachment_ends,
        OperationKind.DETACH: _attachment_ends,
    },
    FinishOutcome.CANCELLED: {
        OperationKind.DEPLOY: _launch_failed,
        OperationKind.ADD: _members_failed,
        OperationKind.REPLACE: _members_failed,
        OperationKind.DRAIN: _resumed,
        OperationKind.REMOVE: _resumed,
        OperationKind.UPGRADE: _version_failed,
        OperationKind.ROLLBACK: _version_failed,
        OperationKind.ATTACH: _attachment_ends,
        OperationKind.DETACH: _attachment_ends,
    },
}
"""What else changes, by outcome and kind; without an entry only the operation ends."""
