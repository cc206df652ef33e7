"""Bodies of a launch, and the view of its plan."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.schemas.fleet.allocation import GpuCount, Region, Sku
from mooring.api.schemas.kernel.fields import Shown, Slug, Strict, Time
from mooring.core.catalog.channel import Channel
from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.catalog.operating_mode import DEFAULT_MODE, ControlPlaneScope, OperatingMode
from mooring.core.catalog.policy import Layer
from mooring.core.fleet.task_schema import NO_NUL_PATTERN
from mooring.core.identity.project_secret import NAME_PATTERN as SECRET_NAME_PATTERN
from mooring.core.identity.project_secret import VARIABLE_PATTERN, VARIABLES_MAX
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.validation import invalid
from mooring.core.pricing.spending import LimitKind, LimitScope
from mooring.core.runtime.launch_history import Basis
from mooring.core.runtime.launch_plan import LaunchPlan
from mooring.core.runtime.launch_snapshot import LaunchRequest, PlacementSpec
from mooring.core.runtime.topology import AT_ONCE_MAX

APP_PATTERN = "^[A-Za-z0-9_-]+$"
AppName = Annotated[str, Meta(max_length=60, pattern=APP_PATTERN, description="Slug or id of an app.")]
Version = Annotated[str, Meta(min_length=1, max_length=100, description="An exact version, such as `1.2.0`.")]
AllocationId = Annotated[str, Meta(pattern=pattern(Prefix.ALLOCATION))]
AccountId = Annotated[str, Meta(pattern=pattern(Prefix.SERVICE_ACCOUNT))]
ComponentKey = Annotated[str, Meta(min_length=1, max_length=60, pattern=NO_NUL_PATTERN)]
MemberCount = Annotated[int, Meta(ge=0, le=AT_ONCE_MAX)]
Topology = Annotated[dict[ComponentKey, MemberCount], Meta(max_length=32, description="Members of each component.")]
Config = Annotated[dict[str, Any], Meta(max_length=1_000, description="By the manifest's `config_schema`.")]
TopologyMode = Annotated[
    str, Meta(min_length=1, max_length=64, pattern=NO_NUL_PATTERN, description="A label that the adapter defines.")
]
Secrets = Annotated[
    dict[
        Annotated[str, Meta(pattern=VARIABLE_PATTERN, max_length=128)],
        Annotated[str, Meta(pattern=SECRET_NAME_PATTERN, max_length=63)],
    ],
    Meta(
        max_length=VARIABLES_MAX,
        description=(
            "Secrets of the project for the app's programs: variable of the environment → name of the secret. "
            "It takes `project_secret.use`."
        ),
    ),
]


class Placement(Strict):
    """Where members go: allocations of the project by id, or a SKU of which each member gets a new one."""

    allocations: Annotated[list[AllocationId], Meta(max_length=AT_ONCE_MAX)] | None = None
    sku: Sku | None = None
    shape: CapacityShape | None = None
    gpu_count: GpuCount | None = None
    region: Region | None = None
    keep_allocations: Annotated[bool, Meta(description="Keep the new allocations when their members are removed.")] = (
        False
    )


class PlanInstance(Strict):
    """The launch to evaluate."""

    app: AppName
    name: Slug = "planned"
    version: Version | None = None
    channel: Channel | None = None
    config: Config = msgspec.field(default_factory=dict)
    topology: Topology | None = None
    placement: Placement | None = None
    service_account_id: AccountId | None = None
    operating_mode: OperatingMode = DEFAULT_MODE[0]
    control_plane_scope: ControlPlaneScope = DEFAULT_MODE[1]
    topology_mode: TopologyMode | None = None
    secrets: Secrets = msgspec.field(default_factory=dict)


class CreateInstance(Strict):
    """The launch: app, version or channel, configuration, number of members, and placement."""

    app: AppName
    name: Slug
    placement: Placement
    version: Version | None = None
    channel: Channel | None = None
    config: Config = msgspec.field(default_factory=dict)
    topology: Topology | None = None
    service_account_id: AccountId | None = None
    operating_mode: OperatingMode = DEFAULT_MODE[0]
    control_plane_scope: ControlPlaneScope = DEFAULT_MODE[1]
    topology_mode: TopologyMode | None = None
    secrets: Secrets = msgspec.field(default_factory=dict)


class PlanHindranceView(Shown):
    """One reason against the launch; a create is refused with the first of them."""

    code: str
    detail: str
    details: dict[str, Any]


class PlannedVersionView(Shown):
    """The version that would run."""

    id: str
    version: str
    promotion: str
    canary: bool
    manifest_digest: str
    digests: list[str]


class ShapeChoiceView(Shown):
    """A SKU in one GPU count: whether the app fits, what would help, and the price for all members."""

    sku: str
    shape: CapacityShape
    gpu_model: str
    gpu_count: int
    regions: list[str]
    fits: bool
    available: Annotated[bool, Meta(description="Whether any such machine exists.")]
    because: str
    smallest_change: str
    price_minor_per_hour: int
    currency: str


class PriceView(Shown):
    """The capacity's price in one currency: the total, and what this launch adds to it."""

    currency: str
    minor_per_hour: int
    added_minor_per_hour: int


class PolicyAnswerView(Shown):
    """What one policy layer says about one value."""

    allowed: bool
    layer: Layer | None
    subject: str | None
    value: str
    reason: str


class PlannedPolicyView(Shown):
    """What policy says, and the layer that decides."""

    allowed: bool
    layer: Layer | None
    reason: str
    answers: list[PolicyAnswerView]


class StageView(Shown):
    """One stage of a launch and its median duration."""

    name: str
    seconds: float


class ExpectedView(Shown):
    """The expected time until ready; without measurements there is no estimate."""

    basis: Basis
    samples: int
    seconds: float | None
    stages: list[StageView]


class PlannedPlacementView(Shown):
    """Whether all new allocations find a place at once; if not, the launch waits for it."""

    fits_now: bool
    because: str
    smallest_change: str


class PlannedAdapterView(Shown):
    """Whether an adapter asks for work of this app in the project; without one, the launch waits and then fails."""

    listening: bool
    last_seen_at: Time | None


class PlannedLimitView(Shown):
    """A quota, a budget or a balance: what is used, what the launch adds, what is left; money in minor units."""

    kind: LimitKind
    scope: LimitScope
    currency: str | None
    maximum: int
    used: int
    requested: int
    left: int
    measured: Annotated[int, Meta(description="The part of `used` that is booked.")]
    estimated: Annotated[int, Meta(description="The part of `used` of clocks that are not booked yet.")]
    held: Annotated[int, Meta(description="The part of `used` that other launches reserved.")]
    exceeded: bool


class PlanView(Shown):
    """What a launch would create, and every refusal that it would meet."""

    launchable: bool
    hindrances: list[PlanHindranceView]
    version: PlannedVersionView | None
    topology: dict[str, int]
    allocations: list[str]
    new_allocations: int
    shapes: list[ShapeChoiceView]
    price: list[PriceView]
    policy: PlannedPolicyView
    expected: ExpectedView
    placement: Annotated[PlannedPlacementView | None, Meta(description="Null if no capacity is requested.")]
    adapter: Annotated[PlannedAdapterView | None, Meta(description="Null if the app has no operator account.")]
    limits: Annotated[list[PlannedLimitView], Meta(description="Empty if no quota, budget or balance limits it.")]


def placement_spec(body: Placement | None) -> PlacementSpec | None:
    if body is None:
        return None
    capacity = (body.sku, body.shape, body.gpu_count, body.region)
    if body.allocations is not None and (any(each is not None for each in capacity) or body.keep_allocations):
        raise invalid("placement", "name either existing allocations or a SKU for new ones")
    if body.allocations is not None and len(set(body.allocations)) != len(body.allocations):
        raise invalid("placement.allocations", "must not name an allocation twice")
    return PlacementSpec(
        allocations=tuple(body.allocations or ()),
        sku=body.sku,
        shape=body.shape,
        gpu_count=body.gpu_count,
        region=body.region,
        keep_allocations=body.keep_allocations,
    )


def launch_request(body: CreateInstance | PlanInstance) -> LaunchRequest:
    if body.version is not None and body.channel is not None:
        raise invalid("channel", "not allowed together with a version")
    return LaunchRequest(
        app=body.app,
        name=body.name,
        version=body.version,
        channel=None if body.channel is None else body.channel.value,
        config=body.config,
        topology=dict(body.topology or {}),
        placement=placement_spec(body.placement) or PlacementSpec(),
        service_account_id=body.service_account_id,
        operating_mode=body.operating_mode.value,
        control_plane_scope=body.control_plane_scope.value,
        topology_mode=body.topology_mode,
        secrets=dict(body.secrets),
    )


def plan_view(plan: LaunchPlan) -> PlanView:
    version = plan.version
    return PlanView(
        launchable=plan.launchable,
        hindrances=[
            PlanHindranceView(code=each.code.value, detail=each.detail, details=dict(each.details))
            for each in plan.refusals
        ],
        version=None
        if version is None
        else PlannedVersionView(
            id=version.id,
            version=version.version,
            promotion=version.promotion,
            canary=plan.canary,
            manifest_digest=version.manifest_digest,
            digests=list(version.digests),
        ),
        topology=dict(plan.topology),
        allocations=list(plan.allocations),
        new_allocations=plan.new_allocations,
        shapes=[msgspec.convert(each, ShapeChoiceView, from_attributes=True) for each in plan.shapes],
        price=[msgspec.convert(each, PriceView, from_attributes=True) for each in plan.prices],
        policy=PlannedPolicyView(
            allowed=plan.policy.allowed,
            layer=plan.policy.layer,
            reason=plan.policy.reason,
            answers=[
                PolicyAnswerView(
                    allowed=each.allowed,
                    layer=each.layer,
                    subject=None if each.subject is None else each.subject.value,
                    value=each.value,
                    reason=each.reason,
                )
                for each in plan.policy.answers
            ],
        ),
        expected=msgspec.convert(plan.expected, ExpectedView, from_attributes=True),
        placement=None
        if plan.placement is None
        else PlannedPlacementView(
            fits_now=plan.placement.fits,
            because=plan.placement.because,
            smallest_change=plan.placement.smallest_change,
        ),
        adapter=None
        if plan.adapter is None
        else PlannedAdapterView(listening=plan.adapter.listening, last_seen_at=plan.adapter.last_seen_at),
        limits=[msgspec.convert(each, PlannedLimitView, from_attributes=True) for each in plan.limits],
    )
