"""Why a request does not fit, and the smallest change that would make it fit.

Candidates are grouped by region: how many machines have the GPU model, how many of them take no new allocations and
why, and how close the best of them comes. A proposed change was tried on the board first: another region, then fewer
GPUs. When nothing in the fleet would fit, the explanation says how much would have to become free.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.placement import BoardNode, PlacementBoard, PlacementRequest, suits

CLASSES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class CandidateClass:
    """The machines of one region with the right GPU model, and why none of them fits."""

    region: str
    machines: int
    because: str
    change: str  # what would make one of them fit; empty when nothing would


@dataclass(frozen=True, slots=True)
class PlacementExplanation:
    """Whether it fits now; if not, why, and the smallest change that would make it fit."""

    fits: bool
    because: str = ""
    smallest_change: str = ""
    classes: tuple[CandidateClass, ...] = ()


@dataclass(frozen=True, slots=True)
class AllowedChoices:
    """What the caller could request instead: the regions they may use, and the GPU counts of the SKU."""

    regions: tuple[str, ...] = ()
    gpu_counts: tuple[int, ...] = ()


def explain(
    board: PlacementBoard, requests: Sequence[PlacementRequest], choices: AllowedChoices
) -> PlacementExplanation:
    """Explain one allocation, or a group that must share a machine."""
    if _contradicts(requests):
        because = "whole machines do not share one machine"
        return PlacementExplanation(False, because, "a group without same_node")
    if board.place(requests) is not None:
        return PlacementExplanation(True, "it fits now")
    first = requests[0]
    if (bound := next((each.node_id for each in requests if each.node_id is not None), None)) is not None:
        return _on_node(board.get(bound), requests)
    classes = tuple(_classes(board, requests))
    because = "; ".join(f"{each.region}: {each.because}" for each in classes)
    if not classes:
        because = f"the fleet has no machine with {_kind(first)}"
    return PlacementExplanation(False, because, _smallest(board, requests, choices, classes), classes[:CLASSES_MAX])


def _contradicts(requests: Sequence[PlacementRequest]) -> bool:
    return len(requests) > 1 and any(each.shape is CapacityShape.BAREMETAL for each in requests)


def _on_node(entry: BoardNode | None, requests: Sequence[PlacementRequest]) -> PlacementExplanation:
    """Why the one machine that the requests must go to does not take them."""
    first = requests[0]
    if entry is None:
        return PlacementExplanation(False, "the node that it must share is retired", "that node, or a new launch")
    name = entry.node.name or entry.node.id
    if reason := _closed_because(entry, first):
        because = f"it must be on node {name}, which is {reason}"
        return PlacementExplanation(False, because, _reopened(Counter([reason])))
    wanted, free = sum(each.gpu_count for each in requests), entry.free_count(first.gpu_model)
    because = f"it must be on node {name}, which is full: {_gpus(wanted)} requested, {free} free there"
    return PlacementExplanation(False, because, f"{_gpus(wanted - free, 'more ')} on node {name}")


def _gpus(count: int, kind: str = "") -> str:
    return f"{count} {kind}GPU{'' if count == 1 else 's'}"


def _kind(request: PlacementRequest) -> str:
    return request.gpu_model or "no GPU"


def _classes(board: PlacementBoard, requests: Sequence[PlacementRequest]) -> Iterator[CandidateClass]:
    first = requests[0]
    by_region: dict[str, list[BoardNode]] = {}
    for entry in board:
        models = {slot.gpu_model for slot in entry.node.slots} or {""}
        if first.gpu_model in models and (first.regions is None or entry.node.region in first.regions):
            by_region.setdefault(entry.node.region, []).append(entry)
    for region, machines in sorted(by_region.items()):
        because, change = _nearest(machines, requests)
        yield CandidateClass(region, len(machines), because, change)


def _nearest(machines: list[BoardNode], requests: Sequence[PlacementRequest]) -> tuple[str, str]:
    """Why none of these machines fits, and what would have to change at the closest one."""
    first = requests[0]
    open_, closed = [], Counter[str]()
    for each in machines:
        reason = _closed_because(each, first)
        if reason:
            closed[reason] += 1
        else:
            open_.append(each)
    unusable = ", ".join(f"{count} {reason}" for reason, count in sorted(closed.items()))
    if not open_:
        return f"no machine takes it now ({unusable})", _reopened(closed)
    note = f" ({unusable})" if unusable else ""
    if first.shape is CapacityShape.BAREMETAL:
        return _whole_because(open_, first, note)
    wanted = sum(each.gpu_count for each in requests)
    most = max(each.free_count(first.gpu_model) for each in open_)
    free = sum(each.free_count(first.gpu_model) for each in open_)
    together = " together" if len(requests) > 1 else ""
    because = f"{wanted} GPUs on one machine are requested{together}, at most {most} are free on one, {free} in all"
    missing = wanted - most
    return because + note, f"{_gpus(missing, 'more ')} on one machine"


def _whole_because(machines: list[BoardNode], request: PlacementRequest, note: str) -> tuple[str, str]:
    fitting = [each for each in machines if len(each.node.slots) == request.gpu_count]
    if not fitting:
        sizes = sorted({len(each.node.slots) for each in machines})
        listed = ", ".join(str(size) for size in sizes)
        return f"its machines have {listed} GPUs, not {request.gpu_count}{note}", f"machines of {listed} GPUs"
    used = sum(1 for each in fitting if each.projects or each.exclusive)
    because = f"none of {len(fitting)} machines of {request.gpu_count} GPUs is idle: {used} in use"
    blocked = len(fitting) - used
    if blocked:
        because += f", {blocked} with blocked slots"
    return because + note, "an idle machine"


def _closed_because(entry: BoardNode, request: PlacementRequest) -> str:
    """Why a machine cannot be used, whatever is free on it; empty when it can."""
    if entry.node.refuses:
        return entry.node.refuses
    if not suits(entry.node, replace(request, regions=None)):
        missing = next(need for need in request.needs if not need.met_by(entry.node.facts))
        return f"without {missing}"
    owner = entry.owner()
    if owner is not None and owner != request.project_id:
        return "of another project"
    if entry.exclusive and request.shape is CapacityShape.GPU_SLICE:
        return "taken as a whole"
    return ""


def _reopened(closed: Counter[str]) -> str:
    reason = min(closed, key=lambda each: (-closed[each], each))
    if reason == "taken as a whole" or reason == "of another project":
        return "an idle machine"
    if reason.startswith("without "):
        return f"a machine with {reason.removeprefix('without ')}"
    return f"a machine that is not {reason}"


def _smallest(
    board: PlacementBoard,
    requests: Sequence[PlacementRequest],
    choices: AllowedChoices,
    classes: tuple[CandidateClass, ...],
) -> str:
    """First what fits on the board: another region, then fewer GPUs; then what would have to become free."""
    first = requests[0]
    if first.regions is not None:
        for region in choices.regions:
            elsewhere = [replace(each, regions=(region,)) for each in requests]
            if region not in first.regions and board.place(elsewhere) is not None:
                return f"region {region} has {_free_in(board, region, first)}"
    more = sorted(each.change for each in classes if each.change.endswith("on one machine"))
    if more and min(_number(each) for each in more) == 1:
        return "1 more GPU on one machine"
    for count in sorted((each for each in choices.gpu_counts if each < first.gpu_count), reverse=True):
        fewer = [replace(each, gpu_count=min(count, each.gpu_count)) for each in requests]
        if board.place(fewer) is not None:
            return f"{_gpus(count)} in place of {first.gpu_count}"
    if more:
        return min(more, key=_number)
    return next((each.change for each in classes if each.change), f"a machine with {_kind(first)}")


def _free_in(board: PlacementBoard, region: str, request: PlacementRequest) -> str:
    in_region = [each for each in board if each.node.region == region and each.takes(request.project_id)]
    if request.shape is CapacityShape.BAREMETAL:
        idle = sum(1 for each in in_region if each.whole_of() == request.gpu_model)
        return f"{idle} idle"
    return f"{sum(each.free_count(request.gpu_model) for each in in_region)} free"


def _number(change: str) -> int:
    return int(change.partition(" ")[0])
