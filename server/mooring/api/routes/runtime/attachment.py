"""Endpoints of attachments: a project's use of an instance of another project of its tenant."""

import msgspec

from mooring.api.page import Page, page, start
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import RouteSpec, route_in
from mooring.api.routes.runtime.instance import CHANGED, at
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
from mooring.api.wait import WaitQuery, quietly_over, waited
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
AFTER_ALL = "~"
"""Sorts after every id: operations are listed from the newest on."""


def attached_at(request: RequestContext, attachment_id: str) -> AttachmentRef:
    """Which attachment a request is about."""
    return AttachmentRef(str(request.place.project_id), attachment_id)


def _doing(request: RequestContext) -> Work[Attachment]:
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
        errors=(Code.CONFLICT, Code.ILLEGAL_TRANSITION, Code.LIMIT_REACHED, Code.NOT_SUPPORTED),
    ),
)
async def create_attachment(request: RequestContext, body: CreateAttachment) -> Answered:
    """Let the project use an instance of another project of the tenant.

    The instance runs with `control_plane_scope` tenant, and its app lets projects attach. The attachment is `requested`
    until the app's adapter has made what the project needs there; it is then `active`, or `refused` with the reason.
    """
    return await commands.attach(_doing(request), str(request.place.project_id), body.instance_id)


@route_in(PLACES, "GET", PATH, RouteSpec("attachment", "list", "attachment.read", answer=Page[AttachmentView]))
async def list_attachments(request: RequestContext, query: AttachmentQuery) -> Page[AttachmentView]:
    """List what the project is attached to, the oldest first; those that are over stay readable."""
    status = None if query.status is None else query.status.value
    window = (start(query, "attachment"), query.limit + 1)
    rows = await attachments.page(
        request.services.database, request.acting, str(request.place.project_id), status, window
    )
    return page(rows, query, "attachment", lambda row: attachment_view(request.caller.authority, row))


@route_in(PLACES, "GET", ONE, RouteSpec("attachment", "get", "attachment.read", answer=AttachmentView))
async def get_attachment(request: RequestContext, attachment_id: str, query: WaitQuery) -> AttachmentView:
    """Read an attachment: its account's name, how far it is, and what its end waits for."""

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
    """End the project's use of the instance; it takes no new work from now on.

    What the project has there may finish within `timeout_seconds`, or is cancelled; then its account is removed and the
    attachment is `detached`. Where that fails, `blocker` says why, and it is done again after a pause. Asked again with
    `cancel_work`, one that waits stops waiting.
    """
    wish = DetachRequest(body.cancel_work, body.timeout_seconds)
    return await commands.detach(_doing(request), attached_at(request, attachment_id), wish)


@route_in(
    PLACES,
    "DELETE",
    ONE,
    RouteSpec("attachment", "delete", "attachment.delete", 202, AttachmentView, errors=CHANGED),
)
async def delete_attachment(request: RequestContext, attachment_id: str) -> Answered:
    """End the project's use of the instance: the same as `detach`, with its defaults."""
    return await commands.detach(_doing(request), attached_at(request, attachment_id), DetachRequest())


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
        errors=(*CHANGED, Code.LIMIT_REACHED),
        name="start_attachment_action",
    ),
)
async def start_attached_action(
    request: RequestContext, attachment_id: str, action_name: str, body: StartAttachedAction, query: ActionQuery
) -> Response:
    """Ask the instance that the project is attached to for an action of its app.

    Who may is said by the action's own key, which counts in this project. With `wait` the answer is 200 and has the
    outcome if it is there in time; otherwise it is 202, and the operation is read until it is over.
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
            view = await quietly_over(request, view.instance_id, query.wait, read)
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
    """List what was done for the attachment, the newest first; actions that only read are not among it."""
    row = await commands.find(request.services, request.acting, attached_at(request, attachment_id))
    status = None if query.status is None else query.status.value
    window = (start(query, "operation", AFTER_ALL), query.limit + 1)
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
        return await quietly_over(
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
    """List which projects are attached to an instance of this one, each with its account's name and its state."""
    database, where = request.services.database, at(request, instance_id)
    require(await instances.find(database, request.acting, *where.place), "instance")
    status = None if query.status is None else query.status.value
    window = (start(query, "attachment"), query.limit + 1)
    rows = await attachments.page_of_instance(database, request.acting, where.place, status, window)
    return page(rows, query, "attachment", instance_attachment_view)


async def _operation(request: RequestContext, attachment_id: str, operation_id: str) -> AttachedOperationView:
    row = await commands.find(request.services, request.acting, attached_at(request, attachment_id))
    operation = await attachments.find_operation(request.services.database, request.acting, row, operation_id)
    return attached_operation_view(request.caller, row, require(operation, "operation"))
