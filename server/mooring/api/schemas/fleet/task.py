"""Request and response bodies for tasks and receipts."""

from typing import Annotated, Any

from msgspec import Meta

from mooring.api.page import Cursor, Limit
from mooring.api.schemas.kernel.fields import Shown, Strict, Time, allowed
from mooring.core.fleet.node import Node
from mooring.core.fleet.receipt import Receipt, ReceiptChainLink, read_body
from mooring.core.fleet.task import TASK, Task, TaskState, TaskTrigger
from mooring.core.fleet.task_creation import PLATFORM_ONLY
from mooring.core.fleet.task_envelope import encode
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope

AllocationId = Annotated[str, Meta(pattern=pattern(Prefix.ALLOCATION))]
InstanceId = Annotated[str, Meta(pattern=pattern(Prefix.INSTANCE))]
BUNDLE_VERSION = 1


class TaskQuery(Strict):
    """Which tasks are listed."""

    cursor: Cursor | None = None
    limit: Limit = 100
    status: TaskState | None = None
    allocation_id: AllocationId | None = None
    instance_id: InstanceId | None = None


class NodeTaskQuery(Strict):
    """Which tasks of a node are listed."""

    cursor: Cursor | None = None
    limit: Limit = 100
    status: TaskState | None = None


class TaskView(Shown):
    """One typed, signed, expiring piece of work for a node."""

    id: str
    tenant_id: str
    project_id: str
    allocation_id: str
    node_id: str
    owner: str
    instance_id: str | None
    member_id: str | None
    operation_id: str | None
    step: str
    type: str
    arguments: dict[str, Any]
    maker: str
    status: TaskState
    fence: int
    progress: dict[str, Any] | None
    result: dict[str, Any] | None
    failure_code: str | None
    failure_detail: str | None
    exit_code: int | None
    last_lines: list[str]
    log_bytes: int
    log_truncated: bool
    correlation_id: str
    trace_id: str
    cause_id: str | None
    routine: bool
    created_at: Time
    expires_at: Time
    lease_expires_at: Time | None
    first_claimed_at: Time | None
    finished_at: Time | None
    etag: str
    allowed_actions: list[str]


class NodeTaskView(Shown):
    """A task for the operators of its node, without its content."""

    id: str
    tenant_id: str
    project_id: str
    allocation_id: str
    owner: str
    type: str
    status: TaskState
    fence: int
    failure_code: str | None
    correlation_id: str
    created_at: Time
    expires_at: Time
    lease_expires_at: Time | None
    finished_at: Time | None


class LogQuery(Strict):
    """The part of the output to read, and how long to wait for more."""

    offset: Annotated[int, Meta(ge=0, le=2**53, description="The byte to start with.")] = 0
    limit: Annotated[int, Meta(ge=4, le=1_048_576, description="The maximum number of bytes.")] = 262_144
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for more output.")] = 0


class LogView(Shown):
    """A part of a task's output; continue with `next_offset` until `ended`."""

    task_id: str
    offset: int
    next_offset: int
    text: str
    log_bytes: int
    truncated: bool
    ended: bool


class ReceiptQuery(Strict):
    """Which receipts are listed."""

    cursor: Cursor | None = None
    limit: Limit = 100
    allocation_id: AllocationId | None = None


class ReceiptView(Shown):
    """A node's signed statement of what it found after a teardown."""

    id: str
    tenant_id: str
    project_id: str
    task_id: str
    task_type: str
    node_id: str
    allocation_id: str
    owner: str
    sequence: int
    previous: str
    digest: str
    clean: bool
    late: bool
    looked_at: Time
    created_at: Time
    document: dict[str, Any]
    body: str
    signature: str


class SignedBody(Shown):
    """A receipt as its node signed it, in base64url."""

    id: str
    body: str
    signature: str


class ChainLink(Shown):
    """A position in a node's chain."""

    sequence: int
    digest: str


class ReceiptBundle(Shown):
    """A receipt with everything that its offline verification needs (`mooring receipts verify`).

    `receipts` are those of this project in a part of the node's chain; `chain` has the hashes of all receipts there.
    """

    v: int
    receipt_id: str
    node_id: str
    node_name: str
    host: str
    signing_key: str
    receipts: list[SignedBody]
    chain: list[ChainLink]


def task_view(authority: Authority, task: Task) -> TaskView:
    place = Place(Scope.PROJECT, task.tenant_id, task.project_id)
    open_ = TaskTrigger.CANCEL in TASK.allowed(TaskState(task.status)) and task.type not in PLATFORM_ONLY
    return TaskView(
        id=task.id,
        tenant_id=task.tenant_id,
        project_id=task.project_id,
        allocation_id=task.allocation_id,
        node_id=task.node_id,
        owner=task.owner,
        instance_id=task.instance_id,
        member_id=task.member_id,
        operation_id=task.operation_id,
        step=task.step,
        type=task.type,
        arguments=task.arguments,
        maker=task.maker,
        status=TaskState(task.status),
        fence=task.fence,
        progress=task.progress,
        result=task.result,
        failure_code=task.failure_code,
        failure_detail=task.failure_detail,
        exit_code=task.exit_code,
        last_lines=task.last_lines or [],
        log_bytes=task.log_bytes,
        log_truncated=task.log_truncated,
        correlation_id=task.correlation_id,
        trace_id=task.trace_id,
        cause_id=task.cause_id,
        routine=task.routine,
        created_at=task.created_at,
        expires_at=task.expires_at,
        lease_expires_at=task.lease_expires_at,
        first_claimed_at=task.first_claimed_at,
        finished_at=task.finished_at,
        etag=f"{task.generation}.{task.revision}",
        allowed_actions=allowed(authority, place, ("task.cancel",) if open_ else ()),
    )


def node_task_view(task: Task) -> NodeTaskView:
    return NodeTaskView(
        id=task.id,
        tenant_id=task.tenant_id,
        project_id=task.project_id,
        allocation_id=task.allocation_id,
        owner=task.owner,
        type=task.type,
        status=TaskState(task.status),
        fence=task.fence,
        failure_code=task.failure_code,
        correlation_id=task.correlation_id,
        created_at=task.created_at,
        expires_at=task.expires_at,
        lease_expires_at=task.lease_expires_at,
        finished_at=task.finished_at,
    )


def log_view(task: Task, offset: int, part: bytes) -> LogView:
    """A part of a task's output as text; a character that is cut at the end is left for the next part."""
    end = offset + len(part)
    text = part.decode(errors="replace")
    over = task.is_over and end >= task.log_bytes
    if not over and text.endswith("\ufffd") and (whole := _whole_characters(part)):
        part, end = part[:whole], offset + whole
        text = part.decode(errors="replace")
    return LogView(
        task_id=task.id,
        offset=offset,
        next_offset=end,
        text=text,
        log_bytes=task.log_bytes,
        truncated=task.log_truncated,
        ended=over,
    )


def _whole_characters(part: bytes) -> int:
    """How many bytes come before a character that is cut off at the end; all of them when none is."""
    for back in range(1, min(4, len(part)) + 1):
        lead = part[-back]
        if lead & 0xC0 == 0x80:
            continue  # inside a character
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return len(part) - back if size > back else len(part)
    return len(part)


def receipt_view(receipt: Receipt) -> ReceiptView:
    """A receipt, parsed and as the bytes that were signed."""
    return ReceiptView(
        id=receipt.id,
        tenant_id=receipt.tenant_id,
        project_id=receipt.project_id,
        task_id=receipt.task_id,
        task_type=receipt.task_type,
        node_id=receipt.node_id,
        allocation_id=receipt.allocation_id,
        owner=receipt.owner,
        sequence=receipt.sequence,
        previous=receipt.previous,
        digest=receipt.digest,
        clean=receipt.clean,
        late=receipt.late,
        looked_at=receipt.looked_at,
        created_at=receipt.created_at,
        document=read_body(receipt.body),
        body=encode(receipt.body),
        signature=encode(receipt.signature),
    )


def receipt_bundle(receipt: Receipt, node: Node, own: list[Receipt], chain: list[ReceiptChainLink]) -> ReceiptBundle:
    return ReceiptBundle(
        v=BUNDLE_VERSION,
        receipt_id=receipt.id,
        node_id=node.id,
        node_name=node.name,
        host=node.host,
        signing_key=encode(node.signing_key),
        receipts=[SignedBody(id=each.id, body=encode(each.body), signature=encode(each.signature)) for each in own],
        chain=[ChainLink(sequence=each.sequence, digest=each.digest) for each in chain],
    )
