"""Charging against an oracle: whatever happens, and however often hours are settled, the price is exact."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from mooring.commands.money.charge import bookings_of
from mooring.core.kernel.decision import Decision, Insert
from mooring.core.kernel.errors import Refusal
from mooring.core.money.charge import (
    HOUR,
    Counter,
    MeteredUsage,
    PostingKey,
    RatedLine,
    Source,
    due_lines,
    quantity_micro,
    target_lines,
)
from mooring.core.money.correction import Correctable, CorrectionSpec, correct
from mooring.core.money.interval import LogStep, MeteredAllocation
from mooring.core.money.ledger import BookedCharge, BookedHour, book
from mooring.core.money.proof import LawKey, ProvenHours, prove_hours
from mooring.core.pricing.price import Item, Price
from server.tests.support.charging_machine import HOURS, Books, ChargingMachine, run
from server.tests.support.decision_context import context
from server.tests.support.money_rows import START, log, price
from server.tests.support.postgres import SOAK
from tools.gates import ENVIRONMENT, SYSTEM

IS_SYSTEM = os.environ.get(ENVIRONMENT) == SYSTEM
RUNS = 50_000 if SOAK else 2_000 if IS_SYSTEM else 200
LINE = tuple(name for name in RatedLine.__slots__ if not name.endswith("micro"))


class BooksInMemory(Books):
    """Rows as the database would have them, with its unique keys."""

    def __init__(self) -> None:
        self.prices: dict[str, Price] = {}
        self.allocations: dict[str, MeteredAllocation] = {}
        self.usage: dict[str, MeteredUsage] = {}
        self.transactions: dict[str, dict[str, Any]] = {}
        self.entries: list[dict[str, Any]] = []
        self.rated: list[dict[str, Any]] = []
        self.keys: set[tuple[object, ...]] = set()
        self.context = context()

    def put_price(self, made: Price) -> None:
        self.prices[made.id] = made

    def put_allocation(self, mine: MeteredAllocation) -> None:
        self.allocations[mine.id] = mine

    def put_usage(self, made: MeteredUsage, attached: bool) -> None:
        self.usage.setdefault(made.id, made)

    def target(self, hour: datetime) -> list[RatedLine]:
        of_sku = [each for each in self.prices.values() if each.item == Item.SKU]
        within = [each for each in self.usage.values() if hour <= each.created_at < hour + HOUR]
        before: defaultdict[Counter, int] = defaultdict(int)
        for each in self.usage.values():
            if each.created_at < hour and each.billing == "charged" and each.price is not None:
                before[Counter(each.project_id, each.price.id)] += quantity_micro(each.quantity)
        return target_lines(hour, self.allocations.values(), {"sku_1": of_sku}, within, before)

    def lines(self, hour: datetime) -> list[RatedLine]:
        found = [each for each in self.rated if each["hour"] == hour and each["source"] != Source.CORRECTION]
        amounts = ("quantity", "amount", "shadow_amount")
        return [RatedLine(*(each[name] for name in LINE), *(each[name] for name in amounts)) for each in found]

    def booked(self, hour: datetime) -> BookedHour:
        charges: dict[PostingKey, BookedCharge] = {}
        for each in self.transactions.values():
            if each["hour"] != hour:
                continue
            key = PostingKey(each["tenant_id"], each["project_id"], each["price_id"], each["currency"])
            before = charges.get(key, BookedCharge(each["id"], -1))
            charges[key] = replace(before, corrections=before.corrections + 1)
        return BookedHour(self.lines(hour), charges)

    def settle(self, hour: datetime, dies_after: int | None) -> None:
        due = due_lines(self.target(hour), self.lines(hour))
        for number, booking in enumerate(bookings_of(due)):
            if number == dies_after:
                return
            self.apply(book(self.context, hour, self.booked(hour), booking))
        assert due_lines(self.target(hour), self.lines(hour)) == []

    def apply(self, decision: Decision[Any]) -> None:
        for write in decision.writes:
            assert isinstance(write, Insert)
            row = dict(write.row)
            if write.noun == "ledger_transaction":
                key: tuple[object, ...] = (row["project_id"], row["price_id"], row["hour"], row["revision"])
                self.transactions[str(row["id"])] = row
            elif write.noun == "rated_usage":
                key = (row["source"], row["source_id"], row["hour"], row["price_id"], row["revision"], "line")
                self.rated.append(row)
            else:
                key = (row["transaction_id"], row["line"])
                self.entries.append(row)
            assert key not in self.keys
            self.keys.add(key)

    def correct(self, choose: Callable[[int], int], micro: int) -> int:
        if not self.transactions:
            return 0
        chosen = list(self.transactions.values())[choose(len(self.transactions))]
        columns = ("project_id", "price_id", "hour")
        same = [each for each in self.transactions.values() if all(each[name] == chosen[name] for name in columns)]
        ids = {each["id"] for each in same}
        owed = sum(e["amount"] for e in self.entries if e["transaction_id"] in ids and e["account"] == "receivable")
        names = ("id", "tenant_id", "project_id", "hour", "price_id", "currency")
        values = {name: chosen[name] for name in names}
        booked = Correctable(**values, corrections=len(same) - 1, owed_micro=owed)
        try:
            self.apply(correct(self.context, CorrectionSpec(booked.id, micro, "somebody asked for it"), booked))
        except Refusal:
            return 0
        return micro

    def charged(self) -> Mapping[str, int]:
        found: defaultdict[str, int] = defaultdict(int)
        for each in self.rated:
            found[each["source_id"]] += each["amount"]
        return found

    def owed(self) -> Mapping[str, int]:
        found: defaultdict[str, int] = defaultdict(int)
        for each in self.entries:
            found[each["project_id"]] += each["amount"] if each["account"] == "receivable" else 0
        return found

    def check(self) -> None:
        sums: defaultdict[str, int] = defaultdict(int)
        for each in self.entries:
            sums[each["transaction_id"]] += each["amount"]
        assert set(sums) == set(self.transactions)
        assert not any(sums.values())

    def end(self) -> None:
        """A proof finds nothing."""
        hours = [START + number * HOUR for number in range(HOURS)]
        of_sku = {"sku_1": [each for each in self.prices.values() if each.item == Item.SKU]}
        targets, booked = ({hour: read(hour) for hour in hours} for read in (self.target, self.lines))
        proven = ProvenHours(START, START + HOURS * HOUR, list(self.allocations.values()), of_sku, targets, booked)
        assert [each.counterexample for each in prove_hours(proven).values() if each.broken] == []


class ChargingInMemory(ChargingMachine):
    open_books = BooksInMemory


def test_the_ledger_shows_the_exact_price_whatever_happens() -> None:
    run(ChargingInMemory, RUNS)


def test_a_late_release_inside_of_the_minimum_of_a_contract_changes_nothing_that_is_counted() -> None:
    contract = price("prc_c", 0, tenant_id="ten_a", minimum_seconds=7200)
    steps = log(("requested", 0), ("provisioning", 0), ("active", 0))
    before = MeteredAllocation("alc_1", "ten_a", "prj_a", 1, contract, steps)
    after = replace(before, log=(*steps, LogStep(3, "releasing", START + timedelta(seconds=3599))))
    booked = target_lines(START, [before], {}, [], {})
    target = target_lines(START, [after], {}, [], {})
    assert due_lines(target, booked) == []
    hours = ProvenHours(START, START + HOUR, [after], {}, {START: target}, {START: booked})
    assert [each.counterexample for each in prove_hours(hours).values() if each.broken] == []
    short = replace(contract, minimum_seconds=0)
    unpaid = ProvenHours(START, START + HOUR, [replace(after, price=short)], {}, {START: target}, {START: booked})
    assert prove_hours(unpaid)[LawKey.NO_GAP].broken == 1


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
