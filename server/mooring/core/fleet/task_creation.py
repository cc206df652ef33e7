"""Creates tasks: a request goes in, and rows come out that any decision can include.

A task is named by (operation, step), or by (allocation, step) where there is no operation. The name is unique in the
database: a caller that repeats the step, after a crash or beside another holder, loads the first task and continues
with it; of two that race, the slower one decides again and finds it. So a step may be taken many times and runs once.

Everything that a node would refuse is refused here: an unknown type, arguments that break the schema, a secret that
was not granted, an owner outside the allocation.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from mooring.core.fleet.runtime_secret import SecretGrantRequest, check_grant, grant_row
from mooring.core.fleet.task import SYSTEM_MAKER, TASK, Task, TaskState, owner_name
from mooring.core.fleet.task_family import FAMILIES, WHOLE_ALLOCATION, TaskFamily, argument_findings, secret_names
from mooring.core.fleet.task_schema import ARGUMENTS_BYTES_MAX
from mooring.core.kernel.decision import AuditRecord, DecisionContext, EventRecord, Insert, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid

STEP_PATTERN: Final = "^[a-z0-9][a-z0-9_./-]{0,127}$"
LABEL_PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,62}$"
LIFETIME: Final = timedelta(hours=1)
LIFETIME_MIN: Final = timedelta(seconds=10)
LIFETIME_MAX: Final = timedelta(days=7)
GRANTS_MAX: Final = 32
PLATFORM_ONLY: Final = frozenset({"sandbox.create", "sandbox.destroy", "teardown.verify", "tunnel.open"})
"""Types that only the platform may create: they begin and end allocations, or open a tunnel into one."""

PLATFORM_STEPS: Final = frozenset({*PLATFORM_ONLY, "tunnel"})
"""Prefixes of the platform's own steps: if an adapter took such a name, an allocation could not be ended."""

_STEP: Final = re.compile(STEP_PATTERN)
_LABEL: Final = re.compile(LABEL_PATTERN)
UNWRITTEN: Final = frozenset({"status", "generation", "log_bytes", "log_truncated"})
"""Columns that the unit of work or the database sets for a new row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    tenant_id: str
    project_id: str
    allocation_id: str
    node_id: str
    type: str
    step: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""  # the owner within the allocation, such as a member; empty: the allocation itself
    instance_id: str | None = None
    member_id: str | None = None
    operation_id: str | None = None
    lifetime: timedelta = LIFETIME
    grants: tuple[SecretGrantRequest, ...] = ()
    maker: str = SYSTEM_MAKER  # or the id of a service account
    routine: bool = False
    cause_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewTask:
    """A new task, and the writes, events and audit records to include in a decision."""

    task: Task
    writes: tuple[Write, ...]
    events: tuple[EventRecord, ...]
    audits: tuple[AuditRecord, ...]


def make_task(context: DecisionContext, request: TaskRequest) -> NewTask:
    """Create a task; refuses what a node would refuse."""
    family = _family(request)
    _check_form(request)
    _check_arguments(family, request.arguments)
    _check_grants(request)
    task = Task(
        id=context.mint(Prefix.TASK),
        tenant_id=request.tenant_id,
        project_id=request.project_id,
        allocation_id=request.allocation_id,
        node_id=request.node_id,
        owner=owner_name(request.allocation_id, request.label),
        instance_id=request.instance_id,
        member_id=request.member_id,
        operation_id=request.operation_id,
        step=request.step,
        type=family.type,
        arguments=dict(request.arguments),
        maker=request.maker,
        status=TaskState.QUEUED.value,
        generation=0,
        revision=0,
        fence=0,
        correlation_id=context.correlation_id,
        trace_id=context.trace_id,
        created_at=context.now,
        expires_at=context.now + request.lifetime,
        routine=request.routine,
        cause_id=request.cause_id,
    )
    row = {name: getattr(task, name) for name in Task.__slots__ if name not in UNWRITTEN}
    grants = [
        grant_row(
            context,
            each,
            tenant_id=task.tenant_id,
            project_id=task.project_id,
            task_id=task.id,
            until=task.expires_at,
        )
        for each in request.grants
    ]
    writes = (Insert("task", row, (TASK,)), *grants)
    return NewTask(task, writes, () if task.is_quiet else (queued(task),), _audits(task, request))


def check_room(open_count: int, limit: int) -> None:
    """Refuse a task of a project that has as many open ones as it may; the platform's own are not refused."""
    if open_count >= limit:
        raise Refusal(
            Code.TOO_MANY_OPEN_TASKS, f"the project has {limit} open tasks, the most that it may have", {"limit": limit}
        )


def queued(task: Task) -> EventRecord:
    """The event that wakes the node's waiting poll, in any process."""
    return EventRecord(
        EventType.TASK_QUEUED,
        "task",
        task.id,
        task.tenant_id,
        task.project_id,
        {"type": task.type, "owner": task.owner, "step": task.step},
        app_instance_id=task.instance_id,
    )


def _audits(task: Task, request: TaskRequest) -> tuple[AuditRecord, ...]:
    """The rows of a new task and of its grants; a quiet one leaves only the latter."""
    summary = {
        "type": task.type,
        "owner": task.owner,
        "step": task.step,
        "maker": task.maker,
        "expires_at": task.expires_at.isoformat(),
        **({} if task.cause_id is None else {"cause_id": task.cause_id}),
    }
    made = AuditRecord(
        "task.create", "task", task.id, task.tenant_id, task.project_id, after=summary, app_instance_id=task.instance_id
    )
    granted = tuple(
        AuditRecord(
            "secret.grant",
            "task",
            task.id,
            task.tenant_id,
            task.project_id,
            after={
                "name": each.name,
                "purpose": each.purpose,
                "repository": each.repository,
                "source_id": each.source_id,
                "runtime_secret_id": None if each.stored is None else each.stored.id,
                "project_secret_id": None if each.project_secret is None else each.project_secret.id,
            },
            app_instance_id=task.instance_id,
        )
        for each in request.grants
    )
    return granted if task.is_quiet else (made, *granted)


def _family(request: TaskRequest) -> TaskFamily:
    family = FAMILIES.get(request.type)
    if family is None:
        raise invalid("type", f"one of {', '.join(FAMILIES)}")
    if request.maker != SYSTEM_MAKER and family.type in PLATFORM_ONLY:
        raise Refusal(Code.PERMISSION_DENIED, f"only the platform may create {family.type} tasks")
    return family


def _check_form(request: TaskRequest) -> None:
    if not _STEP.fullmatch(request.step):
        raise invalid("step", f"a name of the form {STEP_PATTERN}")
    if request.maker != SYSTEM_MAKER and request.step.partition("/")[0] in PLATFORM_STEPS:
        raise invalid("step", "another name: this prefix is reserved for the platform's own steps")
    if request.label and not _LABEL.fullmatch(request.label):
        raise invalid("label", f"a label of the form {LABEL_PATTERN}")
    if request.label and request.type in WHOLE_ALLOCATION:
        raise invalid("label", f"{request.type} concerns the whole allocation")
    if not LIFETIME_MIN <= request.lifetime <= LIFETIME_MAX:
        least, most = int(LIFETIME_MIN.total_seconds()), int(LIFETIME_MAX.total_seconds())
        raise invalid("lifetime_seconds", f"{least} to {most} seconds")


def _check_arguments(family: TaskFamily, arguments: Mapping[str, Any]) -> None:
    findings = argument_findings(family, arguments)
    if findings:
        first = findings[0]
        raise Refusal(
            Code.VALIDATION_FAILED,
            f"arguments{first.pointer}: {first.reason}; {first.fix}",
            {"path": f"arguments{first.pointer}", "findings": [each.as_dict() for each in findings]},
        )
    if len(json.dumps(arguments, ensure_ascii=False).encode()) > ARGUMENTS_BYTES_MAX:
        raise invalid("arguments", f"at most {ARGUMENTS_BYTES_MAX} bytes")


def _check_grants(request: TaskRequest) -> None:
    if len(request.grants) > GRANTS_MAX:
        raise invalid("grants", f"at most {GRANTS_MAX}")
    for index, each in enumerate(request.grants):
        check_grant(each, request.instance_id, request.allocation_id, f"grants/{index}")
    granted, named = [each.name for each in request.grants], secret_names(request.arguments)
    if len(set(granted)) != len(granted):
        raise invalid("grants", "one name is granted twice")
    if missing := sorted(named - set(granted)):
        raise invalid("arguments", f"the secret {missing[0]} is named but not granted")
    if unused := sorted(set(granted) - named):
        raise invalid("grants", f"the secret {unused[0]} is granted but not named in the arguments")
