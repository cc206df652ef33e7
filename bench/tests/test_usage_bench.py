"""The bench of usage sends each event once, with what the API takes."""

import itertools

import msgspec

from bench.usage import INSTANCE, _bodies
from mooring.api.schemas.money.meter_event import UsageEvent


def test_bodies_are_batches_of_new_events() -> None:
    numbers = itertools.count(1)
    lines = [line for body in _bodies(numbers, 2, 3) for line in body.splitlines()]
    events = [msgspec.json.decode(line, type=UsageEvent) for line in lines]
    assert [each.id for each in events] == [f"e{number}" for number in range(1, 7)]
    assert {each.subject for each in events} == {INSTANCE}
