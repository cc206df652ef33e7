"""Placement: which machine, and which of its slots, an allocation gets. A snapshot goes in, a plan comes out.

`baremetal` takes a whole idle machine. `gpu_slice` takes slots of one machine. Among the machines with enough free
slots it prefers, in this order: the fewest NUMA domains, a machine in use over an idle one, the fewest slots left over,
the first id. A group whose allocations share a network is placed as one: all on one machine, or not at all.

Placement does not scan the fleet. A `PlacementBoard` is the snapshot with an index: machines are grouped by region, GPU
model and, within those, by their free slots per NUMA domain (a `Figure`). There are few different figures however many
machines there are, so a decision compares figures and takes the first machine of the best one. A planned slot leaves
the board at once, so that one snapshot serves a thousand requests. The board only proposes: the database decides
whether a slot is still free, and a request that loses is placed again on a newer board.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from mooring.core.catalog.compatibility import CapacityShape, Fact, Need

SPREAD_CACHE: Final = 50_000
NO_FACTS: Final[Mapping[str, Fact]] = {}


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """A GPU of a machine, and whether it was free when the snapshot was taken."""

    id: str
    index: int
    numa: int
    gpu_model: str
    free: bool
    revision: int = 0
    memory_bytes: int = 0
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A machine at the time of the snapshot."""

    id: str
    region: str
    slots: tuple[SlotSnapshot, ...] = ()
    refuses: str = ""  # why it takes no new allocations; empty when it does
    facts: Mapping[str, Fact] = field(default_factory=dict)
    projects: frozenset[str] = frozenset()  # which projects have allocations on it
    exclusive: bool = False  # one allocation has the whole of it
    single_project: bool = False  # it cannot isolate projects from each other, so it takes one at a time
    name: str = ""  # for people


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What one allocation requests. `regions` None: any region. `node_id`: that node or none."""

    id: str
    project_id: str
    shape: CapacityShape
    gpu_model: str
    gpu_count: int
    regions: tuple[str, ...] | None = None
    needs: tuple[Need, ...] = ()
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementPick:
    """The node and slots for one allocation."""

    request: PlacementRequest
    node_id: str
    slots: tuple[SlotSnapshot, ...]


Plan = tuple[PlacementPick, ...]
Figure = tuple[bool, tuple[int, ...]]
"""The free capacity of a machine: whether it is idle, and its free slots per NUMA domain, largest first."""


@lru_cache(maxsize=SPREAD_CACHE)
def _score(figure: Figure, wanted: tuple[int, ...]) -> tuple[int, bool, int, int] | None:
    """How well such a machine fits all of `wanted`, lower is better; None when they do not fit."""
    idle, counts = figure
    left = dict(enumerate(counts))
    if sum(counts) < sum(wanted):
        return None
    domains, touched = 0, set[int]()
    for count in wanted:
        taken = _take(left, count)
        domains += len(taken)
        touched |= taken.keys()
        left = {numa: free - taken.get(numa, 0) for numa, free in left.items()}
    return domains, idle, sum(left.values()), sum(left[numa] for numa in touched)


def _take(free: Mapping[int, int], wanted: int) -> dict[int, int]:
    """How many slots to take from which domain: the fewest domains, and for the rest the tightest that fits."""
    taken: dict[int, int] = {}
    while wanted:
        rest = {numa: count for numa, count in free.items() if numa not in taken and count}
        tight = min(((count, numa) for numa, count in rest.items() if count >= wanted), default=None)
        if tight is None:
            numa = min(rest, key=lambda each: (-rest[each], each))
            taken[numa] = rest[numa]
            wanted -= rest[numa]
        else:
            taken[tight[1]] = wanted
            wanted = 0
    return taken


class _Shelf:
    """Machines of one region, GPU model and set of facts, in heaps by figure; the top is the first by id."""

    __slots__ = ("figures", "whole")

    def __init__(self) -> None:
        self.figures: dict[Figure, list[str]] = {}
        self.whole: dict[int, list[str]] = {}  # idle machines, by the number of their slots


@dataclass(slots=True)
class BoardNode:
    """A machine on the board: what is still free after everything that was planned so far."""

    node: NodeSnapshot
    free: dict[str, dict[int, list[SlotSnapshot]]]  # by model and NUMA domain, in the order of their index
    projects: frozenset[str]
    exclusive: bool
    kind: tuple[Fact | None, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether no allocation is on it, and every slot is free."""
        return not self.exclusive and not self.projects and self.free_count() == len(self.node.slots)

    def free_count(self, model: str | None = None) -> int:
        """The number of free slots, of one model or of all."""
        models = self.free if model is None else (model,)
        return sum(len(slots) for each in models for slots in self.free.get(each, {}).values())

    def figure(self, model: str) -> Figure:
        counts = (len(slots) for slots in self.free.get(model, {}).values())
        return self.idle, tuple(sorted((count for count in counts if count), reverse=True))

    def whole_of(self) -> str | None:
        """The GPU model of a machine that can be allocated whole; None when it is in use or has several models."""
        models = {slot.gpu_model for slot in self.node.slots}
        return None if not self.idle or len(models) > 1 else next(iter(models), "")

    def owner(self) -> str | None:
        """The project that has a single-project machine; None when any project may use it."""
        return min(self.projects) if self.node.single_project and self.projects else None

    def takes(self, project_id: str) -> bool:
        """Whether an allocation of this project may be placed on it at all."""
        return not self.node.refuses and not self.exclusive and self.owner() in (None, project_id)


class PlacementBoard:
    """The snapshot with its index. Only `claim` changes it; two boards of one snapshot decide alike."""

    def __init__(self, nodes: Iterable[NodeSnapshot], facts: Sequence[str] = ()) -> None:
        """`facts` names the facts that requests may ask about: machines that agree in them are of one kind."""
        self._facts = tuple(sorted(set(facts)))
        self._entries: dict[str, BoardNode] = {}
        self._shelves: dict[tuple[str, str, str | None], dict[tuple[Fact | None, ...], _Shelf]] = {}
        self._regions: set[str] = set()
        for node in sorted(nodes, key=lambda each: each.id):
            entry = _board_node(node, self._facts)
            self._entries[node.id] = entry
            self._regions.add(node.region)
            self._file(entry)

    def __iter__(self) -> Iterator[BoardNode]:
        return iter(self._entries.values())

    def get(self, node_id: str) -> BoardNode | None:
        return self._entries.get(node_id)

    def place(self, requests: Sequence[PlacementRequest]) -> Plan | None:
        """A plan for one allocation, or for a group that must share a machine; None when there is no room."""
        first = requests[0]
        if first.shape is CapacityShape.BAREMETAL:
            return self._place_whole(first) if len(requests) == 1 else None
        if any(each.shape is not CapacityShape.GPU_SLICE for each in requests):
            return None
        node_id = self._best_slice(tuple(requests))
        return None if node_id is None else self._picks(self._entries[node_id], requests)

    def claim(self, plan: Plan) -> None:
        """Take the slots of a plan off the board."""
        for pick in plan:
            entry = self._entries[pick.node_id]
            taken = {slot.id for slot in pick.slots}
            for model in {slot.gpu_model for slot in pick.slots}:
                domains = entry.free[model]
                for numa in {slot.numa for slot in pick.slots if slot.gpu_model == model}:
                    domains[numa] = [slot for slot in domains[numa] if slot.id not in taken]
            entry.projects |= {pick.request.project_id}
            entry.exclusive = entry.exclusive or pick.request.shape is CapacityShape.BAREMETAL
        for node_id in sorted({pick.node_id for pick in plan}):
            self._file(self._entries[node_id])

    def _place_whole(self, request: PlacementRequest) -> Plan | None:
        best: str | None = None
        if request.node_id is not None:
            entry = self._entries.get(request.node_id)
            best = request.node_id if entry is not None and takes_whole(entry, request) else None
        for shelf in self._shelves_for(request) if request.node_id is None else ():
            heap = shelf.whole.get(request.gpu_count, [])
            found = self._top(heap, request.gpu_model, None)
            if found is not None and (best is None or found < best):
                best = found
        if best is None:
            return None
        return (
            PlacementPick(request, best, tuple(sorted(self._entries[best].node.slots, key=lambda slot: slot.index))),
        )

    def _best_slice(self, requests: tuple[PlacementRequest, ...]) -> str | None:
        first = requests[0]
        alike = all(
            (each.gpu_model, each.project_id, each.regions, each.needs, each.node_id)
            == (first.gpu_model, first.project_id, first.regions, first.needs, first.node_id)
            for each in requests
        )
        if not alike or first.node_id is not None:
            return self._best_of_some(requests)
        wanted = tuple(sorted((each.gpu_count for each in requests), reverse=True))
        best: tuple[tuple[int, bool, int, int], str] | None = None
        for shelf in self._shelves_for(first):
            for figure, heap in shelf.figures.items():
                score = _score(figure, wanted)
                if score is None or (best is not None and score > best[0]):
                    continue
                found = self._top(heap, first.gpu_model, figure)
                if found is not None and (best is None or (score, found) < best):
                    best = score, found
        return None if best is None else best[1]

    def _best_of_some(self, requests: tuple[PlacementRequest, ...]) -> str | None:
        """The machine for a group whose requests differ, or for requests that name their node: these are scanned."""
        bound = {each.node_id for each in requests if each.node_id is not None}
        if len(bound) > 1:
            return None
        candidates = [self._entries[each] for each in bound if each in self._entries] if bound else list(self)
        best: tuple[tuple[int, bool, int, int], str] | None = None
        for entry in candidates:
            score = _score_of_some(entry, requests)
            if score is not None and (best is None or (score, entry.node.id) < best):
                best = score, entry.node.id
        return None if best is None else best[1]

    def _picks(self, entry: BoardNode, requests: Sequence[PlacementRequest]) -> Plan:
        """The slots for each request; the largest request chooses first, so that it gets the best domains."""
        free = {model: {numa: list(slots) for numa, slots in each.items()} for model, each in entry.free.items()}
        picks: dict[str, PlacementPick] = {}
        for request in sorted(requests, key=lambda each: (-each.gpu_count, each.id)):
            domains = free[request.gpu_model]
            chosen: list[SlotSnapshot] = []
            for numa, count in _take({numa: len(slots) for numa, slots in domains.items()}, request.gpu_count).items():
                chosen += domains[numa][:count]
                del domains[numa][:count]
            slots = tuple(sorted(chosen, key=lambda slot: slot.index))
            picks[request.id] = PlacementPick(request, entry.node.id, slots)
        return tuple(picks[request.id] for request in requests)

    def _file(self, entry: BoardNode) -> None:
        """Index a machine under its present figure; `_top` drops outdated entries when it meets them."""
        node = entry.node
        if node.refuses or entry.exclusive:
            return
        for model in entry.free:
            figure = entry.figure(model)
            if figure[1]:
                heapq.heappush(self._shelf(entry, model).figures.setdefault(figure, []), node.id)
        model_whole = entry.whole_of()
        if model_whole is not None:
            heapq.heappush(self._shelf(entry, model_whole).whole.setdefault(len(node.slots), []), node.id)

    def _shelf(self, entry: BoardNode, model: str) -> _Shelf:
        kinds = self._shelves.setdefault((entry.node.region, model, entry.owner()), {})
        return kinds.setdefault(entry.kind, _Shelf())

    def _shelves_for(self, request: PlacementRequest) -> Iterator[_Shelf]:
        regions = sorted(self._regions) if request.regions is None else request.regions
        for region in regions:
            for owner in (None, request.project_id):
                for kind, shelf in self._shelves.get((region, request.gpu_model, owner), {}).items():
                    if not request.needs or self._meets(kind, request.needs):
                        yield shelf

    def _meets(self, kind: tuple[Fact | None, ...], needs: tuple[Need, ...]) -> bool:
        facts = {name: fact for name, fact in zip(self._facts, kind, strict=True) if fact is not None}
        unknown = [need.fact for need in needs if need.fact not in self._facts]
        if unknown:
            raise ValueError(f"the board was built without the fact {unknown[0]}, which a request asks about")
        return all(need.met_by(facts) for need in needs)

    def _top(self, heap: list[str], model: str, figure: Figure | None) -> str | None:
        """The first machine of the heap whose entry is still valid; drops the outdated ones before it."""
        while heap:
            entry = self._entries[heap[0]]
            is_current = entry.whole_of() == model if figure is None else entry.figure(model) == figure
            if is_current and not entry.exclusive:
                return heap[0]
            heapq.heappop(heap)
        return None


def takes_whole(entry: BoardNode, request: PlacementRequest) -> bool:
    """Whether the whole machine can be given to this request."""
    return (
        entry.takes(request.project_id)
        and entry.whole_of() == request.gpu_model
        and len(entry.node.slots) == request.gpu_count
        and suits(entry.node, request)
    )


def suits(node: NodeSnapshot, request: PlacementRequest) -> bool:
    """Whether the region and the facts match the request."""
    if request.regions is not None and node.region not in request.regions:
        return False
    return all(need.met_by(node.facts) for need in request.needs)


def _score_of_some(entry: BoardNode, requests: tuple[PlacementRequest, ...]) -> tuple[int, bool, int, int] | None:
    if not all(entry.takes(each.project_id) and suits(entry.node, each) for each in requests):
        return None
    total = (0, entry.idle, 0, 0)
    for model in sorted({each.gpu_model for each in requests}):
        wanted = sorted((each.gpu_count for each in requests if each.gpu_model == model), reverse=True)
        score = _score(entry.figure(model), tuple(wanted))
        if score is None:
            return None
        total = (total[0] + score[0], total[1], total[2] + score[2], total[3] + score[3])
    return total


def _board_node(node: NodeSnapshot, facts: tuple[str, ...]) -> BoardNode:
    free: dict[str, dict[int, list[SlotSnapshot]]] = {}
    for slot in sorted(node.slots, key=lambda each: each.index):
        if slot.free:
            free.setdefault(slot.gpu_model, {}).setdefault(slot.numa, []).append(slot)
    kind = tuple(node.facts.get(name) for name in facts)
    return BoardNode(node, free, node.projects, node.exclusive, kind)
