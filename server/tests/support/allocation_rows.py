"""Allocations, SKUs and machines as the tests of decisions begin with them."""

from dataclasses import replace
from typing import Any, Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.catalog.policy import Layer, LayerRules, PolicyChain, PolicyRules
from mooring.core.fleet.allocation import (
    Allocation,
    AllocationContext,
    AllocationRequest,
    ProjectHolding,
    SkuTerms,
    request_allocation,
)
from mooring.core.fleet.allocation_reconcile import NodeFacts
from mooring.core.fleet.placement import PlacementPick, PlacementRequest, SlotSnapshot
from mooring.core.fleet.project_network import NetworkPlan, NodeNetworks, plan_network, pool_of
from mooring.core.kernel.decision import DecisionContext
from mooring.core.kernel.ids import Prefix

TERMS: Final = SkuTerms(
    "sku_1", "h100", "gpu_slice", "h100-80g", ["eu-1", "us-1"], [1, 2, 4, 8], 250, "EUR", 3, "offered"
)
REQUESTED: Final = AllocationRequest(CapacityShape.GPU_SLICE, "h100", 2)


def asking(home: tuple[str, str], rules: PolicyRules | None = None, **changed: Any) -> AllocationContext:
    """A project that asks, with a policy where one is given."""
    chain = PolicyChain([LayerRules(Layer.PROJECT, rules)] if rules is not None else [])
    return replace(AllocationContext(*home, TERMS, chain, ProjectHolding(0, 0, 5), 3_600), **changed)


def requested(now: DecisionContext, home: tuple[str, str], request: AllocationRequest = REQUESTED) -> Allocation:
    """An allocation that waits for its place."""
    return request_allocation(now, asking(home), request).result


def node(now: DecisionContext, **changed: Any) -> NodeFacts:
    """A machine of eight GPUs."""
    facts = NodeFacts(now.mint(Prefix.NODE), "ready", "eu-1", "namespace", cpus=64, memory_bytes=512 << 30, slots=8)
    return replace(facts, **changed)


def pick(allocation: Allocation, there: NodeFacts) -> PlacementPick:
    """The first slots of the machine."""
    wanted = PlacementRequest(
        allocation.id,
        allocation.project_id,
        CapacityShape(allocation.shape),
        allocation.gpu_model,
        allocation.gpu_count,
    )
    slots = tuple(
        SlotSnapshot(f"slt_{index}", index, index // 4, allocation.gpu_model, True, revision=index)
        for index in range(allocation.gpu_count)
    )
    return PlacementPick(wanted, there.id, slots)


def network(
    now: DecisionContext, allocation: Allocation, there: NodeFacts, seen: NodeNetworks | None = None
) -> NetworkPlan:
    """A network on the machine, with one address."""
    owner = {"tenant_id": allocation.tenant_id, "project_id": allocation.project_id}
    plan = plan_network(now, seen or NodeNetworks(), pool_of(None), 1, node_id=there.id, **owner, single=False)
    assert plan is not None
    return plan
