"""Rating: the one function that turns a quantity into money. Plans, charges and proofs all use it.

Amounts are integers of 10⁻⁶ minor unit ("micro"), quantities integers of 10⁻⁶ unit; there are no floats and no
fractions. `amount` is the price of everything from the first unit on, rounded down once. The price of a part is a
difference, `amount(after) - amount(before)`: however an interval is split, its parts add up to the same integer.
"""

from dataclasses import dataclass
from typing import Final

MICRO: Final = 1_000_000
HOUR_SECONDS: Final = 3600
CLOCK_RULE: Final = "charged from active until the release was requested"
"""When the clock of an allocation runs, as every read of it says."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Units beyond `above` (after the included ones) cost `minor` per `per` units, up to the next tier."""

    above: int
    minor: int


@dataclass(frozen=True, slots=True)
class Rate:
    """What units cost: `minor` for each `per` of them, the first `included` for nothing, less or more in tiers."""

    minor: int
    per: int
    included: int = 0
    tiers: tuple[Tier, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockTerms:
    """How a clock counts: in whole steps of `granularity_seconds`, and at least `minimum_seconds` once it runs."""

    granularity_seconds: int = 1
    minimum_seconds: int = 0


def amount(rate: Rate, quantity_micro: int) -> int:
    """What this quantity costs from the first unit on, in micro; it never falls when the quantity grows."""
    if quantity_micro < 0:
        raise ValueError("a quantity counts from zero")
    paid = max(0, quantity_micro - rate.included * MICRO)
    steps = (Tier(0, rate.minor), *rate.tiers)
    total = 0
    for step, after in zip(steps, (*steps[1:], None), strict=True):
        top = paid if after is None else min(paid, after.above * MICRO)
        total += max(0, top - step.above * MICRO) * step.minor
    return total // rate.per


def part(rate: Rate, before_micro: int, after_micro: int) -> int:
    """What the units between two cumulative quantities cost, in micro."""
    return amount(rate, after_micro) - amount(rate, before_micro)


def counted_seconds(terms: ClockTerms, elapsed_microseconds: int) -> int:
    """The seconds that a clock shows after this time: whole steps, rounded up; nothing before it runs."""
    if elapsed_microseconds <= 0:
        return 0
    step = terms.granularity_seconds * MICRO
    return max(terms.minimum_seconds, -(-elapsed_microseconds // step) * terms.granularity_seconds)


def gpu_rate(minor_per_gpu_hour: int) -> Rate:
    """The rate of capacity; its unit is the GPU-second."""
    return Rate(minor_per_gpu_hour, HOUR_SECONDS)


def hourly_minor(minor_per_gpu_hour: int, gpus: int) -> int:
    """What so many GPUs cost in one hour, in minor units; exact, since the price is per GPU and hour."""
    return amount(gpu_rate(minor_per_gpu_hour), gpus * HOUR_SECONDS * MICRO) // MICRO
