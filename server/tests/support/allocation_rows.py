"""Allocations, SKUs and machines as the tests of decisions begin with them."""

from dataclasses import replace
from typing import Any, Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.catalog.policy import Chain, Layer, Rules
from mooring.core.fleet.allocation import Allocation, AllocationWish, Asking, Holding, Terms, request_allocation
from mooring.core.fleet.allocation_reconcile import NodeFacts
from mooring.core.fleet.placement import Pick, Request, SlotSeen
from mooring.core.fleet.project_network import NetworkPlan, Networks, plan_network, pool_of
from mooring.core.kernel.decision import Context
from mooring.core.kernel.ids import Prefix

TERMS: Final = Terms("sku_1", "h100", "gpu_slice", "h100-80g", ["eu-1", "us-1"], [1, 2, 4, 8], 250, "EUR", 3, "offered")
WISH: Final = AllocationWish(CapacityShape.GPU_SLICE, "h100", 2)


def asking(home: tuple[str, str], rules: Rules | None = None, **changed: Any) -> Asking:
    """A project that asks, with a policy where one is given."""
    chain = Chain([(Layer.PROJECT, rules)] if rules is not None else [])
    return replace(Asking(*home, TERMS, chain, Holding(0, 0, 5), 3_600), **changed)


def requested(now: Context, home: tuple[str, str], wish: AllocationWish = WISH) -> Allocation:
    """An allocation that waits for its place."""
    return request_allocation(now, asking(home), wish).result


def node(now: Context, **changed: Any) -> NodeFacts:
    """A machine of eight GPUs."""
    facts = NodeFacts(now.mint(Prefix.NODE), "ready", "eu-1", "namespace", cpus=64, memory_bytes=512 << 30, slots=8)
    return replace(facts, **changed)


def pick(allocation: Allocation, there: NodeFacts) -> Pick:
    """The first slots of the machine."""
    wanted = Request(
        allocation.id, allocation.project_id, CapacityShape(allocation.shape), allocation.gpu_model,
        allocation.gpu_count,
    )  # fmt: skip
    slots = tuple(
        SlotSeen(f"slt_{index}", index, index // 4, allocation.gpu_model, True, revision=index)
        for index in range(allocation.gpu_count)
    )
    return Pick(wanted, there.id, slots)


def network(now: Context, allocation: Allocation, there: NodeFacts, seen: Networks | None = None) -> NetworkPlan:
    """A network on the machine, with one address."""
    home = (there.id, allocation.tenant_id, allocation.project_id)
    plan = plan_network(now, home, seen or Networks(), pool_of(None), 1, single=False)
    assert plan is not None
    return plan
