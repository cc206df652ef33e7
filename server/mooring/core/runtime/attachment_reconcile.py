"""What the platform does with attachments when their operations end, or their instance ends.

An attach operation ends in an active or a refused attachment. A detach operation ends in a detached one, or leaves it
`detaching` with the blocker and is retried after a pause. It does not matter who ended the operation, its adapter, a
deadline or a stop: the attachment follows, at once if the adapter reports the end, otherwise when the worker next
reconciles the instance. When an instance ends, so do its attachments.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime.attachment import (
    Attachment,
    AttachmentState,
    AttachmentTrigger,
    activated,
    change_attachment,
    detached,
    move_attachment,
    refused,
)
from mooring.core.runtime.instance import Instance, InstanceState
from mooring.core.runtime.instance_launch import build_operation
from mooring.core.runtime.instance_snapshot import AttachmentSnapshot, InstanceSnapshot
from mooring.core.runtime.instance_transitions import new_operation, together
from mooring.core.runtime.operation import Operation, OperationKind, OperationState

ACTION: Final = "instance.run"
RETRY_FIRST: Final = timedelta(seconds=30)
RETRY_MAX: Final = timedelta(hours=1)
BLOCKER_LENGTH: Final = 1000
DETACH_SECONDS: Final = 3_600
"""How long running work may continue if the caller does not say."""
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
    context: DecisionContext,
    attachment: Attachment,
    action: str,
    *,
    kind: OperationKind,
    outcome: OperationState,
    reason: str,
) -> Decision[Attachment] | None:
    """The step of an attachment after the end of its latest operation; `reason` says why that failed."""
    succeeded = outcome is OperationState.SUCCEEDED
    if kind is K.ATTACH and attachment.status == S.REQUESTED:
        if succeeded:
            return activated(context, attachment, action)
        return refused(context, attachment, action, reason)
    if kind is K.DETACH and attachment.status == S.DETACHING:
        if succeeded:
            return detached(context, attachment, action)
        if attachment.retry_at is None:
            return _retry_later(context, attachment, action, reason)
    return None


def ended_with(context: DecisionContext, snapshot: InstanceSnapshot) -> list[Decision[Any]]:
    """End the attachments of an instance that has ended; nothing of them is left on its nodes."""
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
    """The operation that removes what a project has: running work may continue for its timeout, then the adapter has
    the graceful period.
    """
    seconds = DETACH_SECONDS if attachment.timeout_seconds is None else attachment.timeout_seconds
    request = {
        "attachment": attachment.for_adapter(),
        "cancel_work": attachment.cancel_work,
        "timeout_seconds": seconds,
    }
    row = build_operation(context, instance, K.DETACH, request, seconds + graceful.total_seconds())
    return replace(row, dispatched_at=context.now)


def _running(
    context: DecisionContext, snapshot: InstanceSnapshot, each: AttachmentSnapshot
) -> Decision[Attachment] | None:
    attachment, last = each.attachment, each.operation
    if last is None or not last.is_over or attachment.status == S.ACTIVE:
        return None
    step = outcome_of(
        context,
        attachment,
        ACTION,
        kind=K(last.kind),
        outcome=OperationState(last.status),
        reason=why_ended(last),
    )
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
    """Of an instance that ends: start nothing new, and end each attachment once nothing of the instance is left."""
    attachment, reason = each.attachment, f"the instance is {snapshot.instance.status}"
    if attachment.status == S.ACTIVE:
        columns = {"detach_requested_at": context.now, "blocker": reason}
        return move_attachment(context, attachment, AttachmentTrigger.DETACH, ACTION, **columns)
    if attachment.status == S.REQUESTED and (each.operation is None or each.operation.is_over):
        return refused(context, attachment, ACTION, reason)
    gone = snapshot.instance.status == InstanceState.FAILED and not snapshot.members and not snapshot.operations
    if attachment.status == S.DETACHING and gone:
        return detached(context, attachment, ACTION)
    return None


def _retry_later(context: DecisionContext, attachment: Attachment, action: str, reason: str) -> Decision[Attachment]:
    """Record what blocked a failed detach, and retry after a pause that doubles up to an hour."""
    pause = min(RETRY_FIRST * (1 << min(attachment.attempts, 10)), RETRY_MAX)
    columns = {
        "attempts": attachment.attempts + 1,
        "retry_at": context.now + pause,
        "blocker": reason[:BLOCKER_LENGTH],
    }
    return change_attachment(attachment, action, **columns)


def why_ended(operation: Operation) -> str:
    """Why an operation did not succeed."""
    return operation.failure_detail or operation.cancel_reason or f"the operation ended: {operation.status}"
