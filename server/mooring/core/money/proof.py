"""Proof: compares what is booked with what the lifecycle log and the stored usage say.

The laws here need more than a query: they fold the log again and rate it with the one rating function. What is compared
is everything that is booked for some hours, with everything that follows from the log for the same hours. Laws that a
query can check stand beside their tables (`storage/money/law.py`).
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from mooring.core.fleet.allocation import AllocationState
from mooring.core.money.charge import HOUR, RatedLine, Source
from mooring.core.money.interval import MICROSECOND, MeteredAllocation, clock_of, pieces
from mooring.core.pricing.price import Price
from mooring.core.pricing.rating import HOUR_SECONDS, MICRO, counted_seconds, hourly_minor


class LawKey(StrEnum):
    """The laws that are checked hour by hour."""

    RERATED = "rerated"
    GPU_SECONDS = "gpu_seconds"
    NO_GAP = "no_gap"
    PLAN_PRICE = "plan_price"


SENTENCES: Final[Mapping[LawKey, str]] = {
    LawKey.RERATED: "rating the lifecycle log and the stored usage again gives every booked line, to the last micro",
    LawKey.GPU_SECONDS: "GPU-seconds of the lifecycle log = billed + free by a named rule",
    LawKey.NO_GAP: "charged intervals of an allocation have no overlap, and no gap from active to the release request",
    LawKey.PLAN_PRICE: "a full hour costs what the plan showed",
}


class Difference(StrEnum):
    """How a booked line can differ from what is due."""

    MISSING = "missing"
    WRONG_SOURCE = "wrong_source"
    WRONG_ATTRIBUTION = "wrong_attribution"
    DUPLICATE = "duplicate"
    WRONG_AMOUNT = "wrong_amount"


FREE_BY: Final[Mapping[str, str]] = {
    AllocationState.PROVISIONING: "creation",
    AllocationState.FAILED: "failed_creation",
    AllocationState.RELEASING: "teardown",
    AllocationState.RELEASE_FAILED: "teardown",
}
"""The rules by which time on slots is free, by the state of the allocation."""
ROUNDING: Final = "granularity_and_minimum"


@dataclass(frozen=True, slots=True)
class Proven:
    """How much of a law was checked, how often it was broken, and the first counterexample."""

    checked: int
    broken: int = 0
    counterexample: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProvenHours:
    """Hours that follow one another, with what the log says about them and what is booked."""

    since: datetime
    until: datetime
    allocations: Sequence[MeteredAllocation]
    prices: Mapping[str, Sequence[Price]]  # by SKU
    target: Mapping[datetime, Sequence[RatedLine]]
    booked: Mapping[datetime, Sequence[RatedLine]]


def prove_hours(hours: ProvenHours) -> dict[LawKey, Proven]:
    return {
        LawKey.RERATED: _rerated(hours),
        LawKey.GPU_SECONDS: _gpu_seconds(hours),
        LawKey.NO_GAP: _no_gap(hours),
        LawKey.PLAN_PRICE: _plan_price(hours),
    }


@dataclass(frozen=True, slots=True)
class Mismatch:
    difference: Difference
    text: str


def compare(target: Iterable[RatedLine], booked: Iterable[RatedLine]) -> list[Mismatch]:
    """Every difference between what an hour costs and what is booked for it, by class."""
    due: defaultdict[tuple[str, str], dict[str, RatedLine]] = defaultdict(dict)
    held: defaultdict[tuple[str, str], defaultdict[str, list[RatedLine]]] = defaultdict(lambda: defaultdict(list))
    for line in target:
        due[line.source, line.source_id][line.price_id or ""] = line
    for line in booked:
        held[line.source, line.source_id][line.price_id or ""].append(line)
    found: list[Mismatch] = []
    for key in sorted(due.keys() | held.keys()):
        found += _of_source(" ".join(key), due.get(key, {}), held.get(key, {}))
    return found


def _of_source(name: str, due: Mapping[str, RatedLine], held: Mapping[str, Sequence[RatedLine]]) -> Iterable[Mismatch]:
    extra = [price for price, lines in held.items() if price not in due and any(_sums(lines))]
    lacking = [price for price in due if price not in held]
    if extra and not due:
        yield Mismatch(Difference.WRONG_SOURCE, f"{name}: booked at {extra[0]}, but nothing of it was due in the hour")
        return
    for price in extra:
        if lacking:
            text = f"{name}: booked at price {price or 'none'}, due at {lacking.pop(0) or 'none'}"
            yield Mismatch(Difference.WRONG_ATTRIBUTION, text)
        else:
            yield Mismatch(Difference.DUPLICATE, f"{name}: booked at price {price or 'none'} besides the due one")
    for price in lacking:
        yield Mismatch(Difference.MISSING, f"{name}: nothing is booked at price {price or 'none'}")
    for price, line in due.items():
        if price in held:
            yield from _of_line(name, line, held[price])


def _of_line(name: str, due: RatedLine, held: Sequence[RatedLine]) -> Iterable[Mismatch]:
    for each in held:
        for column in ("tenant_id", "project_id", "currency", "unit", "billing"):
            if getattr(each, column) != getattr(due, column):
                text = f"{name}: {column} is {getattr(each, column)}, should be {getattr(due, column)}"
                yield Mismatch(Difference.WRONG_ATTRIBUTION, text)
                return
    quantity, micro, shadow = _sums(held)
    if quantity != due.quantity_micro:
        kind = Difference.DUPLICATE if quantity > due.quantity_micro else Difference.MISSING
        yield Mismatch(kind, f"{name}: {quantity} millionths of {due.unit} are booked, {due.quantity_micro} are due")
    elif (micro, shadow) != (due.micro, due.shadow_micro):
        text = f"{name}: booked {micro} (shadow {shadow}), rated {due.micro} (shadow {due.shadow_micro})"
        yield Mismatch(Difference.WRONG_AMOUNT, text)


def _sums(lines: Iterable[RatedLine]) -> tuple[int, int, int]:
    found = list(lines)
    return (
        sum(each.quantity_micro for each in found),
        sum(each.micro for each in found),
        sum(each.shadow_micro for each in found),
    )


def _rerated(hours: ProvenHours) -> Proven:
    counts: Tally[str] = Tally({each.value: 0 for each in Difference})
    first: str | None = None
    for hour in sorted(hours.target.keys() | hours.booked.keys()):
        for mismatch in compare(hours.target.get(hour, ()), hours.booked.get(hour, ())):
            counts[mismatch.difference.value] += 1
            first = first or f"{_shown(hour)} {mismatch.difference}: {mismatch.text}"
    checked = sum(len(lines) for lines in hours.target.values())
    return Proven(checked, sum(counts.values()), first, counts)


def _gpu_seconds(hours: ProvenHours) -> Proven:
    """Everything in millionths of a GPU-second; what is shown is whole seconds, rounded down."""
    billed: Tally[str] = Tally()
    for lines in hours.booked.values():
        for line in lines:
            if line.source == Source.ALLOCATION:
                billed[line.source_id] += line.quantity_micro
    totals: Tally[str] = Tally()
    broken, first = 0, None
    for each in hours.allocations:
        held = _held(each, hours.since, hours.until)
        prices = hours.prices.get(each.price.item_key, ())
        ran = pieces(each, prices, hours.since, hours.until)
        exact = sum((piece.ended_at - piece.started_at) // MICROSECOND for piece in ran) * each.gpu_count
        rounding = sum(piece.gpu_seconds for piece in ran) * MICRO - exact
        free = sum(micro for rule, micro in held.items() if rule != AllocationState.ACTIVE)
        if sum(held.values()) != billed[each.id] - rounding + free:
            broken += 1
            text = f"{each.id}: {sum(held.values())} = {billed[each.id]} billed - {rounding} rounded up + {free} free"
            first = first or f"{text} does not hold (millionths of a GPU-second)"
        totals.update({"held": sum(held.values()), "billed": billed[each.id], ROUNDING: rounding})
        totals.update({rule: micro for rule, micro in held.items() if rule != AllocationState.ACTIVE})
    counts = {name: micro // MICRO for name, micro in totals.items()}
    return Proven(counts.pop("held", 0), broken, first, counts)


def _held(allocation: MeteredAllocation, since: datetime, until: datetime) -> Tally[str]:
    """How long slots were held between two times, by the state of the allocation or by the rule that makes it free."""
    found: Tally[str] = Tally()
    steps = sorted(allocation.log, key=lambda each: each.generation)
    ends = [*(each.occurred_at for each in steps[1:]), until]
    for step, end in zip(steps, ends, strict=True):
        rule = FREE_BY.get(step.target, step.target)
        if step.target in FREE_BY or step.target == AllocationState.ACTIVE:
            length = min(end, until) - max(step.occurred_at, since)
            found[rule] += max(0, length // MICROSECOND) * allocation.gpu_count
    return found


def _no_gap(hours: ProvenHours) -> Proven:
    charged: defaultdict[str, list[_Interval]] = defaultdict(list)
    for hour, lines in hours.booked.items():
        due = {line.key for line in hours.target.get(hour, ())}
        booked: defaultdict[tuple[str, str, str], list[RatedLine]] = defaultdict(list)
        for line in lines:  # in the order of their revisions
            if line.source == Source.ALLOCATION:
                booked[line.key].append(line)
        for key, mine in booked.items():
            if key in due or any(_sums(mine)):
                of = _Interval(mine[-1].started_at, mine[-1].ended_at, mine[-1].price_id)
                charged[mine[-1].source_id].append(of)
    broken, first = 0, None
    known = {each.id: each for each in hours.allocations}
    for name in sorted(charged.keys() | known.keys()):
        text = _gap(known.get(name), sorted(charged.get(name, ())), hours)
        if text is not None:
            broken += 1
            first = first or f"{name}: {text}"
    return Proven(sum(len(each) for each in charged.values()), broken, first)


def _gap(allocation: MeteredAllocation | None, charged: Sequence["_Interval"], hours: ProvenHours) -> str | None:
    """What is wrong with the charged intervals of an allocation; None if nothing is."""
    for before, after in pairwise(charged):
        if after.started_at != before.ended_at:
            what = "overlap" if after.started_at < before.ended_at else "gap"
            return f"{what} between {_shown(before.ended_at)} and {_shown(after.started_at)}"
    clock = None if allocation is None else clock_of(allocation.log)
    if allocation is None or clock is None:
        return "charged, but it was never active" if charged else None
    start, end = max(clock.started_at, hours.since), min(clock.ended_at or hours.until, hours.until)
    if start >= end:
        return f"charged after its release at {_shown(end)}" if charged else None
    if not charged:
        return f"it ran from {_shown(start)} to {_shown(end)}, and nothing is charged"
    if charged[0].started_at != start:
        return f"charged from {_shown(charged[0].started_at)}, active from {_shown(start)}"
    # A release that came late into the log corrects what is counted: an end inside of the same step of the price, or
    # of its minimum, counts the same and stays.
    last = charged[-1]
    priced = [allocation.price, *hours.prices.get(allocation.price.item_key, ())]
    terms = next((each.terms for each in priced if each.id == last.price_id), allocation.price.terms)
    counted = [counted_seconds(terms, (at - clock.started_at) // MICROSECOND) for at in (last.ended_at, end)]
    if counted[0] != counted[1]:
        return f"charged to {_shown(last.ended_at)}, ran to {_shown(end)}"
    return None


class _Interval(NamedTuple):
    """A charged interval of an allocation, by the last line that was booked for it."""

    started_at: datetime
    ended_at: datetime
    price_id: str | None


def _plan_price(hours: ProvenHours) -> Proven:
    known = {each.id: each for each in hours.allocations}
    checked, broken, first = 0, 0, None
    for hour, lines in hours.booked.items():
        sums: Tally[str] = Tally()
        spent: Tally[str] = Tally()
        for line in lines:
            mine = known.get(line.source_id)
            if line.source == Source.ALLOCATION and mine is not None and line.price_id == mine.price.id:
                sums[mine.id] += line.quantity_micro
                spent[mine.id] += line.micro
        for name, quantity in sums.items():
            mine = known[name]
            if quantity != mine.gpu_count * HOUR_SECONDS * MICRO:
                continue
            checked += 1
            shown = hourly_minor(mine.price.minor, mine.gpu_count) * MICRO
            if spent[name] != shown:
                broken += 1
                first = first or f"{name}: the hour {_shown(hour)} cost {spent[name]}, its plan showed {shown}"
    return Proven(checked, broken, first)


def hours_between(since: datetime, until: datetime) -> list[datetime]:
    """The whole hours of a period."""
    return [since + number * HOUR for number in range((until - since) // HOUR)]


def _shown(at: datetime) -> str:
    return at.isoformat()
