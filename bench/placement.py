"""How many placement decisions one core makes in a second: `python -m bench.placement`.

Ten thousand machines of eight GPUs in four regions, some of them in use, and a thousand requests of every shape and
size, one after the other on one snapshot, each taken off the board when it is decided. Time is the process's own CPU
time. Building the board from the snapshot is measured apart.
"""

import argparse
import random
import sys
import time
from dataclasses import dataclass

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.placement import NodeSnapshot, PlacementBoard, PlacementRequest, SlotSnapshot

NODES = 10_000
REQUESTS = 1_000
SEED = 20_260_101
REGIONS = ("eu-1", "eu-2", "us-1", "us-2")
MODELS = ("h100-80g", "a100-40g")


@dataclass(frozen=True)
class PlacementResult:
    """The number of decisions and their CPU time."""

    nodes: int
    requests: int
    placed: int
    build_seconds: float
    decide_seconds: float

    @property
    def per_second(self) -> float:
        """Decisions in a second of CPU time."""
        return self.requests / max(self.decide_seconds, 1e-9)


def example_nodes(count: int, seed: int = SEED) -> list[NodeSnapshot]:
    """Machines of eight GPUs in two NUMA domains; two of five are in use, one in fifty takes nothing new."""
    chance = random.Random(seed)
    nodes = []
    for number in range(count):
        used = chance.choice((0, 0, 0, 1, 2, 3, 4, 5, 6, 7)) if chance.random() < 0.6 else 0
        taken = set(chance.sample(range(8), used))
        model = MODELS[number % len(MODELS)]
        slots = tuple(
            SlotSnapshot(f"slt-{number}-{index}", index, index // 4, model, index not in taken) for index in range(8)
        )
        nodes.append(
            NodeSnapshot(
                f"nod-{number:06}",
                REGIONS[number % 7 % len(REGIONS)],
                slots,
                refuses="draining" if chance.random() < 0.02 else "",
                projects=frozenset({"somebody"}) if taken else frozenset(),
            )
        )
    return nodes


def example_requests(count: int, seed: int = SEED) -> list[PlacementRequest]:
    """Requests of every size, a quarter of them for whole machines, half of them for one region."""
    chance = random.Random(seed + 1)
    requests = []
    for number in range(count):
        whole = chance.random() < 0.25
        requests.append(
            PlacementRequest(
                f"alc-{number:06}",
                f"prj-{number % 50}",
                CapacityShape.BAREMETAL if whole else CapacityShape.GPU_SLICE,
                chance.choice(MODELS),
                8 if whole else chance.choice((1, 1, 2, 4, 8)),
                (chance.choice(REGIONS),) if chance.random() < 0.5 else None,
            )
        )
    return requests


def measure(nodes: int = NODES, requests: int = REQUESTS) -> PlacementResult:
    """Build one board, and decide every request on it."""
    seen, wanted = example_nodes(nodes), example_requests(requests)
    begun = time.process_time()
    board = PlacementBoard(seen)
    platform = time.process_time()
    placed = 0
    for each in wanted:
        plan = board.place([each])
        if plan is not None:
            board.claim(plan)
            placed += 1
    return PlacementResult(nodes, requests, placed, platform - begun, time.process_time() - platform)


def main(arguments: list[str] | None = None) -> int:
    """Print the rates."""
    parser = argparse.ArgumentParser(prog="python -m bench.placement", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    options = parser.parse_args(arguments)
    found = measure(options.nodes, options.requests)
    sys.stdout.write(
        f"placement of {found.requests:,} requests on {found.nodes:,} nodes: {found.per_second:,.0f} decisions per "
        f"second and core, {found.placed:,} placed; the board was platform in {found.build_seconds * 1000:,.0f} ms\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
