"""The end of an operation, as its adapter tells it: what else becomes true with it.

Each kind has its own rule for what counts as done. A launch has succeeded when every component has the members that it
needs, an add when its members are ready, a drain when they were observed quiet; an upgrade moves the pin. What tears
something down is not over with its adapter's word: it goes over to the platform, which closes, looks and keeps the
proof. A repeat of the same end is accepted and writes nothing; another end is refused.
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
    """What an adapter tells of the end."""

    outcome: FinishOutcome
    evidence: Mapping[str, Any] | None = None
    output: dict[str, Any] | None = None
    failure: FailureReport | None = None


@dataclass(frozen=True, slots=True)
class FinishContext:
    """What the end of an operation is decided on."""

    seen: ReportContext
    operation: Operation
    manifest: Manifest  # of the instance's pin
    holds: Sequence[ArtifactHold] = field(default=())
    attachment: Attachment | None = None  # that the operation makes or ends

    @property
    def instance(self) -> Instance:
        """The instance."""
        return self.seen.instance

    @property
    def members(self) -> list[Member]:
        """The members that the operation concerns, in its order."""
        found = (self.seen.members.get(each) for each in self.operation.member_ids)
        return [each for each in found if each is not None]


TRIGGER: Final = {
    FinishOutcome.SUCCEEDED: OperationTrigger.SUCCEED,
    FinishOutcome.FAILED: OperationTrigger.FAIL,
    FinishOutcome.CANCELLED: OperationTrigger.FINISH_CANCEL,
}


def finish_operation(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> Decision[Operation]:
    """All that becomes true with the end of an operation."""
    operation = finishing.operation
    if _is_told(operation, ending):
        return Decision(operation)
    if operation.phase != Phase.ADAPTER or operation.dispatched_at is None:
        raise _not_now(operation, "the adapter's part of it is over, or has not begun")
    if ending.outcome is FinishOutcome.FAILED and ending.failure is None:
        raise invalid("failure", "what fails says why")
    OPERATION.step(OperationState(operation.status), TRIGGER[ending.outcome])  # refuses what this state does not take
    evidence = None if ending.evidence is None else bounded_detail(ending.evidence, "evidence")
    if _goes_over(operation, ending):
        told: dict[str, Any] = {"outcome": ending.outcome.value, **({} if evidence is None else {"evidence": evidence})}
        if ending.failure is not None:
            told |= {"failure_code": ending.failure.code.value, "failure_detail": ending.failure.detail}
        over: dict[str, Any] = {"phase": Phase.PLATFORM.value, "evidence": {"adapter": told}}
        handed = change_operation(finishing.instance.app_slug, operation, ACTION, **over)
        return together(handed.result, handed, _guard(finishing))
    columns: dict[str, Any] = {} if evidence is None else {"evidence": evidence}
    if ending.failure is not None:
        told_failure = ending.failure.columns(context)
        columns |= {name: told_failure[name] for name in ("failure_code", "failure_detail", "last_lines")}
    if ending.outcome is FinishOutcome.SUCCEEDED:
        check_output(finishing.manifest, operation, ending.output)
    elif ending.output is not None:
        raise invalid("output", "only an action that succeeded has one")
    if ending.output is not None:
        columns["output"] = ending.output
    rest = _EFFECTS[ending.outcome].get(OperationKind(operation.kind), _nothing)(context, finishing, ending)
    moved = move_operation(context, finishing.instance.app_slug, operation, TRIGGER[ending.outcome], (ACTION, columns))
    return together(moved.result, moved, *rest, _guard(finishing))


def _guard(finishing: FinishContext) -> Decision[None]:
    return Decision(None, (guard_of(finishing.seen.claim),), traceless=True)


def _is_told(operation: Operation, ending: OperationEnd) -> bool:
    """Whether this very end was told before."""
    if operation.is_over:
        if operation.status == ending.outcome.value:
            return True
        raise _not_now(operation, f"it ended otherwise, not {ending.outcome}")
    told = (operation.evidence or {}).get("adapter", {})
    return operation.phase == Phase.PLATFORM and told.get("outcome") == ending.outcome.value


def _goes_over(operation: Operation, ending: OperationEnd) -> bool:
    """Whether the platform goes on from here: it tears down what the adapter let go of.

    A decommission goes over whatever its adapter says, and so does a removal that the platform itself began: teardown
    never depends on an adapter. A removal or a replacement that somebody asked for and that failed takes nothing away.
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
        return []  # it is being stopped meanwhile, and this is only how far it had come
    running = move_instance(context, finishing.instance, InstanceTrigger.REPORT_READY, ACTION)
    completed = Decision(None, (), (instance_event(EventType.INSTANCE_START_COMPLETED, running.result),))
    return [running, completed]


def require_minimum(finishing: FinishContext) -> None:
    """Every component has as many members that are ready as it needs."""
    members = finishing.seen.members.values()
    for component in components_of(finishing.manifest):
        ready = sum(1 for each in members if each.component_key == component.key and each.status in UP)
        if ready < component.min_count:
            raise _not_done(
                finishing.operation,
                f"component {component.key} has {ready} ready members of the {component.min_count} that it needs",
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
        raise _not_done(finishing.operation, f"{busy[0]} was not observed quiet", member_ids=busy)
    return []


def _upgraded(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    instance = finishing.instance
    return _moved_pin(context, finishing, previous=instance.pin)


def _rolled_back(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    # A rollback from a half-made upgrade leads to the pin itself: there is still something before it.
    same = finishing.operation.target_pin == finishing.instance.pin
    return _moved_pin(context, finishing, previous=finishing.instance.previous_pin if same else None)


def _moved_pin(
    context: DecisionContext, finishing: FinishContext, previous: dict[str, Any] | None
) -> list[Decision[Any]]:
    """The pin is the target now; each member has said that it runs it."""
    target = finishing.operation.target_pin
    if target is None:
        raise ValueError(f"operation {finishing.operation.id} leads to no version")
    behind = [
        each.id
        for each in finishing.seen.members.values()
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
    return [moved, *_let_go(context, finishing, moved.result)]


def _let_go(context: DecisionContext, finishing: FinishContext, after: Instance) -> list[Decision[Any]]:
    """The holds on what neither a pin nor a member needs any more are dropped."""
    idle = idle_holds(after, finishing.seen.members.values(), (), finishing.holds)
    return [drop_holds(context, idle)] if idle else []


def _restarted(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    return [Decision(None, (), (instance_event(EventType.INSTANCE_START_COMPLETED, finishing.instance),))]


# Failed and cancelled -------------------------------------------------------------------------------------------------


def _launch_failed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    failure = _failure_of(ending)
    rest = _members_fail(context, finishing, list(finishing.seen.members.values()), failure)
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
    """Members that were still to come do not come any more; those that are ready stay, and so do those that failed."""
    slug, columns = finishing.instance.app_slug, failure.columns(context)
    told = (ACTION, {**columns, "last_operation_id": finishing.operation.id})
    coming = [each for each in members if each.status in COMING]
    return [move_member(context, slug, each, MemberTrigger.FAIL, told) for each in coming]


def _version_failed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    """The pin stays. What the target alone needs is let go of, unless a member runs it already."""
    return _let_go(context, finishing, finishing.instance)


def _resumed(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    """A drain that was taken back: who was asked to finish goes on with his work, unless the instance is stopped."""
    if finishing.instance.status != InstanceState.RUNNING:
        return []
    slug = finishing.instance.app_slug
    draining = [each for each in finishing.members if each.status == MemberState.DRAINING]
    return [move_member(context, slug, each, MemberTrigger.RESUME, (ACTION, {})) for each in draining]


# Attachments ----------------------------------------------------------------------------------------------------------


def _attachment_ends(context: DecisionContext, finishing: FinishContext, ending: OperationEnd) -> list[Decision[Any]]:
    """What becomes of an attachment follows the operation that makes it, or ends it."""
    attachment, outcome = finishing.attachment, OperationState(ending.outcome.value)
    if attachment is None or attachment.operation_id != finishing.operation.id:
        return []  # it is over, or another operation is on it
    failure = None if ending.failure is None else ending.failure.detail
    reason = failure or finishing.operation.cancel_reason or "it was cancelled"
    step = outcome_of(context, attachment, ACTION, (OperationKind(finishing.operation.kind), outcome, reason))
    return [] if step is None else [step]


_EFFECTS: Final[Mapping[FinishOutcome, Mapping[OperationKind, Effect]]] = {
    FinishOutcome.SUCCEEDED: {
        OperationKind.DEPLOY: _deployed,
        OperationKind.ADD: _added,
        OperationKind.DRAIN: _drained,
        OperationKind.UPGRADE: _upgraded,
        OperationKind.ROLLBACK: _rolled_back,
        OperationKind.RESTART: _restarted,
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
"""What else becomes true, by outcome and kind; where nothing is named, the operation alone ends."""
