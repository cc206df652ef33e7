"""Request and response bodies for instances, members and operations."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Description, Shown, Strict, Time
from mooring.api.schemas.runtime.launch import AppName, ComponentKey, Placement, Version
from mooring.core.catalog.channel import Channel
from mooring.core.catalog.manifest_schema import DRAIN_SECONDS_MAX
from mooring.core.catalog.operating_mode import ControlPlaneScope, OperatingMode
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.runtime.app_action import INPUT_BYTES_MAX
from mooring.core.runtime.closing_record import ClosingKind
from mooring.core.runtime.instance import InstanceState
from mooring.core.runtime.instance_change import RepairScope
from mooring.core.runtime.member import MemberState
from mooring.core.runtime.operation import OperationKind, OperationState, Phase
from mooring.core.runtime.topology import AT_ONCE_MAX

MemberId = Annotated[str, Meta(pattern=pattern(Prefix.MEMBER))]
DrainSeconds = Annotated[
    int,
    Meta(
        ge=0,
        le=DRAIN_SECONDS_MAX,
        description="Seconds that its work has to finish; the default is the manifest's or the configuration's.",
    ),
]
AddCount = Annotated[int, Meta(ge=1, le=AT_ONCE_MAX, description="How many.")]
HealthState = Literal["healthy", "degraded", "unknown"]


class InstanceQuery(PageQuery):
    """Which instances to list."""

    status: InstanceState | None = None
    app: AppName | None = None
    q: Annotated[str, Meta(min_length=1, max_length=64, description="How the name or the id begins.")] | None = None
    health: HealthState | None = None
    needs_attention: (
        Annotated[bool, Meta(description="Only those that need a person: failed, unwell, not trusted, or blocked.")]
        | None
    ) = None
    allocation_id: (
        Annotated[
            str, Meta(max_length=60, pattern="^[a-z0-9_]+$", description="Only with a member on this allocation.")
        ]
        | None
    ) = None
    sort: Annotated[Literal["oldest", "newest"], Meta(description="Which instances are first.")] = "oldest"


class MemberQuery(PageQuery):
    """Which members to list."""

    status: MemberState | None = None
    component: ComponentKey | None = None


class OperationQuery(PageQuery):
    """Which operations to list."""

    status: OperationState | None = None
    kind: OperationKind | None = None


class TenantOperationQuery(OperationQuery):
    """Which operations of a tenant to list."""

    open: Annotated[bool, Meta(description="Only those that have not ended.")] = False


class UpgradeInstance(Strict):
    """The version to upgrade to, or the channel that determines it."""

    version: Version | None = None
    channel: Channel | None = None


class UpdateInstance(Strict):
    """The fields of the configuration to change."""

    config: Annotated[
        dict[str, Any],
        Meta(max_length=1_000, description="A JSON merge patch: what is left out stays, null removes a field."),
    ]


class RepairInstance(Strict):
    """How much to repair."""

    scope: RepairScope = RepairScope.WHOLE_RUNTIME
    member_id: MemberId | None = None


class CancelOperation(Strict):
    """Why the operation is cancelled."""

    reason: Description = ""


class AddMembers(Strict):
    """How many members to add to a component; the default placement is that of the launch."""

    component: ComponentKey
    count: AddCount = 1
    placement: Placement | None = None


class DrainMember(Strict):
    """How long the member's running work may take to finish, and why the member is drained."""

    timeout_seconds: DrainSeconds | None = None
    reason: Description = ""


class RemoveMember(Strict):
    """How to remove the member."""

    timeout_seconds: DrainSeconds | None = None
    force: Annotated[bool, Meta(description="Tear it down at once, without the adapter.")] = False
    keep_allocation: Annotated[bool, Meta(description="Keep the allocation that was requested for it.")] | None = None


class ReplaceMember(Strict):
    """How to replace the member."""

    surge: (
        Annotated[
            bool,
            Meta(
                description="The new one joins before the old one leaves; the default is yes if the maximum allows it."
            ),
        ]
        | None
    ) = None
    timeout_seconds: DrainSeconds | None = None
    placement: Placement | None = None


class StartAction(Strict):
    """The input of an action, by its `input_schema`."""

    input: Annotated[dict[str, Any], Meta(max_length=1_000, description=f"At most {INPUT_BYTES_MAX} bytes.")] = (
        msgspec.field(default_factory=dict)
    )
    member_id: MemberId | None = None


class ActionQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How long to wait for the outcome."""

    wait: Annotated[float, Meta(ge=0, le=60, description="Seconds to wait for its end.")] = 0


class ClaimView(Shown):
    """Whether an adapter holds the instance, which one, and since when."""

    held: bool
    holder: str | None
    since: Time | None


class RoleSummaryView(Shown):
    """The members of one component: desired, current and healthy."""

    component_key: str
    desired: int
    current: int
    healthy: int


class PinView(Shown):
    """A version by its digests at the time it was chosen."""

    version_id: str
    version: str
    manifest_digest: str
    artifacts: dict[str, str]


class OpenOperationView(Shown):
    """The open operation of the whole instance."""

    id: str
    kind: OperationKind
    status: OperationState
    phase: Phase
    blocker: str | None
    blocker_code: str | None


class InstanceEndpointView(Shown):
    """Where a member of the app listens."""

    name: str
    protocol: str
    member_id: str | None = None
    port: int | None = None
    path: str | None = None
    title: str | None = None
    task_id: str | None = None
    user: Annotated[str | None, Meta(description="Of a terminal: the user that commands run as.")] = None
    directory: str | None = None
    environment: dict[str, str] | None = None


class UntrustedArtifactView(Shown):
    """An artifact that the instance runs and that is not trusted."""

    digest: str
    artifact_id: str | None
    owner: Annotated[str | None, Meta(description="Who registered it: `platform`, `tenant` or `project`.")]
    trust: str
    code: str
    reason: str


class DistrustView(Shown):
    """Why the instance is not trusted, since when, and what the policy does about it."""

    since: Time
    reaction: Literal["notify", "refuse", "drain", "stop"]
    layer: Annotated[str | None, Meta(description="The layer of the policy that asks for it; null: the default.")]
    artifacts: list[UntrustedArtifactView]


class InstanceView(Shown):
    """A launched app: what it is, its state, and its health."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    app_id: str
    app: str
    app_category: str
    version_id: str
    version: str
    channel: str | None
    pin: PinView
    previous_pin: PinView | None
    config: dict[str, Any]
    topology: dict[str, int]
    placement: dict[str, Any]
    operating_mode: OperatingMode
    control_plane_scope: ControlPlaneScope
    runtime_backend: str
    bound_capacity_shape: str | None
    topology_mode: str | None
    secrets: Annotated[dict[str, str], Meta(description="Variable → name of the project's secret that it has.")]
    service_account_id: str
    status: InstanceState
    health: HealthState
    health_detail: str | None
    health_at: Time | None
    members_summary: list[RoleSummaryView]
    endpoints: list[InstanceEndpointView]
    adapter_detail: dict[str, Any]
    operation: OpenOperationView | None
    claim: ClaimView
    failure_code: str | None
    failure_detail: str | None
    last_lines: list[str]
    teardown_proof: str | None
    distrust: DistrustView | None
    needs_attention: Annotated[bool, Meta(description="Failed, unwell, not trusted, or blocked.")]
    requested_by: str
    correlation_id: str
    trace_id: str
    created_at: Time
    failed_at: Time | None
    stop_requested_at: Time | None
    stopped_at: Time | None
    revision: int
    etag: str
    allowed_verbs: list[str]
    allowed_actions: list[str]


class MemberHoldView(Shown):
    """Who wants no new work on a member, why, and since when."""

    owner: str
    reason: str
    since: str


class MemberView(Shown):
    """One part of an instance: its node, its state, and its health."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    component_key: str
    ordinal: int
    name: str
    version_id: str
    version: str
    status: MemberState
    allocation_id: str | None
    node_id: str | None
    node_reachable: bool | None
    owns_allocation: bool
    keep_allocation: bool
    health: HealthState
    health_detail: str | None
    health_at: Time | None
    adapter_detail: dict[str, Any]
    holds: list[MemberHoldView]
    replaces_id: str | None
    last_operation_id: str | None
    blocker: str | None
    failure_code: str | None
    failure_detail: str | None
    last_lines: list[str]
    teardown_attempts: int
    correlation_id: str
    trace_id: str
    created_at: Time
    failed_at: Time | None
    retry_at: Time | None
    removed_at: Time | None
    revision: int
    etag: str
    allowed_verbs: list[str]
    allowed_actions: list[str]


class OperationStepView(Shown):
    """One step of an operation, as its adapter or the platform reports it."""

    name: str
    status: str
    detail: str | None = None
    attempts: int = 0
    progress: Any = None
    started_at: Time | None = None
    ended_at: Time | None = None


class OperationView(Shown):
    """A change: whose turn it is, its progress, what it waits for, and its outcome."""

    id: str
    tenant_id: str
    project_id: str
    instance_id: str
    kind: OperationKind
    status: OperationState
    phase: Phase
    member_ids: list[str]
    request: dict[str, Any]
    target_version: str | None
    steps: list[OperationStepView]
    progress: dict[str, Any] | None
    attempts: int
    blocker: str | None
    blocker_code: str | None
    cancel_reason: str | None
    output: dict[str, Any] | None
    evidence: dict[str, Any] | None
    failure_code: str | None
    failure_detail: str | None
    last_lines: list[str]
    read_only: bool
    requested_by: str
    correlation_id: str
    trace_id: str
    created_at: Time
    deadline_at: Time
    phase_deadline_at: Time | None
    dispatched_at: Time | None
    started_at: Time | None
    finished_at: Time | None
    revision: int
    etag: str
    allowed_verbs: list[str]
    allowed_actions: list[str]


class ClosingRecordView(Shown):
    """The proof that a member is gone."""

    id: str
    member_id: str
    member_name: str
    component_key: str
    ordinal: int
    allocation_id: str | None
    kind: ClosingKind
    receipt: dict[str, Any] | None
    node_id: str | None
    reason: str | None
    may_be_left: str | None
    created_at: Time


class RevealedSecretView(Shown):
    """The value of a secret that gives access to the app."""

    name: str
    value: str
