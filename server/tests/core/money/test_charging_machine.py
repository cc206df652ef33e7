"""Charging against an oracle: whatever happens, and however often hours are settled, the ledger shows the exact price.

The machine launches, releases and loses allocations, announces prices, reports usage on time and late, lets the log
arrive late, and settles hours in any order, again and again. The oracle reads the log alone and computes with
fractions.
"""

import os
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from mooring.core.money.charge import (
    HOUR,
    Counter,
    MeteredUsage,
    Posting,
    RatedLine,
    due_lines,
    postings_of,
    quantity_micro,
    target_lines,
)
from mooring.core.money.interval import LogStep, MeteredAllocation
from mooring.core.pricing.meter import Billing
from mooring.core.pricing.price import Item, Price
from server.tests.support.money_rows import START, log, price, usage
from server.tests.support.postgres import SOAK
from tools.gates import ENVIRONMENT, SYSTEM

IS_SYSTEM = os.environ.get(ENVIRONMENT) == SYSTEM
RUNS = 50_000 if SOAK else 2_000 if IS_SYSTEM else 200
HOURS = 12


class Charging(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.prices = [price("p0")]
        self.tokens = price(
            "t0",
            7,
            item=Item.UNIT.value,
            item_key="app/tokens",
            per=1000,
            included=40,
            tiers=[{"above": 900, "minor": 5}],
        )
        self.allocations: dict[str, MeteredAllocation] = {}
        self.usage: list[MeteredUsage] = []
        self.lines: defaultdict[datetime, list[RatedLine]] = defaultdict(list)
        self.postings: list[Posting] = []

    @rule(seconds=st.integers(1, 5000), micro=st.integers(0, 999_999))
    def time_passes(self, seconds: int, micro: int) -> None:
        self.now = min(self.now + timedelta(seconds=seconds, microseconds=micro), START + (HOURS - 1) * HOUR)

    @rule(gpus=st.sampled_from([1, 2, 8]))
    def launch(self, gpus: int) -> None:
        name = f"alc_{len(self.allocations)}"
        steps = (LogStep(0, "requested", self.now), LogStep(1, "active", self.now))
        self.allocations[name] = MeteredAllocation(name, "ten_a", "prj_a", gpus, self.prices[0], steps)

    @precondition(lambda self: self.allocations)
    @rule(data=st.data(), end=st.sampled_from(["released", "release_failed"]), late=st.integers(0, 4000))
    def release_or_lose(self, data: st.DataObject, end: str, late: int) -> None:
        """The request comes into the log late, up to an hour after it was made."""
        mine = self.allocations[data.draw(st.sampled_from(sorted(self.allocations)))]
        if len(mine.log) == 2:
            at = max(mine.log[1].occurred_at, self.now - timedelta(seconds=late))
            steps = (*mine.log, LogStep(2, "releasing", at), LogStep(3, end, self.now))
            self.allocations[mine.id] = replace(mine, log=steps)

    @rule(minor=st.integers(0, 10**6), seconds=st.integers(1, 20_000), granularity=st.sampled_from([1, 1, 60]))
    def announce_a_price(self, minor: int, seconds: int, granularity: int) -> None:
        since = self.now + timedelta(seconds=seconds)
        if all(each.existing_from is None or each.existing_from < since for each in self.prices):
            name = f"p{len(self.prices)}"
            self.prices.append(price(name, minor, existing_from=since, granularity_seconds=granularity))

    @rule(quantity=st.integers(0, 10**9), covered=st.booleans())
    def report_usage(self, quantity: int, covered: bool) -> None:
        billing = Billing.COVERED if covered else Billing.CHARGED
        seconds = (self.now - START).total_seconds()
        made = usage(f"use_{len(self.usage):03}", self.tokens, str(Decimal(quantity) / 10**6), seconds, billing)
        self.usage.append(made)

    @rule(hours=st.lists(st.integers(0, HOURS - 1), max_size=4))
    def settle(self, hours: list[int]) -> None:
        """Workers settle closed hours, in any order and again."""
        for number in hours:
            if START + (number + 1) * HOUR <= self.now:
                self._settle(START + number * HOUR)

    def _settle(self, hour: datetime) -> None:
        within = [each for each in self.usage if hour <= each.created_at < hour + HOUR]
        charged = (each for each in self.usage if each.created_at < hour and each.billing == "charged")
        before = {Counter("prj_a", "t0"): sum(quantity_micro(each.quantity) for each in charged)}
        target = target_lines(hour, self.allocations.values(), {"sku_1": self.prices}, within, before)
        due = due_lines(target, self.lines[hour])
        self.postings += postings_of(due)
        self.lines[hour] += due
        assert due_lines(target, self.lines[hour]) == []

    @invariant()
    def every_posting_is_balanced(self) -> None:
        assert all(sum(micro for _, micro in each.entries) == 0 for each in self.postings)

    def teardown(self) -> None:
        """After everything was settled once more, the ledger shows what the oracle says, to the last micro."""
        self.now = START + HOURS * HOUR
        for number in range(HOURS):
            self._settle(START + number * HOUR)
        charged: defaultdict[str, int] = defaultdict(int)
        for line in (line for lines in self.lines.values() for line in lines):
            charged[line.source_id] += line.micro
        for each in self.allocations.values():
            assert charged[each.id] == self._oracle(each)
        assert sum(charged[each.id] for each in self.usage) == self._oracle_of_usage()
        assert sum(each.micro for each in self.postings) == sum(charged.values())

    def _oracle(self, mine: MeteredAllocation) -> int:
        """Walk through the seconds at which something changes; every price counts from the start of the clock."""
        start = next(step.occurred_at for step in mine.log if step.target == "active")
        ends = [step.occurred_at for step in mine.log if step.target == "releasing"]
        end = min([*ends, START + HOURS * HOUR])
        total, current, since = 0, self.prices[0], start
        changes = [(each.existing_from, each) for each in self.prices[1:] if each.existing_from is not None]
        for at, following in [*changes, (end, current)]:
            if at <= start:
                continue
            until = min(at, end)
            if until > since:
                total += _exact(current, mine.gpu_count, until - start) - _exact(current, mine.gpu_count, since - start)
            current, since = following, until
        return total

    def _oracle_of_usage(self) -> int:
        units = sum((Fraction(each.quantity) for each in self.usage if each.billing == "charged"), Fraction(0))
        paid = max(Fraction(0), units - 40)
        cost = min(paid, Fraction(900)) * Fraction(7, 1000) + max(Fraction(0), paid - 900) * Fraction(5, 1000)
        return (cost * 10**6).__floor__()


def _exact(of: Price, gpus: int, elapsed: timedelta) -> int:
    """The price of so much time as a fraction, rounded down once."""
    seconds = Fraction(elapsed // timedelta(microseconds=1), 10**6)
    counted = (seconds / of.granularity_seconds).__ceil__() * of.granularity_seconds
    return (Fraction(of.minor, 3600) * counted * gpus * 10**6).__floor__()


def test_the_ledger_shows_the_exact_price_whatever_happens() -> None:
    bounds = settings(max_examples=RUNS, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Charging, settings=bounds)


def test_settling_an_hour_again_books_nothing_and_what_comes_late_is_a_correction() -> None:
    first = price("p0", 3600)
    running = MeteredAllocation("alc_1", "ten_a", "prj_a", 1, first, log(("active", 0)))
    target = target_lines(START, [running], {"sku_1": [first]}, [], {})
    assert [(each.micro, each.quantity_micro) for each in target] == [(3600_000_000, 3600_000_000)]
    assert due_lines(target, target) == []
    ended = replace(running, log=log(("active", 0), ("releasing", 1800)))
    late = due_lines(target_lines(START, [ended], {"sku_1": [first]}, [], {}), target)
    assert [each.micro for each in late] == [-1800_000_000]
    assert [each.micro for each in due_lines([], [*target, *late])] == [-1800_000_000]
