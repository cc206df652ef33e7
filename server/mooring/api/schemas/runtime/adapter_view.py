"""What adapters are shown: the instances that they hold, and everything that they need to continue."""

from typing import Annotated, Any

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.api.schemas.runtime.adapter import HeldInstance
from mooring.commands.live.claim_broker import ClaimPollAnswer
from mooring.commands.runtime.adapter import InstanceForAdapter
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.task import Task, TaskState
from mooring.core.kernel.errors import Refusal
from mooring.core.runtime.attachment import Attachment, AttachmentState
from mooring.core.runtime.instance import Instance, InstanceState
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.member_task import TaskCreationResult
from mooring.core.runtime.operation import Operation, OperationKind, OperationState


class ClaimedInstances(Shown):
    """The result of a poll: new claims, held instances that changed, and lost claims."""

    claims: list[HeldInstance]
    changed: list[str]
    lost: list[HeldInstance]
    cursor: str
    lease_seconds: float


class ReleasedInstances(Shown):
    """The released claims; the others no longer belonged to the holder."""

    released: list[str]


class AdapterAccount(Shown):
    """A service account that an adapter's key opens."""

    service_account_id: str
    project_id: str
    key_id: str
    apps: list[str]


class AdapterAccounts(Shown):
    """The accounts of a key; continue after `next_after` if it is set."""

    accounts: list[AdapterAccount]
    next_after: str | None


class RuntimeAllocation(Shown):
    """The allocation of a member."""

    id: str
    name: str
    status: str
    shape: str
    host: str | None
    address: str | None
    region: str | None
    gpu_count: int
    slots: list[dict[str, Any]]
    facts: dict[str, Any]
    node_id: str | None
    node_reachable: bool


class RuntimeMember(Shown):
    """One part of the instance."""

    id: str
    name: str
    component_key: str
    ordinal: int
    status: MemberState
    health: str
    health_detail: str | None
    version: str
    holds: list[dict[str, Any]]
    adapter_detail: dict[str, Any]
    replaces_id: str | None
    last_operation_id: str | None
    failure_code: str | None
    failure_detail: str | None
    last_lines: list[str]
    allocation: RuntimeAllocation | None


class RuntimeOperation(Shown):
    """An operation in the adapter's phase."""

    id: str
    kind: OperationKind
    status: OperationState
    request: dict[str, Any]
    member_ids: list[str]
    steps: list[dict[str, Any]]
    progress: dict[str, Any] | None
    attempts: int
    begun: bool
    blocker: str | None
    blocker_code: str | None
    cancel_reason: str | None
    deadline_at: Time
    phase_deadline_at: Time | None
    correlation_id: str
    trace_id: str
    target_pin: dict[str, Any] | None
    requested_by: Annotated[str | None, Meta(description="Who requested it; null if an attached project did.")]


class RuntimeTask(Shown):
    """A task of one of these operations, or an inspection of a member."""

    id: str
    operation_id: str | None
    step: str
    type: str
    member_id: str | None
    status: TaskState
    result: dict[str, Any] | None
    failure_code: str | None
    failure_detail: str | None
    exit_code: int | None
    last_lines: list[str]
    progress: dict[str, Any] | None
    created_at: Time
    expires_at: Time
    finished_at: Time | None
    etag: str


class TaskRefusal(Shown):
    """Why one of several tasks was not created, as in a refused request."""

    code: str
    detail: str
    retryable: bool
    details: dict[str, Any]


class MadeTask(Shown):
    """The outcome of one of several tasks, by its step: the task, or the refusal."""

    step: str
    task: RuntimeTask | None
    refusal: TaskRefusal | None


class MadeTasks(Shown):
    """The outcome of each task, in the requested order."""

    tasks: list[MadeTask]


class RuntimeInstance(Shown):
    """The instance itself."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    app_slug: str
    version: str
    pin: dict[str, Any]
    previous_pin: dict[str, Any] | None
    config: dict[str, Any]
    topology: dict[str, int]
    operating_mode: str
    control_plane_scope: str
    runtime_backend: str
    topology_mode: str | None
    status: InstanceState
    health: str
    health_detail: str | None
    endpoints: list[dict[str, Any]]
    adapter_detail: dict[str, Any]
    correlation_id: str
    trace_id: str
    distrust: Annotated[
        dict[str, Any] | None,
        Meta(description="Why its artifacts are not trusted, since when, and the policy's reaction; null if trusted."),
    ]


class RuntimeAttachment(Shown):
    """Another project's use of the instance; nothing else of that project is shown."""

    id: str
    project_id: str
    account_name: str
    status: AttachmentState


class RuntimeWhole(Shown):
    """Everything that the next holder needs to continue."""

    now: Time
    instance: RuntimeInstance
    manifest: dict[str, Any]
    target_manifest: dict[str, Any] | None
    members: list[RuntimeMember]
    operations: list[RuntimeOperation]
    tasks: list[RuntimeTask]
    attachments: list[RuntimeAttachment]
    etag: str


class Reported(Shown):
    """The instance's etag after a report."""

    etag: str


class FinishedOperation(Shown):
    """The operation after its adapter's report; `phase` is `platform` while the teardown continues."""

    id: str
    status: OperationState
    phase: str
    etag: str


class KeptSecret(Shown):
    """A secret of the instance, without its value."""

    name: str
    purpose: str
    created: bool


def claimed_instances(answer: ClaimPollAnswer, lease_seconds: float) -> ClaimedInstances:
    return ClaimedInstances(
        claims=[HeldInstance(instance_id=each.instance_id, fence=each.fence) for each in answer.claims],
        changed=list(answer.changed),
        lost=[HeldInstance(instance_id=each.instance_id, fence=each.fence) for each in answer.lost],
        cursor=answer.cursor,
        lease_seconds=lease_seconds,
    )


def runtime_whole(whole: InstanceForAdapter) -> RuntimeWhole:
    return RuntimeWhole(
        now=whole.now,
        instance=_instance(whole.instance),
        manifest=whole.manifest,
        target_manifest=whole.target_manifest,
        members=[_member(each, whole) for each in whole.members],
        operations=[_operation(each) for each in whole.operations],
        tasks=[runtime_task(each) for each in whole.tasks],
        attachments=[_attachment(each) for each in whole.attachments],
        etag=instance_etag(whole.instance),
    )


def instance_etag(instance: Instance) -> str:
    """A value that changes with every change of the instance's row."""
    return f"{instance.generation}.{instance.revision}"


def finished_operation(operation: Operation) -> FinishedOperation:
    return FinishedOperation(
        id=operation.id,
        status=OperationState(operation.status),
        phase=operation.phase,
        etag=f"{operation.generation}.{operation.revision}",
    )


def _instance(instance: Instance) -> RuntimeInstance:
    return RuntimeInstance(
        id=instance.id,
        tenant_id=instance.tenant_id,
        project_id=instance.project_id,
        name=instance.name,
        app_slug=instance.app_slug,
        version=instance.version,
        pin=instance.pin,
        previous_pin=instance.previous_pin,
        config=instance.config,
        topology=instance.topology,
        operating_mode=instance.operating_mode,
        control_plane_scope=instance.control_plane_scope,
        runtime_backend=instance.runtime_backend,
        topology_mode=instance.topology_mode,
        status=InstanceState(instance.status),
        health=instance.health,
        health_detail=instance.health_detail,
        endpoints=instance.endpoints,
        adapter_detail=instance.adapter_detail,
        correlation_id=instance.correlation_id,
        trace_id=instance.trace_id,
        distrust=instance.distrust,
    )


def _member(member: Member, whole: InstanceForAdapter) -> RuntimeMember:
    allocation = whole.allocations.get(member.allocation_id or "")
    return RuntimeMember(
        id=member.id,
        name=member.name,
        component_key=member.component_key,
        ordinal=member.ordinal,
        status=MemberState(member.status),
        health=member.health,
        health_detail=member.health_detail,
        version=member.version,
        holds=member.holds,
        adapter_detail=member.adapter_detail,
        replaces_id=member.replaces_id,
        last_operation_id=member.last_operation_id,
        failure_code=member.failure_code,
        failure_detail=member.failure_detail,
        last_lines=member.last_lines or [],
        allocation=None if allocation is None else _allocation(allocation, whole),
    )


def _allocation(allocation: Allocation, whole: InstanceForAdapter) -> RuntimeAllocation:
    node = whole.nodes.get(allocation.node_id or "")
    return RuntimeAllocation(
        id=allocation.id,
        name=allocation.name,
        status=allocation.status,
        shape=allocation.shape,
        host=allocation.host,
        address=(allocation.facts or {}).get("address") or allocation.address,
        region=allocation.region,
        gpu_count=allocation.gpu_count,
        slots=allocation.slots or [],
        facts={**({} if node is None else node.facts), **(allocation.facts or {})},
        node_id=allocation.node_id,
        node_reachable=node is not None and node.reachable,
    )


def _attachment(attachment: Attachment) -> RuntimeAttachment:
    return RuntimeAttachment(
        id=attachment.id,
        project_id=attachment.project_id,
        account_name=attachment.account_name,
        status=AttachmentState(attachment.status),
    )


def _operation(operation: Operation) -> RuntimeOperation:
    return RuntimeOperation(
        id=operation.id,
        kind=OperationKind(operation.kind),
        status=OperationState(operation.status),
        request=operation.request,
        member_ids=operation.member_ids,
        steps=operation.steps,
        progress=operation.progress,
        attempts=operation.attempts,
        begun=operation.started_at is not None,
        blocker=operation.blocker,
        blocker_code=operation.blocker_code,
        cancel_reason=operation.cancel_reason,
        deadline_at=operation.deadline_at,
        phase_deadline_at=operation.phase_deadline_at,
        correlation_id=operation.correlation_id,
        trace_id=operation.trace_id,
        target_pin=operation.target_pin,
        requested_by=operation.requested_by if operation.attachment is None else None,
    )


def runtime_task(task: Task) -> RuntimeTask:
    return RuntimeTask(
        id=task.id,
        operation_id=task.operation_id,
        step=task.step,
        type=task.type,
        member_id=task.member_id,
        status=TaskState(task.status),
        result=task.result,
        failure_code=task.failure_code,
        failure_detail=task.failure_detail,
        exit_code=task.exit_code,
        last_lines=task.last_lines or [],
        progress=task.progress,
        created_at=task.created_at,
        expires_at=task.expires_at,
        finished_at=task.finished_at,
        etag=f"{task.generation}.{task.revision}",
    )


def made_tasks(outcomes: list[TaskCreationResult]) -> MadeTasks:
    return MadeTasks(
        tasks=[
            MadeTask(
                step=each.step,
                task=None if each.task is None else runtime_task(each.task),
                refusal=None if each.refusal is None else _refused(each.refusal),
            )
            for each in outcomes
        ]
    )


def _refused(refusal: Refusal) -> TaskRefusal:
    return TaskRefusal(
        code=refusal.code.value, detail=refusal.detail, retryable=refusal.retryable, details=refusal.details
    )
