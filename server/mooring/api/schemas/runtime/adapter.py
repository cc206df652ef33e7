"""What adapters send: claims, reports, the end of operations, tasks, secrets, usage.

Every body that changes something names the fence of its claim. Unknown fields are refused, and every value is bounded.
"""

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mooring.api.schemas.kernel.fields import Strict
from mooring.core.fleet.task_creation import LIFETIME_MAX, LIFETIME_MIN, STEP_PATTERN
from mooring.core.fleet.task_schema import (
    DIRECTORY_PATTERN,
    ENVIRONMENT_PATTERN,
    LAST_LINES_MAX,
    LINE_LENGTH_MAX,
    NAME_PATTERN,
    NO_NUL_PATTERN,
)
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.sandbox_user import USER_PATTERN
from mooring.core.runtime.adapter_report import (
    AdapterReport,
    BlockerReport,
    EndpointReport,
    FailureReport,
    HoldReport,
    InstanceReport,
    MemberReport,
    ReportableState,
    StepReport,
)
from mooring.core.runtime.claim import CLAIMS_MAX, HELD_MAX, HOLDER_PATTERN, WAIT_SECONDS_MAX, FencedInstance
from mooring.core.runtime.instance import InstanceHealth
from mooring.core.runtime.member_task import TASKS_AT_ONCE_MAX, MemberTaskRequest
from mooring.core.runtime.operation import OperationFailure, StepState
from mooring.core.runtime.operation_finish import FinishOutcome, OperationEnd

InstanceId = Annotated[str, Meta(pattern=pattern(Prefix.INSTANCE))]
MemberId = Annotated[str, Meta(pattern=pattern(Prefix.MEMBER))]
OperationId = Annotated[str, Meta(pattern=pattern(Prefix.OPERATION))]
TaskId = Annotated[str, Meta(pattern=pattern(Prefix.TASK))]
ProjectId = Annotated[str, Meta(pattern=pattern(Prefix.PROJECT))]
AccountId = Annotated[str, Meta(pattern=pattern(Prefix.SERVICE_ACCOUNT))]
Fence = Annotated[int, Meta(ge=0, le=2**62, description="The fence of the claim; a stale one is refused.")]
Holder = Annotated[str, Meta(pattern=HOLDER_PATTERN, description="A name of this process, new at each start.")]
Detail = Annotated[str, Meta(max_length=1_000, pattern=NO_NUL_PATTERN)]
Word = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9 _./:-]*$")]
Line = Annotated[str, Meta(max_length=LINE_LENGTH_MAX, pattern=NO_NUL_PATTERN)]
HealthWord = Literal["healthy", "degraded", "unknown"]
Details = Annotated[dict[str, Any], Meta(description="The adapter's own data, at most 16 KiB of JSON.")]


class HeldInstance(Strict):
    """An instance with the fence of its claim."""

    instance_id: InstanceId
    fence: Fence


class ClaimInstances(Strict):
    """A poll: who asks, for how many, what it holds, and which changes it already knows."""

    holder: Holder
    free: Annotated[int, Meta(ge=0, le=CLAIMS_MAX, description="How many more instances it can take.")] = 0
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX, description="How long to wait for a change.")] = 0.0
    held: Annotated[
        list[HeldInstance], Meta(max_length=HELD_MAX, description="Everything that it holds; the leases are renewed.")
    ] = msgspec.field(default_factory=list)
    after: (
        Annotated[
            str, Meta(max_length=300, pattern="^[A-Za-z0-9_-]+$", description="`cursor` of the previous response.")
        ]
        | None
    ) = None


class ReleaseInstances(Strict):
    """Claims to release at a clean shutdown."""

    holder: Holder
    held: Annotated[list[HeldInstance], Meta(max_length=HELD_MAX)]


class FindAccounts(Strict):
    """A JWT that the adapter's key signed: `iss` and `sub` are `key:<the public key in base64url>`."""

    assertion: Annotated[str, Meta(min_length=1, max_length=4_000)]
    after: AccountId | None = None


class Failure(Strict):
    """Why something failed: a code of the closed list, a detail, and the last lines of its output."""

    code: OperationFailure
    detail: Annotated[str, Meta(max_length=4_000, pattern=NO_NUL_PATTERN)] = ""
    last_lines: Annotated[list[Line], Meta(max_length=LAST_LINES_MAX)] = msgspec.field(default_factory=list)


class Blocked(Strict):
    """What blocks the operation; it continues when that is reported as gone (`null`)."""

    code: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,62}$")]
    detail: Annotated[str, Meta(min_length=1, max_length=1_000, pattern=NO_NUL_PATTERN)]


class Progress(Strict):
    """How far a step is."""

    done: Annotated[int, Meta(ge=0, le=2**62)]
    total: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    unit: Annotated[str, Meta(max_length=32, pattern=NO_NUL_PATTERN)] = ""
    stage: Annotated[str, Meta(max_length=200, pattern=NO_NUL_PATTERN)] = ""


class ReportedStep(Strict):
    """One step of an operation, by its name."""

    name: Word
    status: StepState
    detail: Detail | None = None
    progress: Progress | None = None


class ReportedHold(Strict):
    """A reason why the adapter wants no new work on a member."""

    reason: Annotated[str, Meta(min_length=1, max_length=200, pattern=NO_NUL_PATTERN)]


class ReportedMember(Strict):
    """What the adapter observed of a member; omitted fields stay unchanged."""

    id: MemberId
    status: ReportableState | None = None
    health: HealthWord | None = None
    health_detail: Detail | UnsetType | None = UNSET
    detail: Details | None = None
    version: Annotated[str, Meta(max_length=64, pattern=NO_NUL_PATTERN)] | None = None
    holds: Annotated[list[ReportedHold], Meta(max_length=16)] | None = None
    failure: Failure | None = None


PROTOCOL: Final = "Such as http, https, ssh, tcp; `terminal` means that commands run there."
OF_A_TERMINAL: Final = "Only for the protocol `terminal`."


class ReportedEndpoint(Strict):
    """Where a member can be reached, inside its sandbox."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    member_id: MemberId
    protocol: Annotated[str, Meta(pattern="^[a-z][a-z0-9+.-]{0,31}$", description=PROTOCOL)]
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    path: Annotated[str, Meta(max_length=1_000, pattern=r"^/[^\x00]*$")] | None = None
    title: Annotated[str, Meta(max_length=200, pattern=NO_NUL_PATTERN)] | None = None
    task_id: TaskId | None = None
    user: Annotated[str, Meta(max_length=32, pattern=USER_PATTERN, description=OF_A_TERMINAL)] | None = None
    directory: Annotated[str, Meta(max_length=1_000, pattern=DIRECTORY_PATTERN, description=OF_A_TERMINAL)] | None = (
        None
    )
    environment: (
        Annotated[
            dict[
                Annotated[str, Meta(pattern=ENVIRONMENT_PATTERN)],
                Annotated[str, Meta(max_length=4_096, pattern=NO_NUL_PATTERN)],
            ],
            Meta(
                max_length=50,
                description=f"{OF_A_TERMINAL} Never put secrets here: everybody who may read the instance sees it.",
            ),
        ]
        | None
    ) = None


class ReportedInstance(Strict):
    """What the adapter observed of the instance as a whole; omitted fields stay unchanged."""

    health: HealthWord | None = None
    health_detail: Detail | UnsetType | None = UNSET
    endpoints: Annotated[list[ReportedEndpoint], Meta(max_length=64)] | None = None
    detail: Details | None = None
    topology_mode: Annotated[str, Meta(max_length=64, pattern=NO_NUL_PATTERN)] | None = None


class MakeReport(Strict):
    """A report is applied as a whole or not at all; what is already stored is accepted and writes nothing."""

    fence: Fence
    operation_id: OperationId | None = None
    begin: bool = False
    blocked: Blocked | UnsetType | None = UNSET
    steps: Annotated[list[ReportedStep], Meta(max_length=200)] = msgspec.field(default_factory=list)
    members: Annotated[list[ReportedMember], Meta(max_length=200)] = msgspec.field(default_factory=list)
    instance: ReportedInstance | None = None


class FinishOperation(Strict):
    """How an operation ended, as far as its adapter is concerned."""

    fence: Fence
    outcome: FinishOutcome
    evidence: Details | None = None
    output: Annotated[dict[str, Any], Meta(description="Of an action, by the manifest's `output_schema`.")] | None = (
        None
    )
    failure: Failure | None = None


class Granted(Strict):
    """A secret of the instance for the task; access to the platform's registry is granted automatically."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN, description="The name in the task's arguments.")]
    secret: Annotated[str, Meta(pattern=NAME_PATTERN, description="The name of the instance's secret.")]


class MakeMemberTask(Strict):
    """A task for a member; `/api/v1/schemas/tasks` lists the families and their arguments.

    Name an image by `{"artifact": "<role>"}` or by `{"digest": "sha256:…"}`: the platform fills in the rest.
    """

    fence: Fence
    member_id: MemberId
    type: Annotated[str, Meta(max_length=64, description="A task family, such as `process.run`.")]
    step: Annotated[
        str, Meta(pattern=STEP_PATTERN, description="Together with the operation the task's name: created only once.")
    ]
    operation_id: Annotated[OperationId | None, Meta(description="Without an operation the task may only inspect.")] = (
        None
    )
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    grants: Annotated[list[Granted], Meta(max_length=32)] = msgspec.field(default_factory=list)
    lifetime_seconds: Annotated[float, Meta(ge=LIFETIME_MIN.total_seconds(), le=LIFETIME_MAX.total_seconds())] = 3_600.0
    audited: Annotated[
        bool,
        Meta(
            description="Without an operation: it changes something, so it leaves events and audit rows. "
            "Other looks are routine and leave none."
        ),
    ] = False


class MemberTaskWanted(Strict):
    """One of several tasks."""

    member_id: MemberId
    type: Annotated[str, Meta(max_length=64, description="A task family, such as `process.run`.")]
    step: Annotated[
        str, Meta(pattern=STEP_PATTERN, description="Together with the operation the task's name: created only once.")
    ]
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    grants: Annotated[list[Granted], Meta(max_length=32)] = msgspec.field(default_factory=list)
    lifetime_seconds: Annotated[float, Meta(ge=LIFETIME_MIN.total_seconds(), le=LIFETIME_MAX.total_seconds())] = 3_600.0
    audited: Annotated[
        bool,
        Meta(
            description="Without an operation: it changes something, so it leaves events and audit rows. "
            "Other looks are routine and leave none."
        ),
    ] = False


class MakeMemberTasks(Strict):
    """Several tasks of one operation, or several inspections; each has its own outcome."""

    fence: Fence
    tasks: Annotated[list[MemberTaskWanted], Meta(min_length=1, max_length=TASKS_AT_ONCE_MAX)]
    operation_id: Annotated[OperationId | None, Meta(description="Without an operation the task may only inspect.")] = (
        None
    )


def task_request_of(body: MakeMemberTask | MemberTaskWanted) -> MemberTaskRequest:
    return MemberTaskRequest(
        member_id=body.member_id,
        type=body.type,
        step=body.step,
        arguments=body.arguments,
        lifetime=timedelta(seconds=body.lifetime_seconds),
        grants=tuple((each.name, each.secret) for each in body.grants),
        audited=body.audited,
    )


class MakeSecret(Strict):
    """A secret to store for the instance: a given value, or one that the platform generates."""

    fence: Fence
    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    purpose: Annotated[str, Meta(max_length=40, description="app_access, member_secret or cluster_key.")]
    value: Annotated[str, Meta(min_length=1, max_length=65_536)] | None = None
    generate_bytes: Annotated[int, Meta(ge=16, le=64, description="How many random bytes.")] | None = None


class FenceQuery(Strict):
    """The claim under which the request is made."""

    fence: Fence


class MemberTaskQuery(Strict):
    """The claim under which the request is made, how long to wait, and for what."""

    fence: Fence
    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for a change or a state.")] = 0
    until: (
        Annotated[
            str, Meta(max_length=200, pattern="^[a-z_,]+$", description="States to wait for, separated by commas.")
        ]
        | None
    ) = None
    changed_from: (
        Annotated[
            str, Meta(max_length=50, pattern="^[0-9.]+$", description="The last known `etag`: wait until it changes.")
        ]
        | None
    ) = None


def held_of(listed: list[HeldInstance]) -> tuple[FencedInstance, ...]:
    return tuple(FencedInstance(each.instance_id, each.fence) for each in listed)


def report_of(body: MakeReport) -> AdapterReport:
    blocked: BlockerReport | None = None
    if not isinstance(body.blocked, UnsetType):
        blocked = BlockerReport() if body.blocked is None else BlockerReport(body.blocked.code, body.blocked.detail)
    return AdapterReport(
        begin=body.begin,
        blocked=blocked,
        steps=tuple(_step(each) for each in body.steps),
        members=tuple(_member(each) for each in body.members),
        instance=None if body.instance is None else _instance(body.instance),
    )


def ending_of(body: FinishOperation) -> OperationEnd:
    return OperationEnd(body.outcome, body.evidence, body.output, _failure(body.failure))


def _step(step: ReportedStep) -> StepReport:
    progress = None if step.progress is None else msgspec.to_builtins(step.progress)
    return StepReport(step.name, step.status, step.detail, progress)


def _failure(failure: Failure | None) -> FailureReport | None:
    return None if failure is None else FailureReport(failure.code, failure.detail, tuple(failure.last_lines))


def _member(member: ReportedMember) -> MemberReport:
    return MemberReport(
        id=member.id,
        status=member.status,
        health=None if member.health is None else InstanceHealth(member.health),
        health_detail=None if isinstance(member.health_detail, UnsetType) else (member.health_detail,),
        detail=member.detail,
        version=member.version,
        holds=None if member.holds is None else tuple(HoldReport(each.reason) for each in member.holds),
        failure=_failure(member.failure),
    )


def _instance(instance: ReportedInstance) -> InstanceReport:
    endpoints = instance.endpoints
    return InstanceReport(
        health=None if instance.health is None else InstanceHealth(instance.health),
        health_detail=None if isinstance(instance.health_detail, UnsetType) else (instance.health_detail,),
        endpoints=None if endpoints is None else tuple(EndpointReport(msgspec.to_builtins(each)) for each in endpoints),
        detail=instance.detail,
        topology_mode=instance.topology_mode,
    )
