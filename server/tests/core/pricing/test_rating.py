"""Rating: exact integers, parts that add up to the whole, tiers and included units, steps and minimums of a clock."""

import itertools
from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from mooring.core.pricing.rating import (
    MICRO,
    ClockTerms,
    Rate,
    Tier,
    amount,
    counted_seconds,
    gpu_rate,
    hourly_minor,
    part,
)


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    bounds = draw(st.lists(st.integers(1, 10**6), max_size=4, unique=True).map(sorted))
    tiers = tuple(Tier(each, draw(st.integers(0, 10**9))) for each in bounds)
    return Rate(
        draw(st.integers(0, 10**12)), draw(st.sampled_from([1, 7, 3600, 10**6])), draw(st.integers(0, 50)), tiers
    )


def exact(rate: Rate, quantity_micro: int) -> Fraction:
    """The same price by another way: each tier's own rate times its share of the units, as fractions."""
    units = max(Fraction(0), Fraction(quantity_micro, MICRO) - rate.included)
    price, cost = rate.minor, Fraction(0)
    edges = [*rate.tiers, Tier(1 << 200, 0)]
    low = 0
    for edge in edges:
        share = min(units, Fraction(edge.above)) - low
        if share <= 0:
            break
        cost += share * Fraction(price, rate.per)
        low, price = edge.above, edge.minor
    return cost * MICRO


@given(rates(), st.lists(st.integers(0, 10**13), max_size=8))
def test_however_an_interval_is_split_its_parts_add_up_to_the_exact_price_rounded_down_once(
    rate: Rate, cuts: list[int]
) -> None:
    points = [0, *sorted(cuts)]
    total = sum(part(rate, a, b) for a, b in itertools.pairwise(points))
    assert total == amount(rate, points[-1]) == exact(rate, points[-1]).__floor__()


@dataclass(frozen=True)
class Case:
    rate: Rate
    units: int
    micro: int


def test_prices_worked_by_hand() -> None:
    tiered = Rate(300, 10**6, included=1_000, tiers=(Tier(2_000, 200), Tier(10_000, 100)))
    cases = [
        Case(gpu_rate(250), 3600, 250 * MICRO),
        Case(gpu_rate(250), 1, 69_444),  # 250/3600 minor = 0.0694444… minor
        Case(gpu_rate(250), 7, 486_111),
        Case(tiered, 1_000, 0),
        Case(tiered, 1_001, 300),
        Case(tiered, 3_000, 600_000),
        Case(tiered, 13_000, 600_000 + 1_600_000 + 200_000),
    ]
    assert [amount(each.rate, each.units * MICRO) for each in cases] == [each.micro for each in cases]
    assert hourly_minor(250, 8) == 2000


def test_a_clock_counts_whole_steps_and_its_minimum_once_it_runs() -> None:
    minute = ClockTerms(granularity_seconds=60, minimum_seconds=300)
    found = [counted_seconds(minute, at) for at in (-1, 0, 1, 300 * MICRO, 300 * MICRO + 1, 361 * MICRO)]
    assert found == [0, 0, 300, 300, 360, 420]
    assert [counted_seconds(ClockTerms(), at) for at in (1, MICRO, MICRO + 1)] == [1, 1, 2]
