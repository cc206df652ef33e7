"""Tasks that an adapter makes: for its own members, with what their version was pinned to.

An adapter names an artifact by its role, or by its digest, and never a registry: where the bytes lie, what opens that
place and whether it may be a private one is filled in by the platform. Between operations an adapter may only look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation, AllocationState
from mooring.core.fleet.runtime_secret import RuntimeSecret, SecretGrantRequest
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import TaskRequest
from mooring.core.fleet.task_log_read import LOG_READ
from mooring.core.kernel.decision import RowGuard
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.adapter_report import require_turn
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.operation import Operation

LAUNCH: Final = "container.launch"
FETCH: Final = "artifact.fetch"
WRITE: Final = "files.write"
LOOKS: Final = frozenset({"probe.tcp", "probe.http", "probe.exec", "service.inspect", LOG_READ})
"""What is only looked at, beside `container.control` with the action `inspect`."""
STANDS: Final = frozenset({AllocationState.ACTIVE, AllocationState.RELEASING})
"""Where members can be worked on: one that is released stands until they have drained and are torn down."""
TASKS_AT_ONCE_MAX: Final = 50
LOG_BYTES: Final = 65_536
"""What an adapter reads of a log at once: results stand beside each other in what it is told of an instance."""
PULL: Final = "mooring-pull"
"""The name of the secret that opens the platform's registry to a task."""


@dataclass(frozen=True, slots=True)
class MemberTaskRequest:
    """What an adapter asks for."""

    member_id: str
    type: str
    step: str
    arguments: Mapping[str, Any]
    lifetime: timedelta
    grants: tuple[tuple[str, str], ...] = ()  # the name in the arguments, the instance's secret


@dataclass(frozen=True, slots=True)
class TaskMaking:
    """What came of one of several wishes: the task, or why there is none."""

    step: str
    task: Task | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """Where the task goes: the member, its allocation and the operation that wants it."""

    instance: Instance
    member: Member
    allocation: Allocation | None
    operation: Operation | None
    secrets: Mapping[str, RuntimeSecret]


@dataclass(frozen=True, slots=True)
class NamedArtifact:
    """An artifact that the arguments name: the digest, and the role under which it was asked for."""

    path: str
    digest: str


def check_ground(ground: TaskTarget, request: MemberTaskRequest) -> Allocation:
    """The member stands somewhere, and the operation is the adapter's turn; else only a look is allowed."""
    member, allocation = ground.member, ground.allocation
    if member.status in (MemberState.REMOVING, MemberState.REMOVED):
        raise Refusal(
            Code.CONFLICT, f"member {member.id} is {member.status}: nothing is begun for it", {"member_id": member.id}
        )
    if allocation is None or allocation.status not in STANDS or allocation.node_id is None:
        how = "in no allocation" if allocation is None else f"in an allocation that is {allocation.status}"
        raise Refusal(Code.CONFLICT, f"member {member.id} is {how}", {"member_id": member.id})
    if request.type == LOG_READ and _whole(request.arguments.get("max_bytes")) > LOG_BYTES:
        raise invalid("arguments/max_bytes", f"at most {LOG_BYTES} bytes of a log at once")
    if ground.operation is not None:
        require_turn(ground.operation)
    elif request.type not in LOOKS and not (
        request.type == "container.control" and request.arguments.get("action") == "inspect"
    ):
        raise invalid(
            "operation_id", f"an operation: without one a member is only looked at, and {request.type} does more"
        )
    return allocation


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def guards_of(ground: TaskTarget) -> tuple[RowGuard, ...]:
    """What keeps a task from being written for a member that is torn down by then, or an operation that is over."""
    member, operation = ground.member, ground.operation
    guards = [RowGuard("member", {"id": member.id, "generation": member.generation})]
    if operation is not None:
        seen = {"id": operation.id, "generation": operation.generation, "phase": operation.phase}
        guards.append(RowGuard("operation", seen))
    return tuple(guards)


def require_distinct(wishes: Sequence[MemberTaskRequest]) -> None:
    """Tasks that are asked for together have names of their own."""
    seen: set[str] = set()
    for index, each in enumerate(wishes):
        if each.step in seen:
            raise invalid(f"tasks/{index}/step", "a name that no other of these tasks has")
        seen.add(each.step)


def require_same(task: Task, ground: TaskTarget) -> Task:
    """The task of this name is one of this member's; another's is not handed out."""
    if task.instance_id != ground.instance.id or task.member_id != ground.member.id:
        raise Refusal(Code.NAME_TAKEN, "a task of another member has this name", {"step": task.step})
    return task


def named_artifacts(ground: TaskTarget, request: MemberTaskRequest) -> list[NamedArtifact]:
    """The digests that the arguments name, each of which the instance or the operation was pinned to."""
    found = []
    if request.type == LAUNCH:
        found.append(_named(ground, request.arguments.get("image"), "arguments/image"))
    elif request.type == FETCH:
        found.append(_named(ground, request.arguments, "arguments"))
    elif request.type == WRITE and isinstance(request.arguments.get("files"), list):
        for index, each in enumerate(request.arguments["files"]):
            if isinstance(each, Mapping) and "artifact" in each:
                found.append(_named(ground, each, f"arguments/files/{index}"))
    return found


def roles_of(ground: TaskTarget) -> dict[str, str]:
    """The digest of each role: of the version that an operation leads to, else of the instance's."""
    pin = ground.instance.pin
    if ground.operation is not None and ground.operation.target_pin is not None:
        pin = ground.operation.target_pin
    return dict(pin["artifacts"])


def _named(ground: TaskTarget, named: object, path: str) -> NamedArtifact:
    if not isinstance(named, Mapping):
        raise invalid(path, '{"artifact": "<role>"} or {"digest": "sha256:…"}')
    role, digest = named.get("artifact"), named.get("digest")
    if role is not None:
        pinned = roles_of(ground).get(role) if isinstance(role, str) else None
        if pinned is None or digest not in (None, pinned):
            raise _not_pinned(path, f"the role {role!r}")
        return NamedArtifact(path, pinned)
    pins = [ground.instance.pin, ground.operation.target_pin if ground.operation else None]
    if not any(pin is not None and digest in pin["artifacts"].values() for pin in pins):
        raise _not_pinned(path, str(digest))
    return NamedArtifact(path, str(digest))


def _not_pinned(path: str, what: str) -> Refusal:
    return Refusal(
        Code.ARTIFACT_NOT_PINNED,
        f"{path}: {what} is nothing that the instance, or the operation, was pinned to",
        {"path": path},
    )


def task_request(ground: TaskTarget, request: MemberTaskRequest, maker: str) -> TaskRequest:
    """The task as the platform makes it: the member's, in its allocation, on its node."""
    allocation = check_ground(ground, request)
    grants = []
    for index, (name, kept) in enumerate(request.grants):
        secret = ground.secrets.get(kept)
        if secret is None:
            raise Refusal(Code.NOT_FOUND, f"grants/{index}: the instance has no secret {kept!r}")
        grants.append(SecretGrantRequest(name, secret.purpose, stored=secret))
    return TaskRequest(
        tenant_id=ground.instance.tenant_id,
        project_id=ground.instance.project_id,
        allocation_id=allocation.id,
        node_id=str(allocation.node_id),
        type=request.type,
        step=request.step,
        arguments=request.arguments,
        label=ground.member.id,
        instance_id=ground.instance.id,
        member_id=ground.member.id,
        operation_id=None if ground.operation is None else ground.operation.id,
        lifetime=request.lifetime,
        grants=tuple(grants),
        maker=maker,
    )
