"""Tasks that an adapter creates for its own members, with artifacts of their pinned version.

An adapter names an artifact by role or digest, never by registry: the platform fills in where the bytes are, which
credentials it takes, and whether the source may be on a private network. Without an operation, an adapter may only
inspect; such a look is routine and leaves no event and no audit row, unless the adapter says that it changes something.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation, AllocationState
from mooring.core.fleet.runtime_secret import RuntimeSecret, SecretGrantRequest, SecretPurpose
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import TaskRequest
from mooring.core.fleet.task_log_read import LOG_READ
from mooring.core.identity.project_secret import ProjectSecret
from mooring.core.kernel.decision import RowGuard
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.json_schema import count_exceeds
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.adapter_report import require_turn
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.operation import Operation

LAUNCH: Final = "container.launch"
FETCH: Final = "artifact.fetch"
WRITE: Final = "files.write"
STARTS_PROGRAM: Final = frozenset({LAUNCH, "process.run", "service.start"})
"""Task types that start a program of the app: it gets the secrets that the launch names."""
LAUNCHED_WITH: Final = "mooring-launch"
"""The first part of the names under which a task has those secrets."""
READ_ONLY_TYPES: Final = frozenset({"probe.tcp", "probe.http", "probe.exec", "service.inspect", LOG_READ})
"""Task types that only inspect; `container.control` with the action `inspect` does too."""
STANDS: Final = frozenset({AllocationState.ACTIVE, AllocationState.RELEASING})
"""Allocation states in which members can be worked on: a releasing one stays until its members are torn down."""
TASKS_AT_ONCE_MAX: Final = 50
VALUES_AT_ONCE_MAX: Final = 15_000
"""In the arguments of all tasks of a request: checking them takes 50 ms."""
LOG_BYTES: Final = 65_536
"""How much of a log an adapter reads at once: one response contains the results of many tasks."""
PULL: Final = "mooring-pull"
"""The name of the secret with which a task pulls from the platform's registry."""


@dataclass(frozen=True, slots=True)
class MemberTaskRequest:
    """A task that an adapter asks for."""

    member_id: str
    type: str
    step: str
    arguments: Mapping[str, Any]
    lifetime: timedelta
    grants: tuple[tuple[str, str], ...] = ()  # (name in the arguments, name of the instance's secret)
    audited: bool = False  # without an operation: it changes something, and is not a routine look


@dataclass(frozen=True, slots=True)
class TaskCreationResult:
    """The outcome for one of several requested tasks: the task, or the refusal."""

    step: str
    task: Task | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """The member that a task is for, with its allocation and the operation that needs the task."""

    instance: Instance
    member: Member
    allocation: Allocation | None
    operation: Operation | None
    secrets: Mapping[str, RuntimeSecret]
    project_secrets: Mapping[str, ProjectSecret] = field(default_factory=dict)  # those that the launch named, by name


@dataclass(frozen=True, slots=True)
class NamedArtifact:
    """An artifact that the arguments name, with its path in them."""

    path: str
    digest: str


def check_target(target: TaskTarget, request: MemberTaskRequest) -> Allocation:
    """Refuse unless the member is on a node and the operation is in the adapter's phase; without an operation only
    inspection is allowed.
    """
    member, allocation = target.member, target.allocation
    if member.status in (MemberState.REMOVING, MemberState.REMOVED):
        raise Refusal(
            Code.CONFLICT, f"member {member.id} is {member.status}: it takes no new tasks", {"member_id": member.id}
        )
    if allocation is None or allocation.status not in STANDS or allocation.node_id is None:
        how = "in no allocation" if allocation is None else f"in an allocation that is {allocation.status}"
        raise Refusal(Code.CONFLICT, f"member {member.id} is {how}", {"member_id": member.id})
    if request.type == LOG_READ and _as_int(request.arguments.get("max_bytes")) > LOG_BYTES:
        raise invalid("arguments/max_bytes", f"at most {LOG_BYTES} bytes of a log at once")
    if target.operation is not None:
        require_turn(target.operation)
    elif request.type not in READ_ONLY_TYPES and not (
        request.type == "container.control" and request.arguments.get("action") == "inspect"
    ):
        raise invalid(
            "operation_id", f"required: without an operation only inspection is allowed, and {request.type} does more"
        )
    return allocation


def _as_int(value: object) -> int:
    return value if isinstance(value, int) else 0


def guards_of(target: TaskTarget) -> tuple[RowGuard, ...]:
    """Guards that fail the write if the member is being torn down, or the operation is over, by then."""
    member, operation = target.member, target.operation
    guards = [RowGuard("member", {"id": member.id, "generation": member.generation})]
    if operation is not None:
        expected = {"id": operation.id, "generation": operation.generation, "phase": operation.phase}
        guards.append(RowGuard("operation", expected))
    return tuple(guards)


def require_distinct(requests: Sequence[MemberTaskRequest]) -> None:
    """Refuse a step name that occurs twice in one request, and arguments that take too long to check together."""
    if count_exceeds([each.arguments for each in requests], VALUES_AT_ONCE_MAX):
        raise invalid("tasks", f"at most {VALUES_AT_ONCE_MAX} values in all arguments together; send several requests")
    seen: set[str] = set()
    for index, each in enumerate(requests):
        if each.step in seen:
            raise invalid(f"tasks/{index}/step", "must be unique within the request")
        seen.add(each.step)


def require_same(task: Task, target: TaskTarget) -> Task:
    """Refuse a task of this name that belongs to another member."""
    if task.instance_id != target.instance.id or task.member_id != target.member.id:
        raise Refusal(Code.NAME_TAKEN, "a task of another member already has this name", {"step": task.step})
    return task


def named_artifacts(target: TaskTarget, request: MemberTaskRequest) -> list[NamedArtifact]:
    """The digests that the arguments name; each must be pinned by the instance or the operation."""
    found = []
    if request.type == LAUNCH:
        found.append(_named(target, request.arguments.get("image"), "arguments/image"))
    elif request.type == FETCH:
        found.append(_named(target, request.arguments, "arguments"))
    elif request.type == WRITE and isinstance(request.arguments.get("files"), list):
        for index, each in enumerate(request.arguments["files"]):
            if isinstance(each, Mapping) and "artifact" in each:
                found.append(_named(target, each, f"arguments/files/{index}"))
    return found


def roles_of(target: TaskTarget) -> dict[str, str]:
    """Role → digest of the operation's target version, or of the instance's version."""
    pin = target.instance.pin
    if target.operation is not None and target.operation.target_pin is not None:
        pin = target.operation.target_pin
    return dict(pin["artifacts"])


def _named(target: TaskTarget, named: object, path: str) -> NamedArtifact:
    if not isinstance(named, Mapping):
        raise invalid(path, '{"artifact": "<role>"} or {"digest": "sha256:…"}')
    role, digest = named.get("artifact"), named.get("digest")
    if role is not None:
        pinned = roles_of(target).get(role) if isinstance(role, str) else None
        if pinned is None or digest not in (None, pinned):
            raise _not_pinned(path, f"the role {role!r}")
        return NamedArtifact(path, pinned)
    pins = [target.instance.pin, target.operation.target_pin if target.operation else None]
    if not any(pin is not None and digest in pin["artifacts"].values() for pin in pins):
        raise _not_pinned(path, str(digest))
    return NamedArtifact(path, str(digest))


def _not_pinned(path: str, what: str) -> Refusal:
    return Refusal(
        Code.ARTIFACT_NOT_PINNED,
        f"{path}: {what} is not pinned by the instance or the operation",
        {"path": path},
    )


def task_request(target: TaskTarget, request: MemberTaskRequest, maker: str) -> TaskRequest:
    """The task as the platform creates it: for the member, in its allocation, on its node."""
    allocation = check_target(target, request)
    grants = []
    for index, (name, secret_name) in enumerate(request.grants):
        secret = target.secrets.get(secret_name)
        if secret is None:
            raise Refusal(Code.NOT_FOUND, f"grants/{index}: the instance has no secret {secret_name!r}")
        grants.append(SecretGrantRequest(name, secret.purpose, stored=secret))
    plain = TaskRequest(
        tenant_id=target.instance.tenant_id,
        project_id=target.instance.project_id,
        allocation_id=allocation.id,
        node_id=str(allocation.node_id),
        type=request.type,
        step=request.step,
        arguments=request.arguments,
        label=target.member.id,
        instance_id=target.instance.id,
        member_id=target.member.id,
        operation_id=None if target.operation is None else target.operation.id,
        lifetime=request.lifetime,
        grants=tuple(grants),
        maker=maker,
        routine=target.operation is None and not request.audited,
        cause_id=target.instance.correlation_id if target.operation is None else None,
    )
    return with_launch_secrets(target, plain)


def with_launch_secrets(target: TaskTarget, request: TaskRequest) -> TaskRequest:
    """The request with the secrets that the launch names, as variables of the program that the task starts.

    A variable of the launch replaces the app's own of the same name.
    """
    variables = target.instance.secrets
    plain, secret = request.arguments.get("environment", {}), request.arguments.get("environment_secrets", {})
    if request.type not in STARTS_PROGRAM or not variables:
        return request
    if not isinstance(plain, Mapping) or not isinstance(secret, Mapping):
        return request  # its creation will be refused
    grants = []
    for number, (variable, name) in enumerate(sorted(variables.items())):
        stored = target.project_secrets.get(name)
        if stored is None:
            raise Refusal(
                Code.NOT_FOUND,
                f"the project has no secret {name!r} any more, which the launch names for {variable}: create it again",
                {"name": name, "variable": variable},
            )
        granted_as = f"{LAUNCHED_WITH}-{number}"
        grants.append(
            (variable, SecretGrantRequest(granted_as, SecretPurpose.MEMBER_SECRET.value, project_secret=stored))
        )
    own = {variable: name for variable, name in secret.items() if variable not in variables}
    replaced = [name for variable, name in secret.items() if variable in variables and name not in own.values()]
    arguments = {
        **request.arguments,
        "environment": {variable: value for variable, value in plain.items() if variable not in variables},
        "environment_secrets": {**own, **{variable: grant.name for variable, grant in grants}},
    }
    kept = tuple(each for each in request.grants if each.name not in replaced)
    return replace(request, arguments=arguments, grants=(*kept, *(grant for _, grant in grants)))
