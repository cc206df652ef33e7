"""Bodies and views of the attachment endpoints."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Strict, Time, allowed
from mooring.core.identity.caller import Caller
from mooring.core.kernel.form_schema import without_hidden
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.core.runtime.app_action import INPUT_BYTES_MAX, may_act
from mooring.core.runtime.attachment import ATTACHMENT, Attachment, AttachmentState
from mooring.core.runtime.attachment_change import DETACH_SECONDS_MAX
from mooring.core.runtime.attachment_reconcile import DETACH_SECONDS
from mooring.core.runtime.operation import Operation, OperationKind, OperationState

InstanceId = Annotated[
    str, Meta(pattern=pattern(Prefix.INSTANCE), description="An instance of another project of the tenant.")
]
HIDDEN_INPUT: Final = ("/input",)


class AttachmentQuery(PageQuery):
    """Which attachments to list."""

    status: AttachmentState | None = None


class AttachedOperationQuery(PageQuery):
    """Which operations of an attachment to list."""

    status: OperationState | None = None


class CreateAttachment(Strict):
    """The instance that the project wants to use."""

    instance_id: InstanceId


class DetachProject(Strict):
    """How to detach the project."""

    cancel_work: Annotated[bool, Meta(description="Cancel the project's work instead of waiting for it.")] = False
    timeout_seconds: Annotated[
        int, Meta(ge=0, le=DETACH_SECONDS_MAX, description="Seconds that its work has to finish.")
    ] = DETACH_SECONDS


class StartAttachedAction(Strict):
    """The input of an action, by its `input_schema`."""

    input: Annotated[dict[str, Any], Meta(max_length=1_000, description=f"At most {INPUT_BYTES_MAX} bytes.")] = (
        msgspec.field(default_factory=dict)
    )


class AttachmentView(Shown):
    """A project's use of an instance of another project."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    instance_name: str
    owning_project_id: str
    app: str
    account_name: str
    status: AttachmentState
    operation_id: str
    cancel_work: bool
    timeout_seconds: int | None
    attempts: int
    blocker: str | None
    retry_at: Time | None
    refusal_reason: str | None
    requested_by: str
    correlation_id: str
    trace_id: str
    created_at: Time
    activated_at: Time | None
    detach_requested_at: Time | None
    detached_at: Time | None
    refused_at: Time | None
    revision: int
    etag: str
    allowed_verbs: list[str]
    allowed_actions: list[str]


class InstanceAttachmentView(Shown):
    """Another project's use of an instance, as the owning project sees it."""

    id: str
    project_id: str
    account_name: str
    status: AttachmentState


class AttachedOperationView(Shown):
    """An operation for an attached project; nothing else of the owning project is shown."""

    id: str
    attachment_id: str
    project_id: str
    owning_project_id: str
    instance_id: str
    kind: OperationKind
    action: str | None
    input: dict[str, Any] | None
    status: OperationState
    blocker: str | None
    cancel_reason: str | None
    output: dict[str, Any] | None
    failure_code: str | None
    failure_detail: str | None
    read_only: bool
    requested_by: str
    correlation_id: str
    trace_id: str
    created_at: Time
    deadline_at: Time
    started_at: Time | None
    finished_at: Time | None
    etag: str


def attachment_view(authority: Authority, attachment: Attachment) -> AttachmentView:
    state = AttachmentState(attachment.status)
    verbs = [] if state in ATTACHMENT.final else ["detach"]
    place = Place(Scope.PROJECT, None, attachment.project_id)
    return AttachmentView(
        id=attachment.id,
        tenant_id=attachment.tenant_id,
        project_id=attachment.project_id,
        instance_id=attachment.instance_id,
        instance_name=attachment.instance_name,
        owning_project_id=attachment.owning_project_id,
        app=attachment.app_slug,
        account_name=attachment.account_name,
        status=state,
        operation_id=attachment.operation_id,
        cancel_work=attachment.cancel_work,
        timeout_seconds=attachment.timeout_seconds,
        attempts=attachment.attempts,
        blocker=attachment.blocker,
        retry_at=attachment.retry_at,
        refusal_reason=attachment.refusal_reason,
        requested_by=attachment.requested_by,
        correlation_id=attachment.correlation_id,
        trace_id=attachment.trace_id,
        created_at=attachment.created_at,
        activated_at=attachment.activated_at,
        detach_requested_at=attachment.detach_requested_at,
        detached_at=attachment.detached_at,
        refused_at=attachment.refused_at,
        revision=attachment.revision,
        etag=f"{attachment.generation}.{attachment.revision}",
        allowed_verbs=[*(["act"] if state is AttachmentState.ACTIVE else []), *verbs],
        allowed_actions=allowed(authority, place, ["attachment.delete"] if verbs else []),
    )


def instance_attachment_view(attachment: Attachment) -> InstanceAttachmentView:
    return InstanceAttachmentView(
        id=attachment.id,
        project_id=attachment.project_id,
        account_name=attachment.account_name,
        status=AttachmentState(attachment.status),
    )


def attached_operation_view(caller: Caller, attachment: Attachment, operation: Operation) -> AttachedOperationView:
    """An operation of an attachment; only callers who may run the action see its input and output."""
    request = operation.request
    shown = _is_shown(caller, attachment, operation)
    visible_request = without_hidden(request, request.get("hidden", ()) if shown else HIDDEN_INPUT)
    return AttachedOperationView(
        id=operation.id,
        attachment_id=attachment.id,
        project_id=attachment.project_id,
        owning_project_id=operation.project_id,
        instance_id=operation.instance_id,
        kind=OperationKind(operation.kind),
        action=request.get("action"),
        input=visible_request.get("input"),
        status=OperationState(operation.status),
        blocker=operation.blocker,
        cancel_reason=operation.cancel_reason,
        output=operation.output if shown else None,
        failure_code=operation.failure_code,
        failure_detail=operation.failure_detail,
        read_only=operation.read_only,
        requested_by=operation.requested_by,
        correlation_id=operation.correlation_id,
        trace_id=operation.trace_id,
        created_at=operation.created_at,
        deadline_at=operation.deadline_at,
        started_at=operation.started_at,
        finished_at=operation.finished_at,
        etag=f"{operation.generation}.{operation.revision}",
    )


def _is_shown(caller: Caller, attachment: Attachment, operation: Operation) -> bool:
    """Whether the caller may see the action's input and output: the one who asked, or by their keys in the attached
    project.
    """
    permission = operation.request.get("permission")
    if operation.kind != OperationKind.ACTION or permission is None or operation.requested_by == caller.actor.id:
        return True
    return may_act(caller.actor, caller.authority, Place(Scope.PROJECT, None, attachment.project_id), str(permission))
