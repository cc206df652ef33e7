"""A budget for checking one document that a stranger wrote.

Everything that is done for the document has a price in steps; one step is about three nanoseconds of one processor. The
price depends on the document alone, so the same document gets the same answer on every machine and under any load.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from mooring.core.kernel.finding import Finding, error

STEPS_MAX: Final = 50_000_000
"""A sixth of a second. A manifest of 256 KiB, the most that is accepted, needs about two thirds of it."""
VALUE_STEPS_MAX: Final = 20_000_000
"""For a value that is checked by an author's schema: 60 ms, because it is checked while other requests wait."""
NODE_STEPS: Final = 500
"""The price of checking one value, without its pattern."""


class BudgetSpent(Exception):
    """The document is too expensive to check."""


@dataclass(slots=True)
class WorkBudget:
    """What is left of the steps for one document."""

    steps_max: int = STEPS_MAX
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.steps_max

    def spend(self, steps: int) -> None:
        """Pay for a piece of work before it is done."""
        self.left -= steps
        if self.left < 0:
            raise BudgetSpent(self.steps_max)


def until_spent(findings: Iterable[Finding], pointer: str = "") -> Iterator[Finding]:
    """The findings, and one more in place of what was not checked when the budget is spent."""
    try:
        yield from findings
    except BudgetSpent as spent:
        reason = f"checking it takes more than {spent} steps"
        yield error(pointer, "too_costly", reason, "use fewer fields, shorter lists and texts, or smaller repeats")
