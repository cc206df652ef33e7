"""Endpoints of tasks, their output and their receipts, and the published task families."""

import time
from functools import cache
from typing import Any

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call, encode_json
from mooring.api.response import Reply
from mooring.api.route import PUBLIC_ACTION, Declared, route, route_in
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
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_family import published
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
"""Claims are made by the hundred and leave no event."""


@route("GET", "/schemas/tasks", Scope.PUBLIC, Declared("reference", "tasks", PUBLIC_ACTION, answer=dict[str, Any]))
async def get_task_schemas(call: Call) -> Reply:
    """What a node can be asked to do: the JSON Schemas of every task family's arguments and result."""
    return Reply(200, _published())


@cache
def _published() -> bytes:
    return encode_json(published())


@route_in(HERE, "GET", TASKS, Declared("task", "list", "task.read", answer=Page[TaskView]))
async def list_tasks(call: Call, query: TaskQuery) -> Page[TaskView]:
    """List the project's tasks, newest first."""
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    wanted = (None if query.status is None else query.status.value, query.allocation_id, query.instance_id)
    place = (start(pages, "task", LAST_ID), query.limit + 1)
    rows = await tasks.page(call.services.database, call.acting, _project(call), place, wanted)
    return page(rows, pages, "task", lambda row: task_view(call.caller.authority, row))


@route_in(HERE, "GET", ONE, Declared("task", "get", "task.read", answer=TaskView))
async def get_task(call: Call, task_id: str, query: WaitQuery) -> TaskView:
    """Read a task; `?until=succeeded,failed,cancelled,expired` waits for its end."""

    async def read() -> TaskView:
        return task_view(call.caller.authority, await _task(call, task_id))

    return await waited(call, query, task_id, read, silent=CLAIMED_SILENTLY)


@route_in(HERE, "GET", ONE + "/log", Declared("task", "log", "task.read", answer=LogView))
async def get_task_log(call: Call, task_id: str, query: LogQuery) -> LogView:
    """Read a task's output from an offset; with `wait` it is followed: the answer comes as soon as there is more."""
    deadline = time.monotonic() + min(query.wait, call.services.settings.wait_seconds_max)
    while True:
        task = await _task(call, task_id)
        part = await _part(call, task, query)
        left = deadline - time.monotonic()
        if part or task.is_over or left <= 0 or call.services.hub.closed:
            return log_view(task, query.offset, part)
        await call.tools.logs.wait(task_id, left)
        await require_still_allowed(call)


@route_in(
    HERE,
    "POST",
    ONE + "/cancel",
    Declared("task", "cancel", "task.cancel", answer=TaskView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def cancel_task(call: Call, task_id: str) -> Answered:
    """End a task early: at once where nobody has begun it, else its agent is asked.

    What the platform does for an allocation itself is not cancelled: release the allocation instead.
    """
    work: Work[Task] = call.work(lambda task: task_view(call.caller.authority, task))
    return await commands.cancel(work, _project(call), task_id)


@route_in(HERE, "GET", RECEIPTS, Declared("receipt", "list", "receipt.read", answer=Page[ReceiptView]))
async def list_receipts(call: Call, query: ReceiptQuery) -> Page[ReceiptView]:
    """List the receipts of the project's teardowns, newest first."""
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    place = (start(pages, "receipt", LAST_ID), query.limit + 1)
    rows = await receipts.page(call.services.database, call.acting, _project(call), place, query.allocation_id)
    return page(rows, pages, "receipt", receipt_view)


@route_in(HERE, "GET", RECEIPT, Declared("receipt", "get", "receipt.read", answer=ReceiptView))
async def get_receipt(call: Call, receipt_id: str) -> ReceiptView:
    """Read a receipt: what was found, removed and left."""
    row = await receipts.find(call.services.database, call.acting, _project(call), receipt_id)
    return receipt_view(found(row, "receipt"))


@route_in(HERE, "GET", RECEIPT + "/export", Declared("receipt", "export", "receipt.read", answer=ReceiptBundle))
async def export_receipt(call: Call, receipt_id: str) -> ReceiptBundle:
    """Export a receipt with its node's public key and chain, to be verified offline.

    Other receipts of this project in the same part of the chain come with it; of everybody else's only the hash.
    """
    database, project_id = call.services.database, _project(call)
    receipt = found(await receipts.find(database, call.acting, project_id, receipt_id), "receipt")
    node = found(await nodes.find(database, receipt.node_id), "node")
    part = (max(1, receipt.sequence - CHAIN_BEFORE), receipt.sequence + CHAIN_AFTER)
    own = await receipts.own_in_chain(database, call.acting, receipt.node_id, part, project_id)
    return receipt_bundle(receipt, node, own, await receipts.chain(database, receipt.node_id, *part))


@route_in(
    (Scope.PLATFORM,),
    "GET",
    "/nodes/{node_id}/tasks",
    Declared("node", "tasks", "node.read", answer=Page[NodeTaskView]),
)
async def list_node_tasks(call: Call, node_id: str, query: NodeTaskQuery) -> Page[NodeTaskView]:
    """List the tasks of a node, newest first: that they are there and how they stand, not what is in them."""
    found(await nodes.find(call.services.database, node_id), "node")
    pages = PageQuery(cursor=query.cursor, limit=query.limit)
    place = (start(pages, "node_task", LAST_ID), query.limit + 1)
    status = None if query.status is None else query.status.value
    rows = await tasks.page_of_node(call.services.database, node_id, place, status)
    return page(rows, pages, "node_task", node_task_view)


def _project(call: Call) -> str:
    return str(call.place.project_id)


async def _task(call: Call, task_id: str) -> Task:
    return found(await tasks.find(call.services.database, call.acting, _project(call), task_id), "task")


async def _part(call: Call, task: Task, query: LogQuery) -> bytes:
    """The bytes from the offset on that are there, up to the limit."""
    if query.offset >= task.log_bytes:
        return b""
    part = b""
    for offset, chunk in await reports.read_log(call.services.database, call.acting, task.id, query.offset, CHUNKS_MAX):
        part += chunk[max(0, query.offset - offset) :]
        if len(part) >= query.limit:
            break
    return part[: query.limit]
