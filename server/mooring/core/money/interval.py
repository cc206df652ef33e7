"""What an allocation is charged for, folded from the log of its lifecycle.

The clock runs from `active` to the request of release. Waiting, creating and teardown are free, whatever caused them,
and so is an allocation that never became active. Nothing ticks: the log alone says when the clock ran, so nothing can
be lost or counted twice. A node that does not answer changes nothing: a tenant who is root on it could cut it off, and
would go on using it.

A price that is announced for running allocations splits the interval. Each price counts from the start of the clock, so
that a minimum applies once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mooring.core.fleet.allocation import AllocationState
from mooring.core.pricing.price import Price, announced
from mooring.core.pricing.rating import MICRO, counted_seconds, part

MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class LogStep:
    """One transition of an allocation, as the log has it."""

    generation: int
    target: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Clock:
    """When an allocation was charged; `ended_at` is None while it runs."""

    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an allocation's clock with one price: the GPU-seconds that it counts and what they cost."""

    price: Price
    started_at: datetime
    ended_at: datetime
    gpu_seconds: int
    micro: int


@dataclass(frozen=True, slots=True)
class MeteredAllocation:
    """What charging needs to know about an allocation."""

    id: str
    tenant_id: str
    project_id: str
    gpu_count: int
    price: Price  # which its plan showed
    log: tuple[LogStep, ...]


def clock_of(log: Iterable[LogStep]) -> Clock | None:
    """When the clock ran; None if the allocation never was active."""
    started: datetime | None = None
    for step in sorted(log, key=lambda each: each.generation):
        if step.target == AllocationState.ACTIVE:
            started = step.occurred_at
        elif started is not None and step.target == AllocationState.RELEASING:
            return Clock(started, max(started, step.occurred_at))
    return None if started is None else Clock(started, None)


def pieces(allocation: MeteredAllocation, prices: Sequence[Price], since: datetime, until: datetime) -> list[Piece]:
    """The charged parts between two times, one for each price; `prices` are all of the allocation's SKU."""
    clock = clock_of(allocation.log)
    if clock is None:
        return []
    end = until if clock.ended_at is None else min(until, clock.ended_at)
    follows = announced(prices, allocation.price, allocation.tenant_id, clock.started_at)
    starts = [clock.started_at, *(each.existing_from for each in follows if each.existing_from is not None)]
    ends = [*starts[1:], end]
    found = []
    for price, begun, over in zip((allocation.price, *follows), starts, ends, strict=True):
        first, last = max(begun, since), min(over, end)
        if first < last:
            found.append(_piece(allocation, price, clock.started_at, first=first, last=last))
    return found


def _piece(allocation: MeteredAllocation, price: Price, start: datetime, *, first: datetime, last: datetime) -> Piece:
    before, after = (
        counted_seconds(price.terms, (at - start) // MICROSECOND) * allocation.gpu_count for at in (first, last)
    )
    micro = part(price.rate, before * MICRO, after * MICRO)
    return Piece(price, first, last, after - before, micro)
