"""What a run of a gate cost, by folder, beside what it may cost; a slow or busy machine is allowed for.

A budget is the sum of the durations of a folder's tests on two idle cores. Before and after the tests the same piece of
work is done on as many cores as there are workers: it takes `reference_seconds` on an idle machine, and as much longer
as the machine is slower or has other things to do. What was spent is divided by that factor before it is compared.

A folder over its budget is reported. The run fails if a folder, or the whole gate, is over by more than a quarter and
by more than five seconds: less than that is chance.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.gates import Gates

TOLERANCE = 1.25
CHANCE_SECONDS = 5.0
WORK = """
import time
begun = time.perf_counter()
total = 0
for number in range(6_000_000):
    total += number * number % 7
print(time.perf_counter() - begun)
"""


@dataclass(frozen=True)
class BudgetLine:
    """One row of the table that a run prints."""

    name: str
    spent: float
    budget: float | None

    @property
    def is_over(self) -> bool:
        return self.budget is None or self.spent > self.budget

    @property
    def fails(self) -> bool:
        budget = self.budget or 0.0
        return self.spent > budget * TOLERANCE and self.spent - budget > CHANCE_SECONDS

    def __str__(self) -> str:
        budget = "none" if self.budget is None else f"{self.budget:.0f}"
        return f"{self.spent:8.1f} {budget:>7}  {self.name}{'  OVER ITS BUDGET' if self.is_over else ''}"


def calibrate(workers: int) -> float:
    """The seconds that the fixed piece of work takes now, on average, when every worker's core does it."""
    command = [sys.executable, "-I", "-c", WORK]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    return sum(float(each.communicate()[0]) for each in running) / workers


def slowness(gates: Gates, measured: Sequence[float]) -> float:
    """How many times slower than idle this machine was; never below 1, so that a fast one hides nothing."""
    return max(1.0, *(each / gates.reference_seconds for each in measured))


def spent_by_folder(gates: Gates, gate: str, durations: Mapping[str, float]) -> dict[str, float]:
    """The seconds that the tests of each folder took."""
    spent: defaultdict[str, float] = defaultdict(float)
    for nodeid, seconds in durations.items():
        spent[gates.folder_of(nodeid, gate)] += seconds
    return spent


def compared(
    gates: Gates, gate: str, spent: Mapping[str, float], *, wall_seconds: float, factor: float
) -> list[BudgetLine]:
    """A line for each folder, the most expensive first, and one for the gate as a whole."""
    budgets = gates.gates[gate].folders
    names = sorted(spent, key=lambda name: -spent[name])
    lines = [BudgetLine(name, spent[name] / factor, budgets.get(name)) for name in names]
    return [*lines, BudgetLine("the whole gate, by the clock", wall_seconds / factor, gates.gates[gate].minutes * 60)]


def table(lines: Sequence[BudgetLine], factor: float) -> list[str]:
    """What the run prints about its cost."""
    head = f"   spent  budget  seconds on an idle machine; this one took {factor:.2f} times as long"
    return [head, *map(str, lines), *(f"too slow: {line.name}" for line in lines if line.fails)]
