"""Request and response bodies for allocations and their groups."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Slug, Strict, Time, allowed
from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.allocation import (
    GROUP_MAX,
    PLACE_SECONDS_MAX,
    Allocation,
    AllocationRequest,
    AllocationState,
    TeardownProof,
)
from mooring.core.fleet.allocation_group import AllocationGroup, AllocationGroupRequest, GroupState, state_of
from mooring.core.fleet.allocation_metadata import METADATA_MAX, METADATA_VALUE_LENGTH
from mooring.core.fleet.placement_explanation import PlacementExplanation
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.core.pricing.rating import CLOCK_RULE
from mooring.storage.fleet.allocation import Occupancy

GpuCount = Annotated[int, Meta(ge=1, le=1024, description="One of the counts that the SKU is sold with.")]
Region = Annotated[
    str, Meta(min_length=1, max_length=40, description="Where it must be; without it: where there is room.")
]
Sku = Annotated[str, Meta(min_length=1, max_length=60, description="Slug or id of a SKU.")]
GroupId = Annotated[str, Meta(pattern=pattern(Prefix.ALLOCATION_GROUP))]
NodeId = Annotated[str, Meta(pattern=pattern(Prefix.NODE))]
PlaceWithin = Annotated[
    int, Meta(ge=1, le=PLACE_SECONDS_MAX, description="Seconds in which a place must be found, or it fails.")
]
Count = Annotated[int, Meta(ge=1, le=GROUP_MAX, description="How many.")]
MetadataText = Annotated[str, Meta(max_length=METADATA_VALUE_LENGTH)]
Metadata = Annotated[
    dict[MetadataText, MetadataText],
    Meta(max_length=METADATA_MAX, description="Stored and shown; the platform does not interpret it."),
]
SchedulerType = Annotated[
    str, Meta(min_length=1, max_length=100, description="A label; the platform does not interpret it.")
]
RELEASABLE = frozenset(
    {AllocationState.REQUESTED, AllocationState.PROVISIONING, AllocationState.ACTIVE, AllocationState.FAILED}
)


class CreateAllocation(Strict):
    """A request for a whole machine or slots of one; the platform chooses which."""

    shape: CapacityShape
    sku: Sku
    gpu_count: GpuCount | None = None
    region: Region | None = None
    name: Slug | None = None
    group_id: GroupId | None = None
    place_within_seconds: PlaceWithin | None = None
    scheduler_type: SchedulerType | None = None
    integration_metadata: Metadata | None = None


class CreateAllocationGroup(Strict):
    """A request for several equal allocations under one name; with `same_node` they share a machine and its network."""

    name: Slug
    shape: CapacityShape
    sku: Sku
    count: Count = 1
    same_node: bool = False
    gpu_count: GpuCount | None = None
    region: Region | None = None
    place_within_seconds: PlaceWithin | None = None
    scheduler_type: SchedulerType | None = None
    integration_metadata: Metadata | None = None


class ExplainAllocation(Strict):
    """The request to explain."""

    shape: CapacityShape
    sku: Sku
    gpu_count: GpuCount | None = None
    region: Region | None = None
    count: Count = 1
    same_node: bool = False


class AllocationQuery(PageQuery):
    """Which allocations are listed."""

    status: AllocationState | None = None
    group_id: GroupId | None = None


class OccupancyQuery(PageQuery):
    """Which allocations on nodes are listed."""

    node_id: NodeId | None = None
    status: AllocationState | None = None


class SlotView(Shown):
    """A GPU of the machine; a simulated one computes nothing."""

    index: int
    numa: int
    gpu_model: str
    memory_bytes: int
    simulated: bool


class ChargeView(Shown):
    """What is charged, from the moment the sandbox is ready until the release."""

    price_minor_per_gpu_hour: int
    currency: str
    price_revision: int
    started_at: Time | None
    ended_at: Time | None
    rule: str


class AllocationView(Shown):
    """What was requested, what it got, what it waits for, and what proves its end."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    group_id: str | None
    shape: CapacityShape
    sku_id: str | None
    sku: str
    gpu_model: str
    gpu_count: int
    regions: list[str]
    status: AllocationState
    blocker: str | None
    node_id: str | None
    region: str | None
    host: str | None
    slots: list[SlotView]
    isolation: str | None
    address: str | None
    limits: dict[str, Any]
    scheduler_type: str | None
    integration_metadata: dict[str, Any]
    charge: ChargeView
    failure_code: str | None
    failure_detail: str | None
    teardown_proof: TeardownProof | None
    receipt_id: str | None
    correlation_id: str
    created_at: Time
    deadline_at: Time
    placed_at: Time | None
    activated_at: Time | None
    failed_at: Time | None
    releasing_at: Time | None
    retry_at: Time | None
    lost_at: Time | None
    released_at: Time | None
    revision: int
    etag: str
    allowed_verbs: list[str]
    allowed_actions: list[str]


class AllocationGroupView(Shown):
    """Allocations that belong together, and the state derived from theirs."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    same_node: bool
    status: GroupState
    allocations: list[AllocationView]
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class CandidateView(Shown):
    """The machines of one region, and why none of them fits."""

    region: str
    machines: int
    because: str
    change: str


class ExplanationView(Shown):
    """Whether it fits now; if not, why, and the smallest change that would make it fit."""

    fits: bool
    because: str
    smallest_change: str
    candidates: list[CandidateView]


class OccupancyView(Shown):
    """An allocation on a node and what blocks its release, for the operators of the node."""

    id: str
    node_id: str
    tenant_id: str
    project_id: str
    shape: CapacityShape
    gpu_count: int
    status: AllocationState
    blocker: str | None
    placed_at: Time | None
    activated_at: Time | None
    releasing_at: Time | None
    retry_at: Time | None
    lost_at: Time | None


def request_of(body: CreateAllocation | CreateAllocationGroup | ExplainAllocation) -> AllocationRequest:
    """The request for one allocation of the body."""
    if isinstance(body, ExplainAllocation):
        return AllocationRequest(body.shape, body.sku, body.gpu_count, body.region)
    return AllocationRequest(
        body.shape,
        body.sku,
        body.gpu_count,
        body.region,
        body.name,
        body.place_within_seconds,
        body.scheduler_type,
        body.integration_metadata,
    )


def group_request_of(body: CreateAllocationGroup) -> AllocationGroupRequest:
    return AllocationGroupRequest(body.name, body.count, body.same_node, request_of(body))


def allocation_view(authority: Authority, allocation: Allocation) -> AllocationView:
    """The API view of an allocation, with the actions that this caller may take."""
    state = AllocationState(allocation.status)
    facts = allocation.facts or {}
    actions = _actions(authority, allocation)
    return AllocationView(
        id=allocation.id,
        tenant_id=allocation.tenant_id,
        project_id=allocation.project_id,
        name=allocation.name,
        group_id=allocation.group_id,
        shape=CapacityShape(allocation.shape),
        sku_id=allocation.sku_id,
        sku=allocation.sku_slug,
        gpu_model=allocation.gpu_model,
        gpu_count=allocation.gpu_count,
        regions=allocation.regions,
        status=state,
        blocker=allocation.blocker,
        node_id=allocation.node_id,
        region=allocation.region,
        host=allocation.host,
        slots=msgspec.convert(allocation.slots or [], list[SlotView]),
        isolation=facts.get("isolation"),
        address=facts.get("address"),
        limits=dict(facts.get("limits") or {}),
        scheduler_type=allocation.scheduler_type,
        integration_metadata=dict(allocation.integration_metadata or {}),
        charge=_charge(allocation),
        failure_code=allocation.failure_code,
        failure_detail=allocation.failure_detail,
        teardown_proof=None if allocation.teardown_proof is None else TeardownProof(allocation.teardown_proof),
        receipt_id=allocation.receipt_id,
        correlation_id=allocation.correlation_id,
        created_at=allocation.created_at,
        deadline_at=allocation.deadline_at,
        placed_at=allocation.placed_at,
        activated_at=allocation.activated_at,
        failed_at=allocation.failed_at,
        releasing_at=allocation.releasing_at,
        retry_at=allocation.retry_at,
        lost_at=allocation.lost_at,
        released_at=allocation.released_at,
        revision=allocation.revision,
        etag=f"{allocation.generation}.{allocation.revision}",
        allowed_verbs=_verbs(state) if actions else [],
        allowed_actions=actions,
    )


def group_view(authority: Authority, group: AllocationGroup, members: list[Allocation]) -> AllocationGroupView:
    """A group for the caller; its etag changes with each of its allocations."""
    generation = sum(each.generation for each in members)
    revision = group.revision + sum(each.revision for each in members)
    actions = {action for each in members for action in _actions(authority, each)}
    return AllocationGroupView(
        id=group.id,
        tenant_id=group.tenant_id,
        project_id=group.project_id,
        name=group.name,
        same_node=group.same_node,
        status=state_of(each.status for each in members),
        allocations=[allocation_view(authority, each) for each in members],
        created_at=group.created_at,
        revision=group.revision,
        etag=f"{generation}.{revision}",
        allowed_actions=sorted(actions),
    )


def explanation_view(explanation: PlacementExplanation) -> ExplanationView:
    return ExplanationView(
        fits=explanation.fits,
        because=explanation.because,
        smallest_change=explanation.smallest_change,
        candidates=[
            CandidateView(region=each.region, machines=each.machines, because=each.because, change=each.change)
            for each in explanation.classes
        ],
    )


def occupancy_view(occupancy: Occupancy) -> OccupancyView:
    return msgspec.convert(occupancy, OccupancyView, from_attributes=True)


def _charge(allocation: Allocation) -> ChargeView:
    return ChargeView(
        price_minor_per_gpu_hour=allocation.price_minor_per_gpu_hour,
        currency=allocation.currency,
        price_revision=allocation.price_revision,
        started_at=allocation.activated_at,
        ended_at=allocation.releasing_at if allocation.activated_at is not None else None,
        rule=CLOCK_RULE,
    )


def _verbs(state: AllocationState) -> list[str]:
    if state is AllocationState.RELEASE_FAILED:
        return ["release", "retry"]
    return ["release"] if state in RELEASABLE else []


def _actions(authority: Authority, allocation: Allocation) -> list[str]:
    if not _verbs(AllocationState(allocation.status)):
        return []
    place = Place(Scope.PROJECT, allocation.tenant_id, allocation.project_id)
    return allowed(authority, place, ("allocation.release",))
