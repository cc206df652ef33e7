"""What becomes of attachments by themselves: with the end of their operations, and with the end of their instance.

An operation that attaches ends in an active attachment or in a refused one; one that detaches ends in a detached one,
or leaves it `detaching` with what was in the way, and is done again after a pause. Whoever ends the operation, its
adapter, a deadline or a stop, the attachment follows: at once where the adapter says it, otherwise at the worker's next
look. An instance that ends takes its attachments along: what they had there is gone with it.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime.attachment import Attachment, AttachmentState, AttachmentTrigger
from mooring.core.runtime.attachment_transitions import activated, change_attachment, detached, move_attachment, refused
from mooring.core.runtime.instance import Instance, InstanceState
from mooring.core.runtime.instance_launch import new_row
from mooring.core.runtime.instance_snapshot import AttachmentSnapshot, InstanceSnapshot
from mooring.core.runtime.instance_transitions import new_operation, together
from mooring.core.runtime.operation import Operation, OperationKind, OperationState

ACTION: Final = "instance.run"
RETRY_FIRST: Final = timedelta(seconds=30)
RETRY_MAX: Final = timedelta(hours=1)
BLOCKER_LENGTH: Final = 1000
DETACH_SECONDS: Final = 3_600
"""How long work may go on where nobody says it."""
S, K = AttachmentState, OperationKind
_ENDING: Final = frozenset({InstanceState.STOPPING, InstanceState.FAILED})


def settle(context: DecisionContext, snapshot: InstanceSnapshot) -> Decision[Attachment] | None:
    """The next step of the first attachment that has one."""
    for each in snapshot.attachments:
        own = replace(context, correlation_id=each.attachment.correlation_id, trace_id=each.attachment.trace_id)
        step = _ending(own, snapshot, each) if snapshot.instance.status in _ENDING else _running(own, snapshot, each)
        if step is not None:
            return step
    return None


def outcome_of(
    context: DecisionContext, attachment: Attachment, action: str, ended: tuple[OperationKind, OperationState, str]
) -> Decision[Attachment] | None:
    """What the end of its last operation makes of an attachment: `ended` is its kind, how, and why it failed."""
    kind, outcome, reason = ended
    succeeded = outcome is OperationState.SUCCEEDED
    if kind is K.ATTACH and attachment.status == S.REQUESTED:
        if succeeded:
            return activated(context, attachment, action)
        return refused(context, attachment, action, reason)
    if kind is K.DETACH and attachment.status == S.DETACHING:
        if succeeded:
            return detached(context, attachment, action)
        if attachment.retry_at is None:
            return _again(context, attachment, action, reason)
    return None


def ended_with(context: DecisionContext, snapshot: InstanceSnapshot) -> list[Decision[Any]]:
    """The attachments that end with all of the instance: nothing is left that a project could have there."""
    parts: list[Decision[Any]] = []
    for each in snapshot.attachments:
        if each.attachment.status == S.DETACHING:
            parts.append(detached(context, each.attachment, ACTION))
        elif each.attachment.status == S.REQUESTED:
            parts.append(refused(context, each.attachment, ACTION, f"the instance is {snapshot.instance.status}"))
    return parts


def detach_operation(
    context: DecisionContext, instance: Instance, attachment: Attachment, graceful: timedelta
) -> Operation:
    """The operation that takes back what a project has: its work may go on for a while, then there is time to end."""
    seconds = DETACH_SECONDS if attachment.timeout_seconds is None else attachment.timeout_seconds
    request = {"attachment": attachment.told(), "cancel_work": attachment.cancel_work, "timeout_seconds": seconds}
    row = new_row(context, instance, K.DETACH, request, seconds + graceful.total_seconds())
    return replace(row, dispatched_at=context.now)


def _running(
    context: DecisionContext, snapshot: InstanceSnapshot, each: AttachmentSnapshot
) -> Decision[Attachment] | None:
    attachment, last = each.attachment, each.operation
    if last is None or not last.is_over or attachment.status == S.ACTIVE:
        return None
    ended = (K(last.kind), OperationState(last.status), why_ended(last))
    step = outcome_of(context, attachment, ACTION, ended)
    if step is not None:
        return step
    if attachment.status != S.DETACHING or (attachment.retry_at is not None and attachment.retry_at > context.now):
        return None
    operation = detach_operation(context, snapshot.instance, attachment, snapshot.graceful)
    changed = change_attachment(attachment, ACTION, operation_id=operation.id, retry_at=None)
    return together(changed.result, changed, new_operation(snapshot.instance, operation, ACTION))


def _ending(
    context: DecisionContext, snapshot: InstanceSnapshot, each: AttachmentSnapshot
) -> Decision[Attachment] | None:
    """With an instance that ends nothing new is begun, and what it took along is over when all of it is gone."""
    attachment, because = each.attachment, f"the instance is {snapshot.instance.status}"
    if attachment.status == S.ACTIVE:
        columns = {"detach_requested_at": context.now, "blocker": because}
        return move_attachment(context, attachment, AttachmentTrigger.DETACH, (ACTION, columns))
    if attachment.status == S.REQUESTED and (each.operation is None or each.operation.is_over):
        return refused(context, attachment, ACTION, because)
    gone = snapshot.instance.status == InstanceState.FAILED and not snapshot.members and not snapshot.operations
    if attachment.status == S.DETACHING and gone:
        return detached(context, attachment, ACTION)
    return None


def _again(context: DecisionContext, attachment: Attachment, action: str, reason: str) -> Decision[Attachment]:
    """A detach that failed says what was in the way, and is done again after a pause that grows."""
    pause = min(RETRY_FIRST * (1 << min(attachment.attempts, 10)), RETRY_MAX)
    columns = {
        "attempts": attachment.attempts + 1,
        "retry_at": context.now + pause,
        "blocker": reason[:BLOCKER_LENGTH],
    }
    return change_attachment(attachment, action, **columns)


def why_ended(operation: Operation) -> str:
    """Why an operation ended without what was asked for."""
    return operation.failure_detail or operation.cancel_reason or f"the operation ended: {operation.status}"
