"""Endpoints of attachments: a project's use of an instance of another project of its tenant."""

import msgspec

from mooring.api.page import Page, page, start
from mooring.api.request_context import Call, encode_json
from mooring.api.response import Reply
from mooring.api.route import Declared, route_in
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
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime import attachment as commands
from mooring.commands.runtime.attachment import Acted, AttachedAt
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.attachment_change import DetachWish
from mooring.core.runtime.operation import OPERATION
from mooring.storage.runtime import attachment as attachments
from mooring.storage.runtime import instance as instances

PLACES = (Scope.PROJECT,)
PATH = "/attachments"
ONE = PATH + "/{attachment_id}"
OVER = ",".join(sorted(OPERATION.final))
AFTER_ALL = "~"
"""Sorts after every id: operations are listed from the newest on."""


def attached_at(call: Call, attachment_id: str) -> AttachedAt:
    """Which attachment a request is about."""
    return AttachedAt(str(call.place.project_id), attachment_id)


def _doing(call: Call) -> Work[Attachment]:
    return call.work(lambda made: attachment_view(call.caller.authority, made))


@route_in(
    PLACES,
    "POST",
    PATH,
    Declared(
        "attachment",
        "create",
        "attachment.create",
        201,
        AttachmentView,
        errors=(Code.CONFLICT, Code.ILLEGAL_TRANSITION, Code.LIMIT_REACHED, Code.NOT_SUPPORTED),
    ),
)
async def create_attachment(call: Call, body: CreateAttachment) -> Answered:
    """Let the project use an instance of another project of the tenant.

    The instance runs with `control_plane_scope` tenant, and its app lets projects attach. The attachment is `requested`
    until the app's adapter has made what the project needs there; it is then `active`, or `refused` with the reason.
    """
    return await commands.attach(_doing(call), str(call.place.project_id), body.instance_id)


@route_in(PLACES, "GET", PATH, Declared("attachment", "list", "attachment.read", answer=Page[AttachmentView]))
async def list_attachments(call: Call, query: AttachmentQuery) -> Page[AttachmentView]:
    """List what the project is attached to, the oldest first; those that are over stay readable."""
    status = None if query.status is None else query.status.value
    window = (start(query, "attachment"), query.limit + 1)
    rows = await attachments.page(
        call.services.database, call.acting, str(call.place.project_id), status, window
    )  # fmt: skip
    return page(rows, query, "attachment", lambda row: attachment_view(call.caller.authority, row))


@route_in(PLACES, "GET", ONE, Declared("attachment", "get", "attachment.read", answer=AttachmentView))
async def get_attachment(call: Call, attachment_id: str, query: WaitQuery) -> AttachmentView:
    """Read an attachment: its account's name, how far it is, and what its end waits for."""

    async def read() -> AttachmentView:
        row = await commands.find(call.services, call.acting, attached_at(call, attachment_id))
        return attachment_view(call.caller.authority, row)

    return await waited(call, query, attachment_id, read)


@route_in(
    PLACES,
    "POST",
    ONE + "/detach",
    Declared("attachment", "detach", "attachment.delete", 202, AttachmentView, errors=CHANGED),
)
async def detach_attachment(call: Call, attachment_id: str, body: DetachProject) -> Answered:
    """End the project's use of the instance; it takes no new work from now on.

    What the project has there may finish within `timeout_seconds`, or is cancelled; then its account is removed and the
    attachment is `detached`. Where that fails, `blocker` says why, and it is done again after a pause. Asked again with
    `cancel_work`, one that waits stops waiting.
    """
    wish = DetachWish(body.cancel_work, body.timeout_seconds)
    return await commands.detach(_doing(call), attached_at(call, attachment_id), wish)


@route_in(
    PLACES,
    "DELETE",
    ONE,
    Declared("attachment", "delete", "attachment.delete", 202, AttachmentView, errors=CHANGED),
)
async def delete_attachment(call: Call, attachment_id: str) -> Answered:
    """End the project's use of the instance: the same as `detach`, with its defaults."""
    return await commands.detach(_doing(call), attached_at(call, attachment_id), DetachWish())


@route_in(
    PLACES,
    "POST",
    ONE + "/actions/{action_name}",
    Declared(
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
    call: Call, attachment_id: str, action_name: str, body: StartAttachedAction, query: ActionQuery
) -> Reply:
    """Ask the instance that the project is attached to for an action of its app.

    Who may is said by the action's own key, which counts in this project. With `wait` the answer is 200 and has the
    outcome if it is there in time; otherwise it is 202, and the operation is read until it is over.
    """
    work: Work[Acted] = call.work(lambda made: attached_operation_view(call.caller, made.attachment, made.operation))
    answered = await commands.act(work, attached_at(call, attachment_id), action_name, body.input)
    headers = {"idempotency-replayed": "true"} if answered.replayed else {}
    view = msgspec.json.decode(answered.body, type=AttachedOperationView)
    if query.wait and view.status not in OPERATION.final:

        async def read() -> AttachedOperationView:
            return await _operation(call, attachment_id, view.id)

        if view.read_only:
            view = await quietly_over(call, view.instance_id, query.wait, read)
        else:
            view = await waited(call, WaitQuery(wait=query.wait, until=OVER), view.id, read)
    return Reply(200 if view.status in OPERATION.final else 202, encode_json(view), headers=headers)


@route_in(
    PLACES,
    "GET",
    ONE + "/operations",
    Declared("attachment_operation", "list", "attachment.read", answer=Page[AttachedOperationView]),
)
async def list_attachment_operations(
    call: Call, attachment_id: str, query: AttachedOperationQuery
) -> Page[AttachedOperationView]:
    """List what was done for the attachment, the newest first; actions that only read are not among it."""
    row = await commands.find(call.services, call.acting, attached_at(call, attachment_id))
    status = None if query.status is None else query.status.value
    window = (start(query, "operation", AFTER_ALL), query.limit + 1)
    rows = await attachments.page_operations(call.services.database, call.acting, row, status, window)
    return page(rows, query, "operation", lambda each: attached_operation_view(call.caller, row, each))


@route_in(
    PLACES,
    "GET",
    ONE + "/operations/{operation_id}",
    Declared("attachment_operation", "get", "attachment.read", answer=AttachedOperationView),
)
async def get_attachment_operation(
    call: Call, attachment_id: str, operation_id: str, query: WaitQuery
) -> AttachedOperationView:
    """Read an operation of the attachment: an action that the project asked for, or its attach or detach."""
    view = await _operation(call, attachment_id, operation_id)

    async def read() -> AttachedOperationView:
        return await _operation(call, attachment_id, operation_id)

    if view.read_only:
        return await quietly_over(
            call, view.instance_id, query.wait if query.until or query.changed_from else 0, read
        )  # fmt: skip
    return await waited(call, query, operation_id, read)


@route_in(
    PLACES,
    "GET",
    ONE_INSTANCE + "/attachments",
    Declared("instance_attachment", "list", "attachment.read", answer=Page[InstanceAttachmentView]),
)
async def list_instance_attachments(
    call: Call, instance_id: str, query: AttachmentQuery
) -> Page[InstanceAttachmentView]:
    """List which projects are attached to an instance of this one, each with its account's name and its state."""
    database, where = call.services.database, at(call, instance_id)
    found(await instances.find(database, call.acting, *where.place), "instance")
    status = None if query.status is None else query.status.value
    window = (start(query, "attachment"), query.limit + 1)
    rows = await attachments.page_of_instance(database, call.acting, where.place, status, window)
    return page(rows, query, "attachment", instance_attachment_view)


async def _operation(call: Call, attachment_id: str, operation_id: str) -> AttachedOperationView:
    row = await commands.find(call.services, call.acting, attached_at(call, attachment_id))
    operation = await attachments.find_operation(call.services.database, call.acting, row, operation_id)
    return attached_operation_view(call.caller, row, found(operation, "operation"))
