"""Everything that can happen to money, as rules of one state machine, and an oracle that knows nothing of charging.

The machine launches, grows, releases, loses and writes off allocations, announces prices, sets contracts, attaches and
detaches a project, reports usage on time, again and in any order, lets the log arrive late, corrects by hand, closes
hours, and settles them in any order by workers that die. Where rows are kept is left to `Books`: in memory, or in
PostgreSQL. The oracle reads the log and the reported usage alone and computes with fractions.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from mooring.core.money.charge import HOUR, MeteredUsage
from mooring.core.money.interval import LogStep, MeteredAllocation
from mooring.core.pricing.meter import Billing
from mooring.core.pricing.price import Item, Price
from server.tests.support.money_rows import START, price
from tools.soak import is_soak
from tools.soak import seed as of_soak

HOURS: Final = 12
RUNS_AT_ONCE: Final = 2_000
OWNER, GUEST = "owner", "guest"
"""The project that owns the shared instance, and one of the same tenant that attaches to it."""


@dataclass(frozen=True)
class Names:
    """The ids that the rows of a run have."""

    tenant: str = "ten_a"
    projects: Mapping[str, str] = field(default_factory=dict)

    def project(self, which: str) -> str:
        return self.projects.get(which, which)


class Books(ABC):
    """Where the rows are, and how hours are settled."""

    names: Names = Names()

    @abstractmethod
    def put_price(self, made: Price) -> None: ...

    @abstractmethod
    def put_allocation(self, mine: MeteredAllocation) -> None:
        """Store it with its log; what is stored of it already is replaced."""

    @abstractmethod
    def put_usage(self, made: MeteredUsage, attached: bool) -> None:
        """Store it once, however often it is reported."""

    @abstractmethod
    def settle(self, hour: datetime, dies_after: int | None) -> None:
        """A worker settles the hour; it dies after so many statements if a number is given."""

    @abstractmethod
    def correct(self, choose: Callable[[int], int], micro: int) -> int:
        """Correct one of the booked transactions by hand; returns by how much, 0 if it was refused."""

    @abstractmethod
    def charged(self) -> Mapping[str, int]:
        """What was charged for each allocation and usage record."""

    @abstractmethod
    def owed(self) -> Mapping[str, int]:
        """What each project owes by the entries of the ledger."""

    @abstractmethod
    def check(self) -> None:
        """What must hold of the books at any time."""

    @abstractmethod
    def end(self) -> None:
        """After the last step of a run, when everything is settled."""


class ChargingMachine(RuleBasedStateMachine):
    """The rules; a test sets `open_books`."""

    open_books: Callable[[], Books]
    played = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).played += 1
        self.books = type(self).open_books()
        self.now = START
        self.list = [price("skp_0")]
        self.contract: list[Price] = []
        tiers = [{"above": 900, "minor": 5}]
        of_app = {"item": Item.UNIT.value, "item_key": "app/tokens", "per": 1000, "included": 40, "tiers": tiers}
        self.tokens = price("prc_t0", 7, **of_app)
        for each in (*self.list, self.tokens):
            self.books.put_price(each)
        self.allocations: dict[str, MeteredAllocation] = {}
        self.usage: list[MeteredUsage] = []
        self.attached = self.was_attached = False
        self.by_hand = 0
        self.closed = 0

    @rule(seconds=st.integers(1, 5000), micro=st.integers(0, 999_999))
    def time_passes(self, seconds: int, micro: int) -> None:
        self.now = min(self.now + timedelta(seconds=seconds, microseconds=micro), START + (HOURS - 1) * HOUR)

    # Capacity ---------------------------------------------------------------------------------------------------------

    @rule(gpus=st.sampled_from([1, 2, 8]), which=st.sampled_from([OWNER, GUEST]), count=st.sampled_from([1, 1, 3]))
    def launch_or_grow(self, gpus: int, which: str, count: int) -> None:
        """An allocation, or several at once, as an app that grows wants them."""
        for _ in range(count):
            steps = (LogStep(0, "requested", self.now), LogStep(1, "provisioning", self.now))
            self._new(gpus, which, (*steps, LogStep(2, "active", self.now)))

    @rule(gpus=st.sampled_from([1, 4]))
    def creation_fails(self, gpus: int) -> None:
        states = ("requested", "provisioning", "failed", "releasing", "released")
        self._new(gpus, OWNER, tuple(LogStep(number, state, self.now) for number, state in enumerate(states)))

    def _new(self, gpus: int, which: str, log: tuple[LogStep, ...]) -> None:
        name = f"alc_{len(self.allocations):03}"
        of = [each for each in self.contract if each.valid_from <= self.now]
        names = self.books.names
        place = (names.tenant, names.project(which))
        self.allocations[name] = MeteredAllocation(name, *place, gpus, of[-1] if of else self.list[0], log)
        self.books.put_allocation(self.allocations[name])

    @precondition(lambda self: self.allocations)
    @rule(data=st.data(), how=st.sampled_from(["release", "teardown_fails", "write_off"]), late=st.integers(0, 4000))
    def release_or_write_off(self, data: st.DataObject, how: str, late: int) -> None:
        """The request comes into the log late, up to an hour after it was made."""
        mine = self.allocations[data.draw(st.sampled_from(sorted(self.allocations)))]
        if len(mine.log) != 3:
            return
        at = max(mine.log[2].occurred_at, self.now - timedelta(seconds=late))
        ends = {"release": ("released",), "teardown_fails": ("release_failed", "releasing"), "write_off": ("released",)}
        steps = [LogStep(3, "releasing", at)]
        steps += [LogStep(4 + number, state, self.now) for number, state in enumerate(ends[how])]
        self.allocations[mine.id] = replace(mine, log=(*mine.log, *steps))
        self.books.put_allocation(self.allocations[mine.id])

    @rule()
    def node_is_lost_or_cut_off(self) -> None:
        """A node that does not answer writes nothing into the log of its allocations, so nothing changes."""

    # Prices -----------------------------------------------------------------------------------------------------------

    @rule(minor=st.integers(0, 10**6), seconds=st.integers(1, 20_000), granularity=st.sampled_from([1, 1, 60]))
    def announce_a_price(self, minor: int, seconds: int, granularity: int) -> None:
        since = self.now + timedelta(seconds=seconds)
        later = all(each.existing_from is None or each.existing_from < since for each in self.list)
        # Two prices of one item never begin at the same time: the database refuses the second one.
        if later and all(each.valid_from < self.now for each in self.list[1:]):
            name = f"prc_l{len(self.list)}"
            made = price(name, minor, valid_from=self.now, existing_from=since, granularity_seconds=granularity)
            self.list.append(made)
            self.books.put_price(made)

    @rule(minor=st.integers(0, 10**6), minimum=st.sampled_from([0, 0, 60, 7200]))
    def set_a_contract(self, minor: int, minimum: int) -> None:
        """It holds for allocations that are launched from now on."""
        if all(each.valid_from < self.now for each in self.contract):
            values = {"tenant_id": self.books.names.tenant, "valid_from": self.now, "minimum_seconds": minimum}
            self.contract.append(price(f"prc_c{len(self.contract)}", minor, **values))
            self.books.put_price(self.contract[-1])

    # Usage ------------------------------------------------------------------------------------------------------------

    @rule()
    def attach(self) -> None:
        self.attached = self.was_attached = True

    @rule()
    def detach(self) -> None:
        self.attached = False

    @rule(
        quantities=st.lists(st.integers(0, 10**9), min_size=1, max_size=3),
        covered=st.booleans(),
        by_guest=st.booleans(),
    )
    def report_usage(self, quantities: list[int], covered: bool, by_guest: bool) -> None:
        """The owner of the instance is charged, whichever project used it."""
        names = self.books.names
        for quantity in quantities:
            name, billing = f"use_{len(self.usage):03}", Billing.COVERED if covered else Billing.CHARGED
            place = (names.tenant, names.project(OWNER), "tokens", billing.value, self.tokens)
            made = MeteredUsage(name, *place, Decimal(quantity) / 10**6, self.now, self.now, self.now)
            self.usage.append(made)
            self.books.put_usage(made, by_guest and self.was_attached)

    @precondition(lambda self: self.usage)
    @rule(data=st.data())
    def report_again_in_any_order(self, data: st.DataObject) -> None:
        for each in data.draw(st.permutations(self.usage[-5:])):
            self.books.put_usage(each, False)

    # Charging ---------------------------------------------------------------------------------------------------------

    @rule(hours=st.lists(st.integers(0, HOURS - 1), max_size=4), dies_after=st.none() | st.integers(0, 6))
    def settle(self, hours: list[int], dies_after: int | None) -> None:
        """Workers settle ended hours, in any order and again; some die in the middle."""
        for number in hours:
            if START + (number + 1) * HOUR <= self.now:
                self.books.settle(START + number * HOUR, dies_after)

    @rule()
    def close(self) -> None:
        """A worker settles and closes the hours that ended, one after the other."""
        while START + (self.closed + 1) * HOUR <= self.now:
            self.books.settle(START + self.closed * HOUR, None)
            self.closed += 1

    @rule(micro=st.integers(-(10**9), 10**9), data=st.data())
    def correct_by_hand(self, micro: int, data: st.DataObject) -> None:
        if micro:
            self.by_hand += self.books.correct(lambda count: data.draw(st.integers(0, count - 1)), micro)

    @invariant()
    def books_are_balanced(self) -> None:
        self.books.check()

    def teardown(self) -> None:
        """After everything was settled once more, the ledger shows what the oracle says, to the last micro."""
        for number in range(HOURS):
            self.books.settle(START + number * HOUR, None)
        charged = self.books.charged()
        for each in self.allocations.values():
            assert charged.get(each.id, 0) == self._oracle(each)
        assert sum(charged.get(each.id, 0) for each in self.usage) == self._oracle_of_usage()
        expected: defaultdict[str, int] = defaultdict(int)
        for mine in self.allocations.values():
            expected[mine.project_id] += self._oracle(mine)
        expected[self.books.names.project(OWNER)] += self._oracle_of_usage()
        owed = self.books.owed()
        assert sum(owed.values()) == sum(expected.values()) + self.by_hand
        if not self.by_hand:
            assert {name: micro for name, micro in owed.items() if micro} == {k: v for k, v in expected.items() if v}
        self.books.end()

    # The oracle -------------------------------------------------------------------------------------------------------

    def _oracle(self, mine: MeteredAllocation) -> int:
        """Walk through the moments at which something changes; every price counts from the start of the clock."""
        starts = [step.occurred_at for step in mine.log if step.target == "active"]
        if not starts:
            return 0
        start = starts[0]
        end = min([*(step.occurred_at for step in mine.log if step.target == "releasing"), START + HOURS * HOUR])
        total, current, since = 0, mine.price, start
        announced = [] if mine.price.tenant_id else self.list[1:]
        changes = [(each.existing_from, each) for each in announced if each.existing_from is not None]
        for at, following in [*changes, (end, current)]:
            if at <= start:
                continue
            until = min(at, end)
            if until > since:
                total += exact(current, mine.gpu_count, until - start) - exact(current, mine.gpu_count, since - start)
            current, since = following, until
        return total

    def _oracle_of_usage(self) -> int:
        units = sum((Fraction(each.quantity) for each in self.usage if each.billing == "charged"), Fraction(0))
        paid = max(Fraction(0), units - 40)
        cost = min(paid, Fraction(900)) * Fraction(7, 1000) + max(Fraction(0), paid - 900) * Fraction(5, 1000)
        return (cost * 10**6).__floor__()


def exact(of: Price, gpus: int, elapsed: timedelta) -> int:
    """The price of so much time as a fraction, rounded down once."""
    seconds = Fraction(elapsed // timedelta(microseconds=1), 10**6)
    counted = (seconds / of.granularity_seconds).__ceil__() * of.granularity_seconds
    counted = max(counted, of.minimum_seconds) if seconds else 0
    return (Fraction(of.minor, 3600) * counted * gpus * 10**6).__floor__()


def run(machine: type[ChargingMachine], runs: int) -> None:
    """Play so many runs, in parts: the memory of Hypothesis grows with each run of a part."""
    for number in range(0, runs, RUNS_AT_ONCE):
        part = min(RUNS_AT_ONCE, runs - number)
        bounds = settings(
            max_examples=part, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        )
        seeded = seed(of_soak() * 1_000 + number // RUNS_AT_ONCE)(machine) if is_soak() else machine
        run_state_machine_as_test(seeded, settings=bounds)
    assert machine.played >= runs
    print(f"played {machine.played} runs, from seed {of_soak()} on")
