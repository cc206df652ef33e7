"""Compatibility: whether an app fits the capacity of a project, and if not, the smallest change that makes it fit.

The manifest says what the app requires; an offer is one or more allocations, each with its shape and its node. The
nodes determine the topology: one allocation; several allocations on one node, joined by the project's network there;
or several nodes. `NETWORK` says how far the network of each shape reaches: a slice's network ends at its node, so a
cluster of slices must be on one node.

The smallest change is searched and not guessed: every blocker proposes remedies, the remedies are tried on the offer in
the order of their number and then of their cost, and the first set that leaves no blocker is the answer. So the search
finds a single change that removes two blockers, and every proposal is known to fit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Final

from mooring.core.kernel.errors import Code, Refusal

Fact = bool | int | float | str


class CapacityShape(StrEnum):
    """What an allocation is made of."""

    BAREMETAL = "baremetal"
    GPU_SLICE = "gpu_slice"


class ShapeWanted(StrEnum):
    """What an app asks an allocation to be made of."""

    BAREMETAL = "baremetal"
    GPU_SLICE = "gpu_slice"
    ANY = "any"


class Topology(IntEnum):
    """How far the allocations of one instance are apart."""

    ONE_ALLOCATION = 1
    ONE_NODE = 2
    SEVERAL_NODES = 3


TOPOLOGY_MEANING: Final[Mapping[Topology, str]] = {
    Topology.ONE_ALLOCATION: "one allocation",
    Topology.ONE_NODE: "several allocations on one node, joined by the project's network",
    Topology.SEVERAL_NODES: "allocations on several nodes",
}
NETWORK: Final[Mapping[CapacityShape, Topology]] = {
    CapacityShape.BAREMETAL: Topology.SEVERAL_NODES,
    CapacityShape.GPU_SLICE: Topology.ONE_NODE,
}
"""How far the network of each shape reaches."""


class NeedKind(StrEnum):
    """How a need compares a fact."""

    EQUALS = "equals"
    AT_LEAST = "at_least"
    ONE_OF = "one_of"
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class Need:
    """A fact that every node of the instance must have, such as `rdma` or at least 80 of `gpu_memory_gib`."""

    fact: str
    kind: NeedKind
    value: Fact | tuple[Fact, ...]

    def met_by(self, facts: Mapping[str, Fact]) -> bool:
        """Whether these facts satisfy the need; an unknown fact does not."""
        have = facts.get(self.fact)
        if have is None:
            return False
        if self.kind is NeedKind.PRESENT:
            return have is not False
        if self.kind is NeedKind.AT_LEAST:
            return _is_number(have) and _is_number(self.value) and have >= self.value  # type: ignore[operator]
        choices = self.value if isinstance(self.value, tuple) else (self.value,)
        return any(_alike(have, each) for each in choices)

    def plain(self) -> dict[str, Any]:
        """The form in which a manifest and an allocation hold it."""
        return {"fact": self.fact, self.kind.value: list(self.value) if isinstance(self.value, tuple) else self.value}

    def __str__(self) -> str:
        if self.kind is NeedKind.AT_LEAST:
            return f"at least {self.value} {self.fact}"
        if self.value is True:
            return self.fact
        listed = " or ".join(str(each) for each in self.value) if isinstance(self.value, tuple) else str(self.value)
        return f"{self.fact} {listed}"


def need_of(plain: Mapping[str, Any]) -> Need:
    kind = next(kind for kind in NeedKind if kind in plain)
    value = plain[kind]
    return Need(plain["fact"], kind, tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What an app asks of its capacity."""

    requires_capacity_shape: ShapeWanted = ShapeWanted.ANY
    min_gpu_count: int = 0  # of all its allocations together
    requires_exclusive_node: bool = False
    multi_node: bool = False  # whether its members may run on several nodes
    needs: tuple[Need, ...] = ()
    shares_allocation: bool = False  # whether instances of other apps may use its allocations too
    members_max: int = 1  # the sum over its components; each member is in one allocation


@dataclass(frozen=True, slots=True)
class Capacity:
    """One allocation, or one that could be created."""

    shape: CapacityShape
    gpu_count: int
    node: str = "node"  # only compared for equality
    facts: Mapping[str, Fact] = field(default_factory=dict)


Offer = tuple[Capacity, ...]


class BlockedBy(StrEnum):
    """The rule that a blocker comes from."""

    SHAPE = "capacity_shape"
    EXCLUSIVE_NODE = "exclusive_node"
    GPU_COUNT = "gpu_count"
    SINGLE_MEMBER = "single_member"
    SINGLE_NODE = "single_node"
    SLICE_NETWORK = "slice_network"
    NEED = "need"


class OfferChangeKind(StrEnum):
    """The ways to change an offer, from the easiest to the hardest."""

    MORE_GPUS = "more_gpus"
    GPU_SLICE = "gpu_slice"
    ONE_NODE = "one_node"
    ONE_ALLOCATION = "one_allocation"
    FACT = "fact"
    EXCLUSIVE_NODE = "exclusive_node"
    BAREMETAL = "baremetal"


_COST: Final = {kind: cost for cost, kind in enumerate(OfferChangeKind)}


@dataclass(frozen=True, slots=True)
class OfferChange:
    kind: OfferChangeKind
    count: int = 0  # for MORE_GPUS: how many
    need: Need | None = None
    node: str = ""  # for ONE_NODE and ONE_ALLOCATION: the node to which everything moves

    def __str__(self) -> str:
        if self.kind is OfferChangeKind.MORE_GPUS:
            return f"{self.count} more GPU{'' if self.count == 1 else 's'}"
        if self.kind is OfferChangeKind.FACT:
            return f"a node with {self.need}"
        return _CHANGE_TEXT[self.kind]


_CHANGE_TEXT: Final = {
    OfferChangeKind.GPU_SLICE: "a gpu_slice allocation",
    OfferChangeKind.ONE_NODE: "single-node topology",
    OfferChangeKind.ONE_ALLOCATION: "a single allocation",
    OfferChangeKind.BAREMETAL: "a baremetal allocation",
    OfferChangeKind.EXCLUSIVE_NODE: "an exclusive node",
}


@dataclass(frozen=True, slots=True)
class Blocker:
    """One reason why an app does not fit."""

    rule: BlockedBy
    because: str
    remedies: tuple[OfferChange, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether an app fits, and if not, why, and the smallest change that would make it fit."""

    blockers: tuple[Blocker, ...] = ()
    changes: tuple[OfferChange, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the app can be launched into the offer without a change."""
        return not self.blockers

    @property
    def because(self) -> str:
        """Why it is blocked, in one sentence."""
        return "; ".join(blocker.because for blocker in self.blockers)

    @property
    def smallest_change(self) -> str:
        """What would make it fit, such as "1 more GPU and an exclusive node"."""
        if self.blockers and not self.changes:
            return "none: the app's requirements contradict each other"
        return " and ".join(str(change) for change in self.changes)

    def refusal(self) -> Refusal | None:
        """The refusal of this offer; None when the app fits."""
        if self.fits:
            return None
        return Refusal(
            Code.INCOMPATIBLE,
            f"{self.because}; what would help: {self.smallest_change}",
            {
                "blockers": [{"rule": each.rule.value, "because": each.because} for each in self.blockers],
                "smallest_change": self.smallest_change,
            },
        )


def topology_of(offer: Offer) -> Topology:
    if len({capacity.node for capacity in offer}) > 1:
        return Topology.SEVERAL_NODES
    return Topology.ONE_NODE if len(offer) > 1 else Topology.ONE_ALLOCATION


def fit(app: Compatibility, offer: Offer) -> Fit:
    """Whether the app fits into all allocations of the offer together."""
    if not offer:
        raise ValueError("an offer has at least one allocation")
    blockers = tuple(_blockers(app, offer))
    return Fit(blockers, _smallest(app, offer)) if blockers else Fit()


def best_fit(app: Compatibility, offers: Sequence[Offer]) -> Fit | None:
    """The fit of the first offer that fits, or of the one that needs the least change; None without any offer."""
    best: Fit | None = None
    for offer in offers:
        found = fit(app, offer)
        if found.fits:
            return found
        if best is None or _weight(found.changes) < _weight(best.changes):
            best = found
    return best


def apply_change(change: OfferChange, offer: Offer) -> Offer:
    if change.kind is OfferChangeKind.MORE_GPUS:
        return (replace(offer[0], gpu_count=offer[0].gpu_count + change.count), *offer[1:])
    if change.kind is OfferChangeKind.GPU_SLICE:
        return tuple(replace(each, shape=CapacityShape.GPU_SLICE) for each in offer)
    if change.kind in (OfferChangeKind.BAREMETAL, OfferChangeKind.EXCLUSIVE_NODE):
        return tuple(replace(each, shape=CapacityShape.BAREMETAL) for each in offer)
    if change.kind in (OfferChangeKind.ONE_NODE, OfferChangeKind.ONE_ALLOCATION):
        # Capacity that moves to a node gets the facts of that node.
        target = next((each for each in offer if each.node == change.node), offer[0])
        moved = tuple(replace(each, node=target.node, facts=target.facts) for each in offer)
        return moved if change.kind is OfferChangeKind.ONE_NODE else (_merged(moved),)
    need = change.need
    if need is None:
        raise ValueError("a change of a fact must name the need")
    value = need.value[0] if isinstance(need.value, tuple) else need.value
    return tuple(replace(each, facts={**each.facts, need.fact: value}) for each in offer)


def _blockers(app: Compatibility, offer: Offer) -> Iterator[Blocker]:
    topology = topology_of(offer)
    together = _best_node(app, offer) if topology > Topology.ONE_ALLOCATION else ""
    yield from _shape(app, offer)
    if (missing := app.min_gpu_count - sum(each.gpu_count for each in offer)) > 0:
        because = f"it needs {app.min_gpu_count} GPUs, {missing} more than the offer has"
        yield Blocker(BlockedBy.GPU_COUNT, because, (OfferChange(OfferChangeKind.MORE_GPUS, missing),))
    if topology > Topology.ONE_ALLOCATION and app.members_max == 1:
        because = "it has only one member, which runs in one allocation"
        yield Blocker(BlockedBy.SINGLE_MEMBER, because, (OfferChange(OfferChangeKind.ONE_ALLOCATION, node=together),))
    if topology is Topology.SEVERAL_NODES and app.members_max > 1 and not app.multi_node:
        remedies: tuple[OfferChange, ...] = (OfferChange(OfferChangeKind.ONE_NODE, node=together),)
        yield Blocker(BlockedBy.SINGLE_NODE, "its members must run on one node", remedies)
    if any(NETWORK[each.shape] < topology for each in offer):
        because = "slice networking does not span allocations on different nodes"
        remedies = (OfferChange(OfferChangeKind.ONE_NODE, node=together), OfferChange(OfferChangeKind.BAREMETAL))
        yield Blocker(BlockedBy.SLICE_NETWORK, because, remedies)
    for need in app.needs:
        if not all(need.met_by(each.facts) for each in offer):
            yield Blocker(BlockedBy.NEED, f"it needs {need}", (OfferChange(OfferChangeKind.FACT, need=need),))


def _shape(app: Compatibility, offer: Offer) -> Iterator[Blocker]:
    # A baremetal allocation has its node exclusively; a slice always shares its node.
    shapes = {each.shape for each in offer}
    if app.requires_exclusive_node and CapacityShape.GPU_SLICE in shapes:
        because = "it needs a node exclusively, and a gpu_slice shares its node"
        yield Blocker(BlockedBy.EXCLUSIVE_NODE, because, (OfferChange(OfferChangeKind.EXCLUSIVE_NODE),))
    wanted = app.requires_capacity_shape
    if wanted is not ShapeWanted.ANY and any(shape.value != wanted.value for shape in shapes):
        because = f"it runs only on {wanted}"
        yield Blocker(BlockedBy.SHAPE, because, (OfferChange(OfferChangeKind(wanted.value)),))


def _smallest(app: Compatibility, offer: Offer) -> tuple[OfferChange, ...]:
    """The fewest and cheapest changes that remove every blocker; empty when the requirements contradict each other."""
    best: tuple[OfferChange, ...] = ()
    frontier: list[tuple[OfferChange, ...]] = [()]
    seen: set[frozenset[OfferChange]] = set()
    while frontier:
        changes = frontier.pop()
        remedies = [remedy for each in _blockers(app, _changed(offer, changes)) for remedy in each.remedies]
        # Each missing fact needs one change that affects nothing else, so facts are added at the end and not searched.
        facts = [remedy for remedy in remedies if remedy.kind is OfferChangeKind.FACT]
        if len(facts) == len(remedies):
            answer = tuple(sorted((*changes, *facts), key=lambda each: _COST[each.kind]))
            if (not best or _weight(answer) < _weight(best)) and not any(_blockers(app, _changed(offer, answer))):
                best = answer
        for remedy in remedies:
            further = frozenset((*changes, remedy))
            if remedy.kind is not OfferChangeKind.FACT and further not in seen:
                seen.add(further)
                frontier.append((*changes, remedy))
    return best


def _best_node(app: Compatibility, offer: Offer) -> str:
    """The node that misses the fewest of the app's needs."""
    return min(offer, key=lambda each: (sum(not need.met_by(each.facts) for need in app.needs), each.node)).node


def _changed(offer: Offer, changes: Sequence[OfferChange]) -> Offer:
    for change in changes:
        offer = apply_change(change, offer)
    return offer


def _merged(offer: Offer) -> Capacity:
    """One allocation instead of several on one node; it is a slice if one of them is."""
    shape = CapacityShape.GPU_SLICE if any(each.shape is CapacityShape.GPU_SLICE for each in offer) else offer[0].shape
    return replace(offer[0], shape=shape, gpu_count=sum(each.gpu_count for each in offer))


def _weight(changes: Sequence[OfferChange]) -> tuple[int, int, int]:
    return len(changes), sum(_COST[each.kind] for each in changes), sum(each.count for each in changes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(one: Fact, other: Fact) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other
