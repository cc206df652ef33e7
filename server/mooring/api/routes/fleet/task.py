"""Endpoints for tasks, their output and their receipts, and the published task families."""

import time
from functools import cache
from typing import Any

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext, encode_json
from mooring.api.response import Response
from mooring.api.route import PUBLIC_ACTION, RouteSpec, route, route_in
from mooring.api.schemas.fleet.task import (
    LogQuery,
    LogView,
    NodeTaskQuery,
    NodeTaskView,
    ReceiptBundle,
    ReceiptQuery,
    ReceiptView,
    TaskQuery,
    TaskView,
    log_view,
    node_task_view,
    receipt_bundle,
    receipt_view,
    task_view,
)
from mooring.api.stream import require_still_allowed
from mooring.api.wait import WaitQuery, waited
from mooring.commands.fleet import task as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_family import published_for_adapters
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet import receipt as receipts
from mooring.storage.fleet import task as tasks
from mooring.storage.fleet import task_report as reports

HERE = (Scope.PROJECT,)
TASKS = "/tasks"
ONE = TASKS + "/{task_id}"
RECEIPTS = "/receipts"
RECEIPT = RECEIPTS + "/{receipt_id}"
LAST_ID = "~"  # sorts after every id
CHUNKS_MAX = 16
CHAIN_BEFORE = 100
CHAIN_AFTER = 100
CLAIMED_SILENTLY = frozenset({"claimed"})
"""A claim leaves no event, because there are too many of them."""


@route("GET", "/schemas/tasks", Scope.PUBLIC, RouteSpec("reference", "tasks", PUBLIC_ACTION, answer=dict[str, Any]))
async def get_task_schemas(request: RequestContext) -> Response:
    """Read what nodes can do: the JSON Schemas of every task family's arguments and result.

    `adapter_arguments` are the arguments as adapters give them: they name artifacts by role or digest.
    """
    return Response(200, _published())


@cache
def _published() -> bytes:
    return encode_json(published_for_adapters())


@route_in(HERE, "GET", TASKS, RouteSpec("task", "list", "task.read", answer=Page[TaskView]))
async def list_tasks(request: RequestContext, query: TaskQuery) -> Page[TaskView]:
    """List the project's tasks, newest first."""
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    status = None if query.status is None else query.status.value
    wanted = tasks.TaskFilter(status, query.allocation_id, query.instance_id)
    window = page_window(pages, "task", LAST_ID)
    rows = await tasks.page(request.services.database, request.acting, _project(request), wanted, window)
    return page(rows, pages, "task", lambda row: task_view(request.caller.authority, row))


@route_in(HERE, "GET", ONE, RouteSpec("task", "get", "task.read", answer=TaskView))
async def get_task(request: RequestContext, task_id: str, query: WaitQuery) -> TaskView:
    """Read a task; `?until=succeeded,failed,cancelled,expired` waits for its end."""

    async def read() -> TaskView:
        return task_view(request.caller.authority, await _task(request, task_id))

    return await waited(request, query, task_id, read, silent=CLAIMED_SILENTLY)


@route_in(HERE, "GET", ONE + "/log", RouteSpec("task", "log", "task.read", answer=LogView))
async def get_task_log(request: RequestContext, task_id: str, query: LogQuery) -> LogView:
    """Read a task's output from an offset; with `wait` the answer comes as soon as there is more."""
    deadline = time.monotonic() + min(query.wait, request.services.settings.wait_seconds_max)
    while True:
        task = await _task(request, task_id)
        part = await _part(request, task, query)
        left = deadline - time.monotonic()
        if part or task.is_over or left <= 0 or request.services.hub.closed:
            return log_view(task, query.offset, part)
        await request.tools.logs.wait(task_id, left)
        await require_still_allowed(request)


@route_in(
    HERE,
    "POST",
    ONE + "/cancel",
    RouteSpec("task", "cancel", "task.cancel", answer=TaskView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def cancel_task(request: RequestContext, task_id: str) -> Answered:
    """Cancel a task: at once if no agent has claimed it, otherwise its agent is asked to stop.

    The platform's own tasks of an allocation cannot be cancelled: release the allocation instead.
    """
    work: Work[Task] = request.work(lambda task: task_view(request.caller.authority, task))
    return await commands.cancel(work, _project(request), task_id)


@route_in(HERE, "GET", RECEIPTS, RouteSpec("receipt", "list", "receipt.read", answer=Page[ReceiptView]))
async def list_receipts(request: RequestContext, query: ReceiptQuery) -> Page[ReceiptView]:
    """List the receipts of the project's teardowns, newest first."""
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    window = page_window(pages, "receipt", LAST_ID)
    rows = await receipts.page(
        request.services.database, request.acting, _project(request), window, query.allocation_id
    )
    return page(rows, pages, "receipt", receipt_view)


@route_in(HERE, "GET", RECEIPT, RouteSpec("receipt", "get", "receipt.read", answer=ReceiptView))
async def get_receipt(request: RequestContext, receipt_id: str) -> ReceiptView:
    """Read a receipt: what was found, removed and left."""
    row = await receipts.find(request.services.database, request.acting, _project(request), receipt_id)
    return receipt_view(require(row, "receipt"))


@route_in(HERE, "GET", RECEIPT + "/export", RouteSpec("receipt", "export", "receipt.read", answer=ReceiptBundle))
async def export_receipt(request: RequestContext, receipt_id: str) -> ReceiptBundle:
    """Export a receipt with its node's public key and chain, for offline verification.

    It includes the project's other receipts in the same part of the chain, and only the hashes of everybody else's.
    """
    database, project_id = request.services.database, _project(request)
    receipt = require(await receipts.find(database, request.acting, project_id, receipt_id), "receipt")
    node = require(await nodes.find(database, receipt.node_id), "node")
    first, last = max(1, receipt.sequence - CHAIN_BEFORE), receipt.sequence + CHAIN_AFTER
    own = await receipts.own_in_chain(database, request.acting, receipt.node_id, project_id, first=first, last=last)
    return receipt_bundle(receipt, node, own, await receipts.chain(database, receipt.node_id, first, last))


@route_in(
    (Scope.PLATFORM,),
    "GET",
    "/nodes/{node_id}/tasks",
    RouteSpec("node", "tasks", "node.read", answer=Page[NodeTaskView]),
)
async def list_node_tasks(request: RequestContext, node_id: str, query: NodeTaskQuery) -> Page[NodeTaskView]:
    """List the tasks of a node, newest first, without their content."""
    require(await nodes.find(request.services.database, node_id), "node")
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    window = page_window(pages, "node_task", LAST_ID)
    status = None if query.status is None else query.status.value
    rows = await tasks.page_of_node(request.services.database, node_id, window, status)
    return page(rows, pages, "node_task", node_task_view)


def _project(request: RequestContext) -> str:
    return str(request.place.project_id)


async def _task(request: RequestContext, task_id: str) -> Task:
    return require(await tasks.find(request.services.database, request.acting, _project(request), task_id), "task")


async def _part(request: RequestContext, task: Task, query: LogQuery) -> bytes:
    """The stored bytes from the offset on, up to the limit."""
    if query.offset >= task.log_bytes:
        return b""
    part = b""
    for offset, chunk in await reports.read_log(
        request.services.database, request.acting, task.id, query.offset, CHUNKS_MAX
    ):
        part += chunk[max(0, query.offset - offset) :]
        if len(part) >= query.limit:
            break
    return part[: query.limit]
