"""Endpoints for attachments: a project's use of an instance of another project of its tenant."""

import msgspec

from mooring.api.page import AFTER_ALL, Page, page, page_window
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.runtime.instance import CHANGED, UNTRUSTED, at
from mooring.api.routes.runtime.instance import ONE as ONE_INSTANCE
from mooring.api.schemas.runtime.attachment import (
    AttachedOperationQuery,
    AttachedOperationView,
    AttachmentQuery,
    AttachmentView,
    CreateAttachment,
    DetachProject,
    InstanceAttachmentView,
    StartAttachedAction,
    attached_operation_view,
    attachment_view,
    instance_attachment_view,
)
from mooring.api.schemas.runtime.instance import ActionQuery
from mooring.api.wait import WaitQuery, wait_for_read_only, waited
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import attachment as commands
from mooring.commands.runtime.attachment import AttachedAction, AttachmentRef
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.attachment_change import DetachRequest
from mooring.core.runtime.operation import OPERATION
from mooring.storage.runtime import attachment as attachments
from mooring.storage.runtime import instance as instances

PLACES = (Scope.PROJECT,)
PATH = "/attachments"
ONE = PATH + "/{attachment_id}"
OVER = ",".join(sorted(OPERATION.final))


def attached_at(request: RequestContext, attachment_id: str) -> AttachmentRef:
    """The attachment that a request names."""
    return AttachmentRef(str(request.place.project_id), attachment_id)


def _attachment_work(request: RequestContext) -> Work[Attachment]:
    return request.work(lambda made: attachment_view(request.caller.authority, made))


@route_in(
    PLACES,
    "POST",
    PATH,
    RouteSpec(
        "attachment",
        "create",
        "attachment.create",
        201,
        AttachmentView,
        errors=(*UNTRUSTED, Code.CONFLICT, Code.ILLEGAL_TRANSITION, Code.LIMIT_REACHED, Code.NOT_SUPPORTED),
    ),
)
async def create_attachment(request: RequestContext, body: CreateAttachment) -> Answered:
    """Let the project use an instance of another project of the tenant.

    The instance must run with `control_plane_scope` tenant, and its app must support attachments. The attachment is
    `requested` until the app's adapter has set up the project's account; then it is `active`, or `refused` with the
    reason.
    """
    return await commands.attach(_attachment_work(request), str(request.place.project_id), body.instance_id)


@route_in(PLACES, "GET", PATH, RouteSpec("attachment", "list", "attachment.read", answer=Page[AttachmentView]))
async def list_attachments(request: RequestContext, query: AttachmentQuery) -> Page[AttachmentView]:
    """List what the project is attached to, oldest first; ended attachments stay readable."""
    status = None if query.status is None else query.status.value
    project_id, window = str(request.place.project_id), page_window(query, "attachment")
    rows = await attachments.page(request.services.database, request.acting, project_id, status, window)
    return page(rows, query, "attachment", lambda row: attachment_view(request.caller.authority, row))


@route_in(PLACES, "GET", ONE, RouteSpec("attachment", "get", "attachment.read", answer=AttachmentView))
async def get_attachment(request: RequestContext, attachment_id: str, query: WaitQuery) -> AttachmentView:
    """Read an attachment: its account name, its state, and what its end waits for."""

    async def read() -> AttachmentView:
        row = await commands.find(request.services, request.acting, attached_at(request, attachment_id))
        return attachment_view(request.caller.authority, row)

    return await waited(request, query, attachment_id, read)


@route_in(
    PLACES,
    "POST",
    ONE + "/detach",
    RouteSpec("attachment", "detach", "attachment.delete", 202, AttachmentView, errors=CHANGED),
)
async def detach_attachment(request: RequestContext, attachment_id: str, body: DetachProject) -> Answered:
    """End the project's use of the instance; it accepts no new work from now on.

    The project's work may finish within `timeout_seconds`, or is cancelled; then the account is removed and the
    attachment is `detached`. If that fails, `blocker` says why, and it is retried after a pause. A repeated request
    with `cancel_work` ends the waiting.
    """
    detach = DetachRequest(body.cancel_work, body.timeout_seconds)
    return await commands.detach(_attachment_work(request), attached_at(request, attachment_id), detach)


@route_in(
    PLACES,
    "DELETE",
    ONE,
    RouteSpec("attachment", "delete", "attachment.delete", 202, AttachmentView, errors=CHANGED),
)
async def delete_attachment(request: RequestContext, attachment_id: str) -> Answered:
    """End the project's use of the instance: the same as `detach` with its defaults."""
    return await commands.detach(_attachment_work(request), attached_at(request, attachment_id), DetachRequest())


@route_in(
    PLACES,
    "POST",
    ONE + "/actions/{action_name}",
    RouteSpec(
        "attachment",
        "act",
        "attachment.read",
        202,
        AttachedOperationView,
        errors=(*CHANGED, *UNTRUSTED, Code.LIMIT_REACHED),
        name="start_attachment_action",
    ),
)
async def start_attached_action(
    request: RequestContext, attachment_id: str, action_name: str, body: StartAttachedAction, query: ActionQuery
) -> Response:
    """Ask the instance that the project is attached to for an action of its app.

    The caller needs the action's own key in this project. With `wait` the response is 200 with the outcome if it is
    available in time; otherwise it is 202, and the caller reads the operation until it has ended.
    """
    work: Work[AttachedAction] = request.work(
        lambda made: attached_operation_view(request.caller, made.attachment, made.operation)
    )
    answered = await commands.act(work, attached_at(request, attachment_id), action_name, body.input)
    headers = {"idempotency-replayed": "true"} if answered.replayed else {}
    view = msgspec.json.decode(answered.body, type=AttachedOperationView)
    if query.wait and view.status not in OPERATION.final:

        async def read() -> AttachedOperationView:
            return await _operation(request, attachment_id, view.id)

        if view.read_only:
            view = await wait_for_read_only(request, view.instance_id, query.wait, read)
        else:
            view = await waited(request, WaitQuery(wait=query.wait, until=OVER), view.id, read)
    return Response(200 if view.status in OPERATION.final else 202, encode_json(view), headers=headers)


@route_in(
    PLACES,
    "GET",
    ONE + "/operations",
    RouteSpec("attachment_operation", "list", "attachment.read", answer=Page[AttachedOperationView]),
)
async def list_attachment_operations(
    request: RequestContext, attachment_id: str, query: AttachedOperationQuery
) -> Page[AttachedOperationView]:
    """List the operations for the attachment, newest first, without read-only actions."""
    row = await commands.find(request.services, request.acting, attached_at(request, attachment_id))
    status = None if query.status is None else query.status.value
    window = page_window(query, "operation", AFTER_ALL)
    rows = await attachments.page_operations(request.services.database, request.acting, row, status, window)
    return page(rows, query, "operation", lambda each: attached_operation_view(request.caller, row, each))


@route_in(
    PLACES,
    "GET",
    ONE + "/operations/{operation_id}",
    RouteSpec("attachment_operation", "get", "attachment.read", answer=AttachedOperationView),
)
async def get_attachment_operation(
    request: RequestContext, attachment_id: str, operation_id: str, query: WaitQuery
) -> AttachedOperationView:
    """Read an operation of the attachment: an action that the project asked for, or its attach or detach."""
    view = await _operation(request, attachment_id, operation_id)

    async def read() -> AttachedOperationView:
        return await _operation(request, attachment_id, operation_id)

    if view.read_only:
        return await wait_for_read_only(
            request, view.instance_id, query.wait if query.until or query.changed_from else 0, read
        )
    return await waited(request, query, operation_id, read)


@route_in(
    PLACES,
    "GET",
    ONE_INSTANCE + "/attachments",
    RouteSpec("instance_attachment", "list", "attachment.read", answer=Page[InstanceAttachmentView]),
)
async def list_instance_attachments(
    request: RequestContext, instance_id: str, query: AttachmentQuery
) -> Page[InstanceAttachmentView]:
    """List the projects that are attached to an instance of this project, each with its account name and state."""
    database, ref = request.services.database, at(request, instance_id)
    require(await instances.find(database, request.acting, ref.project_id, ref.instance_id), "instance")
    status = None if query.status is None else query.status.value
    window = page_window(query, "attachment")
    rows = await attachments.page_of_instance(database, request.acting, ref, status, window)
    return page(rows, query, "attachment", instance_attachment_view)


async def _operation(request: RequestContext, attachment_id: str, operation_id: str) -> AttachedOperationView:
    row = await commands.find(request.services, request.acting, attached_at(request, attachment_id))
    operation = await attachments.find_operation(request.services.database, request.acting, row, operation_id)
    return attached_operation_view(request.caller, row, require(operation, "operation"))
