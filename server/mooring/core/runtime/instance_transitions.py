"""Lifecycle steps of instances, members and operations, each with its row, its event and its audit row.

All changes of the three go through these functions, so no event is forgotten and event data always has the same form.
`together` joins decisions that belong together.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final, TypeVar

from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    StateChange,
    Update,
)
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.form_schema import hidden_values, without_hidden
from mooring.core.runtime.instance import INSTANCE, Instance, InstanceState, InstanceTrigger
from mooring.core.runtime.member import MEMBER, Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import (
    OPERATION,
    Operation,
    OperationKind,
    OperationState,
    OperationTrigger,
    StepState,
)

Result = TypeVar("Result")
UNWRITTEN: Final = frozenset({"status", "generation"})
"""Columns of a new row that its lifecycle sets."""

INSTANCE_EVENT: Final[Mapping[InstanceState, EventType]] = {
    InstanceState.CREATED: EventType.INSTANCE_REQUESTED,
    InstanceState.STARTING: EventType.INSTANCE_STARTING,
    InstanceState.RUNNING: EventType.INSTANCE_RUNNING,
    InstanceState.FAILED: EventType.INSTANCE_FAILED,
    InstanceState.STOPPING: EventType.INSTANCE_DELETING,
    InstanceState.STOPPED: EventType.INSTANCE_DELETED,
}
MEMBER_EVENT: Final[Mapping[MemberTrigger, EventType]] = {
    MemberTrigger.REPORT_READY: EventType.MEMBER_ADDED,
    MemberTrigger.FINISH_DRAIN: EventType.MEMBER_DRAINED,
    MemberTrigger.FINISH_TEARDOWN: EventType.MEMBER_REMOVED,
    MemberTrigger.FAIL: EventType.MEMBER_FAILED,
}
"""Member steps with their own event type; all others are `MEMBER_CHANGED`."""


def together(result: Result, *parts: Decision[Any]) -> Decision[Result]:
    """One decision that makes several true in one statement."""
    return Decision(
        result,
        tuple(write for part in parts for write in part.writes),
        tuple(event for part in parts for event in part.events),
        tuple(audit for part in parts for audit in part.audits),
        all(part.traceless for part in parts if part.writes) and any(part.writes for part in parts),
    )


def new_instance(instance: Instance, action: str = "instance.create") -> Decision[Instance]:
    return Decision(
        instance,
        (Insert("instance", _row(instance), (INSTANCE,)),),
        (instance_event(EventType.INSTANCE_REQUESTED, instance),),
        (_audited(action, instance, after=_instance_data(instance)),),
    )


def new_member(instance: Instance, member: Member, action: str = "member.add") -> Decision[Member]:
    """The row of a new member."""
    return Decision(
        member,
        (Insert("member", _row(member), (MEMBER,)),),
        (member_event(EventType.MEMBER_CHANGED, instance.app_slug, member),),
        (_audited(action, member, after=_member_data(member)),),
    )


def new_operation(instance: Instance, operation: Operation, action: str) -> Decision[Operation]:
    """The row of a new operation; a read-only action leaves no audit row and no event."""
    row = Insert("operation", _row(operation), (OPERATION,))
    changed = {"changed": operation.request["changed"]} if "changed" in operation.request else {}
    summary = {"kind": operation.kind, "instance_id": instance.id, **changed, **_attachment_ids(operation)}
    events = (operation_event(instance.app_slug, operation), *_attached_events(instance.app_slug, operation))
    audits = (_audited(action, operation, after=summary), *_attached_audits(action, operation))
    return _traced(Decision(operation, (row,), events, audits))


def move_instance(
    context: DecisionContext, instance: Instance, trigger: InstanceTrigger, action: str, **columns: Any
) -> Decision[Instance]:
    edge = INSTANCE.step(InstanceState(instance.status), trigger)
    after = replace(instance, status=edge.target.value, generation=instance.generation + 1, **columns)
    audit = _audited(action, after, before={"status": instance.status}, after=_instance_data(after))
    return Decision(
        after,
        (StateChange("instance", after.id, INSTANCE, edge, instance.generation, after.tenant_id, columns),),
        (instance_event(INSTANCE_EVENT[InstanceState(edge.target)], after),),
        (audit,),
    )


def change_instance(
    instance: Instance, action: str, event: EventType | None = EventType.INSTANCE_CHANGED, **columns: Any
) -> Decision[Instance]:
    """Change columns without a lifecycle step."""
    after = replace(instance, revision=instance.revision + 1, **columns)
    guard = instance.generation
    change = Update("instance", after.id, instance.revision, columns, guard, tenant_id=instance.tenant_id)
    events = () if event is None else (instance_event(event, after),)
    audited = {name: value for name, value in columns.items() if name in _AUDITED}
    return Decision(after, (change,), events, (_audited(action, after, after=audited),))


def move_member(
    context: DecisionContext, app_slug: str, member: Member, trigger: MemberTrigger, action: str, **columns: Any
) -> Decision[Member]:
    """One lifecycle step of a member, with the columns that change in it."""
    edge = MEMBER.step(MemberState(member.status), trigger)
    after = replace(member, status=edge.target.value, generation=member.generation + 1, **columns)
    audit = _audited(action, after, before={"status": member.status}, after=_member_data(after))
    return Decision(
        after,
        (StateChange("member", after.id, MEMBER, edge, member.generation, after.tenant_id, columns),),
        (member_event(MEMBER_EVENT.get(trigger, EventType.MEMBER_CHANGED), app_slug, after),),
        (audit,),
    )


def change_member(app_slug: str, member: Member, action: str, **columns: Any) -> Decision[Member]:
    """Change columns without a lifecycle step."""
    after = replace(member, revision=member.revision + 1, **columns)
    change = Update("member", after.id, member.revision, columns, generation_expected=member.generation)
    audited = {name: value for name, value in columns.items() if name in _AUDITED}
    return Decision(
        after,
        (change,),
        (member_event(EventType.MEMBER_CHANGED, app_slug, after),),
        (_audited(action, after, after=audited),),
    )


def move_operation(
    context: DecisionContext,
    app_slug: str,
    operation: Operation,
    trigger: OperationTrigger,
    action: str,
    **columns: Any,
) -> Decision[Operation]:
    """One lifecycle step of an operation; a final state sets `finished_at` and leaves no step that still runs."""
    edge = OPERATION.step(OperationState(operation.status), trigger)
    ended = _ending(context, operation, columns) if edge.target in OPERATION.final else {}
    unblocked = {"blocker": None, "blocker_code": None} if edge.source is OperationState.BLOCKED else {}
    changes = {**unblocked, **columns, **ended}
    after = replace(operation, status=edge.target.value, generation=operation.generation + 1, **changes)
    audit = _audited(action, after, before={"status": operation.status}, after=_operation_data(after))
    attachment_events = _attached_events(app_slug, after) if after.is_over else ()
    return _traced(
        Decision(
            after,
            (StateChange("operation", after.id, OPERATION, edge, operation.generation, after.tenant_id, changes),),
            (operation_event(app_slug, after), *attachment_events),
            (audit,),
        )
    )


def _ending(context: DecisionContext, operation: Operation, columns: Mapping[str, Any]) -> dict[str, Any]:
    """What the end of an operation sets: nobody reports the end of a step later."""
    steps = columns.get("steps", operation.steps)
    if not any(each.get("status") == StepState.RUNNING for each in steps):
        return {"finished_at": context.now}
    skipped = {
        "status": StepState.SKIPPED.value,
        "ended_at": context.now.isoformat(),
        "detail": "the operation ended before the end of this step was reported",
    }
    after = [{**each, **skipped} if each.get("status") == StepState.RUNNING else each for each in steps]
    return {"finished_at": context.now, "steps": after}


def change_operation(app_slug: str, operation: Operation, action: str, **columns: Any) -> Decision[Operation]:
    """Change columns without a lifecycle step: steps, progress, phase."""
    after = replace(operation, revision=operation.revision + 1, **columns)
    change = Update("operation", after.id, operation.revision, columns, generation_expected=operation.generation)
    audited = {name: value for name, value in columns.items() if name in _AUDITED}
    return _traced(
        Decision(after, (change,), (operation_event(app_slug, after),), (_audited(action, after, after=audited),))
    )


def instance_event(event: EventType, instance: Instance) -> EventRecord:
    return EventRecord(
        event,
        "instance",
        instance.id,
        *instance.place,
        data=_instance_data(instance),
        app_slug=instance.app_slug,
        app_instance_id=instance.id,
    )


def member_event(event: EventType, app_slug: str, member: Member) -> EventRecord:
    return EventRecord(
        event,
        "member",
        member.id,
        *member.place,
        data=_member_data(member),
        app_slug=app_slug,
        app_instance_id=member.instance_id,
    )


def operation_event(app_slug: str, operation: Operation) -> EventRecord:
    """The event of an operation, with its progress."""
    return EventRecord(
        EventType.OPERATION_CHANGED,
        "operation",
        operation.id,
        *operation.place,
        data=_operation_data(operation),
        app_slug=app_slug,
        app_instance_id=operation.instance_id,
    )


def _attachment_ids(operation: Operation) -> dict[str, Any]:
    """The ids under which both projects' records name the attachment."""
    attachment = operation.attachment
    return (
        {}
        if attachment is None
        else {"attachment_id": attachment["id"], "attached_project_id": attachment["project_id"]}
    )


def _attached_events(app_slug: str, operation: Operation) -> tuple[EventRecord, ...]:
    """The event of an action in the attached project that asked for it: when it starts and when it ends."""
    attachment = operation.attachment
    if attachment is None or operation.kind != OperationKind.ACTION:
        return ()
    data = {
        "operation_id": operation.id,
        "action": operation.request.get("action"),
        "status": operation.status,
        "owning_project_id": operation.project_id,
        "failure_code": operation.failure_code,
    }
    return (
        EventRecord(
            EventType.ATTACHMENT_ACTION_CHANGED,
            "attachment",
            attachment["id"],
            operation.tenant_id,
            attachment["project_id"],
            data={name: each for name, each in data.items() if each is not None},
            app_slug=app_slug,
            app_instance_id=operation.instance_id,
        ),
    )


def _attached_audits(action: str, operation: Operation) -> tuple[AuditRecord, ...]:
    """The audit row of an action in the attached project that asked for it."""
    attachment = operation.attachment
    if attachment is None or operation.kind != OperationKind.ACTION:
        return ()
    details = {
        "operation_id": operation.id,
        "action": operation.request.get("action"),
        "instance_id": operation.instance_id,
        "owning_project_id": operation.project_id,
    }
    return (
        AuditRecord(
            action,
            "attachment",
            attachment["id"],
            operation.tenant_id,
            attachment["project_id"],
            after=details,
            app_instance_id=operation.instance_id,
        ),
    )


_AUDITED: Final = frozenset(
    {
        "phase", "dispatched_at", "blocker", "health", "topology", "version", "pin", "previous_pin", "allocation_id",
        "keep_allocation", "cancel_reason", "deadline_at", "holds", "retry_at", "distrust",
    }
)  # fmt: skip
"""Columns that audit rows contain; the others are too long, or mean nothing to a person."""


def _traced(decision: Decision[Operation]) -> Decision[Operation]:
    """The decision; without event and audit row if the action only reads."""
    if not decision.result.read_only:
        return decision
    return replace(decision, events=(), audits=(), traceless=True)


def _audited(
    action: str,
    subject: Instance | Member | Operation,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any],
) -> AuditRecord:
    """The audit row of the subject, which the instance's timeline shows."""
    return AuditRecord(
        action,
        type(subject).__name__.lower(),
        subject.id,
        *subject.place,
        before=before,
        after=after,
        app_instance_id=subject.id if isinstance(subject, Instance) else subject.instance_id,
    )


def _row(value: Instance | Member | Operation) -> dict[str, Any]:
    row = {name: each for name, each in asdict(value).items() if name not in UNWRITTEN}
    if isinstance(value, Instance) and value.config_hidden:
        row["config"] = without_hidden(value.config, value.config_hidden)
        row["config_secrets"] = hidden_values(value.config, value.config_hidden)
    return row


def _instance_data(instance: Instance) -> dict[str, Any]:
    data = {
        "name": instance.name,
        "status": instance.status,
        "version": instance.version,
        "health": instance.health,
        "failure_code": instance.failure_code,
        "failure_detail": instance.failure_detail,
        "teardown_proof": instance.teardown_proof,
    }
    return {name: value for name, value in data.items() if value is not None}


def _member_data(member: Member) -> dict[str, Any]:
    data = {
        "name": member.name,
        "instance_id": member.instance_id,
        "component_key": member.component_key,
        "status": member.status,
        "health": member.health,
        "allocation_id": member.allocation_id,
        "version": member.version,
        "blocker": member.blocker,
        "failure_code": member.failure_code,
        "failure_detail": member.failure_detail,
    }
    return {name: value for name, value in data.items() if value is not None}


def _operation_data(operation: Operation) -> dict[str, Any]:
    running = next((each["name"] for each in operation.steps if each.get("status") == "running"), None)
    done = sum(1 for each in operation.steps if each.get("status") in ("done", "skipped"))
    data = {
        "kind": operation.kind,
        "status": operation.status,
        "phase": operation.phase,
        "step": running,
        "steps_done": done,
        "steps": len(operation.steps),
        "blocker": operation.blocker,
        "failure_code": operation.failure_code,
        "failure_detail": operation.failure_detail,
        "progress": operation.progress,
        **_attachment_ids(operation),
    }
    return {name: value for name, value in data.items() if value is not None}
