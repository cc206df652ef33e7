"""Whether new allocations find a place: now, on the machines as they are, and at all, if nobody else used them.

Both questions go to the `PlacementBoard`, which also places real requests, so that a forecast and a placement cannot
follow different rules. The second question needs no snapshot of the fleet: machines that are equal to the requests are
counted (`MachineKind`), and a board of idle ones is as large as the requests need.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mooring.core.catalog.compatibility import CapacityShape, need_of
from mooring.core.catalog.policy import PolicyChain, PolicyRequest
from mooring.core.fleet.allocation import Allocation, AllocationRequest, SkuTerms
from mooring.core.fleet.capacity_offers import MachineKind
from mooring.core.fleet.placement import NodeSnapshot, PlacementBoard, PlacementRequest, SlotSnapshot
from mooring.core.fleet.placement_explanation import AllowedChoices, PlacementExplanation, explain


@dataclass(frozen=True, slots=True)
class PlacementBatch:
    """New allocations that are requested at once; `same_node`: all on one machine or none."""

    requests: tuple[PlacementRequest, ...]
    same_node: bool

    @property
    def facts(self) -> tuple[str, ...]:
        """The facts of machines that the requests ask about."""
        return tuple(sorted({need.fact for each in self.requests for need in each.needs}))


def placement_request(allocation: Allocation, node_id: str | None = None) -> PlacementRequest:
    """What an allocation that waits for its place requests; `node_id`: the machine of its group."""
    return PlacementRequest(
        allocation.id,
        allocation.project_id,
        CapacityShape(allocation.shape),
        allocation.gpu_model,
        allocation.gpu_count,
        tuple(allocation.regions),
        tuple(need_of(each) for each in allocation.needs),
        allocation.wanted_node_id or node_id,
    )


def placement_batch(
    project_id: str, terms: SkuTerms, request: AllocationRequest, *, regions: Sequence[str], count: int, same_node: bool
) -> PlacementBatch:
    """The same for allocations that do not exist yet; the request says how many GPUs each of them has."""
    if request.gpu_count is None:
        raise ValueError("the number of GPUs is decided before a place is looked for")
    one = PlacementRequest(
        "",
        project_id,
        request.shape,
        terms.gpu_model,
        request.gpu_count,
        tuple(regions),
        request.needs,
        request.node_id,
    )
    return PlacementBatch(tuple(replace(one, id=f"request-{number}") for number in range(count)), same_node)


def allowed_choices(terms: SkuTerms, chain: PolicyChain) -> AllowedChoices:
    """What could be requested of a SKU instead: its regions as far as policy allows, and its sizes."""
    regions = (
        each for each in sorted(terms.regions) if chain.decide(PolicyRequest(region=each, sku=terms.slug)).allowed
    )
    return AllowedChoices(tuple(regions), tuple(terms.allowed_gpu_counts))


def explain_batch(board: PlacementBoard, batch: PlacementBatch, choices: AllowedChoices) -> PlacementExplanation:
    """Whether the board has room for all of them, and if not, why; what fits is taken off the board."""
    units = [batch.requests] if batch.same_node else [(each,) for each in batch.requests]
    for number, unit in enumerate(units):
        plan = board.place(unit)
        if plan is None:
            answer = explain(board, unit, choices)
            return replace(answer, because=f"{number} of {len(units)} fit; {answer.because}") if number else answer
        board.claim(plan)
    return PlacementExplanation(True, "it fits now")


def idle_board(kinds: Iterable[MachineKind], facts: Sequence[str], machines_max: int) -> PlacementBoard:
    """A board of the machines that there are, all of them idle; of equal ones at most `machines_max`."""
    nodes = [
        _idle_node(kind, f"{number}-{copy}")
        for number, kind in enumerate(equal_machines(kinds, facts))
        for copy in range(min(kind.machines, machines_max))
    ]
    return PlacementBoard(nodes, facts)


def equal_machines(kinds: Iterable[MachineKind], facts: Sequence[str]) -> list[MachineKind]:
    """The kinds, where those that differ only in other facts are one."""
    found: dict[tuple[object, ...], MachineKind] = {}
    for kind in kinds:
        asked = {name: kind.facts[name] for name in facts if name in kind.facts}
        key = (kind.region, kind.gpu_model, kind.gpus, kind.slots, tuple(asked.items()))
        machines = kind.machines + (found[key].machines if key in found else 0)
        found[key] = replace(kind, facts=asked, machines=machines)
    return list(found.values())


def idle_but_for(node: NodeSnapshot, gpus_taken: int) -> NodeSnapshot:
    """The machine as if it took work and nobody but the holder of so many GPUs used it."""
    slots = tuple(replace(slot, free=number >= gpus_taken) for number, slot in enumerate(node.slots))
    return replace(node, slots=slots, refuses="", exclusive=False, single_project=False)


def _idle_node(kind: MachineKind, name: str) -> NodeSnapshot:
    return NodeSnapshot(name, kind.region, tuple(_slots(kind, name)), facts=kind.facts)


def _slots(kind: MachineKind, name: str) -> Iterator[SlotSnapshot]:
    for index in range(kind.slots):
        model = kind.gpu_model if index < kind.gpus else f"not {kind.gpu_model}"
        yield SlotSnapshot(f"{name}-{index}", index, 0, model, free=True)
