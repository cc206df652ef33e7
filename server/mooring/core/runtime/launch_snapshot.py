"""What the evaluation of a launch reads: the request, and everything about app, project and capacity at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_trust import Trust
from mooring.core.catalog.compatibility import Capacity, CapacityShape, Fact
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.catalog.manifest import Manifest
from mooring.core.catalog.operating_mode import DEFAULT_MODE
from mooring.core.catalog.policy import PolicyChain
from mooring.core.fleet.allocation import Allocation, ProjectHolding, SkuTerms
from mooring.core.fleet.allocation_group import GroupWithAllocations
from mooring.core.fleet.capacity_offers import MachineKind
from mooring.core.fleet.placement import NodeSnapshot
from mooring.core.identity.service_account import ServiceAccount
from mooring.core.pricing.spending import SpendingSnapshot
from mooring.core.runtime.instance_snapshot import ClaimWatch
from mooring.core.runtime.launch_history import CircuitFacts, LaunchEstimate


class EvaluationPurpose(StrEnum):
    """What the capacity and the version are evaluated for."""

    LAUNCH = "launch"
    ADD = "add"
    UPGRADE = "upgrade"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """Where members go: existing allocations, or new capacity to request."""

    allocations: tuple[str, ...] = ()
    sku: str | None = None
    shape: CapacityShape | None = None
    gpu_count: int | None = None
    region: str | None = None
    keep_allocations: bool = False

    def plain(self) -> dict[str, Any]:
        """The stored form; adding members uses it as the default."""
        values = {
            "allocations": list(self.allocations),
            "sku": self.sku,
            "shape": self.shape and self.shape.value,
            "gpu_count": self.gpu_count,
            "region": self.region,
            "keep_allocations": self.keep_allocations,
        }
        return {name: value for name, value in values.items() if value}


def placement_of(plain: Mapping[str, Any]) -> PlacementSpec:
    shape = plain.get("shape")
    return PlacementSpec(
        allocations=tuple(plain.get("allocations", ())),
        sku=plain.get("sku"),
        shape=None if shape is None else CapacityShape(shape),
        gpu_count=plain.get("gpu_count"),
        region=plain.get("region"),
        keep_allocations=bool(plain.get("keep_allocations")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    app: str
    name: str
    version: str | None = None
    channel: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    topology: Mapping[str, int] = field(default_factory=dict)
    placement: PlacementSpec = field(default_factory=PlacementSpec)
    service_account_id: str | None = None
    operating_mode: str = DEFAULT_MODE[0].value
    control_plane_scope: str = DEFAULT_MODE[1].value
    topology_mode: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)  # variable → name of a secret of the project


@dataclass(frozen=True, slots=True)
class TargetAllocation:
    """An existing allocation and whether members of other instances use it."""

    allocation: Allocation
    facts: Mapping[str, Fact] = field(default_factory=dict)
    taken: bool = False  # members of another instance use it
    shared: bool = False  # and all of them allow sharing

    def capacity(self, group: GroupWithAllocations | None = None) -> Capacity:
        """The allocation as `compatibility` sees it; without a node it counts as on its group's node, or alone."""
        node = self.allocation.node_id or self.allocation.wanted_node_id or self.allocation.id
        if group is not None and self.allocation.group_id == group.group.id:
            node = next((each.node_id for each in group.allocations if each.node_id is not None), group.group.id)
        return Capacity(CapacityShape(self.allocation.shape), self.allocation.gpu_count, node, self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSnapshot:
    """Everything that the evaluation of a launch reads, at one moment."""

    tenant_id: str
    project_id: str
    app: App
    request: LaunchRequest
    now: datetime
    version: AppVersion | None
    manifest: Manifest | None
    entitlement: Entitlement | None
    policy: PolicyChain  # global, tenant and project
    artifacts: Sequence[tuple[Artifact, Trust]] = ()
    target_allocations: Mapping[str, TargetAllocation] = field(default_factory=dict)  # the named ones that exist
    terms: SkuTerms | None = None  # of the requested SKU
    shelf: Sequence[SkuTerms] = ()  # every SKU on offer
    kinds: Mapping[str, Sequence[Capacity]] = field(
        default_factory=dict
    )  # SKU slug → the kinds of machines that offer it
    holding: ProjectHolding = field(default_factory=lambda: ProjectHolding(0, 0, 0))
    spending: SpendingSnapshot | None = None  # None if nothing limits what it may spend
    place_seconds: int = 3_600
    circuit: CircuitFacts | None = None
    account: ServiceAccount | None = None  # the operator account
    account_has_key: bool = True  # whether any adapter can sign in with it
    secret_names: frozenset[str] = frozenset()  # the named secrets that the project has
    name_taken: bool = False
    open_instances: int = 0
    expected: LaunchEstimate = field(default_factory=LaunchEstimate)
    purpose: EvaluationPurpose = EvaluationPurpose.LAUNCH
    current_allocations: Sequence[TargetAllocation] = ()  # allocations of the instance's current members
    group: GroupWithAllocations | None = None  # the same-node group of those allocations
    adding: int = 0  # number of members to add
    machines: Sequence[MachineKind] = ()  # the machines that take work, by kind
    home: NodeSnapshot | None = None  # the machine of `home_node_id`, unless it is retired
    fleet: Sequence[NodeSnapshot] | None = None  # only of a plan: every machine as it is now
    adapter: ClaimWatch = field(default_factory=ClaimWatch)  # only of a plan: when one last used the operator account
    claim_lease: timedelta = timedelta(seconds=60)

    @property
    def chain(self) -> PolicyChain:
        """The policy, narrowed by the entitlement."""
        return self.policy if self.entitlement is None else self.policy.narrowed(*self.entitlement.layer)

    @property
    def home_node_id(self) -> str | None:
        """The node that further slices must join, because the network of the current ones ends there."""
        if self.purpose is not EvaluationPurpose.ADD:
            return None
        current = (each.allocation for each in self.current_allocations)
        return next((each.node_id for each in current if each.shape == CapacityShape.GPU_SLICE and each.node_id), None)

    @property
    def is_new(self) -> bool:
        """Whether this creates an instance."""
        return self.purpose is EvaluationPurpose.LAUNCH
