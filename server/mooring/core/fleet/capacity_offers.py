"""Offers: the capacity that a project has, and the capacity that it could have.

It has its active allocations. What it could have follows from the SKUs that policy allows and from the kinds of
machines in the fleet: machines with the same GPUs and the same facts are one kind. Whether such a machine is free at
the moment does not matter, for two reasons: a launch waits for its place, and a tenant must not learn how much others
occupy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mooring.core.catalog.compatibility import Capacity, CapacityShape, Compatibility, Fact, Offer
from mooring.core.catalog.policy import PolicyChain, PolicyRequest
from mooring.core.fleet.allocation import SkuTerms

TOGETHER_MAX: Final = 64
"""The maximum number of allocations in one offer."""


@dataclass(frozen=True, slots=True)
class MachineKind:
    """Machines that are equal to every app."""

    region: str
    gpu_model: str
    gpus: int  # of this model on each
    slots: int  # of all models on each
    machines: int
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeldCapacity:
    """An active allocation of the project, and whether an instance uses it already."""

    capacity: Capacity
    occupied: bool = False


@dataclass(frozen=True, slots=True)
class PossibleCapacity:
    """An allocation that the project could request, and how many equal ones it could have beside it."""

    sku: str
    capacity: Capacity
    on_one_node: int
    nodes: int


@dataclass(frozen=True, slots=True)
class ProjectCapacity:
    held: tuple[HeldCapacity, ...] = ()
    possible: tuple[PossibleCapacity, ...] = ()

    def offers_for(self, app: Compatibility, sku: str | None = None) -> tuple[Offer, ...]:
        """Every offer that is worth comparing with the app's needs; only those of `sku` where it is given."""
        held = [each.capacity for each in self.held if app.shares_allocation or not each.occupied]
        offers = list(_held_offers(app, held)) if sku is None else []
        # Kinds that differ only in facts the app does not ask about are one offer: a large fleet is a few offers.
        asked_facts = {need.fact for need in app.needs}
        by_facts: dict[tuple[object, ...], PossibleCapacity] = {}
        for each in self.possible:
            if sku is not None and each.sku != sku:
                continue
            facts = {name: value for name, value in each.capacity.facts.items() if name in asked_facts}
            relevant = replace(each, capacity=replace(each.capacity, facts=facts))
            key = (
                relevant.capacity.shape,
                relevant.capacity.gpu_count,
                relevant.on_one_node,
                tuple(sorted(facts.items())),
            )
            before = by_facts.get(key)
            by_facts[key] = relevant if before is None else replace(relevant, nodes=relevant.nodes + before.nodes)
        for number, possible in enumerate(by_facts.values()):
            offers += _possible_offers(app, possible, f"possible-{number}")
        return tuple(offers)


def possible_for(
    terms: Iterable[SkuTerms], kinds: Sequence[MachineKind], chain: PolicyChain
) -> tuple[PossibleCapacity, ...]:
    """What the SKUs and the machines make possible, as far as policy allows; the largest size of each SKU that fits."""
    found = []
    by_model: dict[str, list[MachineKind]] = {}
    for kind in kinds:
        by_model.setdefault(kind.gpu_model, []).append(kind)
    for sku in terms:
        regions = {each for each in sku.regions if chain.decide(PolicyRequest(region=each, sku=sku.slug)).allowed}
        shape = CapacityShape(sku.shape)
        for kind in by_model.get(sku.gpu_model, ()):
            if kind.region not in regions:
                continue
            count = _largest(shape, sku.allowed_gpu_counts, kind)
            if count:
                capacity = Capacity(shape, count, facts=kind.facts)
                found.append(PossibleCapacity(sku.slug, capacity, kind.gpus // count, kind.machines))
    return tuple(found)


def _largest(shape: CapacityShape, counts: Sequence[int], kind: MachineKind) -> int:
    """The most GPUs that one allocation can have on such a machine; baremetal is all of them or none."""
    if shape is CapacityShape.BAREMETAL:
        return kind.gpus if kind.gpus == kind.slots and kind.gpus in counts else 0
    return max((each for each in counts if each <= kind.gpus), default=0)


def _held_offers(app: Compatibility, held: Sequence[Capacity]) -> Iterator[Offer]:
    for each in held:
        yield (each,)
    if app.members_max == 1:
        return
    by_node: dict[str, list[Capacity]] = {}
    for each in held:
        by_node.setdefault(each.node, []).append(each)
    for on_node in by_node.values():
        if len(on_node) > 1:
            yield tuple(on_node[:TOGETHER_MAX])
    if app.multi_node and len(by_node) > 1:
        yield tuple(held[:TOGETHER_MAX])


def _possible_offers(app: Compatibility, possible: PossibleCapacity, node: str) -> Iterator[Offer]:
    one = replace(possible.capacity, node=node)
    yield (one,)
    wanted = min(app.members_max, TOGETHER_MAX, -(-app.min_gpu_count // one.gpu_count))
    if wanted > 1 and one.shape is CapacityShape.GPU_SLICE and possible.on_one_node > 1:
        yield (one,) * min(wanted, possible.on_one_node)
    if wanted > 1 and one.shape is CapacityShape.BAREMETAL and app.multi_node and possible.nodes > 1:
        yield tuple(replace(one, node=f"{node}-{each}") for each in range(min(wanted, possible.nodes)))
